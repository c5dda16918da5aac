//! Project quotas: directories that count together, and a limit on what they take (`quotactl(2)`, `ioctl_fsgetxattr(2)`).

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// x86-64's and everybody's number, since Linux 5.14.
const SYS_QUOTACTL_FD: libc::c_long = 443;
/// `_IOR('X', 31, struct fsxattr)`, `_IOW('X', 32, struct fsxattr)`.
const GET_ATTRIBUTES: libc::c_ulong = 0x801c_581f;
const SET_ATTRIBUTES: libc::c_ulong = 0x401c_5820;
/// `FS_XFLAG_PROJINHERIT`: what is made in a directory is of its project.
const INHERIT: u32 = 0x200;
/// `PRJQUOTA`.
const PROJECTS: u32 = 2;
/// `Q_GETQUOTA`, `Q_SETQUOTA`, `Q_XGETQSTATV`.
const GET: u32 = 0x80_0007;
const SET: u32 = 0x80_0008;
const STATE: u32 = 0x5808;
/// `QIF_BLIMITS`.
const LIMITS: u32 = 1;
/// Bytes of a unit of limits.
const UNIT_BYTES: u64 = 1024;
/// `FS_QUOTA_PDQ_ENFD`.
const ENFORCED: u16 = 1 << 5;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Attributes {
    flags: u32,
    extent_bytes: u32,
    extents: u32,
    project: u32,
    copy_extent_bytes: u32,
    padding: [u8; 8],
}
const _: () = assert!(size_of::<Attributes>() == 28);

/// `struct if_dqblk`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Quota {
    hard_limit: u64,
    soft_limit: u64,
    bytes: u64,
    inode_hard_limit: u64,
    inode_soft_limit: u64,
    inodes: u64,
    block_time: u64,
    inode_time: u64,
    valid: u32,
}

/// `struct fs_quota_statv`, with room for more.
#[repr(C, align(8))]
struct State([u8; 256]);

fn attributes(file: impl AsFd) -> io::Result<Attributes> {
    let mut found = Attributes::default();
    // SAFETY: the kernel writes one `struct fsxattr`.
    let answer = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), GET_ATTRIBUTES, &raw mut found) };
    if answer == 0 { Ok(found) } else { Err(io::Error::last_os_error()) }
}

/// The project that a file or directory counts to; 0: none.
///
/// # Errors
/// `ENOTTY` or `EOPNOTSUPP` where the file system knows no projects.
pub fn project(file: impl AsFd) -> io::Result<u32> {
    attributes(file).map(|found| found.project)
}

/// Makes a file or directory count to a project, and with `inherit`, which is for directories, whatever is made in it.
///
/// # Errors
/// As [`project`].
pub fn set_project(file: impl AsFd, project: u32, inherit: bool) -> io::Result<()> {
    let mut wanted = attributes(&file)?;
    wanted.project = project;
    wanted.flags = if inherit { wanted.flags | INHERIT } else { wanted.flags };
    // SAFETY: the kernel reads one `struct fsxattr`.
    let answer = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), SET_ATTRIBUTES, &raw const wanted) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `argument` is what the command reads or writes.
fn control<T>(file: impl AsFd, command: u32, project: u32, argument: &mut T) -> io::Result<()> {
    let command = (command << 8) | PROJECTS;
    let file = file.as_fd().as_raw_fd();
    // SAFETY: `argument` is a structure of the command's, as large as the kernel has it or larger, and may be written.
    let answer = unsafe { libc::syscall(SYS_QUOTACTL_FD, file, command, project, &raw mut *argument) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Limits of projects are enforced on the file system of this file.
pub fn is_enforced(file: impl AsFd) -> bool {
    let mut state = State([0; 256]);
    // `FS_QSTATV_VERSION1`.
    state.0[0] = 1;
    control(file, STATE, 0, &mut state).is_ok() && u16::from_ne_bytes([state.0[2], state.0[3]]) & ENFORCED != 0
}

/// What a project takes on the file system of this file, bytes.
///
/// # Errors
/// Where the file system has no project quotas.
pub fn taken_bytes(file: impl AsFd, project: u32) -> io::Result<u64> {
    let mut found = Quota::default();
    control(file, GET, project, &mut found).map(|()| found.bytes)
}

/// Limits what a project may take, in bytes, rounded up to 1,024; 0: no limit. Processes with `CAP_SYS_RESOURCE` are not
/// held to it; overlay file systems write without it.
///
/// # Errors
/// As [`taken_bytes`].
pub fn set_limit(file: impl AsFd, project: u32, bytes: u64) -> io::Result<()> {
    let limit = bytes.div_ceil(UNIT_BYTES);
    let mut wanted = Quota { hard_limit: limit, soft_limit: 0, valid: LIMITS, ..Quota::default() };
    control(file, SET, project, &mut wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_are_no_quotas_none_is_enforced() {
        let proc = std::fs::File::open("/proc/self").unwrap();
        assert!(!is_enforced(&proc) && taken_bytes(&proc, 1).is_err() && set_limit(&proc, 1, 1).is_err());
        assert!(project(&proc).is_err() && set_project(&proc, 1, true).is_err());
    }
}
