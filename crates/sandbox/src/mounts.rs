//! Making mounts by descriptor: file systems, clones of what is mounted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_string,
    fsmount, fsopen, move_mount, open_tree,
};
use torpor_linux::mount::{MountChange, change_mount};

use crate::error::{Doing, SetupError};

/// Longest explanation taken from the kernel, in bytes.
const LOG_BYTES: usize = 512;

/// No set-user-id, no devices, no execution: for file systems that hold the kernel's files.
pub(crate) const PLAIN: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV).union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// A new file system, mounted nowhere yet.
pub(crate) fn new_file_system(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, SetupError> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).doing(|| format!("opening file system type {kind}"))?;
    for (key, value) in [("source", kind)].iter().chain(options) {
        let set = fsconfig_set_string(context.as_fd(), *key, *value);
        set.map_err(|error| explain(&context, error, format!("setting {key}={value} of {kind}")))?;
    }
    let made = fsconfig_create(context.as_fd());
    made.map_err(|error| explain(&context, error, format!("making a file system of type {kind}")))?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).doing(|| format!("mounting {kind}"))
}

/// Adds what the kernel has logged in the file system's context.
fn explain(context: &OwnedFd, error: Errno, doing: String) -> SetupError {
    let mut buffer = [0; LOG_BYTES];
    let errno = error.raw_os_error();
    match rustix::io::read(context, &mut buffer) {
        Ok(length) if length > 0 => {
            let log = String::from_utf8_lossy(&buffer[..length]).trim().to_owned();
            SetupError::Kernel { doing, errno, log }
        }
        _ => SetupError::System { doing, errno },
    }
}

/// A second mount of what is at `path` below `base`, mounted nowhere yet, without propagation.
pub(crate) fn clone_mount(base: BorrowedFd<'_>, path: &Path, recursive: bool) -> Result<OwnedFd, SetupError> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    flags.set(OpenTreeFlags::AT_RECURSIVE, recursive);
    flags.set(OpenTreeFlags::AT_EMPTY_PATH, path.as_os_str().is_empty());
    let clone = open_tree(base, path, flags).doing(|| format!("opening {}", path.display()))?;
    let private = MountChange { private: true, recursive, ..MountChange::default() };
    change_mount(&clone, private).doing(|| format!("making the mount of {} private", path.display()))?;
    Ok(clone)
}

/// The same of a path of the machine.
pub(crate) fn clone_host(path: &Path, recursive: bool) -> Result<OwnedFd, SetupError> {
    clone_mount(CWD, path, recursive)
}

/// Shows a clone's files with the owners that they have inside the user namespace `ids`.
pub(crate) fn map_ids(mount: &OwnedFd, ids: BorrowedFd<'_>, recursive: bool, path: &Path) -> Result<(), SetupError> {
    let change = MountChange { ids: Some(ids), recursive, ..MountChange::default() };
    change_mount(mount, change).map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL | libc::EPERM) => SetupError::NoIdMapping { path: path.display().to_string() },
        errno => SetupError::System {
            doing: format!("mapping the ids of {}", path.display()),
            errno: errno.unwrap_or(libc::EIO),
        },
    })
}

/// Puts a mount where `target`, a descriptor, is.
pub(crate) fn attach(mount: &OwnedFd, target: BorrowedFd<'_>, what: &str) -> Result<(), SetupError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", flags).doing(|| format!("mounting {what}"))
}
