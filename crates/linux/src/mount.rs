//! The mount call that rustix lacks: `mount_setattr(2)`, for attributes, propagation and id mappings of a mount that is
//! known by a descriptor (from `open_tree(2)` or `fsmount(2)`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// What to change of a mount. Nothing by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct MountChange<'fd> {
    /// No writing (`MOUNT_ATTR_RDONLY`).
    pub read_only: bool,
    /// Set-user-id bits and file capabilities do nothing (`MOUNT_ATTR_NOSUID`).
    pub no_suid: bool,
    /// Device nodes do nothing (`MOUNT_ATTR_NODEV`).
    pub no_devices: bool,
    /// Nothing can be executed (`MOUNT_ATTR_NOEXEC`).
    pub no_exec: bool,
    /// No propagation to or from other mounts (`MS_PRIVATE`).
    pub private: bool,
    /// Files of id N on disk belong to what id N of this user namespace is outside (`MOUNT_ATTR_IDMAP`).
    pub ids: Option<BorrowedFd<'fd>>,
    /// Everything mounted below, too (`AT_RECURSIVE`).
    pub recursive: bool,
}

/// Changes the mount whose root `mount` is (`mount_setattr(2)`).
///
/// # Errors
/// `EINVAL` where the file system does not allow id mappings (or `mount` is no mount's root), `EPERM` without
/// CAP_SYS_ADMIN over the file system.
pub fn change_mount(mount: impl AsFd, change: MountChange<'_>) -> io::Result<()> {
    let mut set = 0;
    for (wanted, flag) in [
        (change.read_only, libc::MOUNT_ATTR_RDONLY),
        (change.no_suid, libc::MOUNT_ATTR_NOSUID),
        (change.no_devices, libc::MOUNT_ATTR_NODEV),
        (change.no_exec, libc::MOUNT_ATTR_NOEXEC),
        (change.ids.is_some(), libc::MOUNT_ATTR_IDMAP),
    ] {
        if wanted {
            set |= flag;
        }
    }
    let attributes = libc::mount_attr {
        attr_set: set,
        attr_clr: 0,
        propagation: if change.private { libc::MS_PRIVATE } else { 0 },
        userns_fd: change.ids.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    let flags = libc::AT_EMPTY_PATH | if change.recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a C string, `attributes` is a mount_attr of the size given and outlives the call; the
    // descriptors are borrowed for its duration.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
