//! Pseudo-terminals whose master is in the tree.
//!
//! Both ends are made anew under the same number, and have the same settings, size, modes and owner. Where a session of the tree has
//! one as its controlling terminal, the session's leader takes it before it makes its children (see `crates/planner/src/compile`).
//!
//! What waits in a terminal can only be looked at by reading it. That is done where putting it back is exact: what was typed by
//! `TIOCSTI`-like writes to the master while the terminal is raw, what was shown by writes to the slave without output processing.
//! Lines that are being typed in canonical mode cannot be seen at all, nor what was written to a master whose slave nobody has
//! opened yet: opening it would be seen.
//!
//! Terminals of an app are kept with all that waits in them, and nothing of that is taken out and put back: it would wake whoever
//! waits for it. So the image of an app describes its terminals without what waits there. What ends with its processes is only that
//! a terminal is a session's controlling one: the kernel does not hang pseudo-terminals up for the end of the session's leader.

mod dump;
mod restore;

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, OFlags, major, minor};
use torpor_linux::tty::SETTINGS_BYTES;

use crate::list::Item;

pub(crate) use self::dump::{Terminals, master, slave};
pub(crate) use self::restore::{close_off, restore, restore_slave};

/// First major number of slaves of `/dev/pts`.
const SLAVES: u32 = 136;
/// `/dev/ptmx`.
const PTY_MASTER: (u32, u32) = (5, 2);
/// To look at a slave without opening it.
const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const READ_WRITE: u32 = 2;
const NO_CONTROLLING: u32 = 0o400;
/// `N_TTY`.
const USUAL: i32 = 0;

// Where `struct termios2` has its flags, and those of them that change what is typed or shown.
const INPUT: usize = 0;
const OUTPUT: usize = 4;
const LOCAL: usize = 12;
const OPOST: u32 = 1;
const ICANON: u32 = 2;
/// `ISIG`, `ICANON`, `ECHO`, `ECHONL`, `IEXTEN`.
const LOCAL_CHANGES: u32 = 1 | ICANON | 8 | 0o100 | 0o100_000;
/// `IGNBRK` to `IXOFF`: breaks, parity, stripping, line ends, case, flow.
const INPUT_CHANGES: u32 = 0o17_777;

fn flags(settings: &[u8], at: usize) -> u32 {
    settings.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// What is typed arrives as it is.
fn is_raw(settings: &[u8]) -> bool {
    flags(settings, LOCAL) & LOCAL_CHANGES == 0 && flags(settings, INPUT) & INPUT_CHANGES == 0
}

/// Settings under which nothing is changed on the way.
fn raw(settings: &[u8; SETTINGS_BYTES]) -> [u8; SETTINGS_BYTES] {
    let mut raw = *settings;
    for (at, changes) in [(INPUT, INPUT_CHANGES), (OUTPUT, OPOST), (LOCAL, LOCAL_CHANGES)] {
        raw[at..at + 4].copy_from_slice(&(flags(settings, at) & !changes).to_ne_bytes());
    }
    raw
}

fn put(fd: &OwnedFd, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::write(fd, bytes)?;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// It is a slave of a pseudo-terminal.
pub(crate) fn is_slave(major: u32) -> bool {
    major == SLAVES
}

/// It is the master of a pseudo-terminal.
pub(crate) fn is_master(item: &Item) -> bool {
    FileType::from_raw_mode(item.stat.st_mode) == FileType::CharacterDevice
        && (major(item.stat.st_rdev), minor(item.stat.st_rdev)) == PTY_MASTER
        && item.info.flags & OFlags::PATH.bits() == 0
}
