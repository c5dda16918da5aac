//! From warm to running: the app's processes are built again in its home.
//!
//! ```text
//! warm ─┬▶ read ▶ checked ─┬▶ opened ▶ launched ▶ forked ▶ verified ▶ built ▶ frozen ▶ finished ▶ released ▶ awake ─▶ running
//!       └▶ home entered ───┘
//!       └────────────── the journal says Warm: any error or our death leaves it warm ─────────────────┘ journal: Awake
//! ```
//! As a restore ([`torpor_restore()`]), but for where it happens. The first process is started in the home's namespaces and
//! cgroups, as a child of its init; ids and paths are those inside, and the tracer knows processes by the machine's ids. Parked
//! files are handed down as they are. What is opened anew is found below the root directory of init; sockets and segments are
//! made in the home's network and IPC namespaces.
//!
//! In the end the cgroup is frozen: the threads get their registers and are let go, and none of them runs an instruction
//! before the journal says that they do, and before the image is consumed on the disk ([`torpor_store::consume`]). So whatever fails before
//! that, all that was built is ended, and image and parked files, of which the processes have duplicates only, are as they were.
//!
//! Two threads of its own do it, which enter namespaces and can do nothing else afterwards. One makes the first process, which
//! waits in the home for what it is to become; it takes the kernel some time and needs nothing of the image. Meanwhile the
//! other one reads and checks that ([`prepare`]), opens everything, and in the end builds. The caller's thread does what the second one
//! can wait for later ([`Errand`]): it fetches the parked files, parks contexts and consumes the image.

mod adapt;
mod error;
mod later;
mod lock_waiters;
mod owners;
mod prepare;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::thread::move_into_thread_name_spaces;
use torpor_image::tree::{FileId, SharedMemoryKind, Tree};
use torpor_linux::closer::AppFile;
use torpor_linux::registers::Registers;
use torpor_linux::restorer::{Entered, enter_for_children};

pub use self::error::ResumeError;
use self::later::{Later, Missing, Parking};
use self::prepare::{Prepared, prepare};
use crate::lazy::LazyWay;
use crate::sleep::Target;
use crate::target::Phase;
use torpor_descriptors::Charge;
use torpor_descriptors::registry::needs;
use torpor_descriptors::{EachRestored, Given, Network, RestoreContext, RestoreFileError, Root};
use torpor_pages::source::ImageFile;
use torpor_planner::plan::Kind;
use torpor_process::sandbox::SandboxHandle;
use torpor_process::step::Timings;
use torpor_process::threads::WaitHistory;
use torpor_process::view::ENTERED;
use torpor_process::wait::restart::PriorWait;
use torpor_process::wait::since::now;
use torpor_process::wait::socket::SocketChanges;
use torpor_restore::logins::Logins;
use torpor_restore::open::Opened;
use torpor_restore::run::{self, Building, wait_for_ids};
use torpor_restore::sequence::{Connected, Launched, Seed, Source};
use torpor_restore::{RestoreError, RestoreStep};
use torpor_store::Image;
use torpor_store::consume::Consuming;

/// How long a wake waits at most until the worker's own descriptors of the app's files are closed. Only a `close(2)` that waits for the server of a file
/// system takes so long.
const HANDED_OVER: Duration = Duration::from_millis(20);

/// An app's parked files, by their place in the image's list of files.
pub type Parked = BTreeMap<FileId, AppFile>;

/// How an app is to be woken.
pub struct ResumeRequest<'a> {
    /// Where it lives.
    pub home: &'a SandboxHandle,
    /// Its complete image.
    pub image: &'a Image,
    /// Fetches its parked files.
    pub given: Box<dyn FnOnce() -> io::Result<Parked> + Send + 'a>,
    /// Gives up its parked files: called just before it runs, when it has them itself.
    pub give_up: Box<dyn FnOnce() + Send + 'a>,
    /// How it may run before all of its memory is back.
    pub lazy: Option<LazyWay<'a>>,
}

/// An app that runs again.
#[derive(Debug, Default)]
pub struct ResumeOutcome {
    /// Its initial process, as the machine numbers it.
    pub initial: i32,
    /// What the next sleep must know.
    pub memories: WaitHistory,
    /// What is not as it was, and why.
    pub warnings: Vec<String>,
    changes: SocketChanges,
    is_lazy: bool,
}

impl ResumeOutcome {
    /// A pager brings the rest of its memory.
    pub const fn is_lazy(&self) -> bool {
        self.is_lazy
    }

    /// Puts time-outs of sockets back that were shortened until it runs: once, when there is time for it.
    ///
    /// # Errors
    /// What the kernel says to `setsockopt(2)`.
    pub fn settle(&mut self) -> io::Result<()> {
        self.memories.let_go_on(std::mem::take(&mut self.changes).undo()?);
        Ok(())
    }
}

/// Wakes a warm app. After an error it is warm as before, unless [`ResumeError::is_awake`].
pub fn resume(
    target: &Target<'_>,
    request: ResumeRequest<'_>,
) -> (Result<ResumeOutcome, ResumeError>, Timings<RestoreStep>) {
    let mut timings = Timings::begin();
    let ResumeRequest { home, image, given, give_up, lazy } = request;
    let result = std::thread::scope(|scope| {
        let (tell_entered, entering) = mpsc::sync_channel(1);
        // Where nobody takes it, it ends.
        scope.spawn(move || drop(tell_entered.send(enter(target, home))));
        let (errands, work) = mpsc::channel::<Errand<'_>>();
        let parked = awaited(&errands, given);
        let mut resuming = Resuming { target, home, image, timings: &mut timings, errands };
        let building = scope.spawn(move || {
            let prepared = prepare(&mut resuming, &parked)?;
            resuming.build(prepared, lazy, give_up, &entering)
        });
        work.into_iter().for_each(|errand| errand());
        building.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    (result, timings)
}

/// Something that the caller's thread does meanwhile.
type Errand<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Has `work` done; where its result comes.
fn awaited<'a, T: Send + 'a>(
    errands: &mpsc::Sender<Errand<'a>>,
    work: impl FnOnce() -> T + Send + 'a,
) -> mpsc::Receiver<T> {
    let (tell, told) = mpsc::sync_channel(1);
    // Where building has failed, nobody waits for the result.
    let _ = errands.send(Box::new(move || drop(tell.send(work()))));
    told
}

/// Makes the first process, which waits in the home.
fn enter(target: &Target<'_>, home: &SandboxHandle) -> Result<Entered, ResumeError> {
    let wrong = |what| move |error| ResumeError::Sandbox(what, error);
    // After a crash it may be frozen still, and so would be whoever enters.
    if target.freezer.is_freezing().map_err(ResumeError::Freeze)? {
        target.freezer.thaw().map_err(ResumeError::Freeze)?;
    }
    let cgroup = directory(&home.cgroup).map_err(wrong("opening its cgroup"))?;
    let open = |path| File::options().write(true).open(path);
    let tasks = home.tasks.iter().map(open).collect::<io::Result<Vec<File>>>();
    let tasks = tasks.map_err(wrong("opening its cgroups"))?;
    let tasks: Vec<BorrowedFd<'_>> = tasks.iter().map(AsFd::as_fd).collect();
    enter_for_children(home.init.as_fd()).map_err(wrong("entering its pid namespace"))?;
    let entered = run::enter(home.init.as_fd(), cgroup.as_fd(), &tasks, home.initial);
    Ok(entered.map_err(RestoreError::from)?)
}

/// From the thread that enters: waiting for its end would take longer.
type Entering = mpsc::Receiver<Result<Entered, ResumeError>>;

struct Resuming<'a> {
    target: &'a Target<'a>,
    home: &'a SandboxHandle,
    image: &'a Image,
    timings: &'a mut Timings<RestoreStep>,
    errands: mpsc::Sender<Errand<'a>>,
}

impl<'a> Resuming<'a> {
    fn reached(&mut self, step: RestoreStep) -> Result<(), RestoreError> {
        self.timings.mark(step);
        Ok(self.target.faults.rebuilt(step)?)
    }

    /// Makes several things, each of which may be the last that we do.
    fn each<T>(
        &mut self,
        step: RestoreStep,
        make: impl FnOnce(EachRestored<'_>) -> Result<T, RestoreFileError>,
    ) -> Result<T, RestoreError> {
        let made = make(&|| self.target.faults.rebuilt(step))?;
        self.timings.mark(step);
        Ok(made)
    }

    fn build(
        &mut self,
        prepared: Prepared,
        way: Option<LazyWay<'a>>,
        give_up: impl FnOnce(),
        entering: &Entering,
    ) -> Result<ResumeOutcome, ResumeError> {
        let (home, image, errands) = (self.home, self.image, self.errands.clone());
        let Prepared { file, tree, plan, starters, root, removed, paths, given, passed, same_boot, mut warnings } =
            prepared;
        let later = Later::of(&tree, way);
        let charge = Charge::of(home);
        let target = self.target;
        let piece = || target.faults.rebuilt(RestoreStep::Piece);
        let around = RestoreContext { removed: Some(&removed), ..around(&root, same_boot, passed, &charge, &piece) };
        let surroundings = !same_boot && torpor_descriptors::ipc::has_any(&tree.surroundings);
        if surroundings || makes_in_namespaces(&tree, &given) {
            let entered = move_into_thread_name_spaces(home.init.as_fd(), ENTERED);
            entered.map_err(|error| ResumeError::Sandbox("entering its namespaces", error.into()))?;
        }
        if surroundings {
            self.each(RestoreStep::IpcRestored, |made| torpor_descriptors::ipc::restore(&tree.surroundings, made))?;
        }
        let makes = !tree.memories.is_empty() || given.len() < tree.files.len();
        let make = || torpor_descriptors::restore(&tree, &ImageFile::through_cache(&file), given, around);
        let made = if makes { owners::as_root_inside(home, make) } else { Ok(make()) };
        let made = made
            .map_err(|error| ResumeError::Sandbox("taking its owner's place", error))?
            .map_err(RestoreError::from)?;
        // From here on this thread's children are the app's.
        drop(charge);
        let pages = ImageFile::past_cache(&file);
        let mut opened = Opened::new(&tree, starters, made, paths, &pages, Some(home.init.as_fd()))?;
        self.reached(RestoreStep::Opened)?;

        let nobody = |_| ResumeError::Sandbox("waiting for its first process", io::ErrorKind::BrokenPipe.into());
        let entered = entering.recv().map_err(nobody)??;
        let source = Source { tree: &tree, plan: &plan, path: image.path(), pages: &pages, passed };
        let mut reached = |step| self.reached(step);
        let launched = Launched::launch(source, &opened, Seed::Entered(entered), &mut reached)?;
        let forked = launched.fork(&mut reached)?;
        let mut filled = forked.fill(Some(&piece), later.as_ref().map(Later::lazy).as_ref())?;
        let late = filled.take_late();
        let missing = later.filter(|_| !late.is_empty()).map(|later| later.missing(&file, late)).transpose();
        let missing = missing.map_err(ResumeError::Pager)?;
        let missing = missing.map(|missing| missing.park(&errands, image.generation()));
        // Not before: on two processors one of us or the first process would have to wait.
        let consuming = Consuming::begin(image, |work| drop(errands.send(work)));
        let built = filled.build(&mut reached, &mut warnings)?;
        let connected = built.connect(&mut opened, Logins::inside(&tree), &mut warnings)?;
        let building = connected.building();
        let (initial, memories) = (building.id(0), memories(building, &tree, passed));
        let ids = building.ids();
        let is_lazy = missing.is_some();
        let queued = opened.hand_over();
        let others_close = || {
            give_up();
            queued.settle(HANDED_OVER);
        };
        let done = self.let_go(connected, consuming, missing, others_close, &mut warnings);
        if done.as_ref().is_err_and(|error| !error.is_awake()) {
            // They are frozen, and some of them perhaps not ours any more.
            self.end(&ids);
        }
        let changes = done?;
        opened.made.keep();
        Ok(ResumeOutcome { initial, memories, warnings, changes, is_lazy })
    }

    /// From threads that stand at the end of their steps to a running app.
    fn let_go(
        &mut self,
        connected: Connected<'_>,
        mut consuming: Consuming,
        missing: Option<Parking<'a>>,
        others_close: impl FnOnce(),
        warnings: &mut Vec<String>,
    ) -> Result<SocketChanges, ResumeError> {
        let freezer = self.target.freezer;
        // They all stand still.
        let frozen = connected.freeze(|_| freezer.begin_freezing().map_err(ResumeError::Freeze))?;
        self.reached(RestoreStep::Frozen)?;
        let mut complete = frozen.give_registers()?;
        self.reached(RestoreStep::Finished)?;
        let waits = complete.socket_waits();
        let (initial, process) = (complete.building().id(0), complete.building().first.take());
        let process =
            process.ok_or(ResumeError::Sandbox("looking for its initial process", io::ErrorKind::NotFound.into()))?;
        complete.release(warnings)?;
        self.reached(RestoreStep::Released)?;
        // Before the journal: a crash in between ends them, which marks it again.
        let back = freezer.processes_are_back(initial, process);
        back.map_err(|error| ResumeError::Sandbox("telling its init", error))?;
        consuming.wait().map_err(ResumeError::Image)?;
        let generation = self.image.generation();
        let missing = missing.map(Parking::wait).transpose().map_err(ResumeError::Pager)?;
        let phase = missing.as_ref().map_or(Phase::Awake, |_| Phase::Lazy { generation });
        self.target.journal.record(phase).map_err(ResumeError::Journal)?;
        consuming.keep();
        missing.map_or(Ok(()), Missing::serve).map_err(ResumeError::Unserved)?;
        let fault = self.reached(RestoreStep::Awake);
        // Not before: parked sockets must not keep such a time-out if it sleeps on.
        let mut changes = SocketChanges::default();
        let shortened = waits.into_iter().try_for_each(|wait| changes.shorten(wait));
        // A lock or an address that the program gives up at once must not be held by us.
        others_close();
        freezer.thaw().map_err(ResumeError::Thaw)?;
        self.timings.mark(RestoreStep::Running);
        fault.map_err(|error| ResumeError::Thaw(io::Error::other(error)))?;
        shortened.map_err(ResumeError::Thaw)?;
        Ok(changes)
    }

    /// Ends what is left of it in the home.
    fn end(&self, ids: &[i32]) {
        let freezer = self.target.freezer;
        if let Err(error) = freezer.end_processes().and_then(|()| freezer.thaw()) {
            tracing::error!(%error, "cannot end the processes of an app that did not wake");
            return;
        }
        // They may be built again at once, with the same ids.
        wait_for_ids(ids.iter().copied());
    }
}

/// What is made again below the home's root directory, when so much time has passed since the capture.
fn around<'a>(
    root: &'a OwnedFd,
    same_boot: bool,
    passed: Duration,
    charge: &'a Charge<'a>,
    piece: EachRestored<'a>,
) -> RestoreContext<'a> {
    let passed = (!same_boot).then_some(passed);
    RestoreContext {
        root: Root::At(root.as_fd()),
        same_boot,
        network: if same_boot { Network::Same } else { Network::New },
        passed,
        removed: None,
        charge: Some(charge),
        piece: Some(piece),
    }
}

fn directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Something must be made in the namespaces of network and IPC.
fn makes_in_namespaces(tree: &Tree, given: &Given) -> bool {
    let socket = |(id, file): (usize, &torpor_image::tree::OpenFile)| {
        needs(&file.kind).namespace.is_some() && !given.contains_key(&(id as FileId))
    };
    let segment = |kind: &SharedMemoryKind| matches!(kind, SharedMemoryKind::SystemV { .. });
    tree.files.iter().enumerate().any(socket) || tree.memories.iter().any(|memory| segment(&memory.kind))
}

/// Waits that go on, so that the next sleep recognises them.
fn memories(building: &Building<'_>, tree: &Tree, passed: Duration) -> WaitHistory {
    let (mut waits, now) = (HashMap::new(), now());
    for (n, task) in building.tasks().iter().enumerate() {
        let Kind::Thread(number) = task.kind else { continue };
        let life = tree.processes.get(task.process as usize).and_then(|process| process.alive());
        let Some(thread) = life.and_then(|life| life.threads.get(number as usize)) else { continue };
        let Ok(words) = thread.registers.as_slice().try_into() else { continue };
        let registers = Registers::from_words(words);
        if let (Some(wait), Some(number)) = (thread.wait, registers.call()) {
            let total = Duration::from_nanos(wait.left_ns);
            let carried = PriorWait {
                number,
                instruction: registers.instruction(),
                stack: registers.stack(),
                deadline: Some((now + total).saturating_sub(passed)),
                total,
                unmoved: true,
                given: None,
            };
            waits.insert(building.id(n), carried);
        }
    }
    WaitHistory { waits, ..WaitHistory::default() }
}
