//! Restoring a pseudo-terminal.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Gid, Mode, OFlags, Uid, chmod, chown};
use rustix::io::Errno;
use torpor_image::tree::{OpenFile, Terminal};
use torpor_linux::tty::{self, Number, SETTINGS_BYTES};

use super::{PLACE, READ_WRITE, put, raw};
use crate::context::RestoreContext;
use crate::contract::error::RestoreFileError;
use crate::contract::flags::ASYNC;
use crate::locks;

/// Makes a master with its number.
pub(crate) fn restore(
    terminal: &Terminal,
    file: &OpenFile,
    around: RestoreContext<'_>,
) -> Result<OwnedFd, RestoreFileError> {
    let name = shown(terminal.number);
    let opened = || {
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        around.root.open(&terminal.path.path, flags).map_err(RestoreFileError::at("making", &*name))
    };
    // The lowest free number is given: those below are held until it is this one's turn.
    let mut below = Vec::new();
    let master = loop {
        let master = opened()?;
        let number = tty::number(&master, Number::Pair).map_err(RestoreFileError::at("numbering", &*name))? as u32;
        if number == terminal.number {
            break master;
        }
        if number > terminal.number {
            return Err(RestoreFileError::Taken { what: name, how: "is another terminal's now".to_owned() });
        }
        below.push(master);
    };
    drop(below);
    tty::set_locked(&master, false).map_err(RestoreFileError::at("unlocking", &*name))?;
    tty::set_size(&master, terminal.size).map_err(RestoreFileError::at("setting the size of", &*name))?;
    fill(&master, terminal).map_err(RestoreFileError::at("filling", &*name))?;
    let place = tty::open_peer(&master, PLACE.bits() as i32).map_err(RestoreFileError::at("finding", &*name))?;
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    let owner = (Uid::from_raw(terminal.owner.0), Gid::from_raw(terminal.owner.1));
    chown(&*path, Some(owner.0), Some(owner.1)).map_err(RestoreFileError::at("giving its owner to", &*name))?;
    chmod(&*path, Mode::from_raw_mode(terminal.mode)).map_err(RestoreFileError::at("setting the mode of", &*name))?;
    tty::set_packets(&master, terminal.packets).map_err(RestoreFileError::at("setting the mode of", &*name))?;
    locks::set_flags(&master, file, &name)?;
    Ok(master)
}

fn fill(master: &OwnedFd, terminal: &Terminal) -> std::io::Result<()> {
    let settings: &[u8; SETTINGS_BYTES] = terminal.settings.as_slice().try_into().map_err(|_| Errno::INVAL)?;
    if !terminal.untouched {
        let slave = peer(master, READ_WRITE)?;
        tty::set_settings(master, &raw(settings))?;
        put(master, &terminal.typed)?;
        put(&slave, &terminal.shown)?;
    }
    tty::set_settings(master, settings)
}

/// Opens a slave as it was open.
pub(crate) fn restore_slave(master: &OwnedFd, file: &OpenFile) -> Result<OwnedFd, RestoreFileError> {
    const NAME: &str = "a terminal";
    let fd = peer(master, file.flags & !ASYNC).map_err(RestoreFileError::at("opening", NAME))?;
    locks::set_flags(&fd, file, NAME)?;
    Ok(fd)
}

/// The last: nobody else can open them any more.
pub(crate) fn close_off(master: &OwnedFd, terminal: &Terminal) -> Result<(), RestoreFileError> {
    let name = || shown(terminal.number);
    let (of_master, of_slave) = terminal.exclusive;
    if of_master {
        tty::set_exclusive(master).map_err(RestoreFileError::at("closing off", name()))?;
    }
    if of_slave {
        let slave = peer(master, READ_WRITE).map_err(RestoreFileError::at("opening", name()))?;
        tty::set_exclusive(&slave).map_err(RestoreFileError::at("closing off", name()))?;
    }
    tty::set_locked(master, terminal.locked).map_err(RestoreFileError::at("locking", name()))
}

fn peer(master: &OwnedFd, flags: u32) -> std::io::Result<OwnedFd> {
    let flags = OFlags::from_bits_retain(flags) | OFlags::NOCTTY | OFlags::CLOEXEC;
    tty::open_peer(master.as_fd(), flags.bits() as i32)
}

fn shown(number: u32) -> String {
    format!("terminal /dev/pts/{number}")
}
