//! Pseudo-terminals: what `ioctl_tty(2)` tells and sets.
//!
//! Settings are those of the terminal, whichever end they are asked of.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::socket::check;

/// `struct termios2`, bytes.
pub const SETTINGS_BYTES: usize = 44;

// `TCGETS2`, `TCSETS2` and others that libc does not have.
const GET_SETTINGS: libc::Ioctl = 0x802C_542A;
const SET_SETTINGS: libc::Ioctl = 0x402C_542B;
const GET_SIZE: libc::Ioctl = 0x5413;
const SET_SIZE: libc::Ioctl = 0x5414;
const DISCIPLINE: libc::Ioctl = 0x5424;
const FOREGROUND: libc::Ioctl = 0x540F;
const SESSION: libc::Ioctl = 0x5429;
const NUMBER: libc::Ioctl = 0x8004_5430;
const PACKETS: libc::Ioctl = 0x8004_5438;
const LOCKED: libc::Ioctl = 0x8004_5439;
const EXCLUSIVE: libc::Ioctl = 0x8004_5440;
const SET_PACKETS: libc::Ioctl = 0x5420;
const SET_LOCKED: libc::Ioctl = 0x4004_5431;
const SET_EXCLUSIVE: libc::Ioctl = 0x540C;
const OPEN_PEER: libc::Ioctl = 0x5441;

/// A number that a terminal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// That of the pair: `/dev/pts/N`. Of a master.
    Pair,
    /// Line discipline; 0: the usual one.
    Discipline,
    /// Its reader gets a byte of control before all else. Of a master.
    Packets,
    /// The other end cannot be opened. Of a master.
    Locked,
    /// Nobody else can open it.
    Exclusive,
    /// Process group in the foreground, by a master.
    Foreground,
    /// Session whose controlling terminal it is, by a master.
    Session,
}

/// Reads a number. `ENOTTY` where there is no session or foreground.
pub fn number(terminal: impl AsFd, number: Number) -> io::Result<i32> {
    let request = match number {
        Number::Pair => NUMBER,
        Number::Discipline => DISCIPLINE,
        Number::Packets => PACKETS,
        Number::Locked => LOCKED,
        Number::Exclusive => EXCLUSIVE,
        Number::Foreground => FOREGROUND,
        Number::Session => SESSION,
    };
    let mut value: libc::c_int = 0;
    // SAFETY: each of these requests writes an int to `value`, which lives through the call.
    check(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), request, &raw mut value) })?;
    Ok(value)
}

/// Switches packet mode of a master.
pub fn set_packets(master: impl AsFd, on: bool) -> io::Result<()> {
    let value = libc::c_int::from(on);
    // SAFETY: TIOCPKT reads an int from `value`, which lives through the call.
    check(unsafe { libc::ioctl(master.as_fd().as_raw_fd(), SET_PACKETS, &raw const value) }).map(drop)
}

/// Locks or unlocks the other end of a master.
pub fn set_locked(master: impl AsFd, on: bool) -> io::Result<()> {
    let value = libc::c_int::from(on);
    // SAFETY: TIOCSPTLCK reads an int from `value`, which lives through the call.
    check(unsafe { libc::ioctl(master.as_fd().as_raw_fd(), SET_LOCKED, &raw const value) }).map(drop)
}

/// From now on nobody else can open it.
pub fn set_exclusive(terminal: impl AsFd) -> io::Result<()> {
    // SAFETY: TIOCEXCL takes no argument.
    check(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), SET_EXCLUSIVE, 0) }).map(drop)
}

/// `struct termios2`.
pub fn settings(terminal: impl AsFd) -> io::Result<[u8; SETTINGS_BYTES]> {
    let mut value = [0; SETTINGS_BYTES];
    // SAFETY: TCGETS2 writes a `struct termios2`, as many bytes as `value` has.
    check(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), GET_SETTINGS, value.as_mut_ptr()) })?;
    Ok(value)
}

/// Sets a `struct termios2` at once, whatever waits.
pub fn set_settings(terminal: impl AsFd, value: &[u8; SETTINGS_BYTES]) -> io::Result<()> {
    // SAFETY: TCSETS2 reads a `struct termios2`, as many bytes as `value` has.
    check(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), SET_SETTINGS, value.as_ptr()) }).map(drop)
}

/// Rows, columns, and both in pixels.
pub fn size(terminal: impl AsFd) -> io::Result<[u16; 4]> {
    let mut value = [0; 4];
    // SAFETY: TIOCGWINSZ writes a `struct winsize`, four short numbers, to `value`.
    check(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), GET_SIZE, value.as_mut_ptr()) })?;
    Ok(value)
}

/// Sets what [`size`] has read.
pub fn set_size(terminal: impl AsFd, value: [u16; 4]) -> io::Result<()> {
    // SAFETY: TIOCSWINSZ reads a `struct winsize`, four short numbers, from `value`.
    check(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), SET_SIZE, value.as_ptr()) }).map(drop)
}

/// Opens the other end of a master with these flags.
pub fn open_peer(master: impl AsFd, flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: TIOCGPTPEER takes a number.
    let fd = check(unsafe { libc::ioctl(master.as_fd().as_raw_fd(), OPEN_PEER, flags) })?;
    // SAFETY: the kernel has just made this descriptor for us; nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pty::{OpenptFlags, openpt};

    #[test]
    fn both_ends_have_the_same_settings() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        assert_eq!(number(&master, Number::Locked).unwrap(), 1);
        set_locked(&master, false).unwrap();
        let slave = open_peer(&master, libc::O_RDWR | libc::O_NOCTTY).unwrap();
        let mut wanted = settings(&slave).unwrap();
        wanted[12] ^= 8; // ECHO
        set_settings(&master, &wanted).unwrap();
        assert_eq!(settings(&slave).unwrap(), wanted);
        set_size(&master, [7, 8, 0, 0]).unwrap();
        assert_eq!(size(&slave).unwrap(), [7, 8, 0, 0]);
        set_packets(&master, true).unwrap();
        assert_eq!(number(&master, Number::Packets).unwrap(), 1);
        assert_eq!(number(&slave, Number::Discipline).unwrap(), 0);
        assert!(number(&master, Number::Session).is_err());
        assert!(number(&master, Number::Pair).unwrap() >= 0);
    }
}
