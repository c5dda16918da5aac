//! The measured trees: the C program `tree` of the testkit, on the machine or in a container, and its client.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::RecvFlags;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, test_kill_process_group};
use torpor_testkit::native;
use torpor_testkit::wait::eventually_ok;

use crate::bench::daemon::free_port;
use crate::bench::peers::Container;
use crate::error::{Error, chain};

/// Limit for the set-up of a tree, its answers, and its end.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between requests to a tree that does not exist yet.
const RETRY: Duration = Duration::from_micros(200);
/// The executable in a container.
const EXECUTABLE: &str = "tree";
/// Limit for the answer of a running tree.
const ANSWER: Duration = Duration::from_secs(20);

/// Size of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    processes: usize,
    /// Of each process.
    threads: usize,
    /// Of all processes together.
    pub(super) megabytes: usize,
}

impl From<[usize; 3]> for Shape {
    fn from([processes, threads, megabytes]: [usize; 3]) -> Self {
        Self { processes, threads, megabytes }
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<usize>, _> = text.split('x').map(str::parse).collect();
        match numbers.ok().and_then(|numbers| <[usize; 3]>::try_from(numbers).ok()) {
            Some(shape) if shape.iter().all(|number| *number > 0) => Ok(shape.into()),
            _ => Err("must be three numbers over 0, as in 10x1x64".to_owned()),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.processes, self.threads, self.megabytes)
    }
}

/// Copies the files of a tree into the root of a container.
pub(super) fn unpack(root: &Path) -> Result<(), Error> {
    let (from, to) = (native::executable("tree")?, root.join(EXECUTABLE));
    std::fs::copy(&from, &to).map(drop).map_err(Error::file("copy the tree to", to))
}

/// Where a tree runs.
#[derive(Debug)]
enum Place<'a> {
    /// On the machine, as our child until it is reaped.
    Machine(Option<Child>),
    /// With a pidfd of its root, which is process 1 of the container: when it has ended, all others have.
    Container(&'a Container, OwnedFd),
}

impl<'a> Place<'a> {
    /// Starts a tree with these arguments. Also returns the process id of its root.
    fn start(container: Option<&'a Container>, arguments: &[String]) -> Result<(Self, Pid), Error> {
        if let Some(container) = container {
            let command = [&[format!("/{EXECUTABLE}")], arguments].concat();
            let pid = container.start(&command)?;
            let pidfd = pidfd_open(pid, PidfdFlags::empty());
            let pidfd = pidfd.map_err(|error| Error::file("open a pidfd of", "tree")(error.into()))?;
            return Ok((Self::Container(container, pidfd), pid));
        }
        let mut command = Command::new(native::executable("tree")?);
        command.args(arguments).env_clear().current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(Error::spawn("tree"))?;
        let pid = Pid::from_child(&child);
        Ok((Self::Machine(Some(child)), pid))
    }
}

/// A tree that runs or may run. Dropping it kills all of its processes.
#[derive(Debug)]
struct Root<'a> {
    shape: Shape,
    place: Place<'a>,
    /// Changes with a restore in a container.
    pid: Pid,
    /// On the loopback interface of the machine or container, like `socket`.
    address: SocketAddr,
    socket: UdpSocket,
}

/// A running tree.
#[derive(Debug)]
pub(super) struct Tree<'a>(Root<'a>);

/// A tree whose processes have all ended.
#[derive(Debug)]
pub(super) struct Gone<'a> {
    root: Root<'a>,
    over: AtomicBool,
}

impl<'a> Tree<'a> {
    /// Starts a tree, in `container` if given, and waits until all of its threads run.
    pub(super) fn start(shape: Shape, container: Option<&'a Container>) -> Result<Self, Error> {
        let port = free_port()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let numbers = [shape.processes, shape.threads, shape.megabytes, port.into()].map(|number| number.to_string());
        let bound = container.map_or_else(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)), Container::udp_socket);
        let socket = bound.and_then(|socket| socket.connect(address).map(|()| socket));
        let socket = socket.map_err(Error::network(&address, "get a socket to ask"))?;
        let (place, pid) = Place::start(container, &numbers)?;
        let root = Root { shape, place, pid, address, socket };
        eventually_ok("a tree is set up", TIMEOUT, || root.ask(b"a", ANSWER).map(drop))?;
        Ok(Self(root))
    }

    /// Process id of its root.
    pub(super) fn pid(&self) -> u32 {
        self.0.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits until all of its processes have ended and their ids are free.
    pub(super) fn gone(mut self) -> Result<Gone<'a>, Error> {
        if let Place::Machine(child) = &mut self.0.place
            && let Some(mut child) = child.take()
        {
            child.wait().map_err(Error::file("wait for", "tree"))?;
        }
        self.0.wait_until_gone()?;
        Ok(Gone { root: self.0, over: AtomicBool::new(false) })
    }

    /// Checks that every thread runs and that memory is unchanged.
    pub(super) fn check(&self) -> Result<(), Error> {
        let all = self.0.shape.processes * self.0.shape.threads;
        let answer = self.0.ask(b"s", TIMEOUT).map_err(Error::network(&self.0.address, "check"))?;
        if answer == all.to_string() {
            return Ok(());
        }
        Err(torpor_testkit::Error::answer("restored tree", format!("{all} threads"), answer).into())
    }
}

impl<'a> Gone<'a> {
    /// Times from `begun` until its root answered, and until all threads did.
    pub(super) fn answers(&self, begun: Instant) -> Result<(Duration, Duration), Error> {
        while let Err(error) = self.root.ask(b"p", ANSWER) {
            if self.over.load(Ordering::Relaxed) || begun.elapsed() > TIMEOUT {
                return Err(Error::network(&self.root.address, "get an answer")(error));
            }
            std::thread::sleep(RETRY);
        }
        let first = begun.elapsed();
        self.root.ask(b"a", ANSWER).map_err(Error::network(&self.root.address, "get an answer"))?;
        Ok((first, begun.elapsed()))
    }

    /// Sets whether its restore has failed.
    pub(super) fn over(&self, over: bool) {
        self.over.store(over, Ordering::Relaxed);
    }

    /// The tree, after its restore.
    pub(super) fn restored(self) -> Tree<'a> {
        Tree(self.root)
    }
}

impl Root<'_> {
    /// Sends one request and waits for the answer. Fails at once if nobody listens.
    fn ask(&self, what: &[u8], within: Duration) -> io::Result<String> {
        let mut answer = [0; 64];
        // Discard late answers to earlier requests.
        while rustix::net::recv(&self.socket, &mut answer, RecvFlags::DONTWAIT).is_ok() {}
        self.socket.set_read_timeout(Some(within))?;
        self.socket.send(what)?;
        let length = self.socket.recv(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
    }

    fn wait_until_gone(&self) -> Result<(), Error> {
        let some = || match &self.place {
            // Its session is its process group. Zombies that are not our children are reaped by init.
            Place::Machine(_) => test_kill_process_group(self.pid).is_ok(),
            // Zombies of a container that has ended hold no ids in a new one.
            Place::Container(_, pidfd) => {
                poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&Timespec::default())) != Ok(1)
            }
        };
        let left = || if some() { Err("some are left") } else { Ok(()) };
        Ok(eventually_ok("no process of a tree is left", TIMEOUT, left)?)
    }
}

impl Drop for Root<'_> {
    fn drop(&mut self) {
        let child = match &mut self.place {
            Place::Machine(child) => child,
            Place::Container(container, _) => {
                if let Err(error) = container.end() {
                    eprintln!("ending a tree in a container: {}", chain(&error));
                }
                return;
            }
        };
        // There may be no such process group.
        let _ = kill_process_group(self.pid, Signal::KILL);
        if let Some(child) = child {
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Err(error) = self.wait_until_gone() {
            eprintln!("ending a tree: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_three_numbers() {
        let shape: Shape = "10x1x64".parse().expect("a shape");
        assert_eq!((shape, shape.to_string().as_str()), (Shape::from([10, 1, 64]), "10x1x64"));
        for wrong in ["", "1", "1x1", "0x1x1", "1x1x1x1", "axbxc", "1x-1x1"] {
            assert!(wrong.parse::<Shape>().is_err(), "{wrong}");
        }
    }
}
