//! Pid, network, IPC, UTS and mount namespaces with an init that does nothing but reap. Needs root.

use std::fs;
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::Error;
use crate::programs;
use crate::wait::{SOON, eventually};

/// The namespaces; they end, with everything in them, when this is dropped.
#[derive(Debug)]
pub struct Namespaces {
    unshare: Child,
    init: Pid,
}

impl Namespaces {
    /// Makes them. The loopback interface is up.
    ///
    /// # Errors
    /// If `unshare` is missing, or its init does not start.
    pub fn new() -> Result<Self, Error> {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--net", "--ipc", "--uts", "--mount", "--fork", "--kill-child", "python3"]);
        let spawned = command.arg(programs::path("reaping_init.py")).spawn();
        let hint = "install the package util-linux";
        let unshare = spawned.map_err(|source| Error::Spawn { program: "unshare".to_owned(), hint, source })?;
        let mut namespaces = Self { unshare, init: Pid::INIT };
        eventually("init reaps", SOON, || {
            let Some(init) = namespaces.find_init() else { return false };
            namespaces.init = init;
            let name = fs::read_to_string(format!("/proc/{}/comm", init.as_raw_nonzero()));
            name.is_ok_and(|name| name.trim() == "sleep")
        })?;
        Ok(namespaces)
    }

    /// Process id of init, as the machine sees it.
    #[must_use]
    pub fn init(&self) -> i32 {
        self.init.as_raw_nonzero().get()
    }

    /// Whether init has no children.
    ///
    /// # Panics
    /// If init has ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        children(self.init().cast_unsigned()).expect("init lives as long as its namespaces").is_empty()
    }

    fn find_init(&self) -> Option<Pid> {
        Pid::from_raw(*children(self.unshare.id()).ok()?.first()?)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        // Init is still unknown if it did not start; `unshare` then kills it.
        let ended = if self.init.is_init() {
            self.unshare.kill()
        } else {
            kill_process(self.init, Signal::KILL).map_err(Into::into)
        };
        if let Err(error) = ended.and_then(|()| self.unshare.wait()) {
            eprintln!("namespaces of a test stay: {error}");
        }
    }
}

fn children(pid: u32) -> std::io::Result<Vec<i32>> {
    torpor_proc::processes::children(pid.cast_signed(), pid.cast_signed())
}
