//! A sandbox as the worker holds it: prepared, running, taken over, removed.
//!
//! ```text
//!            prepare                 start              (program ends)
//!         prepare_empty
//!   nothing ─────────▶ [Prepared] ─────────▶ [Sandbox] ────────────────▶ exit_status() is some
//!      ▲                   │ drop, error         │  ▲ adopt(record)
//!      └───────────────────┴──── destroy ────────┘  └─ after a crash of the worker
//! ```
//!
//! A running sandbox may be without processes: [`Sandbox::end_processes`] ends them on purpose, and what holds its
//! namespaces then is init alone. [`Sandbox::processes_are_back`] is said once there are others in their place. In between,
//! and in the worker that adopts it then, it has no initial process; everything else is as ever.
//!
//! `prepare` and `start` either succeed or leave nothing behind. The worker writes [`Prepared::record`] down before it
//! calls `start`; a crash before that ends the processes by themselves, and [`destroy_leftovers`] removes the rest.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::{PidfdGetfdFlags, WaitId, WaitIdOptions, pidfd_getfd, waitid};
use serde::{Deserialize, Serialize};
use torpor_linux::spawn::send_signal;

use crate::cgroup::{Cgroup, Hierarchies};
use crate::confine::Confinement;
use crate::deposit::{self, Deposit};
use crate::error::{CgroupError, SandboxError, While};
use crate::held;
use crate::inside::is_null_device;
use crate::labels::Labels;
use crate::process::{ExitStatus, Identity, ids, open, wait_for_end, wait_for_reaping};
use crate::spec::{Clocks, IdRange};
use crate::status::{self, StatusFile};

/// How long init may take to reap before that is left to it.
const REAP_PATIENCE: Duration = Duration::from_secs(1);
/// How long killed processes may take to end.
const KILL_DEADLINE: Duration = Duration::from_secs(10);

/// The reading ends of a program's output, for its sandbox's init to hold open as long as it lives. So the program neither
/// gets `EPIPE` nor loses what it wrote where everybody else who had them is killed: [`Sandbox::output`] finds them again.
pub type HeldOutput<'a> = Option<[BorrowedFd<'a>; 2]>;

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
    /// The app's initial process when the sandbox was made; another one may have taken its place. None: there was none.
    pub initial: Option<Identity>,
    /// The initial process's id inside, which never changes; 0 in records of versions that did not know it.
    #[serde(default)]
    pub initial_inside: i32,
    /// Its time namespace; none: the machine's.
    #[serde(default)]
    pub clocks: Option<Clocks>,
    pub(crate) confinement: Confinement,
}

impl SandboxRecord {
    /// How the initial process ended, once init has gone; `Unknown` if init could not write it.
    ///
    /// # Errors
    /// When the status file cannot be read.
    pub fn exit_status(&self) -> Result<ExitStatus, SandboxError> {
        self.status().exit_status()
    }
}

impl SandboxRecord {
    fn status(&self) -> StatusFile<'_> {
        StatusFile { run_dir: &self.run_dir, init: None }
    }
}

/// A running sandbox, or one whose program has ended.
#[derive(Debug)]
pub struct Sandbox {
    pub(crate) record: SandboxRecord,
    pub(crate) init: OwnedFd,
    /// [`depth_of`] init.
    pub(crate) depth: usize,
    pub(crate) initial: Mutex<Option<Initial>>,
    pub(crate) cgroup: Cgroup,
}

/// The app's initial process.
#[derive(Debug)]
pub(crate) struct Initial {
    /// As the worker's pid namespace numbers it.
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
}

impl Sandbox {
    /// Takes over a sandbox that an earlier worker made.
    ///
    /// # Errors
    /// `Gone` if its init is no longer there; [`SandboxRecord::exit_status`] then says how its program ended.
    pub fn adopt(hierarchies: &Hierarchies, record: SandboxRecord) -> Result<Self, SandboxError> {
        let has_ended = |pidfd: &OwnedFd, pid| {
            // Nobody may have reaped it yet.
            wait_for_end(pidfd, Some(Duration::ZERO)).whilst(|| format!("examining process {pid}"))
        };
        let held = |identity: &Identity| identity.open().whilst(|| format!("opening process {}", identity.pid));
        let Some(init) = held(&record.init)? else {
            return Err(SandboxError::Gone { id: record.id, pid: record.init.pid });
        };
        if has_ended(&init, record.init.pid)? {
            return Err(SandboxError::Gone { id: record.id, pid: record.init.pid });
        }
        let recorded = match &record.initial {
            Some(identity) => match held(identity)? {
                Some(pidfd) if !has_ended(&pidfd, identity.pid)? => Some(Initial { pid: identity.pid, pidfd }),
                _ => None,
            },
            None => None,
        };
        let cgroup = Cgroup::at(hierarchies, &record.cgroup_parent, &record.id);
        let depth = depth_of(&record.init)?;
        let initial = match recorded {
            None => find_initial(&record, depth, &cgroup)?,
            recorded => recorded,
        };
        Ok(Self { init, depth, initial: Mutex::new(initial), cgroup, record })
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

    /// The pid of the app's initial process; none while there are no processes.
    pub fn initial_pid(&self) -> Option<i32> {
        self.initial().as_ref().map(|initial| initial.pid)
    }

    /// The initial process's id as its own pid namespace numbers it, whether it is there or not.
    pub fn initial_inside(&self) -> i32 {
        self.record.initial_inside
    }

    /// The ids of its user namespace; none: the machine's.
    pub const fn ids(&self) -> Option<IdRange> {
        self.record.ids
    }

    /// When its init was started, in clock ticks since boot.
    pub const fn init_start_ticks(&self) -> u64 {
        self.record.init.start_ticks
    }

    /// Whether its processes live in a time namespace of their own.
    pub fn has_time_namespace(&self) -> bool {
        self.record.clocks.is_some()
    }

    fn initial(&self) -> MutexGuard<'_, Option<Initial>> {
        // Whoever held it has not left it half changed: it is only ever replaced.
        self.initial.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Duplicates of what its init holds of the program's output; none if it was given nothing, or if an older version made
    /// it.
    ///
    /// # Errors
    /// When the sandbox has ended, or its init may not be examined.
    pub fn output(&self) -> io::Result<Option<[OwnedFd; 2]>> {
        let held = |number| pidfd_getfd(&self.init, number, PidfdGetfdFlags::empty());
        match (held(1), held(2)) {
            (Ok(output), Ok(errors)) => Ok(Some([output, errors])),
            (Err(Errno::BADF), Err(Errno::BADF)) => Ok(None),
            (Err(error), _) | (_, Err(error)) => Err(error.into()),
        }
    }

    /// Leaves a message of at most 256 bytes with descriptors to init: these stay open as long as the app has processes, whoever else is
    /// killed. False where an older version has made the sandbox: its init holds nothing.
    ///
    /// # Errors
    /// `InvalidInput` for a message without bytes or with too many, and for more than 253 descriptors. `WouldBlock` where it holds too
    /// much. When the sandbox has ended.
    pub fn deposit(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<bool> {
        deposit::deposit(self.init.as_fd(), bytes, files)
    }

    /// Whether init can hold deposits. One that an older version has made cannot.
    ///
    /// # Errors
    /// Of pidfd_getfd(2): init may be gone.
    pub fn can_hold_deposits(&self) -> io::Result<bool> {
        deposit::can_hold(self.init.as_fd())
    }

    /// Everything that was left so, in its order.
    ///
    /// # Errors
    /// `EMFILE` where this process cannot have as many descriptors. When the sandbox has ended.
    pub fn deposits(&self) -> io::Result<Vec<Deposit>> {
        deposit::all(self.init.as_fd())
    }

    /// Init lets go of all that was left so.
    ///
    /// # Errors
    /// When the sandbox has ended: then it has.
    pub fn clear_deposits(&self) -> io::Result<()> {
        deposit::clear(self.init.as_fd())
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
        if self.has_ended(within)? { self.record.exit_status().map(Some) } else { Ok(None) }
    }

    /// Sends a signal to the initial process. Fine if it has ended.
    ///
    /// # Errors
    /// For a number that is no signal.
    pub fn signal(&self, signal: i32) -> Result<(), SandboxError> {
        let initial = self.initial();
        let Some(initial) = initial.as_ref() else { return Ok(()) };
        deliver(initial.pidfd.as_fd(), signal, initial.pid)
    }

    /// Ends all processes on purpose, frozen ones too, and returns once none is in the group, which is thawed then. Init
    /// and all that it holds stay. May be called again. The ids of the processes are free then, but for those that are
    /// traced: these stay zombies until their tracers have waited for them.
    ///
    /// # Errors
    /// `Gone` if the app has ended by itself; `Outdated` for a sandbox that an older version made.
    pub fn end_processes(&self) -> Result<(), SandboxError> {
        let record = &self.record;
        if record.initial_inside == 0 {
            return Err(SandboxError::Outdated { id: record.id.clone() });
        }
        self.status().mark(true)?;
        self.cgroup.end_processes()?;
        *self.initial() = None;
        // Their ids are wanted again.
        wait_for_reaping(record.init.pid, REAP_PATIENCE)
            .whilst(|| format!("waiting for init of sandbox {} to reap", record.id))?;
        if self.has_ended(Some(Duration::ZERO))? {
            return Err(SandboxError::Gone { id: record.id.clone(), pid: record.init.pid });
        }
        Ok(())
    }

    /// There is an initial process again, with the id that it has always had: its end is the app's end from now on. To be
    /// called while it is frozen. If it has been killed since it was made, the sandbox ends as if it had been killed now.
    ///
    /// # Errors
    /// When the status file or the group cannot be used.
    pub fn processes_are_back(&self) -> Result<(), SandboxError> {
        self.are_back(find_initial(&self.record, self.depth, &self.cgroup)?)
    }

    /// The same where whoever has made the initial process knows it: by its pid and process descriptor.
    ///
    /// # Errors
    /// When the status file cannot be used.
    pub fn initial_is_back(&self, pid: i32, pidfd: OwnedFd) -> Result<(), SandboxError> {
        self.are_back(Some(Initial { pid, pidfd }))
    }

    fn status(&self) -> StatusFile<'_> {
        StatusFile { init: Some((self.record.init.pid, self.init.as_fd())), ..self.record.status() }
    }

    fn are_back(&self, found: Option<Initial>) -> Result<(), SandboxError> {
        self.status().mark(false)?;
        // Only now: had it ended a moment before, init would have thought nothing of it.
        let alive = match &found {
            Some(initial) => !wait_for_end(&initial.pidfd, Some(Duration::ZERO))
                .whilst(|| format!("examining process {}", initial.pid))?,
            None => false,
        };
        *self.initial() = found;
        if alive { Ok(()) } else { self.end_init() }
    }

    /// Ends init where nobody but us can tell that the initial process was killed.
    fn end_init(&self) -> Result<(), SandboxError> {
        self.status().tell_killed()?;
        deliver(self.init.as_fd(), libc::SIGKILL, self.record.init.pid)
    }

    fn has_ended(&self, within: Option<Duration>) -> Result<bool, SandboxError> {
        wait_for_end(&self.init, within).whilst(|| format!("waiting for the end of sandbox {}", self.record.id))
    }

    /// Kills every process, frozen ones too, and returns once they have ended. May block for 30 s: not for threads that others
    /// wait for.
    ///
    /// # Errors
    /// `StillThere` when they do not end, with what holds them.
    pub fn kill(&self) -> Result<(), SandboxError> {
        // The initial process first: init then writes down how it ended, and exits.
        self.signal(libc::SIGKILL)?;
        match self.cgroup.kill() {
            Err(CgroupError::NotEmpty { after, .. }) => return Err(self.still_there(after)),
            other => other?,
        }
        if self.status().is_marked()? {
            // Init thinks nothing of it.
            self.end_init()?;
        }
        if !self.has_ended(Some(KILL_DEADLINE))? {
            deliver(self.init.as_fd(), libc::SIGKILL, self.record.init.pid)?;
            if !self.has_ended(Some(KILL_DEADLINE))? {
                return Err(self.still_there(2 * KILL_DEADLINE));
            }
        }
        // Where this process has inherited it as the reaper of orphans, it must not stay a zombie.
        match waitid(WaitId::PidFd(self.init.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(_) | Err(Errno::CHILD) => Ok(()),
            Err(error) => Err(error).whilst(|| format!("reaping init of sandbox {}", self.record.id)),
        }
    }

    fn still_there(&self, after: Duration) -> SandboxError {
        SandboxError::StillThere { id: self.record.id.clone(), after, held: held::holders(self.record.init.pid) }
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

/// Sends a signal; fine if the process has ended.
pub(crate) fn deliver(pidfd: BorrowedFd<'_>, signal: i32, pid: i32) -> Result<(), SandboxError> {
    match send_signal(pidfd, signal) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other.whilst(|| format!("sending signal {signal} to process {pid}")),
    }
}

/// In how many pid namespaces init is, as we see it: processes may be in further ones below, but what counts is what they
/// are called where init is 1. 0 if it has ended.
pub(crate) fn depth_of(init: &Identity) -> Result<usize, SandboxError> {
    let found = ids(init.pid).whilst(|| format!("reading the ids of process {}", init.pid))?;
    Ok(found.map_or(0, |ids| ids.len()))
}

/// The process in the group whose id inside is the recorded one; none if there is none.
fn find_initial(record: &SandboxRecord, depth: usize, cgroup: &Cgroup) -> Result<Option<Initial>, SandboxError> {
    if record.initial_inside == 0 || depth == 0 {
        return Ok(None);
    }
    let pids = match cgroup.processes() {
        Err(error) if error.is_gone() => return Ok(None),
        pids => pids?,
    };
    for pid in pids {
        let whilst = || format!("examining process {pid}");
        // First the descriptor: if it has not ended after the look, it is of the process that was looked at.
        let Some(pidfd) = open(pid).whilst(whilst)? else { continue };
        let is_it = ids(pid).whilst(whilst)?.is_some_and(|ids| ids.get(depth - 1) == Some(&record.initial_inside));
        if is_it && !wait_for_end(&pidfd, Some(Duration::ZERO)).whilst(whilst)? {
            return Ok(Some(Initial { pid, pidfd }));
        }
    }
    Ok(None)
}

impl Sandbox {
    /// Labels that its programs get; processes that are built again from an image get none.
    pub fn labels(&self) -> &Labels {
        &self.record.confinement.labels
    }

    /// Opens the sandbox's null device to read: what stands for a standard input that nobody has any more.
    ///
    /// # Errors
    /// When the app has put something else in its place.
    pub fn null_device(&self) -> Result<OwnedFd, SandboxError> {
        let path = format!("/proc/{}/root", self.record.init.pid);
        let opening = || format!("opening /dev/null of sandbox {}", self.record.id);
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&path, directory, Mode::empty()).whilst(opening)?;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let null = rustix::fs::openat2(&root, "/dev/null", flags, Mode::empty(), resolve).whilst(opening)?;
        rustix::fs::fcntl_setfl(&null, OFlags::empty()).whilst(opening)?;
        if is_null_device(&null).whilst(opening)? {
            return Ok(null);
        }
        Err(io::Error::from(io::ErrorKind::InvalidInput)).whilst(opening)
    }
}

pub(crate) fn open_netns(init: &Identity) -> Result<OwnedFd, SandboxError> {
    let path = format!("/proc/{}/ns/net", init.pid);
    rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).whilst(|| format!("opening {path}"))
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
    let inits = inits_of(hierarchies, cgroup_parent, run_dir)?;
    cgroup.kill()?;
    // Without its file, whether an init is marked cannot be seen; an unmarked one ends with the last process, or now.
    let marked = StatusFile { run_dir, init: None }.is_marked()? || !status::path(run_dir).exists();
    for (pid, init) in inits.iter().filter(|_| marked) {
        deliver(init.as_fd(), libc::SIGKILL, *pid)?;
    }
    status::wait_for_last(run_dir, id)?;
    // Whoever ends lets go of the file first and of its mounts later.
    for (pid, init) in &inits {
        if !wait_for_end(init, Some(KILL_DEADLINE)).whilst(|| format!("waiting for process {pid}"))? {
            let held = held::holders(*pid);
            return Err(SandboxError::StillThere { id: id.to_owned(), after: KILL_DEADLINE, held });
        }
    }
    remove(&cgroup, run_dir)
}

/// The init whose descriptor 0 is the status file in `run_dir`, if there is one; also where the file has been removed.
fn inits_of(
    hierarchies: &Hierarchies,
    cgroup_parent: &str,
    run_dir: &Path,
) -> Result<Vec<(i32, OwnedFd)>, SandboxError> {
    let path = status::path(run_dir);
    let file = match fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        other => Some(other.whilst(|| format!("examining {}", path.display()))?),
    };
    let mut removed = path.into_os_string();
    removed.push(" (deleted)");
    let mut found = Vec::new();
    for pid in hierarchies.support_processes(cgroup_parent)? {
        let Some(pidfd) = open(pid).whilst(|| format!("opening process {pid}"))? else { continue };
        let input = format!("/proc/{pid}/fd/0");
        // One that has just ended has no descriptors.
        let (Ok(metadata), Ok(name)) = (fs::metadata(&input), fs::read_link(&input)) else { continue };
        let is_file = file.as_ref().is_some_and(|file| (metadata.dev(), metadata.ino()) == (file.dev(), file.ino()));
        if is_file || name == removed {
            found.push((pid, pidfd));
        }
    }
    Ok(found)
}

fn remove(cgroup: &Cgroup, run_dir: &Path) -> Result<(), SandboxError> {
    let groups = cgroup.remove();
    let (status, place) = (status::path(run_dir), run_dir.join("root"));
    for (path, removed) in [(&status, fs::remove_file(&status)), (&place, fs::remove_dir(&place))] {
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.whilst(|| format!("removing {}", path.display()))?,
        }
    }
    groups.map_err(Into::into)
}
