//! Taking: what both ends know.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use rustix::net::{RecvFlags, recv, sockopt};
use torpor_image::tree::{Connection, FileId};
use torpor_linux::guard::{CleanUp, CrashGuard};
use torpor_linux::socket;
use torpor_linux::tcp::repair::{self, Mode, Queue};
use torpor_linux::uapi::socket::{IPPROTO_TCP, SOCK_STREAM};
use torpor_linux::uapi::tcp::{TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2};

use crate::contract::connections::{ConnectionLock, Ends};
use crate::contract::error::DumpError;
use crate::contract::reason::{Described, Reason};
use crate::kinds::inet::tcp::{CONNECTED, OWN_END_WAITS, PEER_ENDED, address};
use crate::kinds::socket::options;
use crate::kinds::socket::options::{buffer_sizes, peek_offset, set_peek_offset};
use crate::list::{Item, List};

/// A segment that has been acknowledged in part waits as a whole.
const SEGMENT_BYTES: usize = 256 << 10;
/// How often connections are read until none has changed meanwhile, and ends in the tree fit together.
const READINGS: u32 = 100;

/// Connections of a tree that can be made again.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    found: HashMap<FileId, Described<Box<Connection>>>,
}

/// A connection of the list.
struct Found {
    file: FileId,
    ends: Ends,
    /// The other end is in the list.
    inside: bool,
}

/// One reading.
struct Reading {
    connection: Connection,
    /// The peer has acknowledged up to here, an end of the stream counts.
    acknowledged: u32,
    /// It has been acknowledged up to here, an end of the stream counts.
    received: u32,
}

impl Connections {
    /// What was read of this socket; `None`: it cannot be made again.
    pub(crate) fn take(&mut self, file: FileId) -> Option<Described<Box<Connection>>> {
        self.found.remove(&file)
    }

    /// Sockets of them.
    pub(crate) fn files(&self) -> HashSet<FileId> {
        self.found.keys().copied().collect()
    }
}

/// Reads the connections between sockets of the list; with a lock all others, too, which it then holds.
pub(crate) fn take(list: &List, lock: Option<&dyn ConnectionLock>) -> Result<Connections, DumpError> {
    let mut found = Vec::new();
    for (file, item) in (0..).zip(&list.items) {
        let ends = ends(item).map_err(|source| failed(item, source))?;
        found.extend(ends.map(|ends| Found { file, ends, inside: false }));
    }
    let known: HashSet<Ends> = found.iter().map(|one| one.ends).collect();
    for one in &mut found {
        one.inside = known.contains(&(one.ends.1, one.ends.0));
    }
    let outside: Vec<Ends> = found.iter().filter(|one| !one.inside).map(|one| one.ends).collect();
    match lock {
        Some(lock) if !outside.is_empty() => lock.hold(&outside).map_err(DumpError::Lock)?,
        Some(_) => {}
        None => found.retain(|one| one.inside),
    }
    let _guard = guard(list, &found)?;
    for _ in 0..READINGS {
        let mut readings = HashMap::with_capacity(found.len());
        let mut changed = false;
        for one in &found {
            let item = list.item(one.file);
            let reading = match read(item, !one.inside) {
                Err(Reason::Failed(source)) => return Err(failed(item, source)),
                other => other.transpose(),
            };
            match reading {
                Some(reading) => drop(readings.insert(one.ends, reading)),
                None => changed = true,
            }
        }
        if !changed && found.iter().all(|one| fits(&readings, one.ends)) {
            let connection =
                |one: &Found| Some((one.file, readings.remove(&one.ends)?.map(|r| Box::new(r.connection))));
            return Ok(Connections { found: found.iter().filter_map(connection).collect() });
        }
    }
    let restless = || Reason::parkable("a TCP connection on which data moves although nobody writes", "try again");
    Ok(Connections { found: found.iter().map(|one| (one.file, Err(restless()))).collect() })
}

/// Should we be killed while sockets are in repair mode, they leave it.
fn guard(list: &List, found: &[Found]) -> Result<Option<CrashGuard>, DumpError> {
    let Some(first) = found.first() else { return Ok(None) };
    let sockets = found.iter().map(|one| {
        let item = list.item(one.file);
        let reuse = sockopt::socket_reuseaddr(&item.fd).map_err(|error| failed(item, error.into()))?;
        Ok((item.fd.as_fd(), reuse))
    });
    let sockets: Vec<_> = sockets.collect::<Result<_, DumpError>>()?;
    let guard = CrashGuard::start(CleanUp::LeaveRepair(&sockets));
    guard.map(Some).map_err(|source| failed(list.item(first.file), source))
}

/// What this end was told is no more than the other's reading has.
fn fits(readings: &HashMap<Ends, Described<Reading>>, ends: Ends) -> bool {
    let Some(Ok(own)) = readings.get(&ends) else { return true };
    let Some(Ok(other)) = readings.get(&(ends.1, ends.0)) else { return true };
    other.received.wrapping_sub(own.acknowledged) as i32 >= 0
}

fn failed(item: &Item, source: io::Error) -> DumpError {
    DumpError::Look { pid: item.holder.pid, what: item.name(), source }
}

/// The ends of a connection; `None`: it is none.
fn ends(item: &Item) -> io::Result<Option<Ends>> {
    if !item.link.starts_with(b"socket:") {
        return Ok(None);
    }
    let kind = options::kind(&item.fd)?;
    if !matches!(kind, (2 | 10, SOCK_STREAM, IPPROTO_TCP)) || !CONNECTED.contains(&socket::tcp_state(&item.fd)?.0) {
        return Ok(None);
    }
    let remote = socket::remote_address(&item.fd)?.unwrap_or_default();
    Ok(address(&socket::local_address(&item.fd)?).zip(address(&remote)))
}

/// `None`: what was on its way has come meanwhile.
fn read(item: &Item, outside: bool) -> Described<Option<Reading>> {
    let fd = &item.fd;
    let mut polled = [PollFd::new(fd, PollFlags::PRI | PollFlags::ERR)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    let refused = |what: &str, remedy: &str| Err(Reason::parkable(format!("a TCP connection {what}"), remedy));
    if polled[0].revents().contains(PollFlags::PRI) {
        return refused("with urgent data that the program has not read", "try again when it has");
    }
    if polled[0].revents().contains(PollFlags::ERR) {
        return refused("with an error that the program has not seen", "try again when it has");
    }
    let upper = repair::upper_protocol(fd)?;
    if !upper.is_empty() {
        let what = format!("that the kernel encrypts ({})", String::from_utf8_lossy(&upper));
        return refused(&what, "start the program without kernel TLS");
    }
    let reuse = sockopt::socket_reuseaddr(fd)?;
    repair::repair(fd, Mode::On)?;
    let reading = in_repair(fd, outside);
    repair::repair(fd, Mode::Silently)?;
    sockopt::set_socket_reuseaddr(fd, reuse)?;
    let reading = reading?;
    if reading.is_none() && !CONNECTED.contains(&socket::tcp_state(fd)?.0) {
        return refused("that is ending just now", "try again");
    }
    Ok(reading)
}

/// Reads a socket in repair mode; `None`: it changed meanwhile.
fn in_repair(fd: &OwnedFd, outside: bool) -> io::Result<Option<Reading>> {
    let state = socket::tcp_state(fd)?.0;
    if !CONNECTED.contains(&state) {
        return Ok(None);
    }
    repair::choose(fd, Queue::Receive)?;
    let received_end = repair::sequence(fd)?;
    let unread = ioctl_fionread(fd)? as usize;
    let received = whole(fd, unread, 0)?;
    repair::choose(fd, Queue::Send)?;
    let written_end = repair::sequence(fd)?;
    let (waiting, unsent) = (socket::unsent(fd)?, repair::not_sent(fd)?);
    // The end of the stream takes a number, too.
    let end = u32::from(OWN_END_WAITS.contains(&state));
    let written_bytes = waiting.saturating_sub(end) as usize;
    let written = whole(fd, written_bytes, SEGMENT_BYTES)?;
    let agreed = repair::agreed(fd)?;
    if received.len() != unread || written.len() != written_bytes {
        return Ok(None);
    }
    let connection = Connection {
        outside,
        state,
        received_to: received_end.wrapping_sub(u32::from(PEER_ENDED.contains(&state))),
        written_to: written_end.wrapping_sub(end + u32::from(state == TCP_FIN_WAIT2)),
        sent: written.len() as u32 - unsent.saturating_sub(end).min(written.len() as u32),
        received,
        written,
        segment: agreed.segment,
        scale: agreed.scale,
        selective: agreed.selective,
        timestamps: agreed.timestamps,
        timestamp: repair::timestamp(fd)?,
        window: repair::window(fd)?,
        buffers: buffer_sizes(fd)?,
    };
    let acknowledged = written_end.wrapping_sub(waiting);
    let same = socket::tcp_state(fd)?.0 == state && repair::sequence(fd)? == written_end;
    repair::choose(fd, Queue::Receive)?;
    let same = same && repair::sequence(fd)? == received_end;
    Ok(same.then_some(Reading { connection, acknowledged, received: received_end }))
}

/// The last `bytes` bytes of the chosen queue, which may begin with up to `more` that are done with.
fn whole(fd: &OwnedFd, bytes: usize, more: usize) -> io::Result<Vec<u8>> {
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let mut buffer = vec![0; bytes + more];
    let before = peek_offset(fd).ok().filter(|offset| *offset != (-1_i32).to_ne_bytes());
    if before.is_some() {
        set_peek_offset(fd, &0_i32.to_ne_bytes())?;
    }
    let got = recv(fd, &mut *buffer, RecvFlags::PEEK | RecvFlags::DONTWAIT);
    if let Some(before) = before {
        set_peek_offset(fd, &before)?;
    }
    let (_, got) = got?;
    buffer.truncate(got);
    Ok(buffer.split_off(got.saturating_sub(bytes)))
}

/// How it was shut for reading: the peer's end of the stream aside, only the program itself makes a socket give an end.
pub(crate) fn shut_for_reading(connection: &Connection, ends: bool) -> u8 {
    u8::from(ends && matches!(connection.state, TCP_ESTABLISHED | TCP_FIN_WAIT1 | TCP_FIN_WAIT2))
}
