//! What a process does in the app's namespaces before it becomes a program: opening files of the app, taking standard input and output.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, makedev, openat2};

use crate::error::{Doing, SetupError};

/// Opens a path of the app's, inside its root directory, which is this process's, and through no magic link of `/proc`.
pub(crate) fn open_inside(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open("/", directory, Mode::empty())?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    openat2(&root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Whether it is the null device, whatever its name.
pub(crate) fn is_null_device(file: &OwnedFd) -> rustix::io::Result<bool> {
    let stat = rustix::fs::fstat(file)?;
    let character = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    Ok(character && stat.st_rdev == makedev(1, 3))
}

/// Makes `stdio` this process's standard input, output and error.
pub(crate) fn take_stdio(stdio: &[OwnedFd; 3]) -> Result<(), SetupError> {
    let [input, output, errors] = stdio;
    rustix::stdio::dup2_stdin(input)
        .and_then(|()| rustix::stdio::dup2_stdout(output))
        .and_then(|()| rustix::stdio::dup2_stderr(errors))
        .doing(|| "taking standard input and output".to_owned())
}
