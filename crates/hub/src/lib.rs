//! The control plane: names, state, API.
#![forbid(unsafe_code)]
