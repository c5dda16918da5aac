//! The image format: states as data, pages, checksums, versions; pure.
#![forbid(unsafe_code)]
