//! Sockets as the kernel lists them (`sock_diag(7)`): who listens, and what waits in a listener's accept queue.
//!
//! While an app sleeps nobody accepts. Connections that have finished their handshake wait in the listener's queue as
//! sockets without an inode. Their state tells a probe that connected and closed from a client that waits:
//!
//! | seen | what it is |
//! |---|---|
//! | ESTABLISHED, unread > 0 | a request |
//! | ESTABLISHED, unread = 0 | a client that waits for the server to speak, or has not spoken yet |
//! | CLOSE_WAIT, unread > 0 | a request whose sender has shut its side down, and reads on |
//! | CLOSE_WAIT, unread = 0 | closed without a word: dead |
//! | in [`AcceptQueue::queued`], but not listed | reset by the client: dead |
//! | SYN_RECV | handshake not finished, or (TCP_DEFER_ACCEPT) finished and held back until data comes; not queued |
//!
//! Measured behaviour and its limits are in the crate's `accept_queue` tests.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use rustix::net::netlink as protocols;
use rustix::net::{SocketFlags, accept_with};

use crate::netlink::{Netlink, attribute, bytes_at, u32_at};
use crate::netns;
use crate::published::Protocol;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const FAMILY_V4: u8 = 2;
const FAMILY_V6: u8 = 10;
const ANSWER_BYTES: usize = 72;
const ATTRIBUTE_V6_ONLY: u16 = 11;
/// Most sockets that one list may have.
const MAX_SOCKETS: usize = 1 << 20;

/// State of a TCP socket (`include/net/tcp_states.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names of RFC 9293")]
pub enum TcpState {
    Established,
    SynSent,
    SynReceived,
    FinWait1,
    FinWait2,
    TimeWait,
    Closed,
    CloseWait,
    LastAck,
    Listen,
    Closing,
}

impl TcpState {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Established,
            2 => Self::SynSent,
            3 | 12 => Self::SynReceived,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            7 => Self::Closed,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            10 => Self::Listen,
            11 => Self::Closing,
            _ => return None,
        })
    }

    const fn bit(self) -> u32 {
        1 << match self {
            Self::Established => 1,
            Self::SynSent => 2,
            Self::SynReceived => 3,
            Self::FinWait1 => 4,
            Self::FinWait2 => 5,
            Self::TimeWait => 6,
            Self::Closed => 7,
            Self::CloseWait => 8,
            Self::LastAck => 9,
            Self::Listen => 10,
            Self::Closing => 11,
        }
    }
}

/// A socket in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// State; an unconnected UDP socket is `Closed`.
    pub state: TcpState,
    /// Local address.
    pub local: SocketAddr,
    /// Remote address; unspecified with port 0 where there is none.
    pub remote: SocketAddr,
    /// Unread bytes; of a listener: connections that wait to be accepted.
    pub receive_queue: u32,
    /// Unsent or unacknowledged bytes; of a listener: the most that may wait.
    pub send_queue: u32,
    /// Inode; 0 while it waits to be accepted, and after its process closed it.
    pub inode: u32,
    /// An IPv6 socket.
    pub v6: bool,
    /// An IPv6 socket that takes IPv4 packets too.
    pub dual: bool,
}

/// A connection that nobody has accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The client.
    pub remote: SocketAddr,
    /// The address that it connected to.
    pub local: SocketAddr,
    /// State.
    pub state: TcpState,
    /// Bytes of data that wait to be read (an end of file is not counted).
    pub unread_bytes: u32,
    /// Inode; 0 as long as nobody has accepted.
    pub inode: u32,
}

impl Pending {
    /// Whether the client closed without having said anything.
    pub fn is_dead(&self) -> bool {
        self.state == TcpState::CloseWait && self.unread_bytes == 0
    }

    /// Whether it is in the accept queue, or still on its way there.
    pub fn is_queued(&self) -> bool {
        self.state != TcpState::SynReceived
    }
}

/// What waits at one listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptQueue {
    /// Connections in the queue, the dead ones too.
    pub queued: u32,
    /// The most that the queue takes (it takes one more); when it is full, handshakes are not finished.
    pub limit: u32,
    /// The connections that the kernel still lists, in no order.
    pub pending: Vec<Pending>,
}

impl AcceptQueue {
    /// Connections in the queue that are not dead: with data, or still open.
    pub fn alive(&self) -> impl Iterator<Item = &Pending> {
        self.pending.iter().filter(|one| one.is_queued() && !one.is_dead())
    }

    /// Connections in the queue that are dead: closed without data, or reset.
    pub fn dead(&self) -> u32 {
        self.queued.saturating_sub(u32::try_from(self.alive().count()).unwrap_or(u32::MAX))
    }
}

/// A socket that lists the sockets of one network namespace.
#[derive(Debug)]
pub struct SockDiag {
    netlink: Netlink,
}

impl SockDiag {
    /// Lists the sockets of the calling thread's namespace.
    pub fn open() -> io::Result<Self> {
        Ok(Self { netlink: Netlink::open(protocols::SOCK_DIAG)? })
    }

    /// Lists the sockets of `netns`.
    pub fn open_in(netns: BorrowedFd<'_>) -> io::Result<Self> {
        netns::run_in(netns, Self::open)?
    }

    /// TCP sockets in one of `states`, of both families; only those with `local_port` unless it is 0.
    pub fn tcp(&mut self, states: &[TcpState], local_port: u16) -> io::Result<Vec<Socket>> {
        let mask = states.iter().fold(0, |mask, state| mask | state.bit());
        let mut all = self.list(FAMILY_V4, Protocol::Tcp, mask, local_port)?;
        all.extend(self.list(FAMILY_V6, Protocol::Tcp, mask, local_port)?);
        Ok(all)
    }

    /// UDP sockets of both families, connected or not; only those with `local_port` unless it is 0.
    pub fn udp(&mut self, local_port: u16) -> io::Result<Vec<Socket>> {
        let mut all = self.list(FAMILY_V4, Protocol::Udp, u32::MAX, local_port)?;
        all.extend(self.list(FAMILY_V6, Protocol::Udp, u32::MAX, local_port)?);
        Ok(all)
    }

    /// What waits at the listening TCP socket with this inode; `None` if there is no such listener.
    pub fn accept_queue(&mut self, listener_inode: u64) -> io::Result<Option<AcceptQueue>> {
        let listeners = self.tcp(&[TcpState::Listen], 0)?;
        let Some(listener) = listeners.iter().find(|socket| u64::from(socket.inode) == listener_inode) else {
            return Ok(None);
        };
        let (port, v6) = (listener.local.port(), listener.v6);
        let states = [TcpState::Established, TcpState::CloseWait, TcpState::SynReceived];
        let mut pending = Vec::new();
        for socket in self.tcp(&states, port)? {
            let ours = socket.inode == 0 && socket.v6 == v6 && takes(listener, &listeners, &socket);
            if ours {
                pending.push(Pending {
                    unread_bytes: unread(&socket),
                    remote: plain(socket.remote),
                    local: plain(socket.local),
                    state: socket.state,
                    inode: socket.inode,
                });
            }
        }
        // The length was read before the list: a connection that arrived in between is in the list only, so that `dead`
        // is too small by it rather than too large.
        Ok(Some(AcceptQueue { queued: listener.receive_queue, limit: listener.send_queue, pending }))
    }

    fn list(&mut self, family: u8, protocol: Protocol, states: u32, local_port: u16) -> io::Result<Vec<Socket>> {
        let mut request = vec![family, protocol.number(), 0, 0];
        request.extend_from_slice(&states.to_ne_bytes());
        request.extend_from_slice(&local_port.to_be_bytes());
        request.resize(56, 0);
        let list = self.netlink.dump(SOCK_DIAG_BY_FAMILY, &request, |found: &mut Vec<Socket>, _, answer| {
            if found.len() >= MAX_SOCKETS {
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too many sockets to list"));
            }
            // Older kernels ignore the port for UDP.
            let wanted = |socket: &Socket| local_port == 0 || socket.local.port() == local_port;
            found.extend(parse(answer).filter(wanted));
            Ok(())
        });
        match list {
            // No such family or protocol in this kernel: no such sockets.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            other => other,
        }
    }
}

/// Whether `listener` is the one that took `child`: the most exact of the listeners on its port.
fn takes(listener: &Socket, listeners: &[Socket], child: &Socket) -> bool {
    let exact = |socket: &Socket| socket.local.ip() == child.local.ip();
    if !exact(listener) && !listener.local.ip().is_unspecified() {
        return false;
    }
    let other_is_exact = listeners
        .iter()
        .any(|other| other.local.port() == listener.local.port() && other.v6 == listener.v6 && exact(other));
    exact(listener) || !other_is_exact
}

/// The kernel counts the peer's end of file as one unread byte.
fn unread(socket: &Socket) -> u32 {
    match socket.state {
        TcpState::CloseWait => socket.receive_queue.saturating_sub(1),
        _ => socket.receive_queue,
    }
}

/// IPv4 clients of an IPv6 socket as IPv4 addresses.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn parse(answer: &[u8]) -> Option<Socket> {
    if answer.len() < ANSWER_BYTES {
        return None;
    }
    let family = answer[0];
    let address = |port_at: usize, ip_at: usize| -> Option<SocketAddr> {
        let port = bytes_at(answer, port_at).map(u16::from_be_bytes)?;
        let ip: IpAddr = match family {
            FAMILY_V4 => Ipv4Addr::from(bytes_at::<4>(answer, ip_at)?).into(),
            FAMILY_V6 => Ipv6Addr::from(bytes_at::<16>(answer, ip_at)?).into(),
            _ => return None,
        };
        Some(SocketAddr::new(ip, port))
    };
    Some(Socket {
        state: TcpState::from_number(answer[1])?,
        local: address(4, 8)?,
        remote: address(6, 24)?,
        receive_queue: u32_at(answer, 56)?,
        send_queue: u32_at(answer, 60)?,
        inode: u32_at(answer, 68)?,
        v6: family == FAMILY_V6,
        dual: attribute(&answer[ANSWER_BYTES..], ATTRIBUTE_V6_ONLY).and_then(|value| value.first()) == Some(&0),
    })
}

/// Accepts and closes the first `count` connections of `listener`'s queue, and says how many there were.
///
/// The queue is first in, first out: when no more are taken than were seen in an [`AcceptQueue`], one that arrives
/// meanwhile stays. Nobody else may accept from `listener` meanwhile: its app is frozen. Never blocks.
pub fn drain(listener: BorrowedFd<'_>, count: u32) -> io::Result<u32> {
    accept_each(listener, count, drop)
}

/// As [`drain`], but whoever has connected finds the connection reset.
pub fn refuse(listener: BorrowedFd<'_>, count: u32) -> io::Result<u32> {
    accept_each(listener, count, |connection| {
        // Closed all the same where there is no such option.
        let _ = rustix::net::sockopt::set_socket_linger(&connection, Some(std::time::Duration::ZERO));
    })
}

fn accept_each(listener: BorrowedFd<'_>, count: u32, close: impl Fn(std::os::fd::OwnedFd)) -> io::Result<u32> {
    let blocking = !rustix::fs::fcntl_getfl(listener)?.contains(rustix::fs::OFlags::NONBLOCK);
    let mut drained = 0;
    while drained < count {
        // The flags of the listener belong to the app, so a blocking one is asked first.
        if blocking && !readable(listener)? {
            break;
        }
        match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(connection) => {
                close(connection);
                drained += 1;
            }
            Err(rustix::io::Errno::AGAIN) => break,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(drained)
}

/// Sets how many connections may wait at `listener` (the kernel's `net.core.somaxconn` limits it).
///
/// For a sleeping app: with a short queue, a burst of probes fills it faster than anybody can drain it, and then each
/// further client waits a second for its SYN to be sent again. Also, when as many silent connections as the limit are
/// held back by TCP_DEFER_ACCEPT, the kernel goes over to SYN cookies, which hold nothing back. The old limit is
/// [`AcceptQueue::limit`]; putting it back loses nothing that waits already.
pub fn set_backlog(listener: BorrowedFd<'_>, connections: u32) -> io::Result<()> {
    let backlog = i32::try_from(connections).unwrap_or(i32::MAX);
    rustix::net::listen(listener, backlog).map_err(Into::into)
}

fn readable(listener: BorrowedFd<'_>) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut one = [PollFd::new(&listener, PollFlags::IN)];
    poll(&mut one, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(one[0].revents().contains(PollFlags::IN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_foreign_answers_are_no_sockets() {
        let mut answer = vec![0; ANSWER_BYTES];
        answer[0] = FAMILY_V4;
        answer[1] = 10;
        answer[5] = 80;
        let socket = parse(&answer).unwrap();
        assert_eq!((socket.local.port(), socket.state), (80, TcpState::Listen));
        assert!(parse(&answer[..71]).is_none());
        answer[1] = 99;
        assert!(parse(&answer).is_none());
        answer[..2].copy_from_slice(&[7, 10]);
        assert!(parse(&answer).is_none());
    }
}
