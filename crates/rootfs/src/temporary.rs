//! Temporary directories of the store, which a crash may leave and the next start removes.
//!
//! Each is locked (`flock`) by the process that works in it, so that a second process that opens the store does not take
//! it away. The lock on their parent covers the moment between making a directory and locking it.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, fchmod, flock, fstat, openat};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::error::Error;

/// A directory that goes away when this is dropped.
pub(crate) struct Temporary {
    directory: TempDir,
    /// Held for its lock.
    _lock: File,
}

impl Temporary {
    /// Makes one in `parent`.
    pub(crate) fn new(parent: &Path) -> Result<Self, Error> {
        let gate = open_directory(parent)?;
        flock(&gate, FlockOperation::LockShared).map_err(Error::errno("lock", parent))?;
        let directory = tempfile::Builder::new().prefix("t-").tempdir_in(parent);
        let directory = directory.map_err(Error::io("make a temporary directory in", parent))?;
        let lock = open_directory(directory.path())?;
        let locked = flock(&lock, FlockOperation::NonBlockingLockExclusive);
        locked.map_err(Error::errno("lock", directory.path()))?;
        Ok(Self { directory, _lock: lock })
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Removes the directories that earlier processes left in `parent`; returns how many. What is no directory is nobody's leftover and stays.
pub(crate) fn clean(parent: &Path) -> Result<usize, Error> {
    let gate = open_directory(parent)?;
    flock(&gate, FlockOperation::LockExclusive).map_err(Error::errno("lock", parent))?;
    let mut removed = 0;
    for entry in std::fs::read_dir(parent).map_err(Error::io("read", parent))? {
        let entry = entry.map_err(Error::io("read", parent))?;
        let path = entry.path();
        if !entry.file_type().map_err(Error::io("look at", &path))?.is_dir() {
            tracing::warn!(path = %path.display(), "no directory, so it is no temporary of the store; it stays");
            continue;
        }
        let lock = open_directory(&path)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            // Somebody works in it.
            Err(Errno::WOULDBLOCK) => continue,
            locked => locked.map_err(Error::errno("lock", &path))?,
        }
        crate::remove_tree(&path).map_err(Error::io("remove", &path))?;
        removed += 1;
    }
    Ok(removed)
}

/// Gives a directory mode 0700. It must be our own, and no symbolic link.
pub(crate) fn close_directory(path: &Path) -> Result<(), Error> {
    let directory = open_directory(path)?;
    let found = fstat(&directory).map_err(Error::errno("look at", path))?;
    if found.st_uid != rustix::process::geteuid().as_raw() {
        let why = format!("it belongs to user {}", found.st_uid);
        return Err(Error::io("use", path)(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why)));
    }
    fchmod(&directory, Mode::RWXU).map_err(Error::errno("restrict", path))
}

pub(crate) fn open_directory(path: &Path) -> Result<File, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).map(File::from).map_err(Error::errno("open", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_directory_stays() {
        let parent = tempfile::tempdir().unwrap();
        let path = |name: &str| parent.path().join(name);
        std::fs::create_dir_all(path("t-1/inner")).unwrap();
        std::fs::write(path("precious"), "x").unwrap();
        std::os::unix::fs::symlink("/nonexistent", path("link")).unwrap();
        assert_eq!(clean(parent.path()).unwrap(), 1);
        assert!(path("precious").is_file() && path("link").is_symlink() && !path("t-1").exists());
    }
}
