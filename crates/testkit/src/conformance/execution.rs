//! A program of the suite that runs: its directory, its processes, its answer.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Program;
use super::process::{Process, all, kill_if, tree};
use crate::error::Error;
use crate::wait::eventually_ok;

/// Marks the processes of a program, however they are restored.
const MARK: &str = "TORPOR_CONFORMANCE";
/// How long setting up may take.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// How long killed processes may take to go.
const GONE_WITHIN: Duration = Duration::from_secs(60);

/// How a program began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It waits to be captured.
    Ready,
    /// It ended with an answer already.
    Answered(String),
}

/// A running program; all its processes are killed when this is dropped, restored ones too.
#[derive(Debug)]
pub struct Execution {
    /// Directory for images beside the program's own.
    base: tempfile::TempDir,
    executable: PathBuf,
    child: Child,
    members: Vec<Process>,
}

impl Execution {
    /// Starts `program` in a directory of its own.
    ///
    /// # Errors
    /// Where it cannot be compiled or started.
    pub fn start(program: &Program) -> Result<Self, Error> {
        let executable = program.executable()?;
        // A file system of the disk: some programs are about what memory file systems lack.
        let parent = if Path::new("/var/tmp").is_dir() { PathBuf::from("/var/tmp") } else { std::env::temp_dir() };
        let made = tempfile::Builder::new().prefix("torpor-conformance-").tempdir_in(&parent);
        let base = made.map_err(Error::file("make a directory in", &parent))?;
        let home = base.path().join("home");
        fs::create_dir(&home).map_err(Error::file("make", &home))?;
        // Programs that give up root write their answers too.
        for (path, mode) in [(base.path(), 0o755), (&*home, 0o777)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).map_err(Error::file("open up", path))?;
        }
        let mut command = Command::new(&executable);
        command.arg(program.name).current_dir(&home).env_clear().env(MARK, &home);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let hint = "it has just been compiled";
        let spawned = command.spawn();
        let child =
            spawned.map_err(|source| Error::Spawn { program: executable.display().to_string(), hint, source })?;
        Ok(Self { base, executable, child, members: Vec::new() })
    }

    /// Process id of the root of its tree.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its directory.
    pub fn home(&self) -> PathBuf {
        self.base.path().join("home")
    }

    /// A directory for an image, outside of the program's own.
    pub fn image(&self) -> PathBuf {
        self.base.path().join("image")
    }

    /// Waits until it is set up.
    ///
    /// # Errors
    /// Where it ends without an answer, or takes too long.
    pub fn begun(&mut self) -> Result<Begun, Error> {
        let home = self.home();
        let mut ended = None;
        let begun = eventually_ok("the program is set up", READY_WITHIN, || {
            // Looked at before the files: what ends has written its answer before.
            ended = ended.or_else(|| self.child.try_wait().ok().flatten());
            if let Ok(answer) = fs::read_to_string(home.join("result")) {
                return Ok(Some(Begun::Answered(answer)));
            }
            if home.join("ready").exists() {
                return Ok(Some(Begun::Ready));
            }
            if ended.is_some() { Ok(None) } else { Err("neither `ready` nor `result`") }
        })?;
        self.members = tree(self.pid() as i32);
        begun.ok_or_else(|| Error::answer("conformance program", "an answer", format!("its end: {ended:?}")))
    }

    /// How many processes it has.
    pub fn processes(&self) -> usize {
        self.members.len()
    }

    /// Waits until every process that it had is gone; what is still there is the error.
    ///
    /// # Errors
    /// Where one is left.
    pub fn gone(&mut self) -> Result<(), Error> {
        let begun = Instant::now();
        // Our own child is a zombie until it is waited for.
        while begun.elapsed() < GONE_WITHIN && !matches!(self.child.try_wait(), Ok(Some(_))) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let members = &self.members;
        eventually_ok("all captured processes are gone", GONE_WITHIN, || {
            let left: Vec<String> =
                members.iter().filter(|process| process.is_there()).map(|process| process.pid.to_string()).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("left: {}", left.join(" "))) }
        })
    }

    /// Lets it check itself.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn go(&self) -> Result<(), Error> {
        let path = self.home().join("go");
        fs::write(&path, "").map_err(Error::file("write", path))
    }

    /// Its answer.
    ///
    /// # Errors
    /// Where none comes within `within`.
    pub fn answer(&self, within: Duration) -> Result<String, Error> {
        let path = self.home().join("result");
        eventually_ok("the program answers", within, || fs::read_to_string(&path).map_err(|_| self.what_is_left()))
    }

    /// Whether it has found state that only a process which was never restored can have.
    pub fn was_left_running(&self) -> bool {
        self.home().join("left-running").exists()
    }

    /// Its processes and their states, for people.
    fn what_is_left(&self) -> String {
        let ours = all().into_iter().filter(|process| self.owns(process.pid));
        let states = ours.map(|process| {
            let status = fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap_or_default();
            let state = status.lines().find_map(|line| line.strip_prefix("State:\t")).unwrap_or("gone");
            let call = fs::read_to_string(format!("/proc/{}/syscall", process.pid)).unwrap_or_default();
            let call = call.split(' ').next().unwrap_or_default().trim().to_owned();
            format!("process {} is {state}, in call {call}", process.pid)
        });
        let states: Vec<String> = states.collect();
        if states.is_empty() { "none of its processes is left".to_owned() } else { states.join("; ") }
    }

    fn owns(&self, pid: i32) -> bool {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mark = format!("{MARK}={}", self.home().display());
        let marked = environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
        let known = || self.members.iter().any(|process| process.pid == pid);
        let runs_it = || fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == self.executable);
        marked || (known() && runs_it())
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        // Until none is left: one may fork while the others are killed.
        for _ in 0..100 {
            let ours: Vec<i32> = all().iter().map(|process| process.pid).filter(|pid| self.owns(*pid)).collect();
            for pid in &ours {
                kill_if(*pid, |pid| self.owns(pid));
            }
            // Its own root, which has no environment any more where it is a zombie.
            let _ = self.child.kill();
            let _ = self.child.wait();
            if ours.is_empty() {
                // Of a program that has not come to its end.
                let _ = rustix::mount::unmount(self.home().join("pool"), rustix::mount::UnmountFlags::DETACH);
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        eprintln!("processes of a conformance program cannot be killed: {}", self.what_is_left());
    }
}
