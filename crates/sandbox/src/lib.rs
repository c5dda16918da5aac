//! Namespaces, cgroups, root file system and seccomp of one app.
#![forbid(unsafe_code)]
