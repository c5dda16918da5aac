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
//!
//! Init has the file open as its standard input. Where its name is gone, the worker reaches it there ([`StatusFile`]) as long as init
//! lives: otherwise a warm app could not be adopted, and the end of one that wakes would not be noticed.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::error::{SandboxError, While};
use crate::process::{ExitStatus, first_readable};

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

/// Where the status file of a sandbox is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatusFile<'a> {
    pub(crate) run_dir: &'a Path,
    /// The pid and process descriptor of an init that has the file open.
    pub(crate) init: Option<(i32, BorrowedFd<'a>)>,
}

impl StatusFile<'_> {
    /// Opens it under its name or, where that is gone, at init. The error is that of its name.
    fn open(self, open: impl Fn(&Path) -> io::Result<File>) -> io::Result<File> {
        match open(&path(self.run_dir)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let Some((pid, init)) = self.init else { return Err(error) };
                let Ok(file) = open(Path::new(&format!("/proc/{pid}/fd/0"))) else { return Err(error) };
                // Only while it lives is the pid its own, and the file ours.
                if first_readable(&[init], Some(Duration::ZERO))?.is_some() { Err(error) } else { Ok(file) }
            }
            opened => opened,
        }
    }

    fn write(self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let file = self.open(|path| File::options().write(true).custom_flags(NOT_WAITING).open(path))?;
        file.write_all_at(bytes, offset)
    }

    /// Puts the mark, or takes it away.
    pub(crate) fn mark(self, put_away: bool) -> Result<(), SandboxError> {
        self.write(&[u8::from(put_away)], MARK_OFFSET).whilst(|| format!("marking {}", path(self.run_dir).display()))
    }

    /// Whether the mark is there.
    pub(crate) fn is_marked(self) -> Result<bool, SandboxError> {
        Ok(matches!(self.read()?.as_slice(), [_, _, _, _, _, _, _, _, mark, ..] if *mark != 0))
    }

    /// How the initial process ended; `Unknown` if nobody has told.
    pub(crate) fn exit_status(self) -> Result<ExitStatus, SandboxError> {
        Ok(told(&self.read()?).map_or(ExitStatus::Unknown, ExitStatus::from_wait))
    }

    /// Records that the initial process was killed, unless init has already recorded how it ended.
    pub(crate) fn tell_killed(self) -> Result<(), SandboxError> {
        if told(&self.read()?).is_some() {
            return Ok(());
        }
        let mut note = [0; 8];
        note[..4].copy_from_slice(&libc::SIGKILL.to_ne_bytes());
        note[4..].copy_from_slice(&1_u32.to_ne_bytes());
        self.write(&note, 0).whilst(|| format!("writing to {}", path(self.run_dir).display()))
    }

    /// Status and mark; nothing where the file is gone.
    fn read(self) -> Result<Vec<u8>, SandboxError> {
        let path = path(self.run_dir);
        let mut content = [0; MARK_OFFSET as usize + 1];
        let file = match self.open(torpor_linux::regular::open) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.whilst(|| format!("opening {}", path.display()))?,
        };
        // The kernel reads and writes so few bytes in one go.
        let length = file.read_at(&mut content, 0).whilst(|| format!("reading {}", path.display()))?;
        Ok(content[..length].to_vec())
    }
}

fn told(content: &[u8]) -> Option<i32> {
    let number = |bytes: &[u8]| bytes.try_into().map(i32::from_ne_bytes).ok();
    match content.len() {
        4 => number(content),
        8.. if number(&content[4..8]) != Some(0) => number(&content[..4]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn status_and_mark_do_not_touch_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let run = directory.path();
        let status = StatusFile { run_dir: run, init: None };
        assert_eq!((status.exit_status().unwrap(), status.is_marked().unwrap()), (ExitStatus::Unknown, false));
        let file = take(run, "app").unwrap();
        assert!(matches!(take(run, "app"), Err(SandboxError::InUse { .. })));
        assert_eq!((status.exit_status().unwrap(), status.is_marked().unwrap()), (ExitStatus::Unknown, false));
        status.mark(true).unwrap();
        assert_eq!((status.exit_status().unwrap(), status.is_marked().unwrap()), (ExitStatus::Unknown, true));
        status.mark(false).unwrap();
        assert_eq!((status.exit_status().unwrap(), status.is_marked().unwrap()), (ExitStatus::Unknown, false));
        status.tell_killed().unwrap();
        assert_eq!(status.exit_status().unwrap(), ExitStatus::Signaled(9));
        drop(file);
        let file = take(run, "app").unwrap();
        file.write_all_at(&[0, 7, 0, 0, 1, 0, 0, 0], 0).unwrap();
        status.tell_killed().unwrap();
        status.mark(true).unwrap();
        assert_eq!((status.exit_status().unwrap(), status.is_marked().unwrap()), (ExitStatus::Exited(7), true));
        // An init of before the mark.
        file.set_len(4).unwrap();
        assert_eq!((status.exit_status().unwrap(), status.is_marked().unwrap()), (ExitStatus::Exited(7), false));
    }

    #[test]
    fn a_file_whose_name_is_gone_is_reached_at_init() {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path();
        let file = take(run_dir, "app").unwrap();
        let mut init =
            std::process::Command::new("sleep").arg("1000").stdin(file.try_clone().unwrap()).spawn().unwrap();
        let pid = init.id().cast_signed();
        let process = crate::process::open(pid).unwrap().unwrap();
        std::fs::remove_file(path(run_dir)).unwrap();
        let (lost, held) =
            (StatusFile { run_dir, init: None }, StatusFile { run_dir, init: Some((pid, process.as_fd())) });
        assert!(lost.mark(true).is_err() && !lost.is_marked().unwrap());
        held.mark(true).unwrap();
        held.tell_killed().unwrap();
        assert_eq!((held.exit_status().unwrap(), held.is_marked().unwrap()), (ExitStatus::Signaled(9), true));
        let mut content = [0; 16];
        assert_eq!((file.read_at(&mut content, 0).unwrap(), content[8]), (9, 1));
        init.kill().unwrap();
        init.wait().unwrap();
        assert!(held.mark(true).is_err());
    }
}
