//! What a daemon must not share with another on the same machine: instance name, address pools, ports.
//!
//! A slot is a number with an exclusive `flock(2)` as long as its daemon lives; the kernel frees it with the process. The locked
//! file holds the path of the daemon's directory: where a test was killed, its daemon, apps and interfaces live on, and the next
//! one to take the slot puts them to rest by `torpor down`, or takes another slot.

use std::fs::{self, File, OpenOptions};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::{directory, leftovers};
use crate::error::{Error, run};
use crate::wait::eventually_ok;

/// Slots, and so daemons at the same time.
const SLOTS: u16 = 64;
/// First port of slot 0; below the kernel's range for outgoing connections.
const FIRST_PORT: u16 = 16_000;
/// Ports of one slot.
pub(crate) const PORTS: u16 = 250;
/// How long what `torpor down` has put to rest may take to end.
const ENDING: Duration = Duration::from_secs(5);
/// What directories of daemons are called, with random letters behind it.
pub(crate) const DIRECTORY_PREFIX: &str = "torpor-test";

/// A taken slot.
#[derive(Debug)]
pub(crate) struct Slot {
    number: u16,
    next_port: u16,
    lock: File,
}

impl Slot {
    /// Takes the first free slot that is clean, or that `binary` can clean up.
    pub(crate) fn take(binary: &Path) -> Result<Self, Error> {
        let dir = PathBuf::from("/tmp/torpor-test-slots");
        fs::create_dir_all(&dir).map_err(Error::file("make the directory", &dir))?;
        for number in 0..SLOTS {
            let path = dir.join(number.to_string());
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            let file = file.map_err(Error::file("open the lock", &path))?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let slot = Self { number, next_port: 0, lock: file };
                    match slot.clean_up(binary) {
                        Ok(()) => return Ok(slot),
                        Err(left) => eprintln!("slot {number} is passed over; an earlier test left {left}"),
                    }
                }
                Err(Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(Error::file("lock", path)(errno.into())),
            }
        }
        Err(Error::Missing { what: format!("free slot: {SLOTS} test daemons already run") })
    }

    /// Writes down where the daemon's files are, for whoever takes the slot after us.
    pub(crate) fn remember(&self, dir: &Path) -> Result<(), Error> {
        let written = self.lock.set_len(0).and_then(|()| self.lock.write_all_at(dir.as_os_str().as_bytes(), 0));
        written.map_err(Error::file("write to the lock of", dir))
    }

    /// The directory of the daemon that had the slot before, if it is still there.
    fn directory_before(&self) -> Option<PathBuf> {
        let mut path = vec![0; 4096];
        let length = self.lock.read_at(&mut path, 0).ok()?;
        path.truncate(length);
        let path = PathBuf::from(std::ffi::OsString::from_vec(path));
        // Nothing else is ever removed, whatever the file says.
        let ours = path.file_name()?.as_bytes().starts_with(DIRECTORY_PREFIX.as_bytes());
        (ours && path.is_absolute() && path.is_dir()).then_some(path)
    }

    /// Puts to rest what a daemon left whose test was killed; the error says what stays.
    fn clean_up(&self, binary: &Path) -> Result<(), String> {
        let before = self.directory_before();
        let dirs: Vec<&Path> = before.iter().map(PathBuf::as_path).collect();
        let left = leftovers(&self.instance(), &dirs);
        let Some(dir) = &before else { return if left.is_empty() { Ok(()) } else { Err(left.join(", ")) } };
        if !left.is_empty() {
            eprintln!("slot {}: putting to rest what a killed test left: {}", self.number, left.join(", "));
            let mut down = Command::new(binary);
            down.arg("down").arg("--config").arg(dir.join("torpor.toml")).arg("--discard").stdin(Stdio::null());
            run(&mut down, "run `cargo build -p torpor`").map_err(|error| error.to_string())?;
            // The daemon itself ends behind its answer.
            let gone = eventually_ok("it is at rest", ENDING, || match leftovers(&self.instance(), &dirs) {
                some if some.is_empty() => Ok(()),
                some => Err(some.join(", ")),
            });
            gone.map_err(|error| error.to_string())?;
        }
        directory::remove(dir).map_err(|error| format!("{}: {error}", dir.display()))
    }

    /// Name of the instance: a letter first, then letters and digits.
    pub(crate) fn instance(&self) -> String {
        format!("ttest{}", self.number)
    }

    /// A private /16.
    pub(crate) fn v4_pool(&self) -> String {
        format!("10.{}.0.0/16", 128 + self.number)
    }

    /// A unique local /64.
    pub(crate) fn v6_pool(&self) -> String {
        format!("fd74:6f72:7465:{:x}::/64", self.number)
    }

    /// The next port of the slot that nobody listens on, TCP or UDP.
    pub(crate) fn port(&mut self) -> Result<u16, Error> {
        while self.next_port < PORTS {
            let port = FIRST_PORT + self.number * PORTS + self.next_port;
            self.next_port += 1;
            let address = (Ipv4Addr::UNSPECIFIED, port);
            if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
                return Ok(port);
            }
        }
        Err(Error::Missing { what: format!("free port in slot {} of {PORTS} ports", self.number) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_differ_and_are_given_back() {
        let none = Path::new("/nonexistent");
        let (mut first, second) = (Slot::take(none).unwrap(), Slot::take(none).unwrap());
        assert_ne!(first.instance(), second.instance());
        assert_ne!(first.v4_pool(), second.v4_pool());
        assert_ne!(first.port().unwrap(), first.port().unwrap());
        assert!(u32::from(FIRST_PORT) + u32::from(SLOTS) * u32::from(PORTS) <= 32_768);
    }

    /// The slot's daemon was killed with its test, leaving its directory and a process in it.
    fn killed(prefix: &str) -> (Slot, tempfile::TempDir, std::process::Child) {
        let slot = Slot::take(Path::new("/nonexistent")).unwrap();
        let dir = tempfile::Builder::new().prefix(prefix).tempdir().unwrap();
        slot.remember(dir.path()).unwrap();
        let child = Command::new("sleep").arg("60").current_dir(dir.path()).spawn().unwrap();
        fs::write(dir.path().join("pid"), child.id().to_string()).unwrap();
        (slot, dir, child)
    }

    /// Ends that process as `torpor down --config DIR/torpor.toml`.
    fn script(dir: &Path, body: &str) -> PathBuf {
        let path = dir.join("down");
        fs::write(&path, format!("#!/bin/sh\nset -e\n{body}\n")).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn leftovers_of_a_killed_test_are_removed() {
        let tools = tempfile::tempdir().unwrap();
        let (slot, dir, mut child) = killed(DIRECTORY_PREFIX);
        // Waited for as init would: until then it is still there.
        let reaper = std::thread::spawn(move || child.wait());
        let works = script(tools.path(), include_str!("../../programs/fake_down.sh"));
        slot.clean_up(&works).unwrap();
        assert!(!dir.path().exists());
        reaper.join().unwrap().unwrap();
        slot.clean_up(Path::new("/nonexistent")).unwrap();
    }

    #[test]
    fn leftovers_that_cannot_be_removed_are_named_and_stay() {
        let tools = tempfile::tempdir().unwrap();
        let (slot, dir, mut child) = killed(DIRECTORY_PREFIX);
        let left = slot.clean_up(&script(tools.path(), "exit 0")).unwrap_err();
        assert!(left.contains(&format!("process {}", child.id())), "{left}");
        let failed = slot.clean_up(&script(tools.path(), "echo no way >&2; exit 1")).unwrap_err();
        assert!(failed.contains("no way"), "{failed}");
        assert!(dir.path().exists());
        child.kill().unwrap();
        child.wait().unwrap();
        // A directory that cannot be a daemon's is never touched.
        let (slot, dir, mut child) = killed("other");
        slot.clean_up(Path::new("/nonexistent")).unwrap();
        assert!(dir.path().exists());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
