//! From a running process tree to its description: stopped, collected from outside, let go or ended.
//!
//! Nothing of the program is changed. What the kernel tells a process only about itself is asked by remote calls; an
//! interrupted call is put right in the record, while the program itself goes on with its own.
#![forbid(unsafe_code)]

mod blockers;
mod call_batch;
mod contexts;
mod credentials;
mod describe;
mod exit_effects;
mod family;
mod guards;
mod keyring;
mod landlock;
mod logins;
mod not_portable;
mod pages;
mod policy;
mod process;
mod raised_limits;
mod remote;
mod remote_state;
mod requests;
mod rseq;
mod signals;
mod snapshot;
mod space;
mod stop;
pub mod texts;
mod thread;
mod trampoline;
mod translate;
mod used_pages;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::panic::resume_unwind;
use std::thread::{Builder, ScopedJoinHandle};
use std::time::Duration;

use torpor_image::Region;
use torpor_image::tree::{End, FileId, Machine, Process, Tree};
use torpor_linux::closer::AppFile;

pub use self::family::{Member, family, hold, without_leaders};
use self::snapshot::{Snapshot, look, look_at_all};
use self::space::UserfaultContexts;
pub use self::stop::{Stopped, pids, stop};
pub use self::thread::for_record;
use torpor_descriptors::{ConnectionLock, ControllingTerminal, OpenFiles, SharedArea};
use torpor_pages::absent::Missing;
use torpor_pages::copy::{Copier, CopyError};
use torpor_pages::parts::Expected;
use torpor_pages::scan::Selection;
use torpor_pages::sink::PageSink;
use torpor_proc as proc;
use torpor_process::blocker::{Blocker, Place};
use torpor_process::threads::ThreadPlan;
use torpor_process::trace::{self, TraceError};
use torpor_process::view::View;

/// Why a tree could not be collected.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// It has what cannot be captured.
    #[error("it cannot be captured as it is")]
    Refused(Vec<Blocker>),
    /// It made new processes faster than they could be stopped.
    #[error("process {0} and its children make new processes faster than they can be stopped")]
    Restless(i32),
    /// Threads could not be held or asked.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Memory could not be copied.
    #[error(transparent)]
    Copy(CopyError),
    /// Open files could not be taken.
    #[error(transparent)]
    Files(#[from] torpor_descriptors::DumpError),
    /// It was given up.
    #[error("given up")]
    Stopped,
}

/// What was collected.
#[derive(Debug)]
pub struct CapturedTree {
    /// The description.
    pub tree: Tree,
    /// Where its pages end in the image.
    pub pages_end: u64,
    /// An app's open files that can be kept.
    pub kept: Vec<(FileId, AppFile)>,
    /// TCP connections that are in the image.
    pub connections: Vec<AppFile>,
    /// What only comes back if it is kept, in words.
    pub warnings: Vec<String>,
}

/// How a tree is collected.
pub struct CaptureOptions<'a> {
    /// Where it is looked at from.
    pub view: &'a View,
    /// What becomes of its open files.
    pub open_files: OpenFiles,
    /// Since when its threads have not run.
    pub held: Held,
    /// Asked between pages; `false` ends it with [`CaptureError::Stopped`].
    pub go_on: &'a (dyn Fn() -> bool + Sync),
    /// See [`torpor_descriptors::Request::lock`].
    pub lock: Option<&'a dyn ConnectionLock>,
    /// A large image is written by a thread of its own.
    pub streamed: bool,
    /// Pages that wakes are expected to need first, by process id.
    pub expected: &'a [Expected],
    /// What processes miss, by process id: it is stored in the image's file already, and comes when it is touched.
    pub missing: &'a [(i32, Vec<Region>)],
}

/// Since when the threads of a tree have not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// They ran until they were stopped: the kernel may still be at work for them.
    JustNow,
    /// Since somebody saw that nothing was under way.
    SinceIdle,
}

impl From<CopyError> for CaptureError {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Stopped => Self::Stopped,
            other => Self::Copy(other),
        }
    }
}

impl From<Blocker> for CaptureError {
    fn from(obstacle: Blocker) -> Self {
        Self::Refused(vec![obstacle])
    }
}

/// Says which process could not be looked at.
trait Look<T> {
    fn look(self, pid: i32) -> Result<T, CaptureError>;
}

impl<T> Look<T> for io::Result<T> {
    fn look(self, pid: i32) -> Result<T, CaptureError> {
        self.map_err(|error| TraceError::Look(pid, error).into())
    }
}

/// Describes a stopped tree, whose threads' waits `plans` has, and writes its private memory to `image` from `offset` on.
/// TCP connections to the outside need a lock.
pub fn capture(
    stopped: &[Stopped],
    plans: &[ThreadPlan],
    image: &File,
    offset: u64,
    lock: Option<&dyn ConnectionLock>,
) -> Result<CapturedTree, CaptureError> {
    let manner = CaptureOptions {
        view: &View::machine(),
        open_files: OpenFiles::Described,
        held: Held::JustNow,
        go_on: &|| true,
        lock,
        streamed: true,
        expected: &[],
        missing: &[],
    };
    capture_as(&manner, stopped, plans, image, offset)
}

/// As [`capture`], of any tree.
pub fn capture_as(
    manner: &CaptureOptions<'_>,
    stopped: &[Stopped],
    plans: &[ThreadPlan],
    image: &File,
    offset: u64,
) -> Result<CapturedTree, CaptureError> {
    let root = stopped.first().map_or(0, |process| process.pid);
    let threads = |process: &trace::Process| process.threads.iter().map(|thread| thread.tracee.thread()).collect();
    let alive = stopped.iter().filter_map(|process| process.alive.as_ref());
    let found: Vec<(i32, Vec<i32>)> = alive.map(|process| (process.pid, threads(process))).collect();
    let own = manner.missing.is_empty();
    let contexts = if own { UserfaultContexts::Programs } else { UserfaultContexts::Ours };
    let (obstacles, looked) = look_at_all(manner.view, &found, contexts, manner.go_on);
    let mut obstacles = obstacles.look(root)?;
    let mut looked = looked?;
    let mut tree = Tree { machine: machine().look(root)?, ..Tree::default() };
    let shared = snapshot::shared(&mut looked);
    let sink = if manner.streamed {
        let expected = found.iter().map(|(pid, _)| proc::anonymous_bytes(*pid)).sum();
        PageSink::streamed(image, offset, expected)
    } else {
        PageSink::new(image, offset)
    };
    let mut copier = Copier::new(sink, Selection::All, manner.go_on);
    // While the processes are asked, their open files are described: but not of trees with AIO contexts, whose processes open a
    // descriptor for a moment to find out what is under way (`requests.rs`).
    let together = !looked.iter().flat_map(|looked| &looked.areas).any(torpor_process::aio::is_ring);
    let ids = ids(manner.view, stopped, &found);
    let sink = copier.sink();
    let now = Duration::from_nanos(tree.machine.monotonic_ns);
    let mut describe = || open_files(manner, &found, &ids, &shared, now, &mut *sink);
    let (lives, files) = std::thread::scope(|scope| {
        let describing = together.then(|| Builder::new().spawn_scoped(scope, &mut describe)).and_then(Result::ok);
        let lives = describe::lives(manner, stopped, looked, plans, &tree.machine, &mut obstacles);
        let join = |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        (lives, describing.map(join))
    });
    // Afterwards, where it must not be beside that or there can be no thread.
    let files = files.unwrap_or_else(describe);
    let (lives, mut controls) = lives?;
    for (process, life) in stopped.iter().zip(lives) {
        let pid = process.pid;
        let stat = proc::stat::read(&format!("/proc/{pid}/stat")).look(pid)?;
        let end = match (&process.alive, life) {
            (Some(_), Some(life)) => End::Alive(Box::new(life)),
            (Some(_), None) => continue,
            (None, _) => End::Zombie { status: stat.exit_status, name: thread::name(pid, pid).look(pid)? },
        };
        tree.processes.push(Process { pid, parent: process.parent, group: stat.group, session: stat.session, end });
    }
    let parents = stopped.iter().filter(|process| process.alive.is_some()).map(|process| (process.pid, process.parent));
    let shares = blockers::shares(&parents.collect(), &mut obstacles).look(root)?;
    for process in &mut tree.processes {
        if let (End::Alive(life), Some(shares)) = (&mut process.end, shares.get(&process.pid)) {
            life.shares = *shares;
        }
    }
    let Beside { kept, connections, warnings } = put_files(manner.view, files, root, &mut tree, &mut obstacles)?;
    obstacles.extend(exit_effects::semaphores(manner.view, root).look(root)?);
    obstacles.extend(exit_effects::robust_locks(manner.view, &tree));
    torpor_descriptors::ipc::take(manner.view, &mut tree.surroundings).look(root)?;
    match torpor_descriptors::tmpfs::take(manner.view, root, copier.sink(), manner.go_on) {
        Ok(found) => tree.surroundings.tmpfs = found,
        Err(torpor_descriptors::DumpError::Refused(more)) => obstacles.extend(more),
        Err(torpor_descriptors::DumpError::Stopped) => return Err(CaptureError::Stopped),
        Err(error) => return Err(error.into()),
    }
    if !obstacles.is_empty() {
        return Err(CaptureError::Refused(obstacles));
    }
    let missing = Missing { file: image, regions: manner.missing };
    tree.loading = pages::copy(&mut copier, &mut tree.processes, manner.expected, missing)?;
    let pages_end = copier.finish()?;
    tree.used = used_pages::find(&tree.processes).unwrap_or_else(|error| {
        tracing::debug!(%error, "which pages of files are used is not known");
        Vec::new()
    });
    let logins = logins::find(&tree.processes, manner.view).look(root)?;
    translate::translate(&mut tree, manner.view).look(root)?;
    tree.details.logins = logins::of(&logins, &tree.processes);
    controls.iter_mut().for_each(|control| control.tid = ids.get(&control.tid).copied().unwrap_or(control.tid));
    controls.sort_by_key(|control| control.tid);
    tree.details.controls = controls;
    let warnings = not_portable::tell(manner.view, &mut tree, warnings);
    tree.contents = torpor_descriptors::contents(manner.view, &tree, manner.go_on);
    Ok(CapturedTree { tree, pages_end, kept, connections, warnings })
}

/// What there is of open files beside the tree; see [`CapturedTree`].
#[derive(Default)]
struct Beside {
    kept: Vec<(FileId, AppFile)>,
    connections: Vec<AppFile>,
    warnings: Vec<String>,
}

/// The ids that the tree itself knows of processes and threads.
fn ids(view: &View, stopped: &[Stopped], alive: &[(i32, Vec<i32>)]) -> BTreeMap<i32, i32> {
    let threads = alive.iter().flat_map(|(_, threads)| threads.iter().copied());
    let ids = stopped.iter().map(|process| process.pid).chain(threads);
    ids.filter_map(|id| Some((id, view.id(id)?))).collect()
}

/// Describes open files and shared memory.
fn open_files(
    manner: &CaptureOptions<'_>,
    alive: &[(i32, Vec<i32>)],
    ids: &BTreeMap<i32, i32>,
    shared: &[SharedArea],
    since: Duration,
    sink: &mut PageSink<'_>,
) -> Result<torpor_descriptors::Dumped, CaptureError> {
    let processes: Vec<i32> = alive.iter().map(|(pid, _)| *pid).collect();
    let request = torpor_descriptors::Request {
        processes: &processes,
        ids,
        areas: shared,
        view: manner.view,
        open_files: manner.open_files,
        lock: manner.lock,
        since,
        look_only: false,
        go_on: manner.go_on,
    };
    let root = processes.first().copied().unwrap_or(0);
    match manner.view.within(|| torpor_descriptors::dump(&request, sink)).look(root)? {
        Err(torpor_descriptors::DumpError::Stopped) => Err(CaptureError::Stopped),
        Err(torpor_descriptors::DumpError::Refused(more)) => Err(CaptureError::Refused(more)),
        other => Ok(other?),
    }
}

/// Puts open files and shared memory into the tree.
fn put_files(
    view: &View,
    found: Result<torpor_descriptors::Dumped, CaptureError>,
    root: i32,
    tree: &mut Tree,
    obstacles: &mut Vec<Blocker>,
) -> Result<Beside, CaptureError> {
    let mut found = match found {
        Ok(found) => found,
        Err(CaptureError::Refused(more)) => {
            obstacles.extend(more);
            return Ok(Beside::default());
        }
        Err(error) => return Err(error),
    };
    let alive = tree.processes.iter().filter(|process| process.alive().is_some()).map(|process| process.pid);
    let terminals = terminals(view, &found.terminals, alive, obstacles).look(root)?;
    for process in &mut tree.processes {
        let End::Alive(life) = &mut process.end else { continue };
        life.terminal = terminals.get(&process.pid).copied();
        life.descriptors = found.descriptors.remove(&process.pid).unwrap_or_default();
        space::rename_shared(&mut life.space, |place| found.areas.get(place as usize).copied().unwrap_or(place));
    }
    tree.files = found.files;
    tree.pipes = found.pipes;
    tree.memories = found.memories;
    tree.details = found.details;
    Ok(Beside { kept: found.kept, connections: found.connections, warnings: found.warnings })
}

/// Controlling terminals by the sessions' leaders. `processes`: those alive. Who has given up that of its
/// session is in the way, and in an app, whose sessions are all in the tree, who has another's.
fn terminals(
    view: &View,
    found: &[ControllingTerminal],
    processes: impl Iterator<Item = i32>,
    obstacles: &mut Vec<Blocker>,
) -> io::Result<HashMap<i32, (FileId, i32)>> {
    let terminals: HashMap<_, _> = found.iter().map(|one| (one.session, (one.slave, one.foreground))).collect();
    for pid in processes {
        let stat = proc::stat::read(&format!("/proc/{pid}/stat"))?;
        let what = match (terminals.contains_key(&stat.session), stat.terminal != 0) {
            (true, false) => "it has given up the controlling terminal of its session",
            (false, true) if view.in_sandbox() => "it has a controlling terminal whose master is not the app's",
            _ => continue,
        };
        obstacles.push(Blocker::new(pid, Place::Process, what, ""));
    }
    Ok(terminals)
}

/// What can be seen of processes that are to be captured.
pub struct Examined {
    /// What is in the way.
    pub obstacles: Vec<Blocker>,
    /// Open files that would be kept; 0 where some cannot be described.
    pub kept: usize,
}

/// Everything that can be seen to be in the way of capturing these processes of an app, which may be frozen and without
/// their memory. Nothing is touched. Where `go_on` says no, it ends with [`CaptureError::Stopped`].
pub fn examine(view: &View, family: &[Member], go_on: &(dyn Fn() -> bool + Sync)) -> Result<Examined, CaptureError> {
    let mut found = Vec::new();
    for member in family.iter().filter(|member| !member.ended) {
        let mut threads = proc::processes::threads(member.pid).look(member.pid)?;
        threads.sort_by_key(|tid| (*tid != member.pid, *tid));
        found.push((member.pid, threads));
    }
    let root = found.first().map_or(0, |(pid, _)| *pid);
    let mut obstacles = blockers::find(view, &found).look(root)?;
    let parents = family.iter().filter(|member| !member.ended).map(|member| (member.pid, member.parent));
    blockers::shares(&parents.collect(), &mut obstacles).look(root)?;
    let (mut shared, mut rings) = (Vec::new(), HashSet::new());
    for (pid, threads) in &found {
        let Snapshot { mappings, shared: more, obstacles: others, .. } =
            look(view, *pid, threads, UserfaultContexts::Programs, go_on)?;
        obstacles.extend(others);
        obstacles.extend(contexts::inherited(*pid, &mappings, &mut rings));
        shared.extend(more);
    }
    let processes: Vec<i32> = found.iter().map(|(pid, _)| *pid).collect();
    let threads = found.iter().flat_map(|(_, threads)| threads.iter().copied());
    let ids = family.iter().map(|member| member.pid).chain(threads);
    let ids = ids.filter_map(|id| Some((id, view.id(id)?))).collect();
    let request = torpor_descriptors::Request {
        processes: &processes,
        ids: &ids,
        areas: &shared,
        view,
        open_files: OpenFiles::Parked,
        lock: None,
        since: torpor_process::wait::since::now(),
        look_only: true,
        go_on,
    };
    let nowhere = File::open("/dev/null").look(root)?;
    let looked = view.within(|| torpor_descriptors::dump(&request, &mut PageSink::new(&nowhere, 0))).look(root)?;
    let mut kept = 0;
    match looked {
        Ok(files) => {
            kept = files.kept.len();
            terminals(view, &files.terminals, processes.iter().copied(), &mut obstacles).look(root)?;
        }
        Err(torpor_descriptors::DumpError::Refused(more)) => obstacles.extend(more),
        Err(torpor_descriptors::DumpError::Stopped) => return Err(CaptureError::Stopped),
        Err(error) => return Err(error.into()),
    }
    obstacles.extend(exit_effects::semaphores(view, root).look(root)?);
    Ok(Examined { obstacles, kept })
}

/// This machine, now.
fn machine() -> io::Result<Machine> {
    use rustix::time::{ClockId, clock_gettime};
    let clock = |id| {
        let time = clock_gettime(id);
        time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
    };
    Ok(Machine {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        boot: proc::boot()?,
        realtime_ns: clock(ClockId::Realtime),
        monotonic_ns: clock(ClockId::Monotonic),
        boottime_ns: clock(ClockId::Boottime),
        clock_offsets_ns: [0; 2],
        wake_after_ns: None,
    })
}
