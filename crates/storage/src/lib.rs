//! Where images of sleeping apps live.
#![forbid(unsafe_code)]
