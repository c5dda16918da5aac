//! From a running process tree to its description: stopped, collected from outside, let go or ended.
//!
//! Nothing of the program is changed. What the kernel tells a process only about itself is asked by remote calls; an
//! interrupted call is put right in the record, while the program itself goes on with its own.

mod contexts;
mod credentials;
mod ending;
mod family;
mod guards;
mod inside;
mod keyring;
mod landing;
mod landlock;
mod mappings;
mod obstacles;
mod pages;
mod policy;
mod process;
mod questions;
mod remote;
mod rseq;
mod signals;
mod space;
mod stop;
mod thread;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use torpor_image::tree::{
    Backing, End, FileId, Life, Machine, MemoryPolicy, PathState, Process, Shares, Switches, Tree,
};

pub(crate) use self::family::{Member, family, hold, without_leaders};
use self::landlock::{Bystanders, Trial};
use self::pages::Copier;
use self::remote::Remote;
use self::signals::{OfProcess, OfThread};
pub(crate) use self::stop::{Stopped, pids, stop};
pub(crate) use self::thread::for_record;
use crate::files::{self, ConnectionLock, ControllingTerminal, SharedArea};
use crate::memory::copy::CopyError;
use crate::memory::layout::Area;
use crate::memory::sink::PageSink;
use crate::obstacle::{Obstacle, Place};
use crate::plan::ThreadPlan;
use crate::trace::{self, TraceError};
use crate::view::{View, identity};

/// Why a tree could not be collected.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// It has what cannot be captured.
    #[error("it cannot be captured as it is")]
    Refused(Vec<Obstacle>),
    /// It made new processes faster than they could be stopped.
    #[error("process {0} and its children make new processes faster than they can be stopped")]
    Restless(i32),
    /// Threads could not be held or asked.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Memory could not be copied.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// Open files could not be taken.
    #[error(transparent)]
    Files(#[from] files::CollectError),
    /// It was given up.
    #[error("given up")]
    Stopped,
}

/// What was collected.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) tree: Tree,
    /// Where its pages end in the image.
    pub(crate) pages_end: u64,
    /// An app's open files that can be kept.
    pub(crate) kept: Vec<(FileId, OwnedFd)>,
    /// TCP connections that are in the image.
    pub(crate) connections: Vec<OwnedFd>,
    /// What only comes back if it is kept, in words.
    pub(crate) warnings: Vec<String>,
}

/// How a tree is collected.
pub(crate) struct Manner<'a> {
    /// Where it is looked at from.
    pub(crate) view: &'a View,
    /// Asked between pages; `false` ends it with [`CollectError::Stopped`].
    pub(crate) go_on: &'a (dyn Fn() -> bool + Sync),
    /// See [`files::Request::lock`].
    pub(crate) lock: Option<&'a dyn ConnectionLock>,
    /// Most of a large image need not be in the page cache afterwards.
    pub(crate) past_cache: bool,
}

impl From<Obstacle> for CollectError {
    fn from(obstacle: Obstacle) -> Self {
        Self::Refused(vec![obstacle])
    }
}

/// Says which process could not be looked at.
trait Look<T> {
    fn look(self, pid: i32) -> Result<T, CollectError>;
}

impl<T> Look<T> for io::Result<T> {
    fn look(self, pid: i32) -> Result<T, CollectError> {
        self.map_err(|error| TraceError::Look(pid, error).into())
    }
}

/// Describes a stopped tree, whose threads' waits `plans` has, and writes its private memory to `image` from `offset` on.
/// TCP connections to the outside need a lock.
pub(crate) fn collect(
    stopped: &[Stopped],
    plans: &[ThreadPlan],
    image: &File,
    offset: u64,
    lock: Option<&dyn ConnectionLock>,
) -> Result<Collected, CollectError> {
    let manner = Manner { view: &View::machine(), go_on: &|| true, lock, past_cache: true };
    collect_as(&manner, stopped, plans, image, offset)
}

/// As [`collect`], of any tree.
pub(crate) fn collect_as(
    manner: &Manner<'_>,
    stopped: &[Stopped],
    plans: &[ThreadPlan],
    image: &File,
    offset: u64,
) -> Result<Collected, CollectError> {
    let root = stopped.first().map_or(0, |process| process.pid);
    let threads = |process: &trace::Process| process.threads.iter().map(|thread| thread.tracee.thread()).collect();
    let alive = stopped.iter().filter_map(|process| process.alive.as_ref());
    let found: Vec<(i32, Vec<i32>)> = alive.map(|process| (process.pid, threads(process))).collect();
    let mut obstacles = obstacles::find(manner.view, &found).look(root)?;
    let mut tree = Tree { machine: machine().look(root)?, ..Tree::default() };
    let now = Duration::from_nanos(tree.machine.monotonic_ns);
    let mut shared = Vec::new();
    let bystanders = Bystanders::new(manner.view);
    for process in stopped {
        let pid = process.pid;
        if !(manner.go_on)() {
            return Err(CollectError::Stopped);
        }
        let (group, session) = process::group_and_session(pid).look(pid)?;
        let end = match &process.alive {
            Some(alive) => {
                let found = life(manner.view, alive, plans, now, &bystanders, &mut shared, &mut obstacles)?;
                let Some(life) = found else { continue };
                End::Alive(Box::new(life))
            }
            None => {
                End::Zombie { status: process::exit_status(pid).look(pid)?, name: thread::name(pid, pid).look(pid)? }
            }
        };
        tree.processes.push(Process { pid, parent: process.parent, group, session, end });
    }
    let sink = if manner.past_cache { PageSink::direct(image, offset) } else { PageSink::new(image, offset) };
    let mut copier = Copier::new(sink, manner.go_on);
    let parents = stopped.iter().filter(|process| process.alive.is_some()).map(|process| (process.pid, process.parent));
    let shares = obstacles::shares(&parents.collect(), &mut obstacles).look(root)?;
    for process in &mut tree.processes {
        if let (End::Alive(life), Some(shares)) = (&mut process.end, shares.get(&process.pid)) {
            life.shares = *shares;
        }
    }
    let Beside { kept, connections, warnings } =
        open_files(manner, &found, stopped, &shared, &mut tree, &mut copier, &mut obstacles)?;
    obstacles.extend(ending::semaphores(manner.view, root).look(root)?);
    obstacles.extend(ending::robust_locks(manner.view, &tree));
    if !obstacles.is_empty() {
        return Err(CollectError::Refused(obstacles));
    }
    for process in &mut tree.processes {
        if let End::Alive(life) = &mut process.end {
            copier.copy(process.pid, &mut life.space)?;
        }
    }
    let pages_end = copier.finish()?.ok_or(CollectError::Stopped)?;
    inside::translate(&mut tree, manner.view).look(root)?;
    Ok(Collected { tree, pages_end, kept, connections, warnings })
}

/// What there is of open files beside the tree; see [`Collected`].
#[derive(Default)]
struct Beside {
    kept: Vec<(FileId, OwnedFd)>,
    connections: Vec<OwnedFd>,
    warnings: Vec<String>,
}

/// Puts open files and shared memory into the tree.
fn open_files(
    manner: &Manner<'_>,
    alive: &[(i32, Vec<i32>)],
    stopped: &[Stopped],
    shared: &[SharedArea],
    tree: &mut Tree,
    copier: &mut Copier<'_>,
    obstacles: &mut Vec<Obstacle>,
) -> Result<Beside, CollectError> {
    let processes: Vec<i32> = alive.iter().map(|(pid, _)| *pid).collect();
    let threads = alive.iter().flat_map(|(_, threads)| threads.iter().copied());
    let ids = stopped.iter().map(|process| process.pid).chain(threads);
    let ids = ids.filter_map(|id| Some((id, manner.view.id(id)?))).collect();
    let request = files::Request {
        processes: &processes,
        ids: &ids,
        areas: shared,
        view: manner.view,
        lock: manner.lock,
        look_only: false,
        go_on: manner.go_on,
    };
    let root = processes.first().copied().unwrap_or(0);
    let sink = copier.sink();
    let found = manner.view.within(|| files::collect(&request, sink)).look(root)?;
    let mut found = match found {
        Ok(found) => found,
        Err(files::CollectError::Refused(more)) => {
            obstacles.extend(more);
            return Ok(Beside::default());
        }
        Err(files::CollectError::Stopped) => return Err(CollectError::Stopped),
        Err(error) => return Err(error.into()),
    };
    let terminals = terminals(&found.terminals, tree, obstacles).look(root)?;
    for process in &mut tree.processes {
        let End::Alive(life) = &mut process.end else { continue };
        life.terminal = terminals.get(&process.pid).copied();
        life.descriptors = found.descriptors.remove(&process.pid).unwrap_or_default();
        for area in &mut life.space.areas {
            if let Backing::Shared { memory, .. } = &mut area.backing {
                *memory = found.areas.get(*memory as usize).copied().unwrap_or(*memory);
            }
        }
    }
    tree.files = found.files;
    tree.pipes = found.pipes;
    tree.memories = found.memories;
    Ok(Beside { kept: found.kept, connections: found.connections, warnings: found.warnings })
}

/// Controlling terminals by the sessions' leaders. Who has given up that of its session is in the way.
fn terminals(
    found: &[ControllingTerminal],
    tree: &Tree,
    obstacles: &mut Vec<Obstacle>,
) -> io::Result<HashMap<i32, (FileId, i32)>> {
    let mut terminals = HashMap::new();
    for terminal in found {
        terminals.insert(terminal.session, (terminal.slave, terminal.foreground));
        for process in tree.processes.iter().filter(|process| process.session == terminal.session) {
            if process.alive().is_some() && !process::has_terminal(process.pid)? {
                let what = "it has given up the controlling terminal of its session";
                obstacles.push(Obstacle::new(process.pid, Place::Process, what, ""));
            }
        }
    }
    Ok(terminals)
}

/// What can be learned of a living process without touching it.
struct Looked {
    mappings: Vec<mappings::Mapping>,
    /// By thread.
    statuses: Vec<credentials::Status>,
    cwd: PathState,
    root: Option<PathState>,
}

/// Looks at a process with these threads.
fn look(view: &View, pid: i32, threads: &[i32], obstacles: &mut Vec<Obstacle>) -> Result<Looked, CollectError> {
    let mappings = mappings::mappings(pid).look(pid)?;
    let mut statuses = Vec::with_capacity(threads.len());
    for tid in threads {
        let status = credentials::status(pid, *tid).look(pid)?;
        let mut refuse = |what: &str| obstacles.push(Obstacle::new(pid, Place::Thread(*tid), what, ""));
        if status.shadow_stack {
            refuse("a shadow stack");
        }
        statuses.push(status);
    }
    if !mappings.iter().any(|mapping| mapping.area.name == "[vdso]") {
        // Calls are made in it.
        obstacles.push(Obstacle::new(pid, Place::Process, "it has unmapped its vDSO", ""));
    }
    if view.keeps_files() && process::has_terminal(pid).look(pid)? {
        // It would be hung up when its session's leader ends.
        let what = "it has a controlling terminal";
        obstacles.push(Obstacle::new(pid, Place::Process, what, "start it without one (setsid)"));
    }
    let (cwd, root) = directories(view, pid, obstacles)?;
    Ok(Looked { mappings, statuses, cwd, root })
}

/// Everything that can be seen to be in the way of capturing these processes of an app, which may be frozen and without
/// their memory. Nothing is touched.
pub(crate) fn examine(view: &View, family: &[Member]) -> Result<Vec<Obstacle>, CollectError> {
    let mut found = Vec::new();
    for member in family.iter().filter(|member| !member.ended) {
        let mut threads = crate::proc::threads(member.pid).look(member.pid)?;
        threads.sort_by_key(|tid| (*tid != member.pid, *tid));
        found.push((member.pid, threads));
    }
    let root = found.first().map_or(0, |(pid, _)| *pid);
    let mut obstacles = obstacles::find(view, &found).look(root)?;
    let parents = family.iter().filter(|member| !member.ended).map(|member| (member.pid, member.parent));
    obstacles::shares(&parents.collect(), &mut obstacles).look(root)?;
    let (mut shared, mut rings) = (Vec::new(), HashSet::new());
    for (pid, threads) in &found {
        let looked = look(view, *pid, threads, &mut obstacles)?;
        obstacles.extend(contexts::inherited(*pid, &looked.mappings, &mut rings));
        space::space(view, *pid, &looked.mappings, 0, &mut shared, &mut obstacles)?;
    }
    let processes: Vec<i32> = found.iter().map(|(pid, _)| *pid).collect();
    let threads = found.iter().flat_map(|(_, threads)| threads.iter().copied());
    let ids = family.iter().map(|member| member.pid).chain(threads);
    let ids = ids.filter_map(|id| Some((id, view.id(id)?))).collect();
    let request = files::Request {
        processes: &processes,
        ids: &ids,
        areas: &shared,
        view,
        lock: None,
        look_only: true,
        go_on: &|| true,
    };
    let nowhere = File::open("/dev/null").look(root)?;
    let looked = view.within(|| files::collect(&request, &mut PageSink::new(&nowhere, 0))).look(root)?;
    match looked {
        Ok(_) => {}
        Err(files::CollectError::Refused(more)) => obstacles.extend(more),
        Err(error) => return Err(error.into()),
    }
    obstacles.extend(ending::semaphores(view, root).look(root)?);
    Ok(obstacles)
}

/// Describes a living process; `None` if what is in the way makes that pointless.
fn life(
    view: &View,
    process: &trace::Process,
    plans: &[ThreadPlan],
    now: Duration,
    bystanders: &Bystanders<'_>,
    shared: &mut Vec<SharedArea>,
    obstacles: &mut Vec<Obstacle>,
) -> Result<Option<Life>, CollectError> {
    let pid = process.pid;
    let before = obstacles.len();
    let tids: Vec<i32> = process.threads.iter().map(|thread| thread.tracee.thread()).collect();
    let Looked { mappings, statuses, cwd, root } = look(view, pid, &tids, obstacles)?;
    for thread in &process.threads {
        if thread.tracee.dispatches_calls().look(pid)? {
            let what = "it handles its own system calls (PR_SET_SYSCALL_USER_DISPATCH)";
            obstacles.push(Obstacle::new(pid, Place::Thread(thread.tracee.thread()), what, ""));
        }
    }
    if obstacles.len() > before {
        // Nothing is asked of a process that cannot be captured; its memory is looked at all the same.
        space::space(view, pid, &mappings, 0, shared, obstacles)?;
        return Ok(None);
    }
    let areas: Vec<Area> = mappings.iter().map(|mapping| mapping.area.clone()).collect();
    let trials = process.threads.iter().zip(&statuses).map(|(thread, status)| {
        // Filters could answer in the kernel's place.
        let asked = status.seccomp == 0 || thread.tracee.is_unfiltered();
        if asked { bystanders.trial(status) } else { Ok(None) }
    });
    let trials = trials.collect::<io::Result<Vec<_>>>().look(pid)?;
    let asked = ask(process, &statuses, &areas, &trials)?;
    let Asked { of_process: answers, of_threads, dead_rings, mut policies } = asked;
    obstacles.extend(contexts::obstacles(pid, &areas, &dead_rings, view.keeps_files()).look(pid)?);
    if answers.descriptor_table {
        obstacles.push(Obstacle::new(pid, Place::Process, "it has a local descriptor table (modify_ldt)", ""));
    }
    if answers.keys {
        let what = "it has a session keyring of its own with keys (keyctl)";
        obstacles.push(Obstacle::new(pid, Place::Process, what, "let it use its user's keyring"));
    }
    let plans: HashMap<i32, &ThreadPlan> =
        plans.iter().filter(|plan| plan.pid == pid).map(|plan| (plan.tid, plan)).collect();
    let online = thread::online().look(pid)?;
    let mut threads = Vec::with_capacity(process.threads.len());
    for ((thread, status), answers) in process.threads.iter().zip(statuses.iter().cloned()).zip(of_threads) {
        let tid = thread.tracee.thread();
        let found = plans.get(&tid).and_then(|plan| thread::registers(plan, now));
        let Some((registers, wait)) = found else {
            let what = "it waits in a call that was interrupted before, and which one cannot be told";
            obstacles.push(Obstacle::new(pid, Place::Thread(tid), what, "try again later"));
            continue;
        };
        if answers.restricted {
            let what = "it has restricted itself with Landlock, or another security module confines it";
            obstacles.push(Obstacle::new(pid, Place::Thread(tid), what, "start it without that"));
        }
        let known = thread::Known { registers, wait, status, answers, online: &online };
        threads.push(thread::record(thread, known).look(pid)?);
    }
    let pending = match process.threads.first() {
        Some(leader) => signals::pending(leader, true).look(pid)?,
        None => Vec::new(),
    };
    let mut space = space::space(view, pid, &mappings, answers.heap_end, shared, obstacles)?;
    for area in &mut space.areas {
        area.advice.policy = policies.remove(&area.start).unwrap_or_default();
    }
    obstacles.extend(signals::unread_overruns(process, &answers.posix_timers, &pending));
    Ok(Some(Life {
        space,
        threads,
        descriptors: Vec::new(),
        cwd,
        root,
        umask: statuses.first().map_or(0, |status| status.umask),
        limits: process::limits(pid).look(pid)?,
        oom_score_adjustment: process::number(pid, "oom_score_adj").look(pid)?,
        actions: answers.actions,
        pending,
        interval_timers: answers.interval_timers,
        posix_timers: answers.posix_timers,
        dumpable: answers.dumpable,
        subreaper: answers.subreaper,
        no_huge_pages: answers.no_huge_pages,
        personality: process::hexadecimal(pid, "personality").look(pid)?,
        switches: Switches {
            coredump_filter: process::hexadecimal(pid, "coredump_filter").look(pid)?,
            ..answers.switches
        },
        stopped_by: process.threads.first().and_then(|leader| leader.tracee.group_stop()),
        terminal: None,
        shares: Shares::default(),
    }))
}

/// What a process and its threads have answered.
struct Asked {
    of_process: OfProcess,
    of_threads: Vec<OfThread>,
    /// See [`contexts::dead`].
    dead_rings: Vec<(u64, u64)>,
    /// See [`policy::of_areas`].
    policies: HashMap<u64, MemoryPolicy>,
}

/// Asks a process and its threads by remote calls.
fn ask(
    process: &trace::Process,
    statuses: &[credentials::Status],
    areas: &[Area],
    trials: &[Option<Trial>],
) -> Result<Asked, TraceError> {
    let remote = Remote::begin(process, statuses, areas)?;
    let trial = |n: usize| trials.get(n).copied().flatten();
    let answers = signals::of_process(&remote, trial(0)).and_then(|(of_process, first)| {
        let others = (1..process.threads.len()).map(|n| signals::of_thread(&remote, n, trial(n)));
        let threads: Result<_, _> = std::iter::once(Ok(first)).chain(others).collect();
        let policies = policy::of_areas(&remote, areas)?;
        Ok(Asked { of_process, of_threads: threads?, dead_rings: contexts::dead(&remote, areas)?, policies })
    });
    remote.end()?;
    answers
}

/// Working directory, and root directory if it is not ours.
fn directories(
    view: &View,
    pid: i32,
    obstacles: &mut Vec<Obstacle>,
) -> Result<(PathState, Option<PathState>), CollectError> {
    let mut directory = |link: &str, what: &str| -> Result<PathState, CollectError> {
        match space::linked(view, &format!("/proc/{pid}/{link}")).look(pid)? {
            Ok(path) => Ok(path),
            Err(why) => {
                obstacles.push(Obstacle::new(pid, Place::Process, format!("its {what} {why}"), ""));
                Ok(PathState::default())
            }
        }
    };
    let cwd = directory("cwd", "working directory")?;
    let usual = identity(&format!("{}/root", view.reference())).look(pid)?;
    let same = usual == identity(&format!("/proc/{pid}/root")).look(pid)?;
    Ok((cwd, if same { None } else { Some(directory("root", "root directory")?) }))
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
        boot: boot()?,
        realtime_ns: clock(ClockId::Realtime),
        monotonic_ns: clock(ClockId::Monotonic),
        boottime_ns: clock(ClockId::Boottime),
        clock_offsets_ns: [0; 2],
        wake_after_ns: None,
    })
}

/// This boot, as the header of an image has it.
pub fn boot() -> io::Result<[u64; 2]> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let text = crate::proc::read(PATH)?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let half = |range| digits.get(range).and_then(|digits: &str| u64::from_str_radix(digits, 16).ok());
    match (half(0..16), half(16..32)) {
        (Some(first), Some(last)) => Ok([first, last]),
        _ => Err(crate::proc::unexpected(PATH)),
    }
}
