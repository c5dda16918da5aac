//! Root file systems from tarballs and OCI images: layers, unpacking, overlays.
#![forbid(unsafe_code)]
