//! CRIU alone: a process in a chroot, without namespaces (except the network) and cgroups that would have to be restored.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::{CRIU, Netns, Peer, criu_binary, end, prepare_root};
use crate::bench::client::first_byte_since;
use crate::bench::program::Program;
use crate::error::{Error, run};

/// See the module.
#[derive(Debug)]
pub(crate) struct Criu {
    program: Program,
    netns: Netns,
    binary: PathBuf,
    images: PathBuf,
    pid: u32,
    runs: bool,
}

impl Criu {
    pub(super) fn start(program: &Program, dir: &Path) -> Result<Self, Error> {
        let binary = criu_binary()?;
        let netns = Netns::make(1)?;
        let root = dir.join("criu/rootfs");
        program.unpack_for_root(&root)?;
        prepare_root(&root)?;
        let pid = netns.start(program, &root)?;
        let images = dir.join("criu/images");
        let mut criu = Self { program: program.clone(), netns, binary, images, pid, runs: true };
        criu.program.warm_up(criu.netns.socket(&criu.program))?;
        criu.rest()?;
        criu.first_byte()?;
        Ok(criu)
    }

    fn call(&self, what: &str, arguments: &[&str]) -> Result<(), Error> {
        let mut command = self.netns.command(&self.binary);
        command.arg(what).args(["-v1", "-o", "log", "-D"]).arg(&self.images).args(arguments);
        let log = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        run(&mut command).map(drop).map_err(|error| error.with_log(|| log(self.images.join("log"))))
    }
}

impl Peer for Criu {
    fn name(&self) -> &'static str {
        CRIU
    }

    fn level(&self) -> &'static str {
        "image"
    }

    fn rest(&mut self) -> Result<(), Error> {
        if self.images.exists() {
            fs::remove_dir_all(&self.images).map_err(Error::file("remove", &self.images))?;
        }
        fs::create_dir_all(&self.images).map_err(Error::file("make", &self.images))?;
        self.call("dump", &["-t", &self.pid.to_string(), "--manage-cgroups=ignore"])?;
        self.runs = false;
        // Reap it if it is our child: the restore needs its process id.
        end(self.pid);
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        }
        Ok(())
    }

    fn first_byte(&mut self) -> Result<f64, Error> {
        let begun = Instant::now();
        // The command returns when the program runs.
        self.call("restore", &["-d", "--manage-cgroups=ignore"])?;
        self.runs = true;
        first_byte_since(self.netns.socket(&self.program), self.program.protocol, begun)
    }
}

impl Drop for Criu {
    fn drop(&mut self) {
        if self.runs {
            end(self.pid);
        }
    }
}
