//! Capture and restore of a process tree.
#![forbid(unsafe_code)]
