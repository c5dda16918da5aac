//! Real programs, test hosts in network namespaces, fault points.
#![forbid(unsafe_code)]
