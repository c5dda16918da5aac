//! Drives each app of one machine through its levels.
#![forbid(unsafe_code)]
