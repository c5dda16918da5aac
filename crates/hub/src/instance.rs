//! One daemon for one data directory: a lock on `data_dir/torpor.lock`.
//!
//! The kernel drops the lock with the process, however it ends; the file stays and holds the last owner's process id.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::error::HubError;

/// The lock; it ends with this value.
#[derive(Debug)]
pub(crate) struct InstanceLock(#[expect(dead_code, reason = "held for its lock")] File);

impl InstanceLock {
    /// Takes the lock of a data directory, made with mode 0700 if it is not there.
    pub(crate) fn take(data_dir: &Path) -> Result<Self, HubError> {
        private_dir(data_dir)?;
        let path = data_dir.join("torpor.lock");
        let failed = |source| HubError::Prepare { path: path.clone(), source };
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).clone();
        let mut file = options.open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                file.take(32).read_to_string(&mut holder).map_err(failed)?;
                return Err(HubError::AlreadyRunning { path: data_dir.to_owned(), holder: holder.trim().to_owned() });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        write_pid(&mut file).map_err(failed)?;
        Ok(Self(file))
    }
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

/// Makes a directory with mode 0700 if it is not there. One that is there must be ours, and nobody else may be able to replace
/// what lies in it.
pub(crate) fn private_dir(path: &Path) -> Result<(), HubError> {
    let failed = |source| HubError::Prepare { path: path.to_owned(), source };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let found = path.metadata().map_err(failed)?;
    const STICKY: u32 = 0o1000;
    const WRITTEN_BY_OTHERS: u32 = 0o022;
    // Whom this process's own files belong to.
    let own = Path::new("/proc/self").metadata().map_err(failed)?.uid();
    let why = if found.uid() != own {
        format!("it belongs to user {}", found.uid())
    } else if found.mode() & WRITTEN_BY_OTHERS != 0 && found.mode() & STICKY == 0 {
        format!("others may write in it (its mode is {:o})", found.mode() & 0o7777)
    } else {
        return Ok(());
    };
    Err(failed(io::Error::new(io::ErrorKind::PermissionDenied, why)))
}
