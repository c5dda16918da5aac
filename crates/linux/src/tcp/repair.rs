//! `TCP_REPAIR`: an established connection read and made without a packet.
//!
//! A socket in repair mode shows its queues and sequence numbers, connects without a handshake, and closes without a word. It
//! needs `CAP_NET_ADMIN`. Leaving repair mode sets `SO_REUSEADDR` to off, whatever it was.
//!
//! Sources: `net/ipv4/tcp.c` (`do_tcp_setsockopt`), `tcp(7)`; `include/uapi/linux/tcp.h`.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::socket::check;

/// `SIOCOUTQNSD`.
const NOT_SENT: libc::Ioctl = 0x894B;
/// `TCP_REPAIR_OFF_NO_WP`.
pub(crate) const OFF_WITHOUT_PROBE: i32 = -1;

// Codes of TCP's own options, which `TCP_REPAIR_OPTIONS` names.
const SEGMENT: u32 = 2;
const SCALE: u32 = 3;
const SELECTIVE: u32 = 4;
const TIMESTAMP: u32 = 8;

// Flags of `tcpi_options`.
const HAS_TIMESTAMPS: u8 = 1;
const HAS_SELECTIVE: u8 = 2;
const HAS_SCALE: u8 = 4;

/// Repair mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In it.
    On,
    /// Out of it, with a packet that makes the peer tell what it has.
    Off,
    /// Out of it without a packet.
    Silently,
}

/// Which queue is read and written in repair mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// What has arrived and not been read.
    Receive,
    /// What has been written and not acknowledged.
    Send,
}

/// What both ends agreed on at the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// Largest segment, bytes.
    pub segment: u32,
    /// Window scales: the peer's and ours.
    pub scale: Option<(u8, u8)>,
    /// Selective acknowledgements.
    pub selective: bool,
    /// Timestamps.
    pub timestamps: bool,
}

fn get<const N: usize>(socket: impl AsFd, option: i32) -> io::Result<[u32; N]> {
    let mut value = [0_u32; N];
    let mut len = size_of_val(&value) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes to `value`, which has as many.
    check(unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, option, value.as_mut_ptr().cast(), &raw mut len) })?;
    Ok(value)
}

fn set(socket: impl AsFd, option: i32, value: &[u32]) -> io::Result<()> {
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of_val(value) as libc::socklen_t);
    // SAFETY: the kernel reads `len` bytes from `value`, which has as many.
    check(unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, option, value.as_ptr().cast(), len) }).map(drop)
}

/// Enters or leaves repair mode.
pub fn repair(socket: impl AsFd, mode: Mode) -> io::Result<()> {
    let value = match mode {
        Mode::On => 1,
        Mode::Off => 0,
        Mode::Silently => OFF_WITHOUT_PROBE,
    };
    set(socket, libc::TCP_REPAIR, &[value as u32])
}

/// Chooses the queue that is meant by [`sequence`], by peeking and by sending.
pub fn choose(socket: impl AsFd, queue: Queue) -> io::Result<()> {
    let number = match queue {
        Queue::Receive => 1,
        Queue::Send => 2,
    };
    set(socket, libc::TCP_REPAIR_QUEUE, &[number])
}

/// Sequence number behind the chosen queue; an end of the stream counts.
pub fn sequence(socket: impl AsFd) -> io::Result<u32> {
    get::<1>(socket, libc::TCP_QUEUE_SEQ).map(|[number]| number)
}

/// Sets the sequence number of the chosen queue, of a socket that is not connected yet.
pub fn set_sequence(socket: impl AsFd, number: u32) -> io::Result<()> {
    set(socket, libc::TCP_QUEUE_SEQ, &[number])
}

/// `struct tcp_repair_window`: `snd_wl1`, `snd_wnd`, `max_window`, `rcv_wnd`, `rcv_wup`.
pub fn window(socket: impl AsFd) -> io::Result<[u32; 5]> {
    get(socket, libc::TCP_REPAIR_WINDOW)
}

/// Sets what [`window`] has read.
pub fn set_window(socket: impl AsFd, window: [u32; 5]) -> io::Result<()> {
    set(socket, libc::TCP_REPAIR_WINDOW, &window)
}

/// The clock of a connection's timestamps.
pub fn timestamp(socket: impl AsFd) -> io::Result<u32> {
    get::<1>(socket, libc::TCP_TIMESTAMP).map(|[number]| number)
}

/// Sets that clock.
pub fn set_timestamp(socket: impl AsFd, number: u32) -> io::Result<()> {
    set(socket, libc::TCP_TIMESTAMP, &[number])
}

/// What both ends have agreed on; the socket is in repair mode.
pub fn agreed(socket: impl AsFd) -> io::Result<Agreed> {
    let socket = socket.as_fd();
    // The first eight bytes of `struct tcp_info`: flags at 5, both scales at 6.
    let info = get::<2>(socket, libc::TCP_INFO)?.map(u32::to_ne_bytes);
    let (flags, scales) = (info[1][1], info[1][2]);
    let [segment] = get::<1>(socket, libc::TCP_MAXSEG)?;
    Ok(Agreed {
        segment,
        scale: (flags & HAS_SCALE != 0).then_some((scales & 15, scales >> 4)),
        selective: flags & HAS_SELECTIVE != 0,
        timestamps: flags & HAS_TIMESTAMPS != 0,
    })
}

/// Makes a connected socket in repair mode keep to that.
pub fn agree(socket: impl AsFd, agreed: Agreed) -> io::Result<()> {
    // Pairs of a code and a value.
    let mut pairs = vec![SEGMENT, agreed.segment];
    if let Some((theirs, ours)) = agreed.scale {
        pairs.extend([SCALE, u32::from(theirs) | u32::from(ours) << 16]);
    }
    if agreed.selective {
        pairs.extend([SELECTIVE, 0]);
    }
    if agreed.timestamps {
        pairs.extend([TIMESTAMP, 0]);
    }
    set(socket, libc::TCP_REPAIR_OPTIONS, &pairs)
}

/// Bytes that have been written and not even been sent; an end of the stream counts.
pub fn not_sent(socket: impl AsFd) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQNSD writes an int to `bytes`, which lives through the call.
    check(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), NOT_SENT, &raw mut bytes) })?;
    Ok(bytes.unsigned_abs())
}

/// The name of what sits on top of the connection (`TCP_ULP`: kernel TLS); empty if nothing does.
pub fn upper_protocol(socket: impl AsFd) -> io::Result<Vec<u8>> {
    let name = get::<4>(socket, libc::TCP_ULP)?.map(u32::to_ne_bytes).concat();
    Ok(name.into_iter().take_while(|byte| *byte != 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_is_read_and_goes_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut served, _) = listener.accept().unwrap();
        client.write_all(b"hello").unwrap();
        assert_eq!(upper_protocol(&served).unwrap(), b"");
        repair(&served, Mode::On).unwrap();
        let mut ends = [0; 2];
        for (end, queue) in ends.iter_mut().zip([Queue::Receive, Queue::Send]) {
            choose(&served, queue).unwrap();
            *end = sequence(&served).unwrap();
        }
        assert!(agreed(&served).unwrap().segment > 500);
        assert!(window(&served).unwrap()[3] > 0);
        assert_eq!(not_sent(&served).unwrap(), 0);
        repair(&served, Mode::Silently).unwrap();
        let mut got = [0; 5];
        served.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
        assert_ne!(ends[0], ends[1]);
    }
}
