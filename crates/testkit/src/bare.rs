//! A real server without Torpor: in namespaces of its own, by the machine's `unshare` and `chroot`.
//!
//! The baseline of benchmarks, and the proof that servers and clients work. Its network is a namespace with a loopback
//! interface only; clients enter it ([`Bare::enter`]).

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::client::Session;
use crate::error::{Error, run};
use crate::servers::Program;
use crate::wait::eventually_ok;

const START_TIMEOUT: Duration = Duration::from_secs(60);

const SETUP: &str = include_str!("../programs/bare_root.sh");

/// A running program.
#[derive(Debug)]
pub struct Bare {
    program: Program,
    child: Child,
    net: File,
    dir: tempfile::TempDir,
}

impl Bare {
    /// Unpacks the program's tarball and starts it.
    ///
    /// # Errors
    /// Where a tool is missing or the namespaces cannot be made.
    pub fn start(program: &Program) -> Result<Self, Error> {
        let dir = tempfile::tempdir().map_err(Error::file("make a directory in", std::env::temp_dir()))?;
        let root = dir.path().join("root");
        fs::create_dir(&root).map_err(Error::file("make", &root))?;
        let mut tar = Command::new("tar");
        tar.args(["--numeric-owner", "-xpf"]).arg(&program.tarball).arg("-C").arg(&root);
        run(&mut tar, "install the package tar")?;
        let log_path = dir.path().join("log");
        let log = File::create(&log_path).map_err(Error::file("make", &log_path))?;
        let errors = log.try_clone().map_err(Error::file("share", &log_path))?;
        let mut command = Command::new("unshare");
        command.args([
            "--fork",
            "--kill-child",
            "--pid",
            "--mount",
            "--net",
            "--ipc",
            "--uts",
            "sh",
            "-c",
            SETUP,
            "sh",
        ]);
        command.arg(&root).arg(program.user.unwrap_or("root")).args(&program.command);
        command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        let spawned = command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn();
        let mut child = spawned.map_err(|source| Error::Spawn {
            program: "unshare".into(),
            hint: "install the package util-linux",
            source,
        })?;
        let net = match network_of_child(child.id()) {
            Ok(net) => net,
            Err(error) => {
                end(&mut child);
                return Err(error);
            }
        };
        Ok(Self { program: program.clone(), child, net, dir })
    }

    /// Process id of the program itself.
    ///
    /// # Errors
    /// Where it has ended.
    pub fn pid(&self) -> Result<u32, Error> {
        only_child(only_child(self.child.id())?)
    }

    /// Runs `step` on a thread in the program's network namespace.
    ///
    /// # Panics
    /// Where the namespace cannot be entered (only root can), or `step` panics.
    pub fn enter<T: Send>(&self, step: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(std::os::fd::AsFd::as_fd(&self.net), Some(LinkNameSpaceType::Network))
                    .expect("root may enter the network namespace that it made");
                step()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Where the program's first port is, seen from inside.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.program.ports.first().map_or(0, |port| port.0)).into()
    }

    /// A checked connection, once the program answers.
    ///
    /// # Errors
    /// Where it does not within a minute; its log is part of the error.
    pub fn session(&self) -> Result<Box<dyn Session>, Error> {
        self.enter(|| {
            eventually_ok(&format!("{} answers", self.program.name), START_TIMEOUT, || {
                self.program.connect(self.address()).map_err(|error| format!("{error}; its log: {}", self.log()))
            })
        })
    }

    /// What it wrote to its output, the last 2,000 characters.
    pub fn log(&self) -> String {
        let text = fs::read(self.dir.path().join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.chars().skip(text.chars().count().saturating_sub(2000)).collect()
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // `--kill-child` takes the namespace's init along, and with it everything inside and every mount.
        end(&mut self.child);
    }
}

fn end(child: &mut Child) {
    if let Err(error) = child.kill().and_then(|()| child.wait().map(drop)) {
        eprintln!("bare: cannot end process {}: {error}", child.id());
    }
}

fn only_child(pid: u32) -> Result<u32, Error> {
    let pid = pid.cast_signed();
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = torpor_proc::processes::children(pid, pid).map_err(Error::file("read", path))?;
    let &[child] = &children[..] else { return Err(Error::Missing { what: format!("child of process {pid}") }) };
    Ok(child.cast_unsigned())
}

/// The network namespace of the process that `unshare` forks.
fn network_of_child(pid: u32) -> Result<File, Error> {
    let child = eventually_ok("unshare forks", START_TIMEOUT, || only_child(pid))?;
    let path = PathBuf::from(format!("/proc/{child}/ns/net"));
    File::open(&path).map_err(Error::file("open", path))
}
