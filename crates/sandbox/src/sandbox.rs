//! A sandbox as the worker holds it: prepared, running, taken over, removed.
//!
//! ```text
//!            prepare                 start              (program ends)
//!   nothing ─────────▶ [Prepared] ─────────▶ [Sandbox] ────────────────▶ exit_status() is some
//!      ▲                   │ drop, error         │  ▲ adopt(record)
//!      └───────────────────┴──── destroy ────────┘  └─ after a crash of the worker
//! ```
//!
//! `prepare` and `start` either succeed or leave nothing behind. The worker writes [`Prepared::record`] down before it
//! calls `start`; a crash before that ends the processes by themselves, and [`destroy_leftovers`] removes the rest.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use serde::{Deserialize, Serialize};
use torpor_linux::spawn::send_signal;

use crate::capabilities::Capabilities;
use crate::cgroup::{Cgroup, Hierarchies};
use crate::channel::{Channel, to_file};
use crate::confine::Confinement;
use crate::error::{CgroupError, SandboxError, While};
use crate::launcher::{Launcher, SETUP_COMMAND};
use crate::process::{ExitStatus, Identity, wait_for_end};
use crate::setup::{Begin, FromSetup, Request, ToSetup};
use crate::spec::{IdRange, SandboxSpec};

/// How long a set-up process may take for one answer.
pub(crate) const ANSWER_DEADLINE: Duration = Duration::from_secs(60);
/// How long killed processes may take to end.
const KILL_DEADLINE: Duration = Duration::from_secs(10);
/// Pause between looks at a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// Everything needed to take a sandbox over: plain data, to be written down by the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRecord {
    /// Its id.
    pub id: String,
    /// The cgroup below which its own is.
    pub cgroup_parent: String,
    /// Its run directory.
    pub run_dir: PathBuf,
    /// Its host name.
    pub hostname: String,
    /// Its user namespace.
    pub ids: Option<IdRange>,
    /// Its init.
    pub init: Identity,
    /// The app's initial process.
    pub initial: Identity,
    pub(crate) confinement: Confinement,
}

impl SandboxRecord {
    /// How the initial process ended, once init has gone; `Unknown` if init could not write it.
    ///
    /// # Errors
    /// When the status file cannot be read.
    pub fn exit_status(&self) -> Result<ExitStatus, SandboxError> {
        let path = status_path(&self.run_dir);
        let mut bytes = Vec::new();
        match File::open(&path).and_then(|file| file.take(4).read_to_end(&mut bytes)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ExitStatus::Unknown),
            other => other.whilst(|| format!("reading the exit status in {}", path.display()))?,
        };
        let status = bytes.try_into().map(|bytes| ExitStatus::from_wait(i32::from_ne_bytes(bytes)));
        Ok(status.unwrap_or(ExitStatus::Unknown))
    }
}

fn status_path(run_dir: &Path) -> PathBuf {
    run_dir.join("status")
}

/// A sandbox whose program has not started. Dropping it removes everything.
#[derive(Debug)]
pub struct Prepared {
    /// None once started.
    sandbox: Option<Sandbox>,
    channel: Channel,
    setup: Child,
    netns: OwnedFd,
    unenforced: Vec<CgroupError>,
}

/// A running sandbox, or one whose program has ended.
#[derive(Debug)]
pub struct Sandbox {
    record: SandboxRecord,
    init: OwnedFd,
    initial: Option<OwnedFd>,
    cgroup: Cgroup,
}

impl Sandbox {
    /// Makes everything and stops just before the program starts.
    ///
    /// # Errors
    /// What could not be made; nothing is left behind then.
    pub fn prepare(launcher: &Launcher, spec: &SandboxSpec, stdio: [OwnedFd; 3]) -> Result<Prepared, SandboxError> {
        spec.check()?;
        let status = take_status_file(spec)?;
        let prepared = prepare(launcher, spec, &stdio, &status);
        drop(status);
        // The program's ends belong to it alone now: ours would keep its pipes open.
        drop(stdio);
        if prepared.is_err() {
            clear(launcher.hierarchies(), spec);
        }
        prepared
    }

    /// Takes over a sandbox that an earlier worker made.
    ///
    /// # Errors
    /// `Gone` if its init is no longer there; [`SandboxRecord::exit_status`] then says how its program ended.
    pub fn adopt(hierarchies: &Hierarchies, record: SandboxRecord) -> Result<Self, SandboxError> {
        let open = |identity: &Identity| identity.open().whilst(|| format!("opening process {}", identity.pid));
        let Some(init) = open(&record.init)? else {
            return Err(SandboxError::Gone { id: record.id, pid: record.init.pid });
        };
        // Nobody may have reaped it yet.
        if wait_for_end(&init, Some(Duration::ZERO)).whilst(|| format!("examining process {}", record.init.pid))? {
            return Err(SandboxError::Gone { id: record.id, pid: record.init.pid });
        }
        let initial = open(&record.initial)?;
        let cgroup = Cgroup::at(hierarchies, &record.cgroup_parent, &record.id);
        Ok(Self { init, initial, cgroup, record })
    }

    /// What to write down to adopt it later.
    pub fn record(&self) -> &SandboxRecord {
        &self.record
    }

    /// Its cgroups.
    pub fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// The init's pid.
    pub fn init_pid(&self) -> i32 {
        self.record.init.pid
    }

    /// The pid of the app's initial process.
    pub fn initial_pid(&self) -> i32 {
        self.record.initial.pid
    }

    /// Readable once the initial process has ended and everything else was killed.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.init.as_fd()
    }

    /// The network namespace.
    ///
    /// # Errors
    /// When the sandbox has ended.
    pub fn netns(&self) -> Result<OwnedFd, SandboxError> {
        open_netns(&self.record.init)
    }

    /// How the initial process ended; none while it runs.
    ///
    /// # Errors
    /// When the status file cannot be read.
    pub fn exit_status(&self) -> Result<Option<ExitStatus>, SandboxError> {
        self.wait(Some(Duration::ZERO))
    }

    /// The same, waiting for it so long; none: without end.
    ///
    /// # Errors
    /// When the status file cannot be read.
    pub fn wait(&self, within: Option<Duration>) -> Result<Option<ExitStatus>, SandboxError> {
        let ended = wait_for_end(&self.init, within).whilst(|| format!("waiting for sandbox {}", self.record.id))?;
        if ended { self.record.exit_status().map(Some) } else { Ok(None) }
    }

    /// Sends a signal to the initial process. Fine if it has ended.
    ///
    /// # Errors
    /// For a number that is no signal.
    pub fn signal(&self, signal: i32) -> Result<(), SandboxError> {
        let Some(initial) = &self.initial else { return Ok(()) };
        deliver(initial.as_fd(), signal, self.record.initial.pid)
    }

    /// Kills every process, frozen ones too, and returns once they have ended.
    ///
    /// # Errors
    /// When they do not end.
    pub fn kill(&self) -> Result<(), SandboxError> {
        // The initial process first: init then writes down how it ended, and exits.
        self.signal(libc::SIGKILL)?;
        self.cgroup.kill()?;
        let waiting = || format!("waiting for the end of sandbox {}", self.record.id);
        if !wait_for_end(&self.init, Some(KILL_DEADLINE)).whilst(waiting)? {
            deliver(self.init.as_fd(), libc::SIGKILL, self.record.init.pid)?;
            if !wait_for_end(&self.init, Some(KILL_DEADLINE)).whilst(waiting)? {
                return Err(SandboxError::StillThere { id: self.record.id.clone(), after: KILL_DEADLINE });
            }
        }
        // Where this process has inherited it as the reaper of orphans, it must not stay a zombie.
        match waitid(WaitId::PidFd(self.init.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(_) | Err(rustix::io::Errno::CHILD) => Ok(()),
            Err(error) => Err(error).whilst(waiting),
        }
    }

    /// Kills every process and removes what was made for the sandbox: cgroups, status file, mount point. May be called
    /// again.
    ///
    /// # Errors
    /// What could not be removed; the rest has been.
    pub fn destroy(&self) -> Result<(), SandboxError> {
        let killed = self.kill();
        let removed = remove(&self.cgroup, &self.record.run_dir);
        killed.and(removed)
    }
}

impl Prepared {
    /// The network namespace, to be connected before the start.
    pub fn netns(&self) -> BorrowedFd<'_> {
        self.netns.as_fd()
    }

    /// What to write down before the start.
    pub fn record(&self) -> &SandboxRecord {
        &self.sandbox.as_ref().expect("only start, which consumes self, takes it").record
    }

    /// Limits that were asked for and that this machine cannot enforce.
    pub fn unenforced(&self) -> &[CgroupError] {
        &self.unenforced
    }

    /// Starts the program; returns once it runs.
    ///
    /// # Errors
    /// Why it does not; nothing is left behind then.
    pub fn start(mut self) -> Result<Sandbox, SandboxError> {
        let id = self.record().id.clone();
        // A set-up process that has died meanwhile is reported by the answer that does not come.
        let _dead = self.channel.send(&ToSetup::Go, &[]);
        match answer(&self.channel, &mut self.setup, &id)?.0 {
            FromSetup::Started => {
                self.setup.wait().whilst(|| format!("waiting for the set-up process of {id}"))?;
                Ok(self.sandbox.take().expect("nobody else takes it"))
            }
            FromSetup::Failed(error) => Err(error.into()),
            _ => Err(SandboxError::SetupAnswer { id, what: "not the start" }),
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        let Some(sandbox) = self.sandbox.take() else { return };
        reap(&mut self.setup, &sandbox.record.id);
        if let Err(error) = sandbox.destroy() {
            tracing::warn!(id = sandbox.record.id, %error, "removing a sandbox that did not start");
        }
    }
}

/// Ends a set-up process, if it has not ended.
fn reap(setup: &mut Child, id: &str) {
    // Killing a child that has ended and not been waited for does nothing.
    if let Err(error) = setup.kill().and_then(|()| setup.wait().map(drop)) {
        tracing::warn!(id, %error, "ending a set-up process");
    }
}

/// Sends a signal; fine if the process has ended.
pub(crate) fn deliver(pidfd: BorrowedFd<'_>, signal: i32, pid: i32) -> Result<(), SandboxError> {
    match send_signal(pidfd, signal) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other.whilst(|| format!("sending signal {signal} to process {pid}")),
    }
}

/// The next answer of a set-up process, and the descriptors that came with it.
pub(crate) fn answer(
    channel: &Channel,
    setup: &mut Child,
    id: &str,
) -> Result<(FromSetup, Vec<OwnedFd>), SandboxError> {
    match channel.receive(Some(ANSWER_DEADLINE)) {
        Ok(Some(message)) => Ok((message.body, message.descriptors)),
        Ok(None) => {
            let status = setup.wait().whilst(|| format!("waiting for the set-up process of {id}"))?;
            Err(SandboxError::SetupDied { id: id.to_owned(), status })
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            reap(setup, id);
            Err(SandboxError::SetupSilent { id: id.to_owned(), after: ANSWER_DEADLINE })
        }
        Err(error) => Err(error).whilst(|| format!("hearing from the set-up process of {id}")),
    }
}

fn open_netns(init: &Identity) -> Result<OwnedFd, SandboxError> {
    let path = format!("/proc/{}/ns/net", init.pid);
    rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).whilst(|| format!("opening {path}"))
}

fn prepare(
    launcher: &Launcher,
    spec: &SandboxSpec,
    stdio: &[OwnedFd; 3],
    status: &File,
) -> Result<Prepared, SandboxError> {
    let place = spec.run_dir.join("root");
    if let Err(error) = fs::create_dir(&place)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error).whilst(|| format!("making {}", place.display()));
    }
    let hierarchies = launcher.hierarchies();
    let (cgroup, unenforced) =
        Cgroup::create(hierarchies, &spec.cgroup_parent, &spec.id, &spec.limits, spec.ids.is_none())?;

    let (channel, mut setup) = launcher.spawn(SETUP_COMMAND)?;
    let begin = Begin {
        app_procs: cgroup.procs_files(),
        support_procs: hierarchies.support_procs_files(&spec.cgroup_parent),
        core: cgroup.core().to_owned(),
        visible: cgroup.visible(),
    };
    let made = (|| {
        let file = to_file(spec).whilst(|| "writing the spec to memory".to_owned())?;
        let [input, output, errors] = stdio;
        let files =
            [file.as_fd(), input.as_fd(), output.as_fd(), errors.as_fd(), status.as_fd(), launcher.init().as_fd()];
        channel
            .send(&Request::SetUp(begin), &files)
            .whilst(|| format!("instructing the set-up process of {}", spec.id))?;
        take_ready(&channel, &mut setup, spec)
    })();
    let (record, init, initial) = match made {
        Ok(made) => made,
        Err(error) => {
            reap(&mut setup, &spec.id);
            return Err(error);
        }
    };
    let netns = open_netns(&record.init);
    let sandbox = Sandbox { record, init, initial: Some(initial), cgroup };
    match netns {
        Ok(netns) => Ok(Prepared { sandbox: Some(sandbox), channel, setup, netns, unenforced }),
        Err(error) => {
            reap(&mut setup, &spec.id);
            sandbox.destroy()?;
            Err(error)
        }
    }
}

/// The status file, empty, locked. The lock lives as long as any process that has inherited the descriptor: the set-up
/// process, then init.
fn take_status_file(spec: &SandboxSpec) -> Result<File, SandboxError> {
    let path = status_path(&spec.run_dir);
    let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.whilst(|| format!("making {}", path.display()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(SandboxError::InUse { id: spec.id.clone() }),
        other => other.whilst(|| format!("locking {}", path.display()))?,
    }
    file.set_len(0).whilst(|| format!("emptying {}", path.display()))?;
    Ok(file)
}

/// Waits until no process holds the status file any more: the last one of the sandbox has ended.
fn wait_for_last(run_dir: &Path, id: &str) -> Result<(), SandboxError> {
    let path = status_path(run_dir);
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.whilst(|| format!("opening {}", path.display()))?,
    };
    let started = Instant::now();
    // There is no event for a lock that also knows a deadline.
    while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK {
            return Err(error).whilst(|| format!("locking {}", path.display()));
        }
        if started.elapsed() > KILL_DEADLINE {
            return Err(SandboxError::StillThere { id: id.to_owned(), after: KILL_DEADLINE });
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    Ok(())
}

fn take_ready(
    channel: &Channel,
    setup: &mut Child,
    spec: &SandboxSpec,
) -> Result<(SandboxRecord, OwnedFd, OwnedFd), SandboxError> {
    let unfit = |what| SandboxError::SetupAnswer { id: spec.id.clone(), what };
    let (message, descriptors) = answer(channel, setup, &spec.id)?;
    let (init_pid, initial_pid) = match message {
        FromSetup::Ready { init, initial } => (init, initial),
        FromSetup::Failed(error) => return Err(error.into()),
        _ => return Err(unfit("not ready")),
    };
    let [init, initial]: [OwnedFd; 2] = descriptors.try_into().map_err(|_| unfit("other descriptors"))?;
    // Both wait for us, so neither pid can be another's.
    let identify = |pid| {
        let found = Identity::of(pid).whilst(|| format!("identifying process {pid}"))?;
        found.ok_or_else(|| SandboxError::Gone { id: spec.id.clone(), pid })
    };
    let record = SandboxRecord {
        id: spec.id.clone(),
        cgroup_parent: spec.cgroup_parent.clone(),
        run_dir: spec.run_dir.clone(),
        hostname: spec.hostname.clone(),
        ids: spec.ids,
        init: identify(init_pid)?,
        initial: identify(initial_pid)?,
        confinement: Confinement {
            capabilities: Capabilities::resolve(&spec.security)?,
            seccomp: spec.security.seccomp,
            no_new_privs: spec.security.no_new_privs,
        },
    };
    Ok((record, init, initial))
}

/// Removes what a failed `prepare` has made; says what it could not.
fn clear(hierarchies: &Hierarchies, spec: &SandboxSpec) {
    if let Err(error) = destroy_leftovers(hierarchies, &spec.cgroup_parent, &spec.id, &spec.run_dir) {
        tracing::warn!(id = spec.id, %error, "removing a sandbox that was not made");
    }
}

/// Kills and removes whatever there is of a sandbox that nobody has a record of. Fine if there is nothing.
///
/// # Errors
/// What could not be removed.
pub fn destroy_leftovers(
    hierarchies: &Hierarchies,
    cgroup_parent: &str,
    id: &str,
    run_dir: &Path,
) -> Result<(), SandboxError> {
    let cgroup = Cgroup::at(hierarchies, cgroup_parent, id);
    cgroup.kill()?;
    wait_for_last(run_dir, id)?;
    remove(&cgroup, run_dir)
}

fn remove(cgroup: &Cgroup, run_dir: &Path) -> Result<(), SandboxError> {
    let groups = cgroup.remove();
    let (status, place) = (status_path(run_dir), run_dir.join("root"));
    for (path, removed) in [(&status, fs::remove_file(&status)), (&place, fs::remove_dir(&place))] {
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.whilst(|| format!("removing {}", path.display()))?,
        }
    }
    groups.map_err(Into::into)
}
