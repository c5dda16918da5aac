//! `signalfd(2)`: a mask of signals.

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use torpor_image::tree::{FileKind, OpenFile};
use torpor_linux::notify;

use crate::contract::error::RestoreFileError;
use crate::contract::flags::NONBLOCK;
use crate::contract::reason::Described;
use crate::list::Info;
use crate::locks;

pub(crate) fn describe(info: &Info) -> Described<FileKind> {
    Ok(FileKind::Signal { mask: info.hexadecimal("sigmask")? })
}

pub(crate) fn restore(mask: u64, file: &OpenFile) -> Result<OwnedFd, RestoreFileError> {
    const NAME: &str = "a signalfd";
    // The flags are those of the descriptor and of the open file: O_CLOEXEC, O_NONBLOCK.
    let flags = OFlags::CLOEXEC.bits() | file.flags & NONBLOCK;
    let fd = notify::signal_descriptor(mask, flags as i32).map_err(RestoreFileError::at("making", NAME))?;
    locks::set_flags(&fd, file, NAME)?;
    Ok(fd)
}
