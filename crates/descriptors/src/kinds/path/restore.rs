//! The restore: opened under its name or by its handle, and compared with what it was.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, OFlags, SeekFrom, fcntl_setfl, fstat, seek};
use rustix::io::Errno;
use torpor_image::tree::{OpenFile, PathState};
use torpor_linux::handle;

use crate::context::RestoreContext;
use crate::contract::error::RestoreFileError;
use crate::filesystem::{difference, is_made_up, made_and_removed, path_of, reopen, reopened, text};

/// Opens a file that has lost the name it was opened by, as it was open.
pub(crate) fn restore_by_handle(
    was: &PathState,
    handle: &(i32, Vec<u8>),
    file: &OpenFile,
    around: RestoreContext<'_>,
) -> Result<OwnedFd, RestoreFileError> {
    let name = text(was);
    let mut found = Err(Errno::STALE.into());
    for above in path_of(&was.path).ancestors().skip(1) {
        let Ok(above) = around.root.open(above.as_os_str().as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY) else {
            continue;
        };
        found = handle::open(&above, handle.0, &handle.1);
        if found.is_ok() {
            break;
        }
    }
    let found = found.map_err(RestoreFileError::at("finding the other name of", &*name))?;
    let stat = fstat(&found).map_err(RestoreFileError::at("looking at", &*name))?;
    if let Some(how) = difference(was, &stat, false, around.same_boot) {
        return Err(RestoreFileError::Changed { path: name, how });
    }
    let flags = OFlags::from_bits_retain(reopened(file.flags));
    if flags.contains(OFlags::PATH) {
        return Ok(found);
    }
    let opened =
        reopen(found.as_fd(), (flags - OFlags::NOFOLLOW).bits()).map_err(RestoreFileError::at("opening", &*name))?;
    seek(&opened, SeekFrom::Start(file.position)).map_err(RestoreFileError::at("finding the position in", name))?;
    Ok(opened)
}

/// Opening it never waits, however it is opened.
fn waits_for_nobody(state: &PathState) -> bool {
    matches!(FileType::from_raw_mode(state.mode), FileType::RegularFile | FileType::Directory)
}

/// Opens a file that has a name, as it was open.
pub(crate) fn restore(
    state: &PathState,
    file: &OpenFile,
    around: RestoreContext<'_>,
) -> Result<OwnedFd, RestoreFileError> {
    let flags = OFlags::from_bits_retain(reopened(file.flags));
    let flags = if flags.contains(OFlags::PATH) { flags } else { flags | OFlags::NOCTTY };
    if let Some(owner) = state.gone {
        let made = match around.removed.and_then(|removed| removed.open(state, flags)) {
            Some(opened) => opened,
            None => made_and_removed(state, owner, flags, around.root),
        };
        return made.map_err(RestoreFileError::at("making", text(state)));
    }
    // Whatever lies there by now, a FIFO for one, does not hold us up; and nothing else is changed by being opened.
    let no_wait = !flags.intersects(OFlags::PATH | OFlags::NONBLOCK) && waits_for_nobody(state);
    let opened = around.root.open(&state.path, if no_wait { flags | OFlags::NONBLOCK } else { flags });
    let opened = opened.map_err(RestoreFileError::at("opening", text(state)))?;
    let look = |error| RestoreFileError::at("looking at", text(state))(error);
    let (stat, made_up) = (fstat(&opened).map_err(look)?, is_made_up(&opened).map_err(look)?);
    let forbidden = around.root.forbids(&stat, flags);
    if let Some(how) = forbidden.or_else(|| difference(state, &stat, made_up, around.same_boot)) {
        return Err(RestoreFileError::Changed { path: text(state), how });
    }
    if no_wait {
        fcntl_setfl(&opened, flags).map_err(RestoreFileError::at("setting flags of", text(state)))?;
    }
    if file.position != 0 && !flags.contains(OFlags::PATH) {
        seek(&opened, SeekFrom::Start(file.position))
            .map_err(RestoreFileError::at("finding the position in", text(state)))?;
    }
    Ok(opened)
}
