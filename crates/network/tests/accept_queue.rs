//! What this kernel shows of connections that nobody has accepted, and whether probes can be kept from a sleeping app.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use common::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use torpor_network::sock_diag::{AcceptQueue, SockDiag, TcpState, drain, set_backlog};

/// Takes the dead ones from the head of the queue; none if one that is alive is among them: it could not be put back.
fn drain_dead(listener: impl AsFd, seen: &AcceptQueue) -> std::io::Result<u32> {
    if seen.alive().next().is_some() { Ok(0) } else { drain(listener.as_fd(), seen.dead()) }
}

struct Listener {
    space: Space,
    socket: TcpListener,
    diag: SockDiag,
    inode: u64,
    address: SocketAddr,
}

impl Listener {
    fn new(address: &str, backlog: i32, defer_seconds: u32) -> Self {
        let space = Space::new();
        space.run(|| sh("ip link set lo up"));
        let socket = space.listen(address);
        rustix::net::listen(&socket, backlog).unwrap();
        torpor_linux::tcp::set_defer_accept(&socket, defer_seconds).unwrap();
        let diag = SockDiag::open_in(space.fd()).unwrap();
        let inode = rustix::fs::fstat(&socket).unwrap().st_ino;
        let port = socket.local_addr().unwrap().port();
        let address = SocketAddr::new("127.0.0.1".parse().unwrap(), port);
        Self { space, socket, diag, inode, address }
    }

    fn connect(&self) -> TcpStream {
        self.space.connect(self.address).unwrap()
    }

    fn queue(&mut self) -> AcceptQueue {
        self.diag.accept_queue(self.inode).unwrap().unwrap()
    }

    fn readable(&self, patience: Duration) -> bool {
        let mut one = [PollFd::new(&self.socket, PollFlags::IN)];
        let patience = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        poll(&mut one, Some(&patience)).unwrap() == 1
    }

    /// The queue as soon as it satisfies `condition`: packets on the loopback are nearly, but not quite immediate.
    fn wait_for(&mut self, condition: impl Fn(&AcceptQueue) -> bool) -> AcceptQueue {
        let start = Instant::now();
        loop {
            let queue = self.queue();
            if condition(&queue) {
                return queue;
            }
            assert!(start.elapsed() < PATIENCE, "it did not come about: {queue:?}");
            std::thread::yield_now();
        }
    }
}

/// What a client does, and then what is seen: readable, queued, dead, and (state, unread) of what is listed.
type Seen = (bool, u32, u32, Option<(TcpState, u32)>);

fn seen_after(address: &str, defer_seconds: u32, client: impl FnOnce(TcpStream) -> Option<TcpStream>) -> Seen {
    let mut listener = Listener::new(address, 16, defer_seconds);
    let _kept = client(listener.connect());
    let readable = listener.readable(SILENCE);
    let queue = listener.queue();
    assert!(queue.pending.len() <= 1 && queue.limit == 16);
    let listed = queue.pending.first().map(|one| {
        assert_eq!(one.inode, 0);
        assert_eq!(one.local, listener.address);
        (one.state, one.unread_bytes)
    });
    (readable, queue.queued, queue.dead(), listed)
}

fn reset(stream: TcpStream) -> Option<TcpStream> {
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
    None
}

fn send(mut stream: TcpStream) -> Option<TcpStream> {
    stream.write_all(b"hello").unwrap();
    Some(stream)
}

fn half_close(stream: TcpStream) -> Option<TcpStream> {
    stream.shutdown(Shutdown::Write).unwrap();
    Some(stream)
}

#[test]
fn without_deferring_every_connection_is_queued_at_once() {
    use TcpState::{CloseWait, Established};
    for address in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
        let seen = |client: fn(TcpStream) -> Option<TcpStream>| seen_after(address, 0, client);
        assert_eq!(seen(Some), (true, 1, 0, Some((Established, 0))), "connects only");
        assert_eq!(seen(send), (true, 1, 0, Some((Established, 5))), "sends");
        assert_eq!(seen(|s| send(s).and(None)), (true, 1, 0, Some((CloseWait, 5))), "sends and closes");
        assert_eq!(seen(|_| None), (true, 1, 1, Some((CloseWait, 0))), "closes");
        assert_eq!(seen(half_close), (true, 1, 1, Some((CloseWait, 0))), "closes its side only");
        assert_eq!(seen(reset), (true, 1, 1, None), "resets");
    }
}

#[test]
fn with_deferring_a_silent_connection_is_not_queued() {
    use TcpState::{CloseWait, Established, SynReceived};
    for address in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
        let seen = |client: fn(TcpStream) -> Option<TcpStream>| seen_after(address, 30, client);
        assert_eq!(seen(Some), (false, 0, 0, Some((SynReceived, 0))), "connects only");
        assert_eq!(seen(send), (true, 1, 0, Some((Established, 5))), "sends");
        assert_eq!(seen(|s| send(s).and(None)), (true, 1, 0, Some((CloseWait, 5))), "sends and closes");
        assert_eq!(seen(|_| None), (true, 1, 1, Some((CloseWait, 0))), "closes");
        assert_eq!(seen(half_close), (true, 1, 1, Some((CloseWait, 0))), "closes its side only");
        assert_eq!(seen(reset), (false, 0, 0, None), "resets: nothing is left");
    }
}

#[test]
fn only_the_listeners_own_connections_are_seen() {
    let mut first = Listener::new("127.0.0.1:7000", 16, 0);
    let other = first.space.listen("127.0.0.2:7000");
    let other_inode = rustix::fs::fstat(&other).unwrap().st_ino;
    let elsewhere = first.space.listen("127.0.0.1:7001");
    let _one = first.connect();
    let _two = first.space.connect("127.0.0.2:7000".parse::<SocketAddr>().unwrap()).unwrap();
    let _three = first.space.connect(elsewhere.local_addr().unwrap()).unwrap();
    let queue = first.wait_for(|queue| queue.queued == 1);
    assert_eq!(queue.pending.len(), 1);
    assert_eq!(queue.pending[0].local, first.address);
    // Once accepted it is not pending any more, whether open or closed by its server.
    let (accepted, _) = first.socket.accept().unwrap();
    assert_eq!(first.queue().pending, []);
    drop(accepted);
    assert_eq!(first.queue().pending, []);
    let two = first.diag.accept_queue(other_inode).unwrap().unwrap();
    assert_eq!((two.queued, two.pending.len()), (1, 1));
    assert!(first.diag.accept_queue(1).unwrap().is_none());
}

#[test]
fn unaccepted_probes_fill_the_backlog_unless_they_are_drained() {
    for defer_seconds in [0, 30] {
        let mut listener = Listener::new("127.0.0.1:0", 16, defer_seconds);
        for _ in 0..17 {
            drop(listener.connect());
        }
        listener.wait_for(|queue| queue.queued == 17);
        let to = listener.address;
        assert!(listener.space.run(|| connect(to, SILENCE)).is_err(), "no more are let in");
        let queue = listener.queue();
        assert_eq!(drain_dead(listener.socket.as_fd(), &queue).unwrap(), 17);
        request(&mut listener);
    }
}

/// A request that is answered.
fn request(listener: &mut Listener) {
    let mut client = listener.connect();
    client.write_all(b"hello").unwrap();
    let queue = listener.wait_for(|queue| queue.alive().any(|one| one.unread_bytes == 5));
    assert_eq!(drain_dead(listener.socket.as_fd(), &queue).unwrap(), 0, "what is alive is not taken");
    let mut buffer = [0; 5];
    loop {
        let (mut server, _) = accept(&listener.socket);
        if server.read(&mut buffer).unwrap() == 5 {
            server.write_all(b"world").unwrap();
            break;
        }
    }
    client.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"world");
}

/// Has `count` probes connect and close (or reset), in a row, while a watcher drains as the worker does.
fn probe(listener: &mut Listener, count: u32, resets: bool) -> Probed {
    let to = listener.address;
    let mut probed = Probed::default();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let space = &listener.space;
        let prober = scope.spawn(move || {
            let one = || {
                let start = Instant::now();
                let stream = connect(to, PATIENCE).expect("a probe was not let in");
                if resets {
                    reset(stream);
                }
                start.elapsed()
            };
            space.run(|| (0..count).map(|_| one()).max().unwrap())
        });
        // A busy kernel drops packets of a burst, which come again after the last probe is over. Of one that resets, nothing has
        // to come.
        let arrived = |probed: &Probed| resets || probed.drained >= count || start.elapsed() > PATIENCE;
        while !prober.is_finished() || !arrived(&probed) || listener.readable(Duration::ZERO) {
            if listener.readable(Duration::from_millis(10)) {
                let queue = listener.diag.accept_queue(listener.inode).unwrap().unwrap();
                probed.looks += 1;
                probed.wakes += u32::from(queue.alive().next().is_some());
                probed.drained += drain_dead(listener.socket.as_fd(), &queue).unwrap();
            }
        }
        probed.slowest = prober.join().unwrap();
    });
    println!("{count} probes, resets {resets}: {probed:?}, {:?} in all", start.elapsed());
    probed
}

#[derive(Debug, Default)]
struct Probed {
    looks: u32,
    wakes: u32,
    drained: u32,
    slowest: Duration,
}

#[test]
fn a_thousand_probes_against_a_backlog_of_sixteen_wake_nothing_and_a_request_succeeds() {
    for blocking in [true, false] {
        let mut listener = Listener::new("0.0.0.0:0", 16, 30);
        listener.socket.set_nonblocking(!blocking).unwrap();
        // One after the other, each drained at once.
        for _ in 0..1000 {
            drop(listener.connect());
            assert!(listener.readable(PATIENCE));
            let queue = listener.queue();
            assert_eq!(queue.alive().count(), 0, "a probe would wake: {queue:?}");
            assert_eq!(drain_dead(listener.socket.as_fd(), &queue).unwrap(), 1);
        }
        assert_eq!(listener.queue().queued, 0);
        request(&mut listener);
    }
}

#[test]
fn a_burst_overruns_a_backlog_of_sixteen_for_a_second_but_is_not_lost() {
    let mut listener = Listener::new("0.0.0.0:0", 16, 30);
    let probed = probe(&mut listener, 60, false);
    assert_eq!((probed.wakes, probed.drained), (0, 60));
    request(&mut listener);
}

#[test]
fn with_the_backlog_raised_a_thousand_probes_pass_in_a_burst() {
    const PROBES: u32 = 1000;
    for resets in [false, true] {
        let mut listener = Listener::new("0.0.0.0:0", 16, 30);
        let before = listener.queue().limit;
        set_backlog(listener.socket.as_fd(), 4096).unwrap();
        assert_eq!(listener.queue().limit, 4096);
        let probed = probe(&mut listener, PROBES, resets);
        assert_eq!(probed.drained, if resets { 0 } else { PROBES });
        // Between queueing a connection and handling the end that came with it, the kernel can be held up by other work.
        assert!(probed.wakes <= PROBES / 100, "{probed:?}");
        set_backlog(listener.socket.as_fd(), before).unwrap();
        assert_eq!((listener.queue().queued, listener.queue().limit), (0, 16));
        request(&mut listener);
    }
}

#[test]
fn beyond_the_backlog_silent_connections_are_queued_and_a_raised_backlog_holds_them_back() {
    let silent = |listener: &Listener, most: usize| {
        let one = || listener.space.run(|| connect(listener.address, SILENCE)).ok();
        (0..most).map_while(|_| one()).collect::<Vec<_>>()
    };
    // 17 are held back, then SYN cookies put 17 into the queue, then the queue is full. What is in the queue is alive, so
    // a watcher wakes the app, which accepts them.
    let mut listener = Listener::new("127.0.0.1:0", 16, 30);
    let _held = silent(&listener, 64);
    let queue = listener.queue();
    let deferred = queue.pending.iter().filter(|one| !one.is_queued()).count();
    println!("backlog 16: {deferred} silent connections held back, {} queued", queue.queued);
    assert!(deferred >= 16 && queue.alive().count() > 0 && listener.readable(Duration::ZERO));

    let mut listener = Listener::new("127.0.0.1:0", 16, 30);
    set_backlog(listener.socket.as_fd(), 4096).unwrap();
    let mut held = silent(&listener, 200);
    assert_eq!(held.len(), 200);
    let queue = listener.queue();
    assert_eq!((queue.queued, queue.pending.len()), (0, 200));
    assert!(!listener.readable(Duration::ZERO));
    held[0].write_all(b"hello").unwrap();
    let queue = listener.wait_for(|queue| queue.queued == 1);
    assert_eq!(queue.alive().map(|one| one.unread_bytes).collect::<Vec<_>>(), [5]);
}
