//! The worker's side: blocking, one request at a time, a few microseconds each.
//!
//! A client connects again by itself after a failure, so it survives a restart of the keeper; what was parked does not.
//! After a time-out the connection is given up, so that a late reply is never taken for the next request's.
//!
//! Lock order: the connection's mutex is the only lock, held for one request and its reply.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use torpor_linux::closer::AppFile;

use crate::error::Error;
use crate::limits::{FDS_PER_KEY, FDS_PER_PACKET, PACKET_BYTES, REPLY_TIMEOUT};
use crate::protocol::{DecodeError, Info, PROTOCOL_VERSION, Refusal, Reply, Request, check_key, decode_reply, encode};
use crate::{packet, store};

/// How often an entry may be replaced while it is read before [`Client::get`] gives up.
const GET_ATTEMPTS: u32 = 16;

/// An entry as it comes back: the keeper has kept its own descriptors.
#[derive(Debug)]
pub struct Parked {
    /// The blob.
    pub blob: Vec<u8>,
    /// Duplicates of the descriptors, in the order in which they were put, close-on-exec.
    pub fds: Vec<AppFile>,
}

/// A line of [`Client::list`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The key.
    pub key: String,
    /// Length of its blob, in bytes.
    pub blob_bytes: u32,
    /// How many descriptors it has.
    pub fds: u32,
}

struct Connection {
    /// Replies that nobody has read can be in it, with descriptors of apps.
    socket: Option<AppFile>,
    /// The head of the request.
    head: Vec<u8>,
    /// The reply.
    packet: Box<[u8]>,
    fds: Vec<AppFile>,
}

/// A connection to a keeper. May be shared by threads; they take turns.
pub struct Client {
    path: PathBuf,
    timeout: Duration,
    connection: Mutex<Connection>,
    when_silent: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to the keeper that listens on `path` and makes sure that it speaks our version.
    ///
    /// # Errors
    /// [`Error::NotRunning`] where nobody listens, [`Error::Version`] where an older or newer keeper does.
    pub fn connect(path: &Path) -> Result<Self, Error> {
        Self::connect_with_timeout(path, REPLY_TIMEOUT)
    }

    /// As [`Client::connect`], waiting at most `timeout` (not zero) for each reply.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with_timeout(path: &Path, timeout: Duration) -> Result<Self, Error> {
        let client = Self::unconnected(path, timeout);
        client.ping()?;
        Ok(client)
    }

    fn unconnected(path: &Path, timeout: Duration) -> Self {
        let connection = Connection {
            socket: None,
            head: Vec::new(),
            packet: vec![0; PACKET_BYTES].into_boxed_slice(),
            fds: Vec::new(),
        };
        let connection = Mutex::new(connection);
        Self { path: path.to_owned(), timeout, connection, when_silent: OnceLock::new() }
    }

    /// Calls `told` each time that the keeper has not answered in time, in the thread that waited. Only the first call counts.
    pub fn when_silent(&self, told: impl Fn() + Send + Sync + 'static) {
        self.when_silent.get_or_init(|| Box::new(told));
    }

    /// The process that listens on `path`: a pidfd.
    pub(crate) fn listener(path: &Path) -> Result<OwnedFd, Error> {
        let client = Self::unconnected(path, REPLY_TIMEOUT);
        let socket = client.open()?;
        let failed = |source| Error::Socket { step: "find the process of", path: path.to_owned(), source };
        if rustix::net::sockopt::socket_peercred(&socket).map_err(|errno| failed(errno.into()))?.pid
            == rustix::process::getpid()
        {
            return Err(failed(io::Error::other("it is this process")));
        }
        torpor_linux::socket::peer_process(&socket).map_err(failed)
    }

    /// The keeper's socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Who the keeper is and how much it holds.
    ///
    /// # Errors
    /// When the keeper cannot be reached.
    pub fn ping(&self) -> Result<Info, Error> {
        self.call("ping", "", &Request::Ping, &[], &[], |reply, _, _| match reply {
            Reply::Pong(info) => Some(info),
            _ => None,
        })
    }

    /// Keeps `blob` and duplicates of `fds` under `key`, in place of what was there.
    ///
    /// After an error other than [`Error::Refused`] the old entry or the new one is there, whole; putting again is safe.
    ///
    /// # Errors
    /// [`Error::Refused`] beyond a bound of [`crate::limits`].
    pub fn put(&self, key: &str, blob: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let refused = |source| Error::Refused { request: "put", key: key.to_owned(), source };
        check_key(key).map_err(refused)?;
        if blob.len() > crate::limits::BLOB_BYTES {
            return Err(refused(Refusal::Blob { bytes: blob.len() as u64 }));
        }
        if fds.len() > FDS_PER_KEY {
            return Err(refused(Refusal::FdsPerKey { count: fds.len() as u64 }));
        }
        let mut connection = self.lock();
        let mut rest = fds;
        let mut request = Request::Put { key, fds: fds.len() as u32 };
        let mut tail = blob;
        loop {
            let (part, after) = rest.split_at(rest.len().min(FDS_PER_PACKET));
            // Only the first part may connect again: a later one belongs to the connection that has the beginning.
            let go_on =
                self.exchange(&mut connection, "put", key, &request, (tail, part), |reply, _, _| match reply {
                    Reply::Done { .. } => Some(false),
                    Reply::Continue => Some(true),
                    _ => None,
                })?;
            match (go_on, after.is_empty()) {
                (false, true) => return Ok(()),
                (true, false) => {}
                _ => return Err(self.lost(&mut connection, "put")),
            }
            (rest, request, tail) = (after, Request::PutMore, &[]);
        }
    }

    /// Whether `fds` descriptors could be put under `key` now, as far as their number goes. Nothing is reserved.
    ///
    /// # Errors
    /// [`Error::Refused`] as [`Client::put`] would; when the keeper cannot be reached.
    pub fn has_room(&self, key: &str, fds: usize) -> Result<(), Error> {
        let info = self.ping()?;
        let beside = match store::group(key) {
            Some(group) => self.list(group)?.iter().filter(|other| other.key != key).map(|one| one.fds as usize).sum(),
            None => 0,
        };
        store::check_fds(fds, info.fds as usize, beside, info.fds_limit as usize).map_err(|source| Error::Refused {
            request: "put",
            key: key.to_owned(),
            source,
        })
    }

    /// The entry of `key`, if there is one. The keeper keeps its own descriptors.
    ///
    /// # Errors
    /// When the keeper cannot be reached, or replaces the entry all the time.
    pub fn get(&self, key: &str) -> Result<Option<Parked>, Error> {
        let mut connection = self.lock();
        for _ in 0..GET_ATTEMPTS {
            let Some((stamp, total, mut parked)) = self.get_part(&mut connection, key, 0)? else { return Ok(None) };
            let mut steady = true;
            while parked.fds.len() < total as usize {
                let Some((now, _, part)) = self.get_part(&mut connection, key, parked.fds.len() as u32)? else {
                    return Ok(None);
                };
                if now != stamp {
                    steady = false;
                    break;
                }
                if part.fds.is_empty() {
                    return Err(self.lost(&mut connection, "get"));
                }
                parked.fds.extend(part.fds);
            }
            if steady {
                return Ok(Some(parked));
            }
        }
        Err(Error::Unsteady { key: key.to_owned(), times: GET_ATTEMPTS })
    }

    fn get_part(&self, connection: &mut Connection, key: &str, from: u32) -> Result<Option<(u64, u32, Parked)>, Error> {
        self.exchange(connection, "get", key, &Request::Get { key, from }, (&[], &[]), |reply, blob, fds| match reply {
            Reply::Found { stamp, fds: total } => Some(Some((stamp, total, Parked { blob: blob.to_vec(), fds }))),
            Reply::Missing => Some(None),
            _ => None,
        })
    }

    /// Forgets `key`; whether it was there.
    ///
    /// # Errors
    /// When the keeper cannot be reached.
    pub fn drop_key(&self, key: &str) -> Result<bool, Error> {
        Ok(self.count("drop", key, &Request::Drop { key })? > 0)
    }

    /// Forgets every key that begins with `prefix` (all of them where it is empty); how many there were.
    ///
    /// # Errors
    /// When the keeper cannot be reached.
    pub fn drop_prefix(&self, prefix: &str) -> Result<u64, Error> {
        self.count("drop the prefix", prefix, &Request::DropPrefix { prefix })
    }

    /// Keys that begin with `prefix`, in order. Keys that come and go meanwhile may be in it or not.
    ///
    /// # Errors
    /// When the keeper cannot be reached.
    pub fn list(&self, prefix: &str) -> Result<Vec<Listed>, Error> {
        let mut all: Vec<Listed> = Vec::new();
        loop {
            let after = all.last().map(|listed| listed.key.as_str());
            let request = Request::List { prefix, after };
            let (more, page) = self.call("list", prefix, &request, &[], &[], |reply, _, _| match reply {
                Reply::Page { more, entries } => {
                    let entries = entries.iter();
                    let listed = entries.map(|e| Listed { key: e.key.into(), blob_bytes: e.blob_bytes, fds: e.fds });
                    Some((more, listed.collect::<Vec<_>>()))
                }
                _ => None,
            })?;
            let empty = page.is_empty();
            all.extend(page);
            if !more || empty {
                return Ok(all);
            }
        }
    }

    /// Closes everything that is parked and ends the keeper; returns once its socket and its lock are gone.
    ///
    /// # Errors
    /// When the keeper cannot be reached.
    pub fn shutdown(self) -> Result<(), Error> {
        self.count("shut down", "", &Request::Shutdown)?;
        let mut connection = self.lock();
        let Connection { socket, packet, fds, .. } = &mut *connection;
        let Some(socket) = socket.as_ref() else { return Ok(()) };
        match packet::receive(socket, packet, fds) {
            Ok(received) if received.bytes == 0 => Ok(()),
            Err(Errno::CONNRESET) => Ok(()),
            Ok(_) => Err(Error::Answer { path: self.path.clone(), request: "shut down" }),
            Err(errno) => Err(self.socket_error("hear from", errno)),
        }
    }

    fn count(&self, name: &'static str, key: &str, request: &Request<'_>) -> Result<u64, Error> {
        self.call(name, key, request, &[], &[], |reply, _, _| match reply {
            Reply::Done { count } => Some(count),
            _ => None,
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Connection> {
        // A panic in the middle of a request leaves a connection whose next reply belongs to nobody.
        self.connection.lock().unwrap_or_else(|poisoned: PoisonError<_>| {
            let mut connection = poisoned.into_inner();
            connection.socket = None;
            connection
        })
    }

    fn call<T>(
        &self,
        name: &'static str,
        key: &str,
        request: &Request<'_>,
        tail: &[u8],
        fds: &[BorrowedFd<'_>],
        read: impl FnOnce(Reply<'_>, &[u8], Vec<AppFile>) -> Option<T>,
    ) -> Result<T, Error> {
        self.exchange(&mut self.lock(), name, key, request, (tail, fds), read)
    }

    /// One request and its reply, which `read` takes apart; it gives nothing for a reply of the wrong kind.
    fn exchange<T>(
        &self,
        connection: &mut Connection,
        name: &'static str,
        key: &str,
        request: &Request<'_>,
        (tail, fds): (&[u8], &[BorrowedFd<'_>]),
        read: impl FnOnce(Reply<'_>, &[u8], Vec<AppFile>) -> Option<T>,
    ) -> Result<T, Error> {
        encode(request, &mut connection.head);
        self.send(connection, matches!(request, Request::PutMore), tail, fds)?;
        let Connection { socket, packet, fds: arrived, .. } = &mut *connection;
        let Some(open) = socket.as_ref() else { return Err(Error::Closed { path: self.path.clone() }) };
        arrived.clear();
        let mut outcome = packet::receive(open, packet, arrived);
        if matches!(outcome, Err(Errno::CONNRESET)) {
            // The keeper hung up with our request unread. The kernel reports that once, before what the keeper said last.
            outcome = packet::receive(open, packet, arrived);
        }
        let received = match outcome {
            Ok(received) if received.bytes > 0 => received,
            Ok(_) => {
                *socket = None;
                return Err(Error::Closed { path: self.path.clone() });
            }
            Err(errno) => {
                *socket = None;
                return Err(self.socket_error("hear from", errno));
            }
        };
        let arrived = std::mem::take(arrived);
        if received.truncated {
            *socket = None;
            return Err(self.socket_error("hear from", Errno::MFILE));
        }
        match decode_reply(&packet[..received.bytes]) {
            Ok((Reply::Refused(source), _)) => Err(Error::Refused { request: name, key: key.to_owned(), source }),
            Ok((reply, tail)) => match read(reply, tail, arrived) {
                Some(answer) => Ok(answer),
                None => Err(self.lost(connection, name)),
            },
            Err(DecodeError::Version(keeper)) => {
                *socket = None;
                Err(Error::Version { path: self.path.clone(), keeper, own: PROTOCOL_VERSION })
            }
            Err(DecodeError::Malformed) => Err(self.lost(connection, name)),
        }
    }

    /// Sends the request in `head`. Where the old connection turns out to be dead, a new one is made, unless the request
    /// `continues` one that went over the old one.
    fn send(
        &self,
        connection: &mut Connection,
        continues: bool,
        tail: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        if let Some(socket) = &connection.socket {
            match packet::send(socket, &connection.head, tail, fds) {
                Ok(()) => return Ok(()),
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) if !continues => {}
                Err(errno) => {
                    connection.socket = None;
                    return Err(self.socket_error("ask", errno));
                }
            }
        } else if continues {
            return Err(Error::Closed { path: self.path.clone() });
        }
        connection.socket = None;
        let socket = self.open()?;
        match packet::send(&socket, &connection.head, tail, fds) {
            // A keeper that does not want us has said why before it hung up: that can still be read.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(errno) => return Err(self.socket_error("ask", errno)),
        }
        connection.socket = Some(socket.into());
        Ok(())
    }

    fn open(&self) -> Result<OwnedFd, Error> {
        let failed = |errno| self.socket_error("connect to", errno);
        let address = SocketAddrUnix::new(&self.path).map_err(failed)?;
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).map_err(failed)?;
        set_socket_timeout(&socket, Timeout::Send, Some(self.timeout)).map_err(failed)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(self.timeout)).map_err(failed)?;
        match rustix::net::connect(socket.as_fd(), &address) {
            Ok(()) => Ok(socket),
            Err(errno @ (Errno::NOENT | Errno::CONNREFUSED)) => {
                Err(Error::NotRunning { path: self.path.clone(), source: errno.into() })
            }
            Err(errno) => Err(failed(errno)),
        }
    }

    fn socket_error(&self, step: &'static str, errno: Errno) -> Error {
        match errno {
            Errno::AGAIN => {
                if let Some(told) = self.when_silent.get() {
                    told();
                }
                Error::TimedOut { path: self.path.clone(), timeout: self.timeout }
            }
            errno => Error::Socket { step, path: self.path.clone(), source: io::Error::from(errno) },
        }
    }

    /// The error for a reply that does not belong to the request; the connection is given up.
    fn lost(&self, connection: &mut Connection, request: &'static str) -> Error {
        connection.socket = None;
        Error::Answer { path: self.path.clone(), request }
    }
}
