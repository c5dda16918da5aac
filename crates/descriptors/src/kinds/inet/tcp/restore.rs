//! Making: connected without a packet, then going on.

use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, Shutdown, send, shutdown, sockopt};
use torpor_image::tree::{Connection, InetSocket, SocketOption};
use torpor_linux::socket;
use torpor_linux::tcp::repair::{self, Agreed, Mode, Queue};
use torpor_linux::uapi::socket::{IPPROTO_TCP, SO_REUSEADDR, SOL_SOCKET, TCP_MAXSEG};
use torpor_linux::uapi::tcp::{
    TCP_CLOSE_WAIT, TCP_CLOSING, TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2, TCP_LAST_ACK,
};

use crate::contract::error::RestoreFileError;
use crate::kinds::inet::tcp::{OWN_END_WAITS, PEER_ENDED, packet};
use crate::kinds::socket::options;
use crate::kinds::socket::options::{fresh, set_buffer_sizes};

/// More than any queue holds.
const WIDE_BYTES: u32 = 1 << 30;
/// Written to a queue at once.
const PIECE_BYTES: usize = 64 << 10;
/// How long a packet to ourselves may take.
const WITHIN: Duration = Duration::from_secs(2);

/// Options that are set before it is connected: the segment's size was agreed on, and repair mode has the reuse of addresses
/// for itself.
fn early(options: &[SocketOption]) -> Vec<SocketOption> {
    let own = |option: &&SocketOption| {
        ![(IPPROTO_TCP, TCP_MAXSEG), (SOL_SOCKET, SO_REUSEADDR)].contains(&(option.level, option.name))
    };
    options.iter().filter(own).cloned().collect()
}

/// First half: connected, with all that was received and sent, in repair mode.
pub(crate) fn restore(found: &InetSocket, connection: &Connection, name: &str) -> Result<OwnedFd, RestoreFileError> {
    let fd = fresh(found.kind).map_err(RestoreFileError::at("making", name))?;
    options::set_early(&fd, &early(&found.options), name)?;
    repair::repair(&fd, Mode::On).map_err(RestoreFileError::at("preparing", name))?;
    numbers(&fd, connection).map_err(RestoreFileError::at("preparing", name))?;
    socket::bind(&fd, &found.local).map_err(RestoreFileError::at("binding", name))?;
    socket::connect(&fd, &found.remote).map_err(RestoreFileError::at("connecting", name))?;
    fill(&fd, connection).map_err(RestoreFileError::at("filling", name))?;
    if connection.outside && PEER_ENDED.contains(&connection.state) {
        packet::end_of_stream(found, connection).map_err(RestoreFileError::at("ending the other side of", name))?;
        reach(&fd, settling(), |state| state != TCP_ESTABLISHED)
            .map_err(RestoreFileError::at("ending the other side of", name))?;
        // What answers it goes out while the lock keeps it away.
        sockopt::set_tcp_quickack(&fd, true).map_err(RestoreFileError::at("preparing", name))?;
    }
    let mut window = connection.window;
    if !connection.outside && window[4] == connection.received_to.wrapping_add(1) {
        // The other end is still to say that it has ended.
        window[4] = connection.received_to;
    }
    repair::set_window(&fd, window).map_err(RestoreFileError::at("setting the window of", name))?;
    Ok(fd)
}

fn numbers(fd: &OwnedFd, connection: &Connection) -> io::Result<()> {
    let first = |to: u32, bytes: usize| to.wrapping_sub(bytes as u32);
    repair::choose(fd, Queue::Send)?;
    repair::set_sequence(fd, first(connection.written_to, connection.written.len()))?;
    repair::choose(fd, Queue::Receive)?;
    repair::set_sequence(fd, first(connection.received_to, connection.received.len()))
}

fn fill(fd: &OwnedFd, connection: &Connection) -> io::Result<()> {
    let Connection { segment, scale, selective, timestamps, .. } = *connection;
    repair::agree(fd, Agreed { segment, scale, selective, timestamps })?;
    if timestamps {
        repair::set_timestamp(fd, connection.timestamp)?;
    }
    set_buffer_sizes(fd, (WIDE_BYTES, WIDE_BYTES))?;
    repair::choose(fd, Queue::Receive)?;
    write(fd, &connection.received)?;
    repair::choose(fd, Queue::Send)?;
    write(fd, connection.written.get(..connection.sent as usize).unwrap_or_default())
}

fn write(fd: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let piece = &bytes[..bytes.len().min(PIECE_BYTES)];
        let sent = send(fd, piece, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

/// Second half, in two passes over all connections: this one makes them connections as any other.
pub(crate) fn release(fd: &OwnedFd, found: &InetSocket, name: &str) -> Result<(), RestoreFileError> {
    repair::repair(fd, Mode::Off).map_err(RestoreFileError::at("letting go of", name))?;
    let reuse = found.options.iter().find(|option| (option.level, option.name) == (SOL_SOCKET, SO_REUSEADDR));
    let reuse = reuse.is_some_and(|option| option.value.iter().any(|byte| *byte != 0));
    sockopt::set_socket_reuseaddr(fd, reuse).map_err(RestoreFileError::at("preparing", name))
}

/// The second pass: writes what had not been sent, and shuts what was shut.
pub(crate) fn go_on(
    fd: &OwnedFd,
    found: &InetSocket,
    connection: &Connection,
    name: &str,
) -> Result<(), RestoreFileError> {
    let unsent = connection.written.get(connection.sent as usize..).unwrap_or_default();
    write(fd, unsent).map_err(RestoreFileError::at("filling", name))?;
    let own_end = OWN_END_WAITS.contains(&connection.state) || connection.state == TCP_FIN_WAIT2;
    for (wanted, how) in [(own_end, Shutdown::Write), (found.shut & 1 != 0, Shutdown::Read)] {
        if wanted {
            shutdown(fd, how).map_err(RestoreFileError::at("shutting", name))?;
        }
    }
    set_buffer_sizes(fd, connection.buffers).map_err(RestoreFileError::at("preparing", name))?;
    options::set_late(fd, &found.options, name)
}

/// Until when connections are waited for by [`settle`].
pub(crate) fn settling() -> Instant {
    Instant::now() + WITHIN
}

/// The third: waits until ends in the tree have told each other what they knew. Where their packets do not come through (a
/// firewall on loopback), the program would find a connection that it has seen the end of as if it were open.
pub(crate) fn settle(
    fd: &OwnedFd,
    connection: &Connection,
    deadline: Instant,
    name: &str,
) -> Result<(), RestoreFileError> {
    if connection.outside {
        return Ok(());
    }
    let settled: &[u8] = match connection.state {
        TCP_CLOSE_WAIT | TCP_FIN_WAIT2 => &[TCP_ESTABLISHED, TCP_FIN_WAIT1],
        TCP_LAST_ACK | TCP_CLOSING => &[TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2, TCP_CLOSE_WAIT],
        _ => return Ok(()),
    };
    let reached = reach(fd, deadline, |state| !settled.contains(&state));
    reached.map_err(RestoreFileError::at("telling the end of the stream to", name))
}

/// Sends what could not go out while packets were kept away, and asks the other end what it has. Where that fails, time-outs do it.
pub(crate) fn nudge(fd: &OwnedFd, found: &InetSocket, name: &str) -> Result<(), RestoreFileError> {
    // Out of repair mode it is already; what is left of that is its packet.
    release(fd, found, name)?;
    let push = || if sockopt::tcp_cork(fd)? { Ok(()) } else { sockopt::set_tcp_cork(fd, false) };
    push().map_err(io::Error::from).map_err(RestoreFileError::at("sending what waits in", name))
}

/// Waits for a state: the packets of this machine to itself are there at once, or in a moment.
fn reach(fd: &OwnedFd, deadline: Instant, wanted: impl Fn(u8) -> bool) -> io::Result<()> {
    const PAUSE: Duration = Duration::from_micros(100);
    while !wanted(socket::tcp_state(fd)?.0) {
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}
