//! Dumping a pseudo-terminal.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fstat, major, minor};
use rustix::io::{Errno, ioctl_fionread};
use rustix::process::{Pid, getpgid};
use torpor_image::tree::{FileId, FileKind, OpenFile, Owner, PathState, Terminal};
use torpor_linux::tty::{self, Number, SETTINGS_BYTES};

use super::{NO_CONTROLLING, PLACE, READ_WRITE, USUAL, is_master, is_raw, is_slave, put, raw};
use crate::context::DumpContext;
use crate::contract::reason::{Described, Reason};
use crate::contract::{ControllingTerminal, Request};
use crate::filesystem;
use crate::list::{Item, List};

/// Masters of the list by their number.
#[derive(Debug, Default)]
pub(crate) struct Terminals {
    masters: HashMap<u32, FileId>,
    /// Sessions whose controlling terminals they are, as the machine numbers them, with the group in the foreground.
    sessions: Vec<(i32, FileId, i32)>,
}

impl Terminals {
    /// Finds the masters of terminals that can be described.
    pub(crate) fn of(list: &List) -> Self {
        let mut masters = HashMap::new();
        for (file, item) in (0..).zip(&list.items) {
            if is_master(item)
                && let Ok(number) = tty::number(&item.fd, Number::Pair)
                && tty::number(&item.fd, Number::Discipline).is_ok_and(|discipline| discipline == USUAL)
            {
                masters.insert(number as u32, file);
            }
        }
        Self { masters, sessions: Vec::new() }
    }

    /// The controlling terminals; each needs a slave to be taken by, which is added where no process has it open.
    pub(crate) fn controlling(&self, files: &mut Vec<OpenFile>) -> Vec<ControllingTerminal> {
        let controlling = self.sessions.iter().map(|(session, master, foreground)| {
            let is_slave = |file: &OpenFile| matches!(file.kind, FileKind::Slave { master: own } if own == *master);
            let slave = files.iter().position(|file| is_slave(file) && file.flags & 3 == READ_WRITE);
            let slave = slave.unwrap_or_else(|| {
                let kind = FileKind::Slave { master: *master };
                let flags = READ_WRITE | NO_CONTROLLING;
                files.push(OpenFile { kind, flags, position: 0, owner: Owner::default(), locks: Vec::new() });
                files.len() - 1
            });
            ControllingTerminal { session: *session, slave: slave as FileId, foreground: *foreground }
        });
        controlling.collect()
    }
}

/// An open slave with this number.
fn opened(list: &List, number: u32) -> Option<&Item> {
    let is_it = |item: &&Item| is_slave(major(item.stat.st_rdev)) && minor(item.stat.st_rdev) == number;
    let devices = |item: &&Item| FileType::from_raw_mode(item.stat.st_mode) == FileType::CharacterDevice;
    list.items.iter().filter(devices).find(is_it)
}

/// A slave; `None`: its master is not in the tree.
pub(crate) fn slave(context: &DumpContext<'_>, terminals: &Terminals, item: &Item) -> Described<Option<FileKind>> {
    let Some(master) = terminals.masters.get(&minor(item.stat.st_rdev)) else { return Ok(None) };
    let peer = tty::open_peer(&context.list.item(*master).fd, PLACE.bits() as i32);
    // Another file system of terminals has the same numbers.
    let same = peer.is_ok_and(|peer| fstat(&peer).is_ok_and(|stat| stat.st_dev == item.stat.st_dev));
    Ok(same.then_some(FileKind::Slave { master: *master }))
}

/// A master with all that its terminal is.
pub(crate) fn master(
    context: &mut DumpContext<'_>,
    terminals: &mut Terminals,
    id: FileId,
    item: &Item,
) -> Described<FileKind> {
    let fd = &item.fd;
    let discipline = tty::number(fd, Number::Discipline)?;
    if discipline != USUAL {
        return Err(Reason::parkable(format!("a pseudo-terminal with line discipline {discipline}"), ""));
    }
    let number = tty::number(fd, Number::Pair)? as u32;
    let locked = tty::number(fd, Number::Locked)? != 0;
    let open = opened(context.list, number);
    // Opening the other end for the first time would be seen: closed again, it hangs the master up.
    let untouched = open.is_none() && !polled(fd, PollFlags::empty())?.contains(PollFlags::HUP);
    if let Ok(session) = tty::number(fd, Number::Session) {
        let foreground = tty::number(fd, Number::Foreground)?;
        controls(context.request, session, foreground)?;
        terminals.sessions.push((session, id, foreground));
    }
    let settings = tty::settings(fd)?;
    let exclusive = |end: &OwnedFd| tty::number(end, Number::Exclusive).map(|on| on != 0);
    let (slave_exclusive, (typed, shown)) = if context.request.parks() {
        let slave = open.map(|item| &*item.fd);
        if polled(fd, PollFlags::IN)?.contains(PollFlags::IN) || slave.map_or(Ok(0), ioctl_fionread)? > 0 {
            context.warnings.push(format!("what waits unread in the terminal /dev/pts/{number}"));
        }
        (slave.map_or(Ok(false), exclusive)?, Default::default())
    } else if untouched {
        Default::default()
    } else {
        let peer = unlocked(fd, locked)?;
        (exclusive(&peer)?, waiting(fd, &peer, &settings)?)
    };
    let stat = fstat(tty::open_peer(fd, PLACE.bits() as i32)?)?;
    Ok(FileKind::Master(Box::new(Terminal {
        path: PathState { bytes: item.stat.st_rdev, ..filesystem::state(&item.link, &item.stat) },
        number,
        settings: settings.to_vec(),
        size: tty::size(fd)?,
        packets: tty::number(fd, Number::Packets)? != 0,
        locked,
        untouched,
        exclusive: (exclusive(fd)?, slave_exclusive),
        mode: stat.st_mode & 0o7777,
        owner: (stat.st_uid, stat.st_gid),
        typed,
        shown,
    })))
}

/// Whether a session of the tree can have it as its controlling terminal again, with this group in the foreground.
fn controls(request: &Request<'_>, session: i32, foreground: i32) -> Described<()> {
    let refused = |what: String| Err(Reason::refused(format!("a pseudo-terminal {what}"), ""));
    if !request.ids.contains_key(&session) {
        return refused(format!("that is the controlling terminal of session {session}, outside of the tree"));
    }
    let in_it = |pid: &i32| getpgid(Pid::from_raw(*pid)).is_ok_and(|group| group.as_raw_nonzero().get() == foreground);
    if !request.ids.contains_key(&foreground) && !request.processes.iter().any(in_it) {
        return refused(format!("with process group {foreground} in its foreground, all of which has ended"));
    }
    Ok(())
}

/// The other end of a master, which may be locked.
fn unlocked(master: &OwnedFd, locked: bool) -> std::io::Result<OwnedFd> {
    if locked {
        tty::set_locked(master, false)?;
    }
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let peer = tty::open_peer(master, flags.bits() as i32);
    if locked {
        tty::set_locked(master, true)?;
    }
    peer
}

/// What was typed and shown, and has not been read.
fn waiting(master: &OwnedFd, slave: &OwnedFd, settings: &[u8; SETTINGS_BYTES]) -> Described<(Vec<u8>, Vec<u8>)> {
    let refused =
        |what: &str| Err(Reason::parkable(format!("a pseudo-terminal {what}"), "try again when it has been read"));
    let typed = ioctl_fionread(slave)? > 0;
    if typed && !is_raw(settings) {
        return refused("with lines that have been typed and not been read");
    }
    let shown = polled(master, PollFlags::IN)?.contains(PollFlags::IN);
    let packets = tty::number(master, Number::Packets)? != 0;
    if shown && packets {
        return refused("in packet mode, with output that has not been read");
    }
    if !typed && !shown {
        return Ok((Vec::new(), Vec::new()));
    }
    // Taken out and put back at once. Both are in the tree, so nobody writes in between. Of other settings a master in packet
    // mode would be told.
    if packets {
        tty::set_packets(master, false)?;
    }
    tty::set_settings(master, &raw(settings))?;
    let moved = take(slave).and_then(|typed| {
        put(master, &typed)?;
        let shown = take(master)?;
        put(slave, &shown)?;
        Ok((typed, shown))
    });
    tty::set_settings(master, settings)?;
    if packets {
        tty::set_packets(master, true)?;
    }
    Ok(moved?)
}

fn polled(fd: &OwnedFd, events: PollFlags) -> rustix::io::Result<PollFlags> {
    let mut polled = [PollFd::new(fd, events)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(polled[0].revents())
}

/// Reads all that there is.
fn take(fd: &OwnedFd) -> rustix::io::Result<Vec<u8>> {
    let mut found = Vec::new();
    let mut buffer = [0; 4096];
    // The least number of bytes that a reading gives is the program's own.
    while ioctl_fionread(fd)? > 0 {
        match rustix::io::read(fd, &mut buffer) {
            Ok(0) | Err(Errno::AGAIN) => break,
            Ok(bytes) => found.extend_from_slice(&buffer[..bytes]),
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
