//! From warm to running: the app's processes are built again in its home.
//!
//! ```text
//! warm ─▶ read ▶ checked ▶ opened ▶ launched ▶ born ▶ verified ▶ built ▶ frozen ▶ finished ▶ released ▶ awake ─▶ running
//!         └────────────────────── the journal says Warm: any error or our death leaves it warm ────────┘ journal: Awake
//! ```
//! As a restore ([`crate::restore()`]), but for where it happens. The first process is started in the home's namespaces and
//! cgroups, as a child of its init; ids and paths are those inside, and the tracer knows processes by the machine's ids. Parked
//! files are handed down as they are. What is opened anew is found below the root directory of init; sockets and segments are
//! made in the home's network and IPC namespaces.
//!
//! In the end the cgroup is frozen: the threads get their registers and are let go, and none of them runs an instruction
//! before the journal says that they do. So whatever fails before that, all that was built is ended, and image and parked
//! files, of which the processes have duplicates only, are as they were.
//!
//! Everything is done by a thread of its own, which enters namespaces and can do nothing else afterwards.

mod adapt;
mod error;
mod owners;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use torpor_image::FormatError;
use torpor_image::tree::{FileId, FileKind, Machine, SharedMemoryKind, Tree};
use torpor_linux::registers::Registers;
use torpor_linux::restorer::enter_for_children;

pub use self::error::ReviveError;
use crate::files::{self, Around, Given, Root};
use crate::home::Home;
use crate::plan::Memories;
use crate::restore::open::{self, Opened};
use crate::restore::plan::Kind;
use crate::restore::run::{Building, Inside, wait_for_ids};
use crate::restore::staged::Staged;
use crate::restore::{CompileError, Loaded, RestoreError, RestoreStep, check, finish, load, lower_limits};
use crate::sleep::Target;
use crate::step::Timings;
use crate::target::Phase;
use crate::wait::restart::Carried;
use crate::wait::since::now;

/// How an app is to be woken.
pub struct Revive<'a> {
    /// Where it lives.
    pub home: &'a Home,
    /// Its complete image.
    pub image: &'a Path,
    /// Generation of the image.
    pub generation: u64,
    /// Its parked files, by their place in the image's list of files.
    pub given: BTreeMap<FileId, OwnedFd>,
}

/// An app that runs again.
#[derive(Debug, Default)]
pub struct Revived {
    /// Its initial process, as the machine numbers it.
    pub initial: i32,
    /// What the next sleep must know.
    pub memories: Memories,
    /// What is not as it was, and why.
    pub warnings: Vec<String>,
}

/// Wakes a warm app. After an error it is warm as before, unless [`ReviveError::is_awake`].
pub fn revive(target: &Target<'_>, request: Revive<'_>) -> (Result<Revived, ReviveError>, Timings<RestoreStep>) {
    let mut timings = Timings::begin();
    let result = std::thread::scope(|scope| {
        let done = scope.spawn(|| Reviving { target, timings: &mut timings }.run(request)).join();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    (result, timings)
}

struct Reviving<'a> {
    target: &'a Target<'a>,
    timings: &'a mut Timings<RestoreStep>,
}

impl Reviving<'_> {
    fn reached(&mut self, step: RestoreStep) -> Result<(), RestoreError> {
        self.timings.mark(step);
        Ok(self.target.faults.rebuilt(step)?)
    }

    fn run(&mut self, request: Revive<'_>) -> Result<Revived, ReviveError> {
        let Revive { home, image, generation, given } = request;
        let loaded = load(image)?;
        let (about, wanted) = (&loaded.header, (self.target.app, generation));
        if (about.app, about.generation) != wanted {
            let error = FormatError::Invalid("it belongs to another app or sleep");
            return Err(RestoreError::Format(image.to_owned(), error).into());
        }
        self.reached(RestoreStep::Read)?;
        self.build(home, image, given, loaded)
    }

    fn build(&mut self, home: &Home, image: &Path, given: Given, loaded: Loaded) -> Result<Revived, ReviveError> {
        let Loaded { file, header, mut tree, mut plan } = loaded;
        owners::to_the_machines(&mut tree, home, &given)
            .map_err(|error| ReviveError::Home("reading its user namespace", error))?;
        if tree.namespaces.time != home.time_namespace {
            // Its home was made anew after a reboot, with clocks that go on.
            tree.namespaces.time = home.time_namespace;
            plan = crate::restore::plan_again(&tree, &header).map_err(RestoreError::from)?;
        }
        let tree = tree;
        let root = directory(Path::new(&format!("/proc/{}/root", home.init_pid)))
            .map_err(|error| ReviveError::Home("opening its root directory", error))?;
        let younger = is_younger(home.init_pid, &tree.machine)
            .map_err(|error| ReviveError::Home("looking at its init", error))?;
        // A home that was made since is as one after a reboot: numbers of devices and of kernel objects are others.
        let same_boot = header.boot == self.target.boot && !younger;
        let around = Around { root: Root::At(root.as_fd()), same_boot };
        let staged = Staged::of(&tree).ok_or(CompileError::NoNumbers).map_err(RestoreError::from)?;
        let paths = self.check(home, &tree, &header.needs, &staged, around)?;
        let mut warnings = Vec::new();
        let mut given = given;
        for (id, name) in missing(&tree, &given) {
            given.insert(id, dead_end().map_err(|error| ReviveError::Home("making an end without another", error))?);
            warnings.push(format!("{name} is not there any more: the program finds it closed"));
        }
        lower_limits(&tree, &mut plan, &mut warnings);
        let passed = adapt::passed(&tree.machine, same_boot);
        adapt::to_kept_files(&mut plan, &tree, &staged, &given);
        adapt::to_the_time(&mut plan, &tree, passed, same_boot);
        self.reached(RestoreStep::Checked)?;

        if makes_in_namespaces(&tree, &given) {
            let kinds = ThreadNameSpaceType::NETWORK | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION;
            let entered = move_into_thread_name_spaces(home.init.as_fd(), kinds);
            entered.map_err(|error| ReviveError::Home("entering its network and IPC namespaces", error.into()))?;
        }
        let made = owners::as_root_inside(home, || files::make(&tree, &file, given, around))
            .map_err(|error| ReviveError::Home("taking its owner's place", error))?
            .map_err(RestoreError::from)?;
        let mut opened = Opened::new(&tree, &staged, &plan, made, paths, &file, Some(home.init.as_fd()))?;
        self.reached(RestoreStep::Opened)?;

        let mut building = self.launch(home, &tree, &plan, &opened)?;
        self.reached(RestoreStep::Launched)?;
        building.born()?;
        self.reached(RestoreStep::Born)?;
        finish::attributes(&building, &mut warnings)?;
        check::pages(image, &file, &tree)?;
        self.reached(RestoreStep::Verified)?;
        building.built()?;
        self.reached(RestoreStep::Built)?;
        opened.made.finish(&tree, |id| building.id_of(id)).map_err(RestoreError::from)?;
        opened.made.reconnect(&tree).map_err(RestoreError::from)?;
        finish::clear(&building, &plan, &file, passed)?;
        let revived = Revived { initial: building.id(0), memories: memories(&building, &tree, passed), warnings };

        let ids = building.ids();
        let done = self.let_go(building, image, passed);
        if done.as_ref().is_err_and(|error| !error.is_awake()) {
            // They are frozen, and some of them perhaps not ours any more.
            self.end(&ids);
        }
        done?;
        opened.made.keep();
        Ok(revived)
    }

    /// What is in the way; opens the paths that the tree maps or stands in.
    fn check(
        &self,
        home: &Home,
        tree: &Tree,
        needs: &torpor_image::Needs,
        staged: &Staged<'_>,
        around: Around<'_>,
    ) -> Result<Vec<OwnedFd>, RestoreError> {
        let mut wrong = check::machine(needs, tree);
        if tree.processes[0].pid != home.initial {
            wrong.push(format!("its initial process is {}, and not {}", tree.processes[0].pid, home.initial));
        }
        if tree.namespaces.user != home.user_namespace {
            wrong.push("its home has another user namespace".to_owned());
        }
        match open::paths(staged, around) {
            Ok(paths) if wrong.is_empty() => return Ok(paths),
            Ok(_) => {}
            Err(changed) => wrong.extend(changed),
        }
        Err(RestoreError::Refused(wrong))
    }

    fn launch<'t>(
        &self,
        home: &Home,
        tree: &'t Tree,
        plan: &'t crate::restore::plan::Plan,
        opened: &Opened,
    ) -> Result<Building<'t>, ReviveError> {
        let wrong = |what| move |error| ReviveError::Home(what, error);
        // After a crash it may be frozen still, and so would be whoever enters.
        if self.target.freezer.is_freezing().map_err(ReviveError::Freeze)? {
            self.target.freezer.thaw().map_err(ReviveError::Freeze)?;
        }
        let cgroup = directory(&home.cgroup).map_err(wrong("opening its cgroup"))?;
        let open = |path| File::options().write(true).open(path);
        let tasks = home.tasks.iter().map(open).collect::<io::Result<Vec<File>>>();
        let tasks = tasks.map_err(wrong("opening its cgroups"))?;
        let tasks: Vec<BorrowedFd<'_>> = tasks.iter().map(AsFd::as_fd).collect();
        enter_for_children(home.init.as_fd()).map_err(wrong("entering its pid namespace"))?;
        let inside = Inside { init: home.init.as_fd(), cgroup: cgroup.as_fd(), tasks: &tasks };
        Ok(Building::launch_inside(tree, plan, opened, &inside)?)
    }

    /// From threads that stand at the end of their steps to a running app.
    fn let_go(&mut self, building: Building<'_>, image: &Path, passed: Duration) -> Result<(), ReviveError> {
        let freezer = self.target.freezer;
        freezer.freeze().map_err(ReviveError::Freeze)?;
        self.reached(RestoreStep::Frozen)?;
        finish::give_all(&building, passed)?;
        self.reached(RestoreStep::Finished)?;
        building.release()?;
        self.reached(RestoreStep::Released)?;
        // Before the journal: a crash in between ends them, which marks it again.
        freezer.processes_are_back().map_err(|error| ReviveError::Home("telling its init", error))?;
        let woken = woken(image);
        fs::rename(image, &woken).map_err(ReviveError::Image)?;
        if let Err(error) = self.target.journal.record(Phase::Awake) {
            // It sleeps on, and this is its image.
            fs::rename(woken, image).map_err(ReviveError::Image)?;
            return Err(ReviveError::Journal(error));
        }
        let fault = self.reached(RestoreStep::Awake);
        freezer.thaw().map_err(ReviveError::Thaw)?;
        self.timings.mark(RestoreStep::Running);
        fault.map_err(|error| ReviveError::Thaw(io::Error::other(error)))
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

/// The name of an image whose app runs again: after a power cut it must not be put under files that are newer.
pub fn woken(image: &Path) -> PathBuf {
    image.with_extension("image.woken")
}

/// What came from elsewhere and is not parked any more.
fn missing(tree: &Tree, given: &Given) -> Vec<(FileId, String)> {
    let files = (0..).zip(&tree.files).filter(|(id, _)| !given.contains_key(id));
    files
        .filter_map(|(id, file)| match &file.kind {
            FileKind::Outside { name } => Some((id, name.clone())),
            _ => None,
        })
        .collect()
}

/// A descriptor whose other end is closed: reading gives the end, writing fails.
fn dead_end() -> io::Result<OwnedFd> {
    Ok(std::os::unix::net::UnixStream::pair()?.0.into())
}

/// Whether a process has begun after the capture; only meant for one of the same boot.
fn is_younger(pid: i32, machine: &Machine) -> io::Result<bool> {
    /// `USER_HZ`, in which `/proc` tells times.
    const TICK_NS: u64 = 10_000_000;
    let start_ticks = crate::proc::stat(&format!("/proc/{pid}/stat"))?.start_ticks;
    Ok(start_ticks.saturating_mul(TICK_NS) > machine.boottime_ns)
}

fn directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Something must be made in the namespaces of network and IPC.
fn makes_in_namespaces(tree: &Tree, given: &Given) -> bool {
    let socket = |(id, file): (usize, &torpor_image::tree::OpenFile)| {
        let socket = matches!(file.kind, FileKind::Unix(_) | FileKind::Inet(_) | FileKind::Netlink { .. });
        socket && !given.contains_key(&(id as FileId))
    };
    let segment = |kind: &SharedMemoryKind| matches!(kind, SharedMemoryKind::SystemV { .. });
    tree.files.iter().enumerate().any(socket) || tree.memories.iter().any(|memory| segment(&memory.kind))
}

/// Waits that go on, so that the next sleep recognises them.
fn memories(building: &Building<'_>, tree: &Tree, passed: Duration) -> Memories {
    let (mut waits, now) = (HashMap::new(), now());
    for (n, task) in building.tasks().iter().enumerate() {
        let Kind::Thread(number) = task.kind else { continue };
        let life = tree.processes.get(task.process as usize).and_then(|process| process.alive());
        let Some(thread) = life.and_then(|life| life.threads.get(number as usize)) else { continue };
        let Ok(words) = thread.registers.as_slice().try_into() else { continue };
        let registers = Registers::from_words(words);
        if let (Some(wait), Some(number)) = (thread.wait, registers.call()) {
            let total = Duration::from_nanos(wait.left_ns);
            let carried = Carried {
                number,
                instruction: registers.instruction(),
                stack: registers.stack(),
                deadline: Some((now + total).saturating_sub(passed)),
                total,
                unmoved: true,
            };
            waits.insert(building.id(n), carried);
        }
    }
    Memories { waits, ..Memories::default() }
}
