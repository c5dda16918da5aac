//! The status file of a sandbox: what its init and the worker tell each other.
//!
//! ```text
//! 0        4        8    9
//! │ status │ told?  │mark│
//! ```
//!
//! Init writes the first eight bytes, once, just before it exits: the wait status of the initial process, and 1. The
//! worker writes the mark: while it is not 0, the processes are put away on purpose, and init does not take the end of
//! the initial one for the app's. The file belongs to the machine's root and is outside of the sandbox; its lock lives as
//! long as any process that has inherited its descriptor: the set-up process, then init. Inits of before the mark wrote a
//! status of four bytes and nothing else.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::error::{SandboxError, While};
use crate::process::ExitStatus;

/// Where the mark is.
const MARK_OFFSET: u64 = 8;
/// For opening to write: a FIFO in its place is an error, not a wait for its reader.
const NOT_WAITING: i32 = OFlags::NONBLOCK.bits().cast_signed();
/// How long killed processes may take to end.
const END_DEADLINE: Duration = Duration::from_secs(10);
/// Pause between looks at a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(1);

pub(crate) fn path(run_dir: &Path) -> PathBuf {
    run_dir.join("status")
}

/// Makes the file, empty, and locks it; `InUse` if another sandbox of that id lives.
pub(crate) fn take(run_dir: &Path, id: &str) -> Result<File, SandboxError> {
    let path = path(run_dir);
    let file = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.whilst(|| format!("making {}", path.display()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(SandboxError::InUse { id: id.to_owned() }),
        other => other.whilst(|| format!("locking {}", path.display()))?,
    }
    file.set_len(0).whilst(|| format!("emptying {}", path.display()))?;
    Ok(file)
}

/// Waits until no process holds the file any more: the last one of the sandbox has ended.
pub(crate) fn wait_for_last(run_dir: &Path, id: &str) -> Result<(), SandboxError> {
    let path = path(run_dir);
    let file = match torpor_linux::regular::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.whilst(|| format!("opening {}", path.display()))?,
    };
    let started = Instant::now();
    // There is no event for a lock that also knows a deadline.
    while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK {
            return Err(error).whilst(|| format!("locking {}", path.display()));
        }
        if started.elapsed() > END_DEADLINE {
            let held = format!("one of them holds {}", path.display());
            return Err(SandboxError::StillThere { id: id.to_owned(), after: END_DEADLINE, held });
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    Ok(())
}

/// Puts the mark, or takes it away.
pub(crate) fn mark(run_dir: &Path, put_away: bool) -> Result<(), SandboxError> {
    let path = path(run_dir);
    File::options()
        .write(true)
        .custom_flags(NOT_WAITING)
        .open(&path)
        .and_then(|file| file.write_all_at(&[u8::from(put_away)], MARK_OFFSET))
        .whilst(|| format!("marking {}", path.display()))
}

/// Whether the mark is there.
pub(crate) fn is_marked(run_dir: &Path) -> Result<bool, SandboxError> {
    Ok(matches!(read(run_dir)?.as_slice(), [_, _, _, _, _, _, _, _, mark, ..] if *mark != 0))
}

/// How the initial process ended; `Unknown` if nobody has told.
pub(crate) fn exit_status(run_dir: &Path) -> Result<ExitStatus, SandboxError> {
    Ok(told(&read(run_dir)?).map_or(ExitStatus::Unknown, ExitStatus::from_wait))
}

/// Tells of an initial process that was killed, unless init has told how it ended.
pub(crate) fn tell_killed(run_dir: &Path) -> Result<(), SandboxError> {
    if told(&read(run_dir)?).is_some() {
        return Ok(());
    }
    let path = path(run_dir);
    let mut note = [0; 8];
    note[..4].copy_from_slice(&libc::SIGKILL.to_ne_bytes());
    note[4..].copy_from_slice(&1_u32.to_ne_bytes());
    let file = File::options().write(true).custom_flags(NOT_WAITING).open(&path);
    file.and_then(|file| file.write_all_at(&note, 0)).whilst(|| format!("writing to {}", path.display()))
}

fn told(content: &[u8]) -> Option<i32> {
    let number = |bytes: &[u8]| bytes.try_into().map(i32::from_ne_bytes).ok();
    match content.len() {
        4 => number(content),
        8.. if number(&content[4..8]) != Some(0) => number(&content[..4]),
        _ => None,
    }
}

/// Status and mark; nothing where the file is gone.
fn read(run_dir: &Path) -> Result<Vec<u8>, SandboxError> {
    let path = path(run_dir);
    let mut content = [0; MARK_OFFSET as usize + 1];
    let file = match torpor_linux::regular::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.whilst(|| format!("opening {}", path.display()))?,
    };
    // The kernel reads and writes so few bytes in one go.
    let length = file.read_at(&mut content, 0).whilst(|| format!("reading {}", path.display()))?;
    Ok(content[..length].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_mark_do_not_touch_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let run = directory.path();
        assert_eq!((exit_status(run).unwrap(), is_marked(run).unwrap()), (ExitStatus::Unknown, false));
        let file = take(run, "app").unwrap();
        assert!(matches!(take(run, "app"), Err(SandboxError::InUse { .. })));
        assert_eq!((exit_status(run).unwrap(), is_marked(run).unwrap()), (ExitStatus::Unknown, false));
        mark(run, true).unwrap();
        assert_eq!((exit_status(run).unwrap(), is_marked(run).unwrap()), (ExitStatus::Unknown, true));
        mark(run, false).unwrap();
        assert_eq!((exit_status(run).unwrap(), is_marked(run).unwrap()), (ExitStatus::Unknown, false));
        tell_killed(run).unwrap();
        assert_eq!(exit_status(run).unwrap(), ExitStatus::Signaled(9));
        drop(file);
        let file = take(run, "app").unwrap();
        file.write_all_at(&[0, 7, 0, 0, 1, 0, 0, 0], 0).unwrap();
        tell_killed(run).unwrap();
        mark(run, true).unwrap();
        assert_eq!((exit_status(run).unwrap(), is_marked(run).unwrap()), (ExitStatus::Exited(7), true));
        // An init of before the mark.
        file.set_len(4).unwrap();
        assert_eq!((exit_status(run).unwrap(), is_marked(run).unwrap()), (ExitStatus::Exited(7), false));
    }
}
