//! A machine, apps and an outside client for tests: each a network namespace that is held by a descriptor, so that it is
//! gone when the test ends, however it ends. The test's own machine is never touched.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

pub mod names;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use torpor_network::{AppNetwork, Network, NetworkConfig, Protocol, Published, netns};

/// Long enough for any packet that does arrive.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Long enough to say that a packet does not arrive.
pub const SILENCE: Duration = Duration::from_millis(300);

pub const MACHINE_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub const OUTSIDE_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
pub const MACHINE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
pub const OUTSIDE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

/// A network namespace.
pub struct Space(File);

impl Space {
    pub fn new() -> Self {
        let make = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("these tests need root: cannot make a network namespace");
            File::open("/proc/thread-self/ns/net").unwrap()
        };
        Self(thread::spawn(make).join().unwrap())
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Runs `work` inside.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::run_in(self.fd(), work).unwrap()
    }

    pub fn listen(&self, address: &str) -> TcpListener {
        self.run(|| TcpListener::bind(address)).unwrap()
    }

    pub fn udp(&self, address: &str) -> UdpSocket {
        let socket = self.run(|| UdpSocket::bind(address)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    pub fn connect(&self, to: impl Into<SocketAddr>) -> io::Result<TcpStream> {
        let to = to.into();
        self.run(move || connect(to, PATIENCE))
    }

    /// Whether a connection comes about.
    pub fn reaches(&self, to: impl Into<SocketAddr>) -> bool {
        self.connect(to).is_ok()
    }

    /// Whether no connection comes about within [`SILENCE`].
    pub fn is_cut_off_from(&self, to: impl Into<SocketAddr>) -> bool {
        let to = to.into();
        self.run(move || connect(to, SILENCE).is_err())
    }
}

pub fn connect(to: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, patience)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Runs a command in the calling thread's namespace.
pub fn sh(command: &str) -> String {
    let output = Command::new("sh").args(["-ec", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A machine with an outside client.
pub struct Machine {
    pub outside: Space,
    pub run_dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let outside = Space::new();
        let path = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&outside.0));
        sh("ip link set lo up");
        sh(&format!("ip link add out0 type veth peer name in0 netns {path}"));
        // No duplicate address detection: link-local addresses are as they will be from the start.
        sh("echo 0 > /proc/sys/net/ipv6/conf/out0/accept_dad");
        sh("ip addr add 192.0.2.1/24 dev out0; ip -6 addr add 2001:db8::1/64 dev out0 nodad; ip link set out0 up");
        outside.run(|| {
            sh("echo 0 > /proc/sys/net/ipv6/conf/in0/accept_dad; ip link set lo up; ip addr add 192.0.2.2/24 dev in0; ip -6 addr add 2001:db8::2/64 dev in0 nodad; \
                ip link set in0 up");
        });
        // The kernel's work queues bring up both ends.
        let is_up = || {
            sh("ip -o link show dev out0").contains("state UP")
                && sh("ip -6 route show table all").contains("local fe80:")
        };
        wait_for(is_up);
        outside.run(|| wait_for(|| sh("ip -o link show dev in0").contains("state UP")));
        Self { outside, run_dir: tempfile::tempdir().unwrap() }
    }

    pub fn config(&self) -> NetworkConfig {
        NetworkConfig::new(self.run_dir.path())
    }

    pub async fn open(&self) -> Network {
        Network::open(self.config(), None).await.unwrap()
    }
}

/// Runs a test on a thread that plays the machine: everything it starts is in that namespace too.
pub fn on_machine<F: Future<Output = ()>>(test: impl FnOnce(Machine) -> F + Send + 'static) {
    let body = move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("these tests need root: cannot make a network namespace");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test(Machine::new()));
    };
    if let Err(panic) = thread::spawn(body).join() {
        std::panic::resume_unwind(panic);
    }
}

pub fn tcp(host: u16, app: u16) -> Published {
    Published { host_ip: None, host, app, protocol: Protocol::Tcp }
}

pub fn udp(host: u16, app: u16) -> Published {
    Published { protocol: Protocol::Udp, ..tcp(host, app) }
}

pub fn at(ip: &str, port: Published) -> Published {
    Published { host_ip: Some(ip.parse().unwrap()), ..port }
}

pub fn ports(ports: &[Published]) -> AppNetwork {
    AppNetwork { ports: ports.to_vec(), ..AppNetwork::default() }
}

/// An attached app.
pub async fn app(network: &Network, index: u32, wants: &AppNetwork) -> Space {
    let space = Space::new();
    network.attach(index, space.fd(), wants).await.unwrap();
    space
}

/// Packets and the states of links come when the kernel's threads get to run.
pub fn wait_for(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "it did not come about");
        thread::yield_now();
    }
}

/// Accepts one connection, and returns it and its client as the server sees it.
pub fn accept(listener: &TcpListener) -> (TcpStream, IpAddr) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut one = [PollFd::new(listener, PollFlags::IN)];
    let patience = Timespec { tv_sec: 5, tv_nsec: 0 };
    assert_eq!(poll(&mut one, Some(&patience)).unwrap(), 1, "no connection came");
    let (stream, peer) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    (stream, peer.ip().to_canonical())
}

/// Sends a line from the client and has it answered by the server.
pub fn exchange(mut client: &TcpStream, mut server: &TcpStream) {
    let mut buffer = [0; 5];
    client.write_all(b"hello").unwrap();
    server.read_exact(&mut buffer).unwrap();
    server.write_all(b"world").unwrap();
    client.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"world");
}
