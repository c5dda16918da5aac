//! State of an app's namespaces that is in no open file: System V objects and names, and memory file systems.

pub mod ipc;
pub mod tmpfs;
