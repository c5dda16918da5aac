//! `eventfd(2)`: a counter.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};
use torpor_image::tree::{FileKind, OpenFile};

use crate::contract::error::RestoreFileError;
use crate::contract::reason::Described;
use crate::list::Info;
use crate::locks;

pub(crate) fn describe(info: &Info) -> Described<FileKind> {
    let semaphore = info.number::<u8>("eventfd-semaphore")? != 0;
    Ok(FileKind::Event { count: info.hexadecimal("eventfd-count")?, semaphore })
}

pub(crate) fn restore(count: u64, semaphore: bool, file: &OpenFile) -> Result<OwnedFd, RestoreFileError> {
    const NAME: &str = "an eventfd";
    let mut flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    flags.set(EventfdFlags::SEMAPHORE, semaphore);
    let fd = eventfd(0, flags).map_err(RestoreFileError::at("making", NAME))?;
    if count != 0 {
        rustix::io::write(&fd, &count.to_ne_bytes()).map_err(RestoreFileError::at("filling", NAME))?;
    }
    locks::set_flags(&fd, file, NAME)?;
    Ok(fd)
}
