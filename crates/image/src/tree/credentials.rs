//! Who a thread is and what it may do.

use serde::{Deserialize, Serialize};

use super::frugal;

/// Ids and capabilities, as the thread's own user namespace sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// User ids: real, effective, saved, file system.
    pub users: [u32; 4],
    /// Group ids: real, effective, saved, file system.
    pub groups: [u32; 4],
    /// Supplementary groups.
    #[serde(deserialize_with = "frugal::list")]
    pub supplementary: Vec<u32>,
    /// Capabilities: inheritable, permitted, effective, bounding, ambient.
    pub capabilities: [u64; 5],
    /// `PR_SET_SECUREBITS`.
    pub securebits: u32,
}

/// A seccomp filter (`SECCOMP_SET_MODE_FILTER`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeccompFilter {
    /// `SECCOMP_FILTER_FLAG_*`.
    pub flags: u32,
    /// Classic BPF: code, jt, jf and k packed as the kernel has them, 8 bytes each.
    #[serde(deserialize_with = "frugal::list")]
    pub instructions: Vec<u64>,
}
