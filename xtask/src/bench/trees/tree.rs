//! The trees that are measured: the C program `tree` of the testkit, and the client that asks it.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use torpor_testkit::native;
use torpor_testkit::wait::eventually_ok;

use crate::bench::daemon::free_port;
use crate::error::Error;

/// How long a tree may take to be set up, to answer, to be gone.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Between questions to a tree that is not there yet.
const RETRY: Duration = Duration::from_micros(200);
/// An answer of one that is there comes within this.
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

/// A tree, of which a process is there or may be; all are killed when this is dropped.
#[derive(Debug)]
struct Root {
    shape: Shape,
    pid: Pid,
    address: SocketAddr,
    /// Until it has been waited for.
    child: Option<Child>,
}

/// A tree that runs.
#[derive(Debug)]
pub(super) struct Tree(Root);

/// A tree of which no process is left.
#[derive(Debug)]
pub(super) struct Gone {
    root: Root,
    over: AtomicBool,
}

impl Tree {
    /// Starts a tree and waits until all of it runs.
    pub(super) fn start(shape: Shape) -> Result<Self, Error> {
        let port = free_port()?;
        let numbers = [shape.processes, shape.threads, shape.megabytes, port.into()];
        let mut command = Command::new(native::executable("tree")?);
        command.args(numbers.map(|number| number.to_string())).env_clear().current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(Error::spawn("tree"))?;
        let pid = Pid::from_child(&child);
        let root = Root { shape, pid, address: (Ipv4Addr::LOCALHOST, port).into(), child: Some(child) };
        eventually_ok("a tree is set up", TIMEOUT, || root.ask(b"a", ANSWER).map(drop))?;
        Ok(Self(root))
    }

    /// Process id of its root.
    pub(super) fn pid(&self) -> u32 {
        self.0.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits until none of its processes is left, so that their ids are free.
    pub(super) fn gone(mut self) -> Result<Gone, Error> {
        if let Some(mut child) = self.0.child.take() {
            child.wait().map_err(Error::file("wait for", "tree"))?;
        }
        self.0.wait_until_gone()?;
        Ok(Gone { root: self.0, over: AtomicBool::new(false) })
    }

    /// Every thread runs, and memory is as it was.
    pub(super) fn check(&self) -> Result<(), Error> {
        let all = self.0.shape.processes * self.0.shape.threads;
        let answer = self.0.ask(b"s", TIMEOUT).map_err(Error::network(&self.0.address, "check"))?;
        if answer == all.to_string() {
            return Ok(());
        }
        Err(torpor_testkit::Error::answer("restored tree", format!("{all} threads"), answer).into())
    }
}

impl Gone {
    /// How long after `begun` its root answered, and all threads.
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

    /// Says whether it will not come back.
    pub(super) fn over(&self, over: bool) {
        self.over.store(over, Ordering::Relaxed);
    }

    /// It is back.
    pub(super) fn restored(self) -> Tree {
        Tree(self.root)
    }
}

impl Root {
    /// One question, one answer. Where nobody listens, the kernel says so at once.
    fn ask(&self, what: &[u8], within: Duration) -> io::Result<String> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(self.address)?;
        socket.set_read_timeout(Some(within))?;
        socket.send(what)?;
        let mut answer = [0; 64];
        let length = socket.recv(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
    }

    fn wait_until_gone(&self) -> Result<(), Error> {
        // Its session is its process group. Others' zombies are init's to take note of.
        let left = || if test_kill_process_group(self.pid).is_ok() { Err("some are left") } else { Ok(()) };
        Ok(eventually_ok("no process of a tree is left", TIMEOUT, left)?)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // No process of this number may be there any more, or not yet.
        let _ = kill_process_group(self.pid, Signal::KILL);
        if let Some(child) = &mut self.child {
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
