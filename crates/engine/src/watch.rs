//! Watching, for a sleeping app, the descriptors that it waits for.
//!
//! All of them are registered with one epoll descriptor per app. The registration is with the open file, so our duplicate
//! of the descriptor is closed at once: a sleeping app costs us a single descriptor. Whoever holds the epoll descriptor
//! learns of every event since; parked in the keeper it goes on collecting while no worker lives.
//!
//! Registration is edge-triggered. A descriptor that the app waits for and that is ready *now* means that the app has work:
//! the sleep is aborted. On sockets that are watched although nothing waits for them, what lies unread already does not
//! count, only what comes.
//!
//! An epoll descriptor of the app is registered as a whole. If it has timers, or if some sockets are to be ignored, its members are
//! registered one by one instead. A member that the app registered with `EPOLLET` may be ready all the time (a socket with room in its
//! send buffer), and the app was told once. Such readiness does not abort the sleep. An edge that the app was not told of yet does: then
//! the app's own epoll descriptor is readable.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use torpor_linux::descriptor::duplicate_of;

use torpor_proc as proc;
use torpor_process::wait::sources::{Awaited, Waits};

/// Events taken from the epoll descriptor in one call; those behind it stay there for the next.
const EVENTS: usize = 1;

/// What one registration stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Process that has the descriptor.
    pub pid: i32,
    /// Its number there.
    pub fd: i32,
    /// What it is, as `/proc/PID/fd` says: `socket:[123]`, `anon_inode:[eventpoll]`.
    pub what: String,
    /// The app itself waits for it.
    pub awaited: bool,
    /// Events that are watched for, as `epoll_ctl(2)` numbers them.
    pub events: u32,
}

/// The descriptors of a sleeping app that wake it.
#[derive(Debug)]
pub struct Watch {
    epoll: OwnedFd,
    sources: Vec<Source>,
}

/// A process and the descriptors that its threads wait for: each once, whatever number of threads names it.
pub(crate) struct Waiting {
    pub pid: i32,
    awaited: BTreeMap<i32, Awaited>,
    /// A thread waits for descriptors, be they open or not.
    on_descriptors: bool,
}

impl Waiting {
    pub(crate) const fn new(pid: i32) -> Self {
        Self { pid, awaited: BTreeMap::new(), on_descriptors: false }
    }

    /// Adds what one thread waits for.
    pub(crate) fn add(&mut self, waits: Waits) {
        let Waits::On(awaited) = waits else { return };
        self.on_descriptors = true;
        // As the kernel does, which looks at no bit of a set beyond the process's table of descriptors.
        let table = if awaited.len() > MANY { proc::descriptor_table(self.pid) } else { i32::MAX };
        for one in awaited.into_iter().filter(|one| one.fd < table) {
            let known = self.awaited.entry(one.fd).or_insert(one);
            known.events |= one.events;
            known.epoll |= one.epoll;
        }
    }
}

/// If one thread waits for more descriptors than this, [`Waiting::add`] drops those beyond the process's descriptor table.
const MANY: usize = 64;

impl Watch {
    /// An epoll descriptor that was parked, with its sources as they were then.
    pub const fn from_parts(epoll: OwnedFd, sources: Vec<Source>) -> Self {
        Self { epoll, sources }
    }

    /// One that nothing is registered with.
    pub fn none() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)?, sources: Vec::new() })
    }

    /// What is watched.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Takes one event: the source that had it, or `None` if nothing has happened.
    pub fn fired(&self) -> io::Result<Option<Source>> {
        let mut events = Vec::with_capacity(EVENTS);
        let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&zero))?;
        let source = events.first().and_then(|event| self.sources.get(event.data.u64() as usize));
        Ok(source.cloned().or_else(|| (!events.is_empty()).then(Source::unknown)))
    }

    /// The first source that is ready now, whether an event told of it or not. For whoever takes over from a worker that
    /// may have taken the event and died.
    pub fn ready_now(&self) -> io::Result<Option<Source>> {
        for source in &self.sources {
            let duplicate = match duplicate_of(open(source.pid)?, source.fd) {
                Ok(duplicate) => duplicate,
                Err(rustix::io::Errno::BADF) => continue,
                Err(error) => return Err(error.into()),
            };
            if is_ready(&duplicate, source.events)? {
                return Ok(Some(source.clone()));
            }
        }
        Ok(None)
    }

    /// As [`Watch::ready_now`], for an app without processes whose open files these are: they are told apart by what they
    /// are, where that says which one it is; else all of a kind are looked at.
    pub fn ready_among<'a>(&self, files: impl IntoIterator<Item = &'a OwnedFd>) -> io::Result<Option<Source>> {
        for file in files {
            let what = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
            let what = what.to_string_lossy();
            for source in self.sources.iter().filter(|source| source.what == what) {
                if is_ready(file, source.events)? {
                    return Ok(Some(source.clone()));
                }
            }
        }
        Ok(None)
    }

    /// Registers everything that `processes` wait for. `Err(Ready)` if something awaited is ready already.
    pub(crate) fn build(processes: &[Waiting], single_sockets: bool) -> Result<Self, WatchError> {
        let mut watch =
            Self { epoll: epoll::create(CreateFlags::CLOEXEC).map_err(io::Error::from)?, sources: Vec::new() };
        for process in processes {
            if !process.on_descriptors {
                watch.add_all_sockets(process.pid)?;
            }
        }
        let singled: Vec<_> =
            processes.iter().map(|process| singled(process, single_sockets)).collect::<io::Result<_>>()?;
        for (process, singled) in processes.iter().zip(&singled) {
            watch.add_members(process.pid, singled, true)?;
        }
        // What lies there already does not count for those.
        while watch.fired()?.is_some() {}
        for (process, singled) in processes.iter().zip(&singled) {
            // An edge from before that makes the epoll descriptor of the app readable.
            if let Some(source) = untold(process.pid, singled)? {
                return Err(WatchError::Ready(source));
            }
            watch.add_members(process.pid, singled, false)?;
            watch.add_awaited(process, singled)?;
        }
        match watch.fired()? {
            Some(source) => Err(WatchError::Ready(source)),
            None => Ok(watch),
        }
    }

    fn add_all_sockets(&mut self, pid: i32) -> Result<(), WatchError> {
        let process = open(pid)?;
        for (fd, what) in proc::descriptors(pid)? {
            if what.starts_with("socket:") {
                let events = EventFlags::IN | EventFlags::RDHUP;
                self.add(process.as_fd(), Source { pid, fd, what, awaited: false, events: events.bits() })?;
            }
        }
        Ok(())
    }

    /// Members of epoll descriptors that are watched one by one: those that the app has registered as edge-triggered, or the others.
    fn add_members(&mut self, pid: i32, singled: &Singled, edge: bool) -> Result<(), WatchError> {
        let process = open(pid)?;
        for Member { fd, what, events, .. } in
            singled.values().flatten().filter(|member| !member.timer && member.edge == edge)
        {
            let source = Source { pid, fd: *fd, what: what.clone(), awaited: true, events: events.bits() };
            self.add(process.as_fd(), source)?;
        }
        Ok(())
    }

    fn add_awaited(&mut self, waiting: &Waiting, singled: &Singled) -> Result<(), WatchError> {
        let pid = waiting.pid;
        let process = open(pid)?;
        for Awaited { fd, events, .. } in waiting.awaited.values().filter(|awaited| !singled.contains_key(&awaited.fd))
        {
            if let Some(what) = what_is_open(pid, *fd)? {
                self.add(process.as_fd(), Source { pid, fd: *fd, what, awaited: true, events: events.bits() })?;
            }
        }
        Ok(())
    }

    fn add(&mut self, process: BorrowedFd<'_>, source: Source) -> Result<(), WatchError> {
        if source.what == TIMERFD {
            // Timers wake by their own deadline, if they are far enough away.
            return Ok(());
        }
        let duplicate = match duplicate_of(process, source.fd) {
            Ok(duplicate) => duplicate,
            Err(rustix::io::Errno::BADF) => return Ok(()),
            Err(error) => return Err(io::Error::from(error).into()),
        };
        Ok(self.register(duplicate.as_fd(), source)?)
    }

    pub(crate) fn register(&mut self, file: BorrowedFd<'_>, source: Source) -> io::Result<()> {
        let data = EventData::new_u64(self.sources.len() as u64);
        let events = EventFlags::from_bits_retain(source.events) | EventFlags::ET;
        match epoll::add(&self.epoll, file, data, events) {
            // Regular files are always ready and never awaited.
            Err(rustix::io::Errno::PERM) => Ok(()),
            Err(rustix::io::Errno::EXIST) => self.widen(file, &source),
            Err(error) => Err(error.into()),
            Ok(()) => {
                self.sources.push(source);
                Ok(())
            }
        }
    }
}

impl Watch {
    /// The open file of this source is registered already, for another process: it is watched for the events of both. One that
    /// reads and one that writes may share a socket.
    fn widen(&mut self, file: BorrowedFd<'_>, source: &Source) -> io::Result<()> {
        // Other kinds of files have no name of their own by which to find their registration.
        if !["socket:", "pipe:"].iter().any(|kind| source.what.starts_with(kind)) {
            return Ok(());
        }
        let Some(at) = self.sources.iter().rposition(|known| known.what == source.what) else { return Ok(()) };
        let known = &mut self.sources[at];
        if known.events | source.events == known.events {
            return Ok(());
        }
        known.events |= source.events;
        known.awaited |= source.awaited;
        let events = EventFlags::from_bits_retain(known.events) | EventFlags::ET;
        Ok(epoll::modify(&self.epoll, file, EventData::new_u64(at as u64), events)?)
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Source {
    fn unknown() -> Self {
        Self { pid: 0, fd: -1, what: "a descriptor".to_owned(), awaited: true, events: 0 }
    }
}

/// Why an app cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// It has work to do.
    #[error("{} of process {} is ready", .0.what, .0.pid)]
    Ready(Source),
    /// The kernel refused.
    #[error("watching descriptors")]
    Io(#[from] io::Error),
}

const TIMERFD: &str = "anon_inode:[timerfd]";

struct Member {
    fd: i32,
    what: String,
    events: EventFlags,
    timer: bool,
    /// Registered with `EPOLLET`.
    edge: bool,
}

/// Epoll descriptors of a process that are watched by their members.
type Singled = BTreeMap<i32, Vec<Member>>;

/// Those of a process that waits: all with `single_sockets`, else those that have timers.
fn singled(waiting: &Waiting, single_sockets: bool) -> io::Result<Singled> {
    let mut found = Singled::new();
    for awaited in waiting.awaited.values().filter(|awaited| awaited.epoll) {
        if what_is_open(waiting.pid, awaited.fd)?.is_none() {
            continue;
        }
        let members = members(waiting.pid, awaited.fd)?;
        if single_sockets || members.iter().any(|member| member.timer) {
            found.insert(awaited.fd, members);
        }
    }
    Ok(found)
}

/// An epoll descriptor that has edge-triggered members and is readable: `epoll_wait(2)` would return an event to the app.
fn untold(pid: i32, singled: &Singled) -> io::Result<Option<Source>> {
    let process = open(pid)?;
    for fd in singled.iter().filter(|(_, members)| members.iter().any(|member| member.edge)).map(|(fd, _)| *fd) {
        let duplicate = match duplicate_of(process.as_fd(), fd) {
            Ok(duplicate) => duplicate,
            Err(rustix::io::Errno::BADF) => continue,
            Err(error) => return Err(error.into()),
        };
        if is_ready(&duplicate, EventFlags::IN.bits())? {
            let what = what_is_open(pid, fd)?.unwrap_or_default();
            return Ok(Some(Source { pid, fd, what, awaited: true, events: EventFlags::IN.bits() }));
        }
    }
    Ok(None)
}

/// Whether one of these events is there now; `events` as `epoll_ctl(2)` numbers them.
fn is_ready(file: impl AsFd, events: u32) -> io::Result<bool> {
    let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    // The low bits of poll's and epoll's events are the same.
    let events = PollFlags::from_bits_truncate(events as u16);
    Ok(poll(&mut [PollFd::new(&file, events)], Some(&zero))? > 0)
}

/// What a descriptor of a process is; none where it has none of this number: the call of the program will say so.
fn what_is_open(pid: i32, fd: i32) -> io::Result<Option<String>> {
    match std::fs::read_link(format!("/proc/{pid}/fd/{fd}")) {
        Ok(what) => Ok(Some(what.to_string_lossy().into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// What an epoll descriptor of a process has registered, as `/proc/PID/fdinfo` shows it.
fn members(pid: i32, fd: i32) -> io::Result<Vec<Member>> {
    let mut members = Vec::new();
    for line in proc::read(&format!("/proc/{pid}/fdinfo/{fd}"))?.lines() {
        let Some(rest) = line.strip_prefix("tfd:") else { continue };
        let mut fields = rest.split_ascii_whitespace();
        let member = fields.next().and_then(|fd| fd.parse::<i32>().ok());
        let events = fields.nth(1).and_then(|events| u32::from_str_radix(events, 16).ok());
        let (Some(fd), Some(events)) = (member, events) else { continue };
        let Some(what) = what_is_open(pid, fd)? else { continue };
        let edge = events & EventFlags::ET.bits() != 0;
        let kinds = EventFlags::IN | EventFlags::OUT | EventFlags::PRI | EventFlags::RDHUP;
        let events = EventFlags::from_bits_truncate(events) & kinds;
        let timer = what == TIMERFD;
        if !events.is_empty() {
            members.push(Member { fd, what, events, timer, edge });
        }
    }
    Ok(members)
}

/// What an epoll descriptor of a process has registered: descriptors, and what they are. For showing it to people.
pub fn epoll_members(pid: i32, fd: i32) -> io::Result<Vec<(i32, String)>> {
    Ok(members(pid, fd)?.into_iter().map(|member| (member.fd, member.what)).collect())
}

fn open(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn awaited(fd: &impl AsRawFd, events: EventFlags) -> Waits {
        Waits::On(vec![Awaited { fd: fd.as_raw_fd(), events, epoll: false }])
    }

    /// This process, whose threads wait so.
    fn own(waits: impl IntoIterator<Item = Waits>) -> Waiting {
        let mut waiting = Waiting::new(rustix::process::getpid().as_raw_nonzero().get());
        waits.into_iter().for_each(|waits| waiting.add(waits));
        waiting
    }

    /// A socket with so much in its buffer that nothing more fits, and its other end.
    fn full() -> (UnixStream, UnixStream) {
        use std::io::Write;
        let (mut socket, peer) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 4096]).is_ok() {}
        (socket, peer)
    }

    fn drain(peer: &UnixStream) {
        use std::io::Read;
        peer.set_nonblocking(true).unwrap();
        let mut peer = peer;
        while peer.read(&mut [0; 1 << 16]).is_ok_and(|read| read > 0) {}
    }

    #[test]
    fn a_reader_and_a_writer_of_one_socket_are_both_woken() {
        let both = |socket: &UnixStream| [awaited(socket, EventFlags::IN), awaited(socket, EventFlags::OUT)];
        // Two threads of one process.
        let (socket, peer) = full();
        let watch = Watch::build(&[own(both(&socket))], false).unwrap();
        assert!(watch.fired().unwrap().is_none());
        drain(&peer);
        assert!(watch.fired().unwrap().is_some(), "the writer has room");
        // As two processes that share it: one after the other.
        let (socket, peer) = full();
        let waiting = both(&socket).map(|waits| own([waits]));
        let watch = Watch::build(&waiting, false).unwrap();
        assert!(watch.fired().unwrap().is_none());
        drain(&peer);
        assert!(watch.fired().unwrap().is_some(), "the writer has room");
    }

    #[test]
    fn readiness_that_an_edge_triggered_member_has_been_told_of_does_not_count() {
        use rustix::event::{EventfdFlags, eventfd};
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let event = eventfd(1, EventfdFlags::NONBLOCK).unwrap();
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK).unwrap();
        let (socket, mut peer) = UnixStream::pair().unwrap();
        let edge = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        epoll::add(&epoll, &event, EventData::new_u64(1), EventFlags::IN | EventFlags::ET).unwrap();
        epoll::add(&epoll, &timer, EventData::new_u64(2), EventFlags::IN).unwrap();
        epoll::add(&epoll, &socket, EventData::new_u64(3), edge).unwrap();
        let waits = || {
            let awaited = Awaited { fd: epoll.as_raw_fd(), events: EventFlags::IN, epoll: true };
            Watch::build(&[own([Waits::On(vec![awaited])])], false)
        };
        assert!(matches!(waits(), Err(WatchError::Ready(_))), "the program has not been told yet");
        let tell = || {
            let mut events = Vec::with_capacity(8);
            let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&zero)).unwrap()
        };
        assert_eq!(tell(), 2);
        let watch = waits().unwrap();
        assert!(watch.fired().unwrap().is_none());
        io::Write::write_all(&mut peer, b"x").unwrap();
        assert!(watch.fired().unwrap().is_some_and(|source| source.fd == socket.as_raw_fd()));
        assert!(matches!(waits(), Err(WatchError::Ready(_))));
        assert_eq!(tell(), 1);
        let watch = waits().unwrap();
        rustix::io::write(&event, &1_u64.to_ne_bytes()).unwrap();
        assert!(watch.fired().unwrap().is_some_and(|source| source.fd == event.as_raw_fd()));
    }

    #[test]
    fn full_sets_of_many_threads_are_looked_at_once() {
        let table = proc::descriptor_table(rustix::process::getpid().as_raw_nonzero().get());
        assert!((1..16_384).contains(&table));
        let all = || Waits::On((0..16_384).map(|fd| Awaited { fd, events: EventFlags::PRI, epoll: false }).collect());
        let waiting = own(std::iter::repeat_with(all).take(50));
        assert_eq!(waiting.awaited.len(), table as usize);
    }
}
