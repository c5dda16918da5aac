//! A complete image of a plain process tree: look, stop, collect, write, commit, then end the tree or let it go.
//!
//! ```text
//!            ┌───────────── any error: the tree runs on, nothing stays at DIR ─────────────┐
//! running ─▶ prepared ─▶ stopped ─▶ copied ─▶ synced ─▶ committed ─▶ released (it runs on, or is gone)
//! ```
//!
//! Nothing of the program is changed before `committed`, and nothing is ended before the image is durable. If this process
//! is killed, the kernel lets the tree run on: each thread has its own registers, but for the one that just asks the kernel
//! on our behalf, which then finds back to them by itself (see `collect::landing`). From the start of [`Doomed`]'s guard on,
//! the whole tree ends, whether we are killed or not.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use torpor_image::tree::Tree;
use torpor_image::{Epoch, FormatError, HEADER_BYTES, Header, Kind, Needs, VERSION, checksum};
use torpor_linux::closer::{self, AppFile};
use torpor_linux::guard::CrashGuard;

use torpor_capture::{CaptureError, CapturedTree, Stopped, capture, for_record, pids, stop};
use torpor_descriptors::ConnectionLock;
use torpor_planner::compile::compile;
use torpor_process::blocker::{Blocker, Place};
use torpor_process::step::{Fault, Faults, Step, Timings};
use torpor_process::threads::{Began, ThreadPlan, WaitHistory, let_go};
use torpor_process::trace::TraceError;
use torpor_process::wait::since::now;
use torpor_store::{CommitError, Durability, Image, Partial, Store};

/// Oldest kernel that restores an image.
const KERNEL: (u16, u16) = (6, 7);

/// What to capture, and where to.
pub struct Checkpoint<'a> {
    /// Root of the tree.
    pub pid: i32,
    /// Directory for the image; made if it is missing. An image that is there is replaced once the new one is complete.
    pub folder: &'a Path,
    /// Let the tree run on instead of ending it.
    pub leave_running: bool,
    /// For TCP connections to the outside, whose packets it keeps away until the restore; without it they are refused.
    pub lock: Option<&'a dyn ConnectionLock>,
    /// Told of every step.
    pub faults: &'a dyn Faults,
}

/// A tree that was captured.
#[derive(Debug)]
pub struct Checkpointed {
    /// The image.
    pub image: PathBuf,
    /// Its processes, those that have ended too.
    pub processes: usize,
    /// Their threads.
    pub threads: usize,
    /// Bytes of the image's file.
    pub image_bytes: u64,
    /// Name under which the packets of TCP connections are kept away, if there are any.
    pub locked: Option<String>,
    /// How long each step took.
    pub timings: Timings,
}

/// Why a tree was not captured. It runs as before, but for [`CheckpointError::After`].
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// There is no such process.
    #[error("there is no process {0}")]
    NotFound(i32),
    /// It is this process, or one that this process descends from.
    #[error("process {0} cannot be captured from within")]
    Own(i32),
    /// It has what cannot be captured: all of it.
    #[error("process {pid} ({name}) and its children cannot be captured as they are")]
    Refused {
        /// Root of the tree.
        pid: i32,
        /// Its name.
        name: String,
        /// What is in the way.
        obstacles: Vec<Blocker>,
    },
    /// Looking at it, holding it or copying it failed.
    #[error(transparent)]
    Collect(CaptureError),
    /// It could not be looked at.
    #[error("looking at process {0}")]
    Look(i32, #[source] io::Error),
    /// The image could not be written.
    #[error("writing {}", .0.display())]
    Image(PathBuf, #[source] io::Error),
    /// Packets of its TCP connections could not be kept away, or let pass again.
    #[error("changing which packets of its TCP connections pass")]
    Lock(#[source] io::Error),
    /// Who would end the tree in our place could not be started.
    #[error("starting a guard for the end of the tree")]
    CrashGuard(#[source] io::Error),
    /// A test asked for it.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The image is there and complete, but its name may not last through a power cut, or the tree could not be ended or
    /// let go.
    #[error("the image is complete, but what comes after it failed for process {pid}")]
    After {
        /// A process of the tree.
        pid: i32,
        /// Why.
        #[source]
        error: Box<CheckpointError>,
    },
}

impl From<TraceError> for CheckpointError {
    fn from(error: TraceError) -> Self {
        Self::Collect(error.into())
    }
}

struct Capture<'a> {
    request: &'a Checkpoint<'a>,
    timings: Timings,
    image: Image,
    /// Until the commit.
    partial: Option<Partial>,
    /// The directory was made for this image.
    made_folder: bool,
    stopped: Vec<Stopped>,
    plans: Vec<ThreadPlan>,
    /// Its TCP connections, to be closed after its end.
    connections: Vec<AppFile>,
}

/// Captures a tree. Runs on one thread from beginning to end, since tracing belongs to a thread.
pub fn checkpoint(request: &Checkpoint<'_>) -> Result<Checkpointed, CheckpointError> {
    let mut capture = Capture {
        request,
        timings: Timings::begin(),
        image: Store::of_checkpoint(request.folder).image(0),
        partial: None,
        made_folder: false,
        stopped: Vec::new(),
        plans: Vec::new(),
        connections: Vec::new(),
    };
    match capture.commit() {
        Ok((tree, image_bytes)) => capture.finish(&tree, image_bytes),
        Err(error) => {
            // Should letting it go fail too, the first error is still the one to know.
            if let Err(second) = capture.undo() {
                tracing::error!(pid = request.pid, error = %second, "could not undo a failed capture");
            }
            Err(named(request.pid, error))
        }
    }
}

/// Gives a refusal the name of the tree.
fn named(pid: i32, error: CheckpointError) -> CheckpointError {
    match error {
        CheckpointError::Collect(CaptureError::Refused(obstacles)) => {
            CheckpointError::Refused { pid, name: torpor_proc::name(pid), obstacles }
        }
        error => error,
    }
}

impl Capture<'_> {
    fn reached(&mut self, step: Step) -> Result<(), Fault> {
        self.timings.reached(step, self.request.faults)
    }

    /// Everything up to and with the commit.
    fn commit(&mut self) -> Result<(Tree, u64), CheckpointError> {
        let root = self.request.pid;
        let look = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => CheckpointError::NotFound(root),
            _ => CheckpointError::Look(root, error),
        };
        fs::metadata(format!("/proc/{root}/task/{root}")).map_err(look)?;
        let before = pids(root).map_err(look)?;
        if before.contains(&(std::process::id() as i32)) {
            return Err(CheckpointError::Own(root));
        }
        let began = Began::take(&before, &WaitHistory::default()).map_err(look)?;
        let file = self.begin()?;
        self.reached(Step::Prepared)?;

        self.stopped = stop(root, &before).map_err(CheckpointError::Collect)?;
        let memories = WaitHistory::default();
        let (at, mut records) = (now(), Vec::new());
        for process in self.stopped.iter_mut().filter_map(|process| process.alive.as_mut()) {
            for thread in &mut process.threads {
                let plan = ThreadPlan::of(process.pid, thread, &began, &memories);
                self.plans.push(plan);
                records.push(for_record(plan, &began));
                // Put right at once: should we die here, it goes on properly.
                plan.prepare_quietly(thread, at)?;
            }
        }
        self.reached(Step::Stopped)?;

        let collected = capture(&self.stopped, &records, &file, HEADER_BYTES, self.request.lock);
        let CapturedTree { tree, pages_end, connections, .. } = collected.map_err(CheckpointError::Collect)?;
        self.connections = connections;
        let sound = tree.check(&(HEADER_BYTES..pages_end));
        sound.map_err(|error| self.cannot_be_restored(unreadable(&error)))?;
        let plan = compile(&tree).map_err(|error| self.cannot_be_restored(error.to_string()))?;
        let partial = self.partial.as_ref().ok_or_else(|| self.wrong(io::ErrorKind::NotFound.into()))?;
        let image_bytes = write(partial, &tree, &plan, pages_end, (0, Epoch::FIRST, 0));
        let image_bytes = image_bytes.map_err(|error| self.wrong(error))?;
        self.reached(Step::Copied)?;

        file.sync_data().map_err(|error| self.wrong(error))?;
        self.reached(Step::Synced)?;

        // Once it is committed it is there, whatever else fails.
        let after = |error| CheckpointError::After { pid: root, error: Box::new(error) };
        match self.partial.take().map(|partial| partial.commit(Durability::PowerCuts)) {
            Some(Ok(_)) => {}
            Some(Err(CommitError::Unsynced { error, .. })) => return Err(after(self.wrong(error))),
            Some(Err(CommitError::Unnamed { partial, error })) => {
                self.partial = Some(partial);
                return Err(self.wrong(error));
            }
            None => return Err(self.wrong(io::ErrorKind::NotFound.into())),
        }
        self.reached(Step::Committed).map_err(|fault| after(fault.into()))?;
        Ok((tree, image_bytes))
    }

    fn wrong(&self, error: io::Error) -> CheckpointError {
        let path = self.partial.as_ref().map_or(self.image.path(), Partial::path);
        CheckpointError::Image(path.to_owned(), error)
    }

    /// What cannot be restored is not captured.
    fn cannot_be_restored(&self, why: String) -> CheckpointError {
        let obstacle = Blocker::new(self.request.pid, Place::Process, why, "");
        CheckpointError::Collect(obstacle.into())
    }

    fn begin(&mut self) -> Result<Arc<File>, CheckpointError> {
        let folder = self.request.folder;
        match fs::create_dir(folder) {
            Ok(()) => self.made_folder = true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(CheckpointError::Image(folder.to_owned(), error)),
        }
        let partial = self.image.begin().map_err(|error| self.wrong(error))?;
        Ok(self.partial.insert(partial).file().clone())
    }

    /// The tree runs on, and nothing stays of an image that was not committed.
    fn undo(&mut self) -> Result<(), CheckpointError> {
        let released = self.release();
        if let Some(lock) = self.request.lock {
            lock.release("").map_err(CheckpointError::Lock)?;
        }
        let discarded = self.partial.take().map_or(Ok(()), Partial::discard);
        discarded.map_err(|error| self.wrong(error))?;
        if self.made_folder && !self.image.path().exists() {
            let folder = self.request.folder;
            fs::remove_dir(folder).map_err(|error| CheckpointError::Image(folder.to_owned(), error))?;
        }
        released
    }

    /// Lets every thread go on as if it had never been stopped.
    fn release(&mut self) -> Result<(), CheckpointError> {
        let processes: Vec<_> =
            std::mem::take(&mut self.stopped).into_iter().filter_map(|process| process.alive).collect();
        let threads = processes.iter().flat_map(|process| &process.threads);
        let under_job_control: Vec<i32> = threads
            .filter(|thread| thread.tracee.group_stop().is_some())
            .map(|thread| thread.tracee.thread())
            .collect();
        let changes = let_go(processes, &self.plans)?;
        changes.undo().map_err(|error| CheckpointError::Look(self.request.pid, error))?;
        under_job_control.into_iter().for_each(settle);
        Ok(())
    }

    /// Behind this the tree ends, even if we are killed. Before it, nothing of it has been ended; after an error it runs on.
    /// Resets of its connections are held back from before this on: behind it, our death would else be theirs.
    fn doom(&mut self, locked: Option<(&dyn ConnectionLock, &str)>) -> Result<Doomed, CheckpointError> {
        let doomed = locked.map_or(Ok(()), |(lock, name)| {
            lock.keep(name).map_err(CheckpointError::Lock)?;
            Ok(self.request.faults.reached(Step::FilesParked)?)
        });
        let error = match doomed.and_then(|()| Doomed::new(&self.stopped, &self.connections)) {
            Ok(doomed) => return Ok(doomed),
            Err(error) => error,
        };
        let unlocked = locked.map_or(Ok(()), |(lock, name)| lock.release(name).map_err(CheckpointError::Lock));
        for undone in [self.release(), unlocked] {
            if let Err(second) = undone {
                tracing::error!(pid = self.request.pid, error = %second, "could not let it go on");
            }
        }
        Err(error)
    }

    /// Ends the tree, or lets it go.
    fn finish(mut self, tree: &Tree, image_bytes: u64) -> Result<Checkpointed, CheckpointError> {
        let after = |error| CheckpointError::After { pid: self.request.pid, error: Box::new(error) };
        let locked = self.request.lock.filter(|_| !torpor_descriptors::outside(tree).is_empty());
        let mut name = None;
        if self.request.leave_running {
            // What it sends from now on is its own.
            locked.map_or(Ok(()), |lock| lock.release("")).map_err(|error| after(CheckpointError::Lock(error)))?;
            self.release().map_err(after)?;
        } else {
            name = locked.map(|_| torpor_descriptors::lock_name(&tree.machine));
            let doomed = self.doom(locked.zip(name.as_deref())).map_err(after)?;
            self.request.faults.reached(Step::Ending).map_err(|fault| after(fault.into()))?;
            doomed.end(std::mem::take(&mut self.stopped), &self.connections).map_err(after)?;
            self.request.faults.reached(Step::Ended).map_err(|fault| after(fault.into()))?;
            self.connections.clear();
            closer::settle(torpor_descriptors::SETTLE);
        }
        self.reached(Step::Released).map_err(|fault| after(fault.into()))?;
        Ok(Checkpointed {
            image: self.image.path().to_owned(),
            processes: tree.processes.len(),
            threads: tree.threads().count(),
            image_bytes,
            locked: name,
            timings: self.timings,
        })
    }
}

/// Waits until a thread that job control has stopped is stopped again: it wakes up for that when it is let go. There is no
/// event, and somebody may have continued it meanwhile.
fn settle(tid: i32) {
    const LOOKS: u32 = 1000;
    for _ in 0..LOOKS {
        if torpor_proc::stat::read(&format!("/proc/{tid}/stat")).map_or(true, |stat| stat.state != 'R') {
            return;
        }
        std::thread::yield_now();
    }
}

/// The reason to refuse a tree whose image would fail the reader's own checks.
pub(crate) fn unreadable(error: &FormatError) -> String {
    format!("it has more than an image can hold: {error}")
}

/// Writes everything but the pages of an image of this app, epoch and generation; gives the file's length.
pub(crate) fn write(
    image: &Partial,
    tree: &Tree,
    plan: &[u8],
    pages_end: u64,
    (app, epoch, generation): (u64, Epoch, u64),
) -> io::Result<u64> {
    let state = tree.encode();
    let first = tree.processes.iter().find_map(|process| process.alive()).and_then(|life| life.threads.first());
    let header = Header {
        version: VERSION,
        kind: Kind::Complete,
        app,
        epoch,
        generation,
        boot: tree.machine.boot,
        pages_bytes: pages_end - HEADER_BYTES,
        state_bytes: state.len() as u64,
        state_checksum: checksum(&state),
        plan_bytes: plan.len() as u64,
        plan_checksum: checksum(plan),
        needs: Needs {
            kernel: KERNEL,
            cpu: torpor_linux::cpu::features(),
            xstate_mask: first.map_or(0, |thread| xstate_mask(&thread.xstate)),
        },
    };
    image.file().write_all_at(&state, header.state_offset())?;
    image.file().write_all_at(plan, header.plan_offset())?;
    image.finish(&header)
}

/// Components that the kernel saves, which it says in bytes that the processor leaves to software.
fn xstate_mask(xstate: &[u8]) -> u64 {
    const PLACE: std::ops::Range<usize> = 464..472;
    xstate.get(PLACE).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// A tree that will end, whatever comes.
struct Doomed {
    /// Descriptors of its processes.
    processes: Vec<OwnedFd>,
    /// What ends them, too, where they are several or have connections: it takes several calls.
    guard: Option<CrashGuard>,
}

impl Doomed {
    fn new(stopped: &[Stopped], connections: &[AppFile]) -> Result<Self, CheckpointError> {
        let alive = stopped.iter().filter_map(|process| process.alive.as_ref());
        let processes = alive.map(|process| {
            let pid = Pid::from_raw(process.pid).ok_or(rustix::io::Errno::SRCH);
            let opened = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
            opened.map_err(|error| CheckpointError::Look(process.pid, error.into()))
        });
        let processes: Vec<_> = processes.collect::<Result<_, _>>()?;
        let connections: Vec<_> = connections.iter().map(AsFd::as_fd).collect();
        let guard = CrashGuard::of_end(&processes, &connections, &[]).map_err(CheckpointError::CrashGuard)?;
        Ok(Self { processes, guard })
    }

    /// Ends every process and waits until none of them runs. Their connections end without a word.
    fn end(self, stopped: Vec<Stopped>, connections: &[AppFile]) -> Result<(), CheckpointError> {
        let alive = stopped.into_iter().filter_map(|process| process.alive);
        let alive: Vec<_> = alive.zip(&self.processes).collect();
        for (process, descriptor) in &alive {
            let killed = pidfd_send_signal(descriptor, Signal::KILL);
            killed.map_err(|error| CheckpointError::Look(process.pid, error.into()))?;
        }
        torpor_descriptors::silence(connections);
        // All is done that it would do: whether it is still there does not matter.
        let _ = self.guard.map_or(Ok(()), CrashGuard::dismiss);
        for (mut process, _) in alive {
            // The first thread's end is told only when the others' has been taken.
            while process.threads.pop().is_some() {}
        }
        Ok(())
    }
}
