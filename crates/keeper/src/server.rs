//! The keeper's loop: one thread, one epoll, one buffer.
//!
//! It polls the listening socket and its clients, nothing that it holds. A client is read one packet at a time; each
//! packet gets one reply, sent without waiting. A client whose reply does not fit its socket, or that breaks the
//! protocol's framing, is disconnected.
//!
//! It closes nothing that may be an app's by itself, since the app could make that take as long as it likes:
//! [`torpor_linux::closer`] does. What is being closed counts among the open files until it is gone.
//!
//! It watches its own directory, too, and puts back a socket that is removed ([`crate::place`]).
//!
//! Nothing that happens to one connection ends the keeper. Where one cannot be accepted for want of descriptors or memory,
//! the listening socket is left alone for [`ACCEPT_PAUSE`]: it would be readable all the time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::process::Uid;
use torpor_linux::closer::{self, AppFile};

use crate::error::Error;
use crate::limits::{ACCEPT_PAUSE, CLIENTS, FDS_PER_PACKET, LISTED_PER_PACKET, PACKET_BYTES};
use crate::packet;
use crate::place::Place;
use crate::protocol::{DecodeError, Entry, Info, Refusal, Reply, Request, decode_request, encode};
use crate::store::Store;

const LISTENER: u64 = u64::MAX;
const WATCH: u64 = u64::MAX - 1;
/// How long a request that drops an entry waits until its descriptors are closed.
const CLOSED_WITHIN: Duration = Duration::from_millis(20);

/// A put whose descriptors have not all come.
struct Staged {
    key: Box<str>,
    blob: Box<[u8]>,
    wanted: usize,
    fds: Vec<AppFile>,
}

struct Connection {
    /// Packets that nobody has read can be in it, with descriptors of apps.
    socket: AppFile,
    staged: Option<Staged>,
}

/// What becomes of a connection after a packet.
#[derive(PartialEq)]
enum Next {
    Keep,
    Close,
    Shutdown,
}

/// The keeper at work.
pub(crate) struct Server {
    place: Place,
    epoll: OwnedFd,
    /// Until then nobody is accepted.
    paused: Option<Instant>,
    connections: Vec<Option<Connection>>,
    store: Store<AppFile>,
    packet: Box<[u8]>,
    reply: Vec<u8>,
}

fn kernel(step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Kernel { step, source: errno.into() }
}

impl Server {
    /// A keeper for at most `fds_limit` descriptors that is found at `place`.
    pub(crate) fn new(place: Place, fds_limit: usize) -> Result<Self, Error> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(kernel("make an epoll descriptor"))?;
        epoll::add(&epoll, &place.bound.listener, EventData::new_u64(LISTENER), EventFlags::IN)
            .map_err(kernel("poll the listening socket"))?;
        if let Some(watch) = &place.watch {
            epoll::add(&epoll, watch, EventData::new_u64(WATCH), EventFlags::IN)
                .map_err(kernel("poll the directory of the socket"))?;
        }
        Ok(Self {
            place,
            epoll,
            paused: None,
            connections: Vec::new(),
            store: Store::new(fds_limit),
            packet: vec![0; PACKET_BYTES].into_boxed_slice(),
            reply: Vec::new(),
        })
    }

    /// Serves until a client asks for the shutdown; gives back its connection, which it hears the end of by its closing.
    pub(crate) fn serve(&mut self) -> Result<AppFile, Error> {
        loop {
            let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 16];
            let pause = self.resume()?;
            let count = match epoll::wait(&self.epoll, &mut events, pause.as_ref()) {
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(kernel("wait for clients")(errno)),
            };
            for event in &events[..count] {
                let token = event.data.u64();
                if token == LISTENER {
                    self.accept()?;
                } else if token == WATCH {
                    self.keep_name()?;
                } else if let Some(socket) = self.serve_client(token as usize) {
                    return Ok(socket);
                }
            }
        }
    }

    /// Where the keeper is found.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Listens again where the socket has lost its name.
    fn keep_name(&mut self) -> Result<(), Error> {
        if self.place.is_named() {
            return Ok(());
        }
        // Who has connected to the old one is not turned away.
        while self.accept()? {}
        let again = self.place.bind_again().and_then(|bound| {
            epoll::add(&self.epoll, &bound.listener, EventData::new_u64(LISTENER), EventFlags::IN)
                .map_err(kernel("poll the listening socket"))?;
            Ok(bound)
        });
        match again {
            Ok(bound) => {
                tracing::warn!("the socket was removed and is made again");
                self.place.bound = bound;
            }
            Err(error) => tracing::error!(error = &error as &dyn std::error::Error, "making the removed socket again"),
        }
        Ok(())
    }

    /// Polls the listening socket again once the pause is over; what is left of it.
    fn resume(&mut self) -> Result<Option<Timespec>, Error> {
        let Some(until) = self.paused else { return Ok(None) };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            epoll::modify(&self.epoll, &self.place.bound.listener, EventData::new_u64(LISTENER), EventFlags::IN)
                .map_err(kernel("poll the listening socket"))?;
            self.paused = None;
            return Ok(None);
        }
        // Shorter than any bound of the type.
        Ok(Timespec::try_from(left).ok())
    }

    /// Accepts a client; `false`: nobody waits, or nobody can be accepted now.
    fn accept(&mut self) -> Result<bool, Error> {
        let socket =
            match rustix::net::accept_with(&self.place.bound.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => AppFile::from(socket),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
                // Of the connection, not of the listening socket: accept(2) lists what it may be.
                Err(errno @ (Errno::CONNABORTED | Errno::PROTO | Errno::PERM)) => {
                    tracing::debug!(%errno, "a client left before it was accepted");
                    return Ok(true);
                }
                Err(errno) => {
                    tracing::warn!(%errno, "a client cannot be accepted now");
                    epoll::modify(
                        &self.epoll,
                        &self.place.bound.listener,
                        EventData::new_u64(LISTENER),
                        EventFlags::empty(),
                    )
                    .map_err(kernel("leave the listening socket alone"))?;
                    self.paused = Some(Instant::now() + ACCEPT_PAUSE);
                    return Ok(false);
                }
            };
        if let Err(refusal) = self.admit(socket) {
            tracing::warn!(%refusal, "a client is disconnected");
        }
        Ok(true)
    }

    /// Takes a client in, or tells it why not.
    fn admit(&mut self, socket: AppFile) -> Result<(), Refusal> {
        let user = match rustix::net::sockopt::socket_peercred(&socket) {
            Ok(peer) if peer.uid == Uid::ROOT || peer.uid == rustix::process::geteuid() => None,
            Ok(peer) => Some(peer.uid.as_raw()),
            // Whoever cannot be asked is nobody.
            Err(_) => Some(u32::MAX),
        };
        let slot = self.connections.iter().position(Option::is_none).unwrap_or(self.connections.len());
        let refusal = match user {
            Some(uid) => Some(Refusal::User { uid }),
            None if slot >= CLIENTS => Some(Refusal::Clients),
            None => epoll::add(&self.epoll, &socket, EventData::new_u64(slot as u64), EventFlags::IN)
                .err()
                .map(|_| Refusal::Clients),
        };
        if let Some(refusal) = refusal {
            self.refuse(&socket, refusal.clone());
            return Err(refusal);
        }
        let connection = Some(Connection { socket, staged: None });
        match self.connections.get_mut(slot) {
            Some(free) => *free = connection,
            None => self.connections.push(connection),
        }
        Ok(())
    }

    /// Tells a client that is about to be disconnected why; it may already be gone, which is as well.
    fn refuse(&mut self, socket: &AppFile, refusal: Refusal) {
        encode(&Reply::Refused(refusal), &mut self.reply);
        if let Err(errno) = packet::send(socket, &self.reply, &[], &[]) {
            tracing::debug!(%errno, "a refused client did not hear why");
        }
    }

    /// One packet of the client in `slot`; its socket, if it asked for the shutdown.
    fn serve_client(&mut self, slot: usize) -> Option<AppFile> {
        let mut connection = self.connections.get_mut(slot)?.take()?;
        let next = self.serve_packet(&mut connection);
        match next {
            Next::Keep => self.connections[slot] = Some(connection),
            // It is closed a little later; until then it must not be reported as whoever has the slot next.
            Next::Close => {
                if let Err(errno) = epoll::delete(&self.epoll, &connection.socket) {
                    tracing::warn!(%errno, "a closed connection stays in the epoll until it is gone");
                }
            }
            Next::Shutdown => return Some(connection.socket),
        }
        None
    }

    fn serve_packet(&mut self, connection: &mut Connection) -> Next {
        let mut fds = Vec::new();
        let mut buffer = std::mem::take(&mut self.packet);
        let next = match packet::receive(&connection.socket, &mut buffer, &mut fds) {
            Err(Errno::AGAIN) => Next::Keep,
            Ok(received) if received.bytes > 0 => {
                let bytes = if received.truncated { None } else { Some(&buffer[..received.bytes]) };
                self.answer(connection, bytes, fds)
            }
            Ok(_) | Err(_) => Next::Close,
        };
        self.packet = buffer;
        next
    }

    /// Carries out a request and replies. `packet` is absent where it did not arrive whole.
    fn answer(&mut self, connection: &mut Connection, packet: Option<&[u8]>, fds: Vec<AppFile>) -> Next {
        let decoded = packet.ok_or(DecodeError::Malformed).and_then(decode_request);
        let staged = connection.staged.take();
        let (request, tail) = match decoded {
            Ok(decoded) => decoded,
            Err(error) => {
                if let DecodeError::Version(version) = error {
                    tracing::warn!(version, "a client speaks another version of the protocol");
                }
                // The reply's header carries our version: that is how a client of another version learns it.
                return self.reply(connection, &Reply::Refused(Refusal::Malformed), Next::Close);
            }
        };
        if !fds.is_empty() && !matches!(request, Request::Put { .. } | Request::PutMore) {
            return self.reply(connection, &Reply::Refused(Refusal::Malformed), Next::Close);
        }
        match request {
            Request::Ping => self.reply(connection, &Reply::Pong(self.info()), Next::Keep),
            Request::Put { key, fds: wanted } => {
                let outcome = self.begin_put(key, tail, wanted as usize, fds);
                self.put_reply(connection, outcome)
            }
            Request::PutMore => {
                let outcome = match staged {
                    Some(staged) => self.continue_put(staged, fds),
                    None => Err(Refusal::NoPut),
                };
                self.put_reply(connection, outcome)
            }
            Request::Get { key, from } => self.get(connection, key, from as usize),
            Request::Drop { key } => {
                let removed = self.store.remove(key);
                let count = u64::from(removed.is_some());
                // Who asks may be about to let the app run, which may give up a lock or an address at once.
                let fds = removed.into_iter().flat_map(|held| held.fds).map(OwnedFd::from);
                closer::close_now(fds).settle(CLOSED_WITHIN);
                self.reply(connection, &Reply::Done { count }, Next::Keep)
            }
            Request::DropPrefix { prefix } => {
                let count = self.store.remove_prefix(prefix).len() as u64;
                self.reply(connection, &Reply::Done { count }, Next::Keep)
            }
            Request::List { prefix, after } => self.list(connection, prefix, after),
            Request::Shutdown => self.reply(connection, &Reply::Done { count: 0 }, Next::Shutdown),
        }
    }

    fn info(&self) -> Info {
        Info {
            pid: std::process::id(),
            keys: self.store.keys() as u64,
            fds: self.store.fds() as u64,
            fds_limit: self.store.fds_limit() as u64,
            blob_bytes: self.store.blob_bytes() as u64,
        }
    }

    /// Open files beside those in the store: of puts under way, and those that are being closed.
    fn other_fds(&self) -> usize {
        let staged = self.connections.iter().flatten().filter_map(|c| c.staged.as_ref());
        staged.map(|staged| staged.wanted).sum::<usize>() + closer::pending()
    }

    fn begin_put(
        &mut self,
        key: &str,
        blob: &[u8],
        wanted: usize,
        fds: Vec<AppFile>,
    ) -> Result<Option<Staged>, Refusal> {
        self.store.check(key, blob.len(), wanted, self.other_fds())?;
        self.continue_put(Staged { key: key.into(), blob: blob.into(), wanted, fds: Vec::new() }, fds)
    }

    /// Adds `fds`; the put as it stands if more are to come, nothing once it is in the store.
    fn continue_put(&mut self, mut staged: Staged, fds: Vec<AppFile>) -> Result<Option<Staged>, Refusal> {
        let missing = staged.wanted - staged.fds.len();
        if fds.len() > missing || fds.len() < missing.min(FDS_PER_PACKET) {
            let received = (staged.fds.len() + fds.len()) as u64;
            return Err(Refusal::FdCount { announced: staged.wanted as u64, received });
        }
        staged.fds.extend(fds);
        if staged.fds.len() < staged.wanted {
            return Ok(Some(staged));
        }
        staged.fds.shrink_to_fit();
        drop(self.store.put(&staged.key, staged.blob, staged.fds)?);
        Ok(None)
    }

    fn put_reply(&mut self, connection: &mut Connection, outcome: Result<Option<Staged>, Refusal>) -> Next {
        match outcome {
            Ok(Some(staged)) => {
                connection.staged = Some(staged);
                self.reply(connection, &Reply::Continue, Next::Keep)
            }
            Ok(None) => self.reply(connection, &Reply::Done { count: 1 }, Next::Keep),
            Err(refusal) => self.reply(connection, &Reply::Refused(refusal), Next::Keep),
        }
    }

    fn get(&mut self, connection: &Connection, key: &str, from: usize) -> Next {
        let Some(held) = self.store.get(key) else {
            return self.reply(connection, &Reply::Missing, Next::Keep);
        };
        encode(&Reply::Found { stamp: held.stamp, fds: held.fds.len() as u32 }, &mut self.reply);
        let fds: Vec<BorrowedFd<'_>> = held.fds.iter().skip(from).take(FDS_PER_PACKET).map(AsFd::as_fd).collect();
        let blob: &[u8] = if from == 0 { &held.blob } else { &[] };
        sent(packet::send(&connection.socket, &self.reply, blob, &fds), Next::Keep)
    }

    fn list(&mut self, connection: &Connection, prefix: &str, after: Option<&str>) -> Next {
        let mut range = self.store.range(prefix, after);
        let entries = range
            .by_ref()
            .take(LISTED_PER_PACKET)
            .map(|(key, held)| Entry { key, blob_bytes: held.blob.len() as u32, fds: held.fds.len() as u32 })
            .collect();
        let more = range.next().is_some();
        encode(&Reply::Page { more, entries }, &mut self.reply);
        sent(packet::send(&connection.socket, &self.reply, &[], &[]), Next::Keep)
    }

    fn reply(&mut self, connection: &Connection, reply: &Reply<'_>, next: Next) -> Next {
        encode(reply, &mut self.reply);
        sent(packet::send(&connection.socket, &self.reply, &[], &[]), next)
    }
}

/// `next` if the reply went out. A shutdown happens even if its client has gone.
fn sent(result: Result<(), Errno>, next: Next) -> Next {
    match result {
        Ok(()) => next,
        Err(_) if next == Next::Shutdown => next,
        Err(errno) => {
            tracing::debug!(%errno, "a client does not take its replies");
            Next::Close
        }
    }
}
