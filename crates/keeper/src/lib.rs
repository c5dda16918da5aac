//! The process that holds parked descriptors while the worker restarts.
#![forbid(unsafe_code)]
