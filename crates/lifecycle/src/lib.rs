//! The app's state machine and policies: pure, no clock, no I/O.
#![forbid(unsafe_code)]
