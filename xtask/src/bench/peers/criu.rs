//! CRIU alone: a process in a chroot, without namespaces (except the network) and cgroups that would have to be restored.
//!
//! With [`Pages::Lazily`] the program runs before its memory is back. `criu lazy-pages` serves its page faults from the image in the
//! same directory, and transfers the other pages meanwhile. It listens before the restore begins, and ends when all pages are there.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitOptions, waitpid};

use super::{CONNECTIONS, CRIU, CRIU_LAZY, Netns, Peer, Root, criu_binary, end, errors_of, gone};
use crate::bench::client::first_byte_since;
use crate::bench::program::Program;
use crate::error::{Error, run};

/// Limit for the daemon of a lazy restore to listen.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);
/// Limit for it to transfer all pages after the first answer.
const TRANSFERRED_WITHIN: Duration = Duration::from_secs(120);
/// Pause between looks at the daemon.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// When memory is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Before the program runs.
    AtOnce,
    /// While it runs.
    Lazily,
}

impl Pages {
    /// The name of CRIU in results.
    pub(crate) const fn subject(self) -> &'static str {
        match self {
            Self::AtOnce => CRIU,
            Self::Lazily => CRIU_LAZY,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Criu {
    program: Program,
    netns: Netns,
    binary: PathBuf,
    images: PathBuf,
    pid: u32,
    runs: bool,
    pages: Pages,
    /// Unmounted after the program has ended.
    _root: Root,
    /// The daemon of a lazy restore, until it is seen to have ended.
    server: Option<Child>,
}

impl Criu {
    pub(super) fn start(program: &Program, dir: &Path, pages: Pages) -> Result<Self, Error> {
        let binary = criu_binary()?;
        let netns = Netns::make(if pages == Pages::AtOnce { 1 } else { 3 })?;
        let dir = dir.join(pages.subject());
        let root = Root::make(program, dir.join("rootfs"))?;
        let pid = netns.start(program, &root)?;
        let images = dir.join("images");
        let mut criu =
            Self { program: program.clone(), netns, binary, images, pid, runs: true, pages, _root: root, server: None };
        criu.program.warm_up(criu.netns.socket(&criu.program))?;
        criu.rest()?;
        criu.first_byte()?;
        Ok(criu)
    }

    fn call(&self, what: &str, arguments: &[&str]) -> Result<(), Error> {
        let mut command = self.netns.command(&self.binary);
        command.arg(what).args(["-v1", "-o", "log", "-D"]).arg(&self.images).args(arguments);
        command.args(self.program.has_connections().then_some(CONNECTIONS));
        let log = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        run(&mut command).map(drop).map_err(|error| error.with_log(|| log(self.images.join("log"))))
    }

    /// Starts the daemon of a lazy restore, and waits until it listens.
    fn serve(&mut self) -> Result<(), Error> {
        let mut command = self.netns.command(&self.binary);
        // The restore writes its log to another file.
        command.args(["lazy-pages", "-v1", "-o", "lazy-log", "-D"]).arg(&self.images);
        // Both use the socket in the work directory, which is that of the images.
        let socket = self.images.join("lazy-pages.socket");
        let stderr = self.images.join("lazy-stderr");
        let file = File::create(&stderr).map_err(Error::file("make", &stderr))?;
        let child = command.stderr(Stdio::from(file)).spawn().map_err(Error::spawn("criu"))?;
        let begun = Instant::now();
        let server = self.server.insert(child);
        while !socket.exists() {
            let ended = server.try_wait().is_ok_and(|status| status.is_some());
            if ended || begun.elapsed() > LISTENS_WITHIN {
                return Err(self.lazily_failed("does not listen"));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Waits until the daemon of a lazy restore, if there is one, has transferred all pages.
    fn transferred(&mut self) -> Result<(), Error> {
        let Some(server) = &mut self.server else { return Ok(()) };
        let begun = Instant::now();
        loop {
            match server.try_wait().map_err(Error::file("wait for", &self.binary))? {
                Some(status) if status.success() => break,
                Some(status) => return Err(self.lazily_failed(&status.to_string())),
                None if begun.elapsed() > TRANSFERRED_WITHIN => return Err(self.lazily_failed("does not end")),
                None => std::thread::sleep(LOOK_AGAIN),
            }
        }
        self.server = None;
        Ok(())
    }

    fn lazily_failed(&self, how: &str) -> Error {
        let text = fs::read_to_string(self.images.join("lazy-stderr")).unwrap_or_default();
        let stderr = format!("{text} {}", errors_of(&self.images.join("lazy-log"))).trim().to_owned();
        torpor_testkit::Error::Command { command: "criu lazy-pages".to_owned(), status: how.to_owned(), stderr }.into()
    }
}

impl Peer for Criu {
    fn name(&self) -> &'static str {
        self.pages.subject()
    }

    fn level(&self) -> &'static str {
        "image"
    }

    fn rest(&mut self) -> Result<(), Error> {
        self.transferred()?;
        if self.images.exists() {
            fs::remove_dir_all(&self.images).map_err(Error::file("remove", &self.images))?;
        }
        fs::create_dir_all(&self.images).map_err(Error::file("make", &self.images))?;
        let pids = self.netns.pids()?;
        self.call("dump", &["-t", &self.pid.to_string(), "--manage-cgroups=ignore"])?;
        self.runs = false;
        // The restore needs the process ids. The initial process is reaped here if it is our child, the others by process 1.
        end(self.pid);
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
        gone(&pids)
    }

    fn first_byte(&mut self) -> Result<f64, Error> {
        let mut arguments = vec!["-d", "--manage-cgroups=ignore"];
        if self.pages == Pages::Lazily {
            self.serve()?;
            arguments.push("--lazy-pages");
        }
        let begun = Instant::now();
        // The command returns when the program runs.
        self.call("restore", &arguments)?;
        self.runs = true;
        first_byte_since(self.netns.socket(&self.program), self.program.protocol, begun)
    }
}

impl Drop for Criu {
    fn drop(&mut self) {
        if self.runs {
            end(self.pid);
        }
        if let Some(mut server) = self.server.take() {
            // It may have ended.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
