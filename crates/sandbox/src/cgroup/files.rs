//! Reading, writing and waiting for cgroup control files.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::CgroupError;

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    move |source| CgroupError::File { doing, path: path.to_owned(), source }
}

/// Makes the directory of a group unless it is there.
pub(crate) fn make_directory(path: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map_err(failed("making cgroup", path)),
    }
}

/// Makes the directory of a group anew, unless it is in use: an old one may have been killed.
pub(super) fn renew_directory(path: &Path) -> Result<(), CgroupError> {
    match fs::remove_dir(path) {
        Ok(()) => {}
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EBUSY | libc::ENOTEMPTY)) => {}
        Err(error) => return Err(failed("renewing cgroup", path)(error)),
    }
    make_directory(path)
}

/// Writes a control file, in one call as the kernel wants it, without ever creating one.
pub(super) fn write(path: &Path, text: &str) -> Result<(), CgroupError> {
    let write = |text: &str| File::options().write(true).open(path)?.write_all(text.as_bytes());
    write(text).map_err(failed("writing to cgroup file", path))
}

/// The whole content.
pub(super) fn read(path: &Path) -> Result<String, CgroupError> {
    fs::read_to_string(path).map_err(failed("reading cgroup file", path))
}

/// The process ids in a `cgroup.procs` file.
pub(super) fn read_processes(path: &Path) -> Result<Vec<i32>, CgroupError> {
    processes(path, &read(path)?)
}

fn processes(path: &Path, text: &str) -> Result<Vec<i32>, CgroupError> {
    let process =
        |line: &str| line.parse().map_err(|_| CgroupError::Content { path: path.to_owned(), text: line.to_owned() });
    text.lines().map(process).collect()
}

/// The number in a file; none if the file is not there or says `max`.
pub(super) fn read_number(path: &Path) -> Result<Option<u64>, CgroupError> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("reading cgroup file", path)(error)),
        Ok(text) => limit(path, &text),
    }
}

fn limit(path: &Path, text: &str) -> Result<Option<u64>, CgroupError> {
    if text.trim() == "max" { Ok(None) } else { number(path, text.trim()).map(Some) }
}

/// The number after `key` in a file of `key number` lines; none if file or key are not there.
pub(super) fn read_field(path: &Path, key: &str) -> Result<Option<u64>, CgroupError> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed("reading cgroup file", path))?,
    };
    field(path, &text, key)
}

fn field(path: &Path, text: &str, key: &str) -> Result<Option<u64>, CgroupError> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    value.map(|value| number(path, value)).transpose()
}

fn number(path: &Path, text: &str) -> Result<u64, CgroupError> {
    text.parse().map_err(|_| CgroupError::Content { path: path.to_owned(), text: text.to_owned() })
}

/// Reads a text as each kind of file is read: for fuzzing.
pub(super) fn parse(text: &str) {
    let path = Path::new("cgroup");
    let _ = (processes(path, text), limit(path, text), field(path, text, "usage_usec"));
}

/// Waits until `path`, an event file, has the line `line`; false after `deadline`.
pub(super) fn wait_for_event(path: &Path, line: &str, deadline: Duration) -> Result<bool, CgroupError> {
    let started = Instant::now();
    let mut file = File::open(path).map_err(failed("opening cgroup file", path))?;
    let mut text = String::new();
    loop {
        text.clear();
        let reread = file.rewind().and_then(|()| file.read_to_string(&mut text));
        reread.map_err(failed("reading cgroup file", path))?;
        if text.lines().any(|found| found == line) {
            return Ok(true);
        }
        let left = deadline.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Ok(false);
        }
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&file, PollFlags::PRI)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed("waiting for cgroup file", path)(error.into())),
        }
    }
}
