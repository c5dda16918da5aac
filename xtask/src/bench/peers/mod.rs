//! The peers: the same programs and files without Torpor, checkpointed by CRIU or started from the beginning.
//!
//! Each peer has a network namespace and a veth pair, so that its program can use its usual port.

mod cold;
mod container;
mod criu;
mod runc;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) use cold::Cold;
pub(crate) use container::{Container, errors_of};
pub(crate) use criu::{Criu, Pages};
pub(crate) use runc::Runc;
use rustix::fs::{FileType, Mode};
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, test_kill_process, waitpid};

use super::program::Program;
use super::samples::Samples;
use crate::error::{Error, chain, run};

/// The names of CRIU alone, of CRIU that restores memory lazily, and of runc with CRIU, in results.
pub(crate) const CRIU: &str = "criu";
pub(crate) const CRIU_LAZY: &str = "criu-lazy";
pub(crate) const CONTAINER: &str = "runc+criu";
/// The option with which CRIU and runc save TCP connections.
pub(super) const CONNECTIONS: &str = "--tcp-established";
/// Limit for a program to end by itself.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);
/// Environment of a peer's program. CRIU cannot dump Go's MPTCP listeners.
const ENVIRONMENT: [(&str, &str); 2] =
    [("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ("GODEBUG", "multipathtcp=0")];

/// A way to put a program to rest and bring it back, whose time to the first byte is measured.
pub(crate) trait Peer {
    /// Its name in results.
    fn name(&self) -> &'static str;
    /// The level of the program while it rests.
    fn level(&self) -> &'static str;
    /// Puts the running program to rest.
    fn rest(&mut self) -> Result<(), Error>;
    /// Brings it back and sends a request. Returns microseconds from the start of that to the first byte.
    fn first_byte(&mut self) -> Result<f64, Error>;
}

/// All peers that this machine has, with `program` running. Peers that cannot run it are recorded in `samples` as missing.
pub(crate) fn peers(program: &Program, dir: &Path, samples: &mut Samples) -> Vec<Box<dyn Peer>> {
    let mut peers = Vec::new();
    peers.extend(started(CONTAINER, program, Runc::start(program, dir), samples));
    peers.extend(criu_peers(program, dir, samples));
    peers.extend(started("cold-start", program, Cold::start(program, dir), samples));
    peers
}

/// CRIU alone, with all memory at once and lazily; otherwise as [`peers`].
pub(crate) fn criu_peers(program: &Program, dir: &Path, samples: &mut Samples) -> Vec<Box<dyn Peer>> {
    let mut start = |pages: Pages| started(pages.subject(), program, Criu::start(program, dir, pages), samples);
    [Pages::AtOnce, Pages::Lazily].into_iter().filter_map(&mut start).collect()
}

/// The peer, unless it could not start, which is recorded.
fn started<P: Peer + 'static>(
    name: &str,
    program: &Program,
    made: Result<P, Error>,
    samples: &mut Samples,
) -> Option<Box<dyn Peer>> {
    match made {
        Ok(peer) => Some(Box::new(peer)),
        Err(error) => {
            samples.missing(format!("{name} with {}", program.name), &error);
            None
        }
    }
}

/// CRIU in `/opt/criu`, or that of the system.
pub(crate) fn criu_binary() -> Result<PathBuf, Error> {
    let hint = "install the package criu (4.0 or newer for kernels from 6.13 on)";
    for path in ["/opt/criu/bin/criu", "/usr/sbin/criu", "/usr/bin/criu"] {
        if Path::new(path).exists() {
            // `criu check` would fail for features that are not needed here; this only shows that CRIU starts.
            run(Command::new(path).arg("--version"))?;
            return Ok(path.into());
        }
    }
    Err(Error::Missing { what: "criu".to_owned(), hint })
}

/// A network namespace with a veth pair. Dropping it removes both.
#[derive(Debug)]
struct Netns {
    name: String,
    address: Ipv4Addr,
}

impl Netns {
    /// Creates the namespace of peer number `number`.
    fn make(number: u8) -> Result<Self, Error> {
        let pid = std::process::id();
        let netns = Self {
            name: format!("bench{pid}-{number}"),
            // 198.18.0.0/15 is for benchmarks (RFC 2544).
            address: Ipv4Addr::new(198, 18, (pid % 250) as u8, number * 4 + 2),
        };
        netns.set_up()?;
        Ok(netns)
    }

    /// Creates it again: an interrupted CRIU leaves rules in it that block all packets.
    fn renew(&self) -> Result<(), Error> {
        // With the namespace it would be removed in the background, and its name would still be in use.
        ip(&["link", "del", &self.interface()])?;
        ip(&["netns", "del", &self.name])?;
        self.set_up()
    }

    fn set_up(&self) -> Result<(), Error> {
        let (inside, outside) = (format!("{}/30", self.address), format!("{}/30", self.gateway()));
        let (name, host) = (&self.name, &self.interface());
        ip(&["netns", "add", name])?;
        ip(&["link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", name])?;
        ip(&["addr", "add", &outside, "dev", host])?;
        ip(&["link", "set", host, "up"])?;
        ip(&["-n", name, "addr", "add", &inside, "dev", "eth0"])?;
        ip(&["-n", name, "link", "set", "eth0", "up"])?;
        ip(&["-n", name, "link", "set", "lo", "up"])
    }

    /// The name of the interface on the machine's side.
    fn interface(&self) -> String {
        // Names have at most 15 characters.
        format!("bn{}", self.name.trim_start_matches("bench"))
    }

    fn gateway(&self) -> Ipv4Addr {
        let [a, b, c, d] = self.address.octets();
        Ipv4Addr::new(a, b, c, d - 1)
    }

    /// The processes in it.
    fn pids(&self) -> Result<Vec<Pid>, Error> {
        let listed = run(Command::new("ip").args(["netns", "pids", &self.name]))?;
        let text = String::from_utf8_lossy(&listed.stdout);
        Ok(text.lines().filter_map(|line| line.trim().parse().ok().and_then(Pid::from_raw)).collect())
    }

    /// Kills all processes in it: programs start some in sessions and groups of their own.
    fn end_all(&self) -> Result<(), Error> {
        let pids = self.pids()?;
        for pid in &pids {
            // It may have ended.
            let _ = kill_process(*pid, Signal::KILL);
        }
        gone(&pids)
    }

    fn path(&self) -> String {
        format!("/run/netns/{}", self.name)
    }

    fn socket(&self, program: &Program) -> SocketAddr {
        (self.address, program.port()).into()
    }

    /// A command that runs in this namespace.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg(program);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Starts the program in `root`, in a session of its own, and returns its process id.
    fn start(&self, program: &Program, root: &Root) -> Result<u32, Error> {
        let mut command = self.command("setsid");
        if program.has_system_v() {
            command.args(["unshare", "--ipc"]);
        }
        command.arg("chroot").arg(&root.0).args(program.command_for_root());
        command.env_clear().envs(ENVIRONMENT);
        let child = command.spawn().map_err(Error::spawn("nsenter"))?;
        // Each program executes the next one, so the id stays the same.
        Ok(child.id())
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let ended = self.end_all();
        // The interface too: its namespace is removed in the background, and the next peer makes one of the same name.
        let removed = ip(&["link", "del", &self.interface()]).and_then(|()| ip(&["netns", "del", &self.name]));
        if let Err(error) = ended.and(removed) {
            eprintln!("removing a network namespace of the benchmark: {}", chain(&error));
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), Error> {
    run(Command::new("ip").args(arguments)).map(drop)
}

/// The root directory of a peer's program, with its files. Dropping it unmounts its `/proc`; the files stay.
#[derive(Debug)]
struct Root(PathBuf);

impl Root {
    /// Unpacks the files of `program` into the directory `root`, and adds devices, writable directories and `/proc`.
    fn make(program: &Program, root: PathBuf) -> Result<Self, Error> {
        program.unpack_for_root(&root)?;
        for name in ["dev", "dev/shm", "proc", "tmp"] {
            let path = root.join(name);
            fs::create_dir_all(&path).map_err(Error::file("make", path))?;
        }
        for name in ["dev/shm", "tmp"] {
            let path = root.join(name);
            let sticky = fs::Permissions::from_mode(0o1777);
            fs::set_permissions(&path, sticky).map_err(Error::file("open for everybody", path))?;
        }
        for (name, minor) in [("null", 3), ("zero", 5), ("random", 8), ("urandom", 9)] {
            let path = root.join("dev").join(name);
            if !path.exists() {
                let mode = Mode::from_raw_mode(0o666);
                let device = rustix::fs::makedev(1, minor);
                rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::CharacterDevice, mode, device)
                    .map_err(|error| Error::file("make", &path)(error.into()))?;
            }
        }
        let proc = root.join("proc");
        let root = Self(root);
        mount_bind("/proc", &proc).map_err(|error| Error::file("mount", &proc)(error.into()))?;
        Ok(root)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // Fails only if it was not mounted.
        let _ = unmount(self.0.join("proc"), UnmountFlags::DETACH);
    }
}

/// Waits until none of these processes exists.
fn gone(pids: &[Pid]) -> Result<(), Error> {
    let begun = Instant::now();
    while let Some(pid) = pids.iter().find(|pid| test_kill_process(**pid).is_ok()) {
        if begun.elapsed() > STOPPED_WITHIN {
            return Err(Error::Missing {
                what: format!("the end of process {pid}"),
                hint: "process 1 should reap what has lost its parent",
            });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Asks process `pid`, our child, to end, so that its next start has nothing to repair. Kills it if it does not.
fn stop(pid: u32) {
    let Some(child) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    if kill_process(child, Signal::TERM).is_ok() {
        let begun = Instant::now();
        while begun.elapsed() < STOPPED_WITHIN {
            match waitpid(Some(child), WaitOptions::NOHANG) {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                // What is left of its process group, if anything, is killed below.
                _ => break,
            }
        }
    }
    end(pid);
}

/// Kills process `pid`, which we started, and waits until it is gone.
fn end(pid: u32) {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    if kill_process_group(pid, Signal::KILL).is_err() {
        return;
    }
    // A child is reaped here. What CRIU restored is a child of process 1, which reaps it.
    let _ = waitpid(Some(pid), WaitOptions::empty());
    while test_kill_process(pid).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
}
