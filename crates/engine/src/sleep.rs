//! Falling asleep: freeze, capture, commit, drop.
//!
//! ```text
//!            ┌────────────── abortable: thaw and carry on ───────────────┐
//! running ─▶ prepared ─▶ frozen ─▶ stopped ─▶ watched ─▶ copied ─▶ synced ─▶ committed
//!                                                                              │ journal: Dropping
//!                        dozing ◀─ released ◀─ dropped ◀─ parked ◀─────────────┘
//!                        journal: Dozing
//! ```
//!
//! Until `committed` nothing of the app has been changed but for interrupted calls put right, and any event on a watched
//! descriptor aborts. So does a thread that was stopped while it ran: it may be in the middle of an answer, and nothing that
//! is still to come would wake it. From `committed` on the image is the truth: an error refills from it and lets the app run, and a
//! crash leaves threads that are frozen, stopped or in the park loop, never running with memory missing.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use torpor_image::{HEADER_BYTES, Header, State, checksum};

use crate::memory::copy::{CopyError, PageSink, Range, copy};
use crate::memory::layout::Flags;
use crate::memory::refill::refill;
use crate::plan::{Began, Memories, ThreadPlan, let_go};
use crate::step::{Fault, Faults, Step, Timings};
use crate::target::{Freezer, Journal, Phase};
use crate::timers::{earliest, process_timers, timer_descriptors};
use crate::trace::{Process, TraceError, install_park_loop, stop_all};
use crate::wait::since::now;
use crate::wait::sources::waits;
use crate::watch::{Source, Waiting, Watch, WatchError};

/// An app that is to sleep, and what its worker gives for it.
pub struct Target<'a> {
    /// Its id, in the image's header.
    pub app: u64,
    /// This boot of the machine.
    pub boot: [u64; 2],
    /// Freezes and thaws it.
    pub freezer: &'a dyn Freezer,
    /// Keeps its phase.
    pub journal: &'a dyn Journal,
    /// Told of every step.
    pub faults: &'a dyn Faults,
}

/// How it is to sleep.
pub struct Request<'a> {
    /// Where the image goes; a file beside it, with `.part` appended, is used until it is complete.
    pub image: PathBuf,
    /// Generation of the image, higher than all before.
    pub generation: u64,
    /// Timers longer than this wake it.
    pub timers_over: Duration,
    /// Watch the members of epoll descriptors one by one.
    pub single_sockets: bool,
    /// Tells it to give up.
    pub abort: &'a Abort,
    /// What is remembered of its last sleep.
    pub memories: &'a Memories,
}

/// Asks a sleep that has not committed to give up; usable from any thread.
#[derive(Clone, Debug)]
pub struct Abort(Arc<(AtomicBool, OwnedFd)>);

impl Abort {
    /// One that has not been asked for.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new((AtomicBool::new(false), eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))))
    }

    /// Asks.
    pub fn ask(&self) {
        self.0.0.store(true, Ordering::Release);
        // A full counter is readable all the same.
        let _ = rustix::io::write(&self.0.1, &1_u64.to_ne_bytes());
    }

    fn asked(&self) -> bool {
        self.0.0.load(Ordering::Acquire)
    }
}

/// A dozing app: everything that waking it takes.
#[derive(Debug)]
pub struct Asleep {
    /// What the image holds.
    pub state: State,
    /// What wakes it.
    pub watch: Watch,
    /// When a timer must wake it, by `CLOCK_MONOTONIC`.
    pub wake_at: Option<Duration>,
    /// The image.
    pub image: PathBuf,
    /// Its generation.
    pub generation: u64,
    /// Bytes of the image's file.
    pub image_bytes: u64,
    /// Private memory that stays, shared copy-on-write between processes or in swap, bytes.
    pub kept_bytes: u64,
    /// For the next sleep.
    pub memories: Memories,
    pub(crate) plans: Vec<ThreadPlan>,
}

/// What came of putting an app to sleep.
#[derive(Debug)]
pub struct Attempt {
    /// It sleeps, or why not.
    pub result: Result<Asleep, SleepError>,
    /// How long each step took.
    pub timings: Timings,
    /// For the next attempt, where this one has stopped the app and let it run again: the kernel then goes on with calls
    /// whose number only we know.
    pub memories: Option<Memories>,
}

/// Why it did not fall asleep. In all cases but [`SleepError::Lost`] it runs as before.
#[derive(Debug, thiserror::Error)]
pub enum SleepError {
    /// It has work to do, or was asked to give up.
    #[error("given up: {0}")]
    Aborted(String),
    /// It cannot sleep as it is.
    #[error("it cannot sleep: {0}")]
    Refused(String),
    /// Something failed on the way.
    #[error("failed at {}", .at.name())]
    Failed {
        /// The last step that was reached.
        at: Step,
        /// What failed.
        #[source]
        error: Box<Failure>,
    },
    /// It failed after memory had been dropped, and memory could not be brought back: the app stays frozen, the image is
    /// kept.
    #[error("failed, and its memory could not be brought back")]
    Lost(#[source] Box<Failure>),
}

/// What can fail.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Freezing or thawing.
    #[error("freezing or thawing it")]
    Freeze(#[source] io::Error),
    /// Looking at it.
    #[error("looking at its processes")]
    Look(#[source] io::Error),
    /// Tracing.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Copying memory.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// Watching descriptors.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// The image's file.
    #[error("image {}", .0.display())]
    Image(PathBuf, #[source] io::Error),
    /// The journal.
    #[error("writing the journal")]
    Journal(#[source] io::Error),
    /// Memory did not come back.
    #[error(transparent)]
    Refill(#[from] crate::RefillError),
    /// A test asked for it.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Why the first part ended.
enum Stop {
    Aborted(String),
    Refused(String),
    Failed(Failure),
}

impl<T: Into<Failure>> From<T> for Stop {
    fn from(failure: T) -> Self {
        match failure.into() {
            Failure::Watch(WatchError::Ready(source)) => Self::Aborted(describe(&source)),
            Failure::Trace(error @ TraceError::Uninterruptible { .. }) => Self::Refused(error.to_string()),
            Failure::Trace(error @ TraceError::NoVdso(_)) => Self::Refused(error.to_string()),
            Failure::Copy(error @ CopyError::Refused { .. }) => Self::Refused(error.to_string()),
            other => Self::Failed(other),
        }
    }
}

fn describe(source: &Source) -> String {
    format!("an event on {} (descriptor {} of process {})", source.what, source.fd, source.pid)
}

/// Descriptors that pin memory for the kernel: dropping it would part the kernel's view from the program's.
const PINNING: [(&str, &str); 3] = [
    ("anon_inode:[io_uring]", "io_uring may hold its memory; start it with io_uring off (the default filter does)"),
    ("/dev/infiniband/", "RDMA holds its memory"),
    ("anon_inode:kvm-vm", "it runs a virtual machine"),
];

struct Sleep<'a> {
    target: &'a Target<'a>,
    request: &'a Request<'a>,
    timings: Timings,
    part: PathBuf,
    frozen: bool,
    processes: Vec<Process>,
    plans: Vec<ThreadPlan>,
    memories: Option<Memories>,
}

/// What the first part has made.
struct Captured {
    state: State,
    drops: Vec<(i32, Vec<Range>)>,
    watch: Watch,
    image_bytes: u64,
    kept_bytes: u64,
}

/// Puts an app to sleep. Runs on one thread from beginning to end, since tracing belongs to a thread.
pub fn fall_asleep(target: &Target<'_>, request: &Request<'_>) -> Attempt {
    let mut part = request.image.clone().into_os_string();
    part.push(".part");
    let mut sleep = Sleep {
        target,
        request,
        timings: Timings::begin(),
        part: part.into(),
        frozen: false,
        processes: Vec::new(),
        plans: Vec::new(),
        memories: None,
    };
    let result = match sleep.capture() {
        Ok(captured) => sleep.drop_memory(captured),
        Err(stop) => Err(sleep.give_up(stop)),
    };
    Attempt { result, timings: sleep.timings, memories: sleep.memories }
}

impl Sleep<'_> {
    fn reached(&mut self, step: Step) -> Result<(), Fault> {
        self.timings.reached(step, self.target.faults)
    }

    fn at(&self) -> Step {
        self.timings.steps().last().map_or(Step::Prepared, |(step, _)| *step)
    }

    /// The abortable part, up to and with the commit.
    fn capture(&mut self) -> Result<Captured, Stop> {
        let pids = self.target.freezer.processes().map_err(Failure::Look)?;
        let (began, flags) = prepare(&pids)?;
        self.reached(Step::Prepared)?;

        self.frozen = true;
        self.target.freezer.freeze().map_err(Failure::Freeze)?;
        self.reached(Step::Frozen)?;

        let mut pids = self.target.freezer.processes().map_err(Failure::Look)?;
        pids.sort_unstable();
        if pids.is_empty() {
            return Err(Stop::Aborted("it has ended".to_owned()));
        }
        if let Some(pid) = crate::aio::user(&pids).map_err(Failure::Look)?
            && !crate::aio::drained().map_err(Failure::Look)?
        {
            return Err(Stop::Aborted(format!("disk I/O under way (io_submit, process {pid})")));
        }
        self.processes = stop_all(&pids)?;
        let at = now();
        for process in &mut self.processes {
            for thread in &mut process.threads {
                let plan = ThreadPlan::of(process.pid, thread, &began, self.request.memories);
                self.plans.push(plan);
                // Put right at once: should we die here, the app goes on properly.
                plan.prepare_quietly(thread, at)?;
            }
        }
        self.reached(Step::Stopped)?;

        if let Some(plan) = self.plans.iter().find(|plan| plan.at_work()) {
            let (pid, tid) = (plan.pid, plan.tid);
            return Err(Stop::Aborted(format!("thread {tid} of process {pid} ({}) is at work", crate::proc::name(pid))));
        }
        let watch = Watch::build(&self.waiting(), self.request.single_sockets)?;
        self.reached(Step::Watched)?;

        let captured = self.copy(&flags, watch)?;
        self.commit(captured)
    }

    fn waiting(&self) -> Vec<Waiting> {
        let mut waiting: Vec<Waiting> = Vec::with_capacity(self.processes.len());
        for plan in &self.plans {
            // A call that was not interrupted has just ended: nothing is waited for.
            let number = plan.interrupted.map(|interrupted| interrupted.number);
            let found = waits(number, &plan.registers, &crate::plan::RemoteMemory(plan.pid));
            match waiting.last_mut().filter(|process| process.pid == plan.pid) {
                Some(process) => process.waits.push(found),
                None => waiting.push(Waiting { pid: plan.pid, waits: vec![found] }),
            }
        }
        waiting
    }

    /// Copies all memory into the image and writes it out.
    fn copy(&mut self, flags: &[(i32, Flags)], watch: Watch) -> Result<Captured, Stop> {
        let wrong = |error| Failure::Image(self.part.clone(), error);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&self.part)
            .map_err(wrong)?;
        let mut sink = PageSink::new(&file, HEADER_BYTES);
        let mut state = State::default();
        let mut drops = Vec::new();
        let mut kept_pages = 0;
        let mut spaces: Vec<i32> = Vec::new();
        for process in &self.processes {
            let park_address = install_park_loop(process.pid)?;
            let copied = if shares_with(process.pid, &spaces)? {
                Some(crate::memory::copy::Copied::default())
            } else {
                spaces.push(process.pid);
                let none = Flags::default();
                let flags = flags.iter().find(|(pid, _)| *pid == process.pid).map_or(&none, |(_, flags)| flags);
                let mut go_on = || !self.request.abort.asked() && matches!(watch.fired(), Ok(None));
                copy(process.pid, flags, &mut sink, &mut go_on)?
            };
            let Some(copied) = copied else {
                return Err(Stop::Aborted("an event while its memory was copied".to_owned()));
            };
            kept_pages += copied.kept_pages;
            drops.push((process.pid, copied.drop));
            state.processes.push(self.process_state(process, park_address, copied.regions));
        }
        let encoded = state.encode();
        let header = Header {
            app: self.target.app,
            generation: self.request.generation,
            boot: self.target.boot,
            pages_bytes: sink.offset - HEADER_BYTES,
            state_bytes: encoded.len() as u64,
            state_checksum: checksum(&encoded),
        };
        let pages_end = sink.offset;
        file.write_all_at(&encoded, pages_end).map_err(wrong)?;
        file.write_all_at(&header.encode(), 0).map_err(wrong)?;
        self.reached(Step::Copied)?;

        self.sync(file, &watch)?;
        self.reached(Step::Synced)?;
        let image_bytes = pages_end + encoded.len() as u64;
        let kept_bytes = kept_pages * torpor_image::PAGE;
        Ok(Captured { state, drops, watch, image_bytes, kept_bytes })
    }

    fn process_state(
        &self,
        process: &Process,
        park_address: u64,
        regions: Vec<torpor_image::Region>,
    ) -> torpor_image::Process {
        let threads = process.threads.iter().map(|thread| {
            let tid = thread.tracee.thread();
            let wait = self.plans.iter().find(|plan| plan.tid == tid).and_then(ThreadPlan::deadline);
            torpor_image::Thread {
                tid,
                registers: *thread.registers.words(),
                signal_mask: thread.signal_mask,
                wait: wait.map(|deadline| torpor_image::Wait {
                    deadline_ns: deadline.at.as_nanos() as u64,
                    total_ns: deadline.total.as_nanos() as u64,
                }),
            }
        });
        torpor_image::Process {
            pid: process.pid,
            start_ticks: process.start_ticks,
            park_address,
            regions,
            threads: threads.collect(),
        }
    }

    /// Waits until the image is on disk, but no longer than until something happens.
    fn sync(&self, file: File, watch: &Watch) -> Result<(), Stop> {
        let wrong = |error| Failure::Image(self.part.clone(), error);
        let done = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| wrong(e.into()))?;
        let tell = done.try_clone().map_err(wrong)?;
        let syncing = std::thread::Builder::new().name("image-sync".to_owned()).spawn(move || {
            let result = file.sync_data();
            // The reader holds the other duplicate; a counter of one cannot overflow.
            let _ = rustix::io::write(&tell, &1_u64.to_ne_bytes());
            result
        });
        let syncing = syncing.map_err(wrong)?;
        let abort = &self.request.abort.0.1;
        loop {
            let mut fds = [
                PollFd::new(&done, PollFlags::IN),
                PollFd::new(watch, PollFlags::IN),
                PollFd::new(abort, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(wrong(error.into()).into()),
                Ok(_) => {}
            }
            self.check_events(watch)?;
            if !fds[0].revents().is_empty() {
                break;
            }
        }
        let result = syncing.join().unwrap_or_else(|_| Err(io::Error::other("the syncing thread panicked")));
        result.map_err(|error| wrong(error).into())
    }

    fn check_events(&self, watch: &Watch) -> Result<(), Stop> {
        if self.request.abort.asked() {
            return Err(Stop::Aborted("asked to".to_owned()));
        }
        match watch.fired().map_err(Failure::Look)? {
            Some(source) => Err(Stop::Aborted(describe(&source))),
            None => Ok(()),
        }
    }

    /// Makes the image current. The last look at the descriptors comes just before.
    fn commit(&mut self, captured: Captured) -> Result<Captured, Stop> {
        fs::rename(&self.part, &self.request.image)
            .map_err(|error| Failure::Image(self.request.image.clone(), error))?;
        self.check_events(&captured.watch)?;
        let phase = Phase::Dropping { generation: self.request.generation };
        self.target.journal.record(phase).map_err(Failure::Journal)?;
        Ok(captured)
    }

    /// Undoes everything: the app goes on as if nothing had been.
    fn give_up(&mut self, stop: Stop) -> SleepError {
        let at = self.at();
        let undone = self.undo();
        let error = match stop {
            Stop::Aborted(by) => SleepError::Aborted(by),
            Stop::Refused(why) => SleepError::Refused(why),
            Stop::Failed(error) => SleepError::Failed { at, error: Box::new(error) },
        };
        match undone {
            Ok(()) => error,
            Err(failure) => SleepError::Failed { at, error: Box::new(failure) },
        }
    }

    fn undo(&mut self) -> Result<(), Failure> {
        // In this order: whatever fails, the app is thawed; an image that stays behind is removed by the next start.
        let released = let_go(std::mem::take(&mut self.processes), &self.plans);
        let thawed = if self.frozen { self.target.freezer.thaw().map_err(Failure::Freeze) } else { Ok(()) };
        for path in [&self.part, &self.request.image] {
            remove_if_there(path).map_err(|error| Failure::Image(path.clone(), error))?;
        }
        thawed?;
        self.target.journal.record(Phase::Awake).map_err(Failure::Journal)?;
        let mut switches = std::collections::HashMap::new();
        for change in released? {
            switches.extend(change.undo().map_err(Failure::Look)?);
        }
        if !self.plans.is_empty() {
            let timers = self.request.memories.timers.clone();
            self.memories = Some(Memories { waits: carried(&self.plans), timers, switches });
        }
        Ok(())
    }

    /// The part that cannot be aborted.
    fn drop_memory(&mut self, captured: Captured) -> Result<Asleep, SleepError> {
        match self.try_drop(&captured) {
            Ok((wake_at, memories)) => Ok(Asleep {
                state: captured.state,
                watch: captured.watch,
                wake_at,
                image: self.request.image.clone(),
                generation: self.request.generation,
                image_bytes: captured.image_bytes,
                kept_bytes: captured.kept_bytes,
                memories,
                plans: std::mem::take(&mut self.plans),
            }),
            Err(error) => {
                let at = self.at();
                match self.bring_back(&captured.state) {
                    Ok(()) => Err(SleepError::Failed { at, error: Box::new(error) }),
                    Err(error) => Err(SleepError::Lost(Box::new(error))),
                }
            }
        }
    }

    fn try_drop(&mut self, captured: &Captured) -> Result<(Option<Duration>, Memories), Failure> {
        self.reached(Step::Committed)?;
        let park = |pid: i32| {
            let found = captured.state.processes.iter().find(|process| process.pid == pid);
            found.map(|process| process.park_address).ok_or(TraceError::NoVdso(pid))
        };
        for process in &self.processes {
            process.park(park(process.pid)?)?;
        }
        self.target.freezer.thaw().map_err(Failure::Freeze)?;
        self.reached(Step::Parked)?;

        let mut timers = Vec::new();
        let before = &self.request.memories.timers;
        for process in &self.processes {
            timers.extend(timer_descriptors(process.pid, now(), before).map_err(Failure::Look)?);
            timers.extend(process_timers(process, park(process.pid)?, now(), before)?);
        }
        for (process, (_, ranges)) in self.processes.iter().zip(&captured.drops) {
            drop_ranges(process, park(process.pid)?, ranges)?;
        }
        self.reached(Step::Dropped)?;

        self.target.freezer.freeze().map_err(Failure::Freeze)?;
        for thread in std::mem::take(&mut self.processes).into_iter().flat_map(|process| process.threads) {
            thread.release()?;
        }
        self.reached(Step::Released)?;

        let memories = Memories {
            waits: carried(&self.plans),
            timers: timers.clone(),
            switches: Default::default(),
        };
        timers.extend(self.plans.iter().filter_map(ThreadPlan::deadline));
        let wake_at = earliest(&timers, self.request.timers_over);
        let phase = Phase::Dozing { generation: self.request.generation, wake_at };
        self.target.journal.record(phase).map_err(Failure::Journal)?;
        self.reached(Step::Dozing)?;
        Ok((wake_at, memories))
    }

    /// After a failure behind the commit: memory from the image, then on as if nothing had been.
    fn bring_back(&mut self, state: &State) -> Result<(), Failure> {
        // A thread that is let go behind a remote call restarts its own call only by way of the freezer.
        self.target.freezer.freeze().map_err(Failure::Freeze)?;
        let image = File::open(&self.request.image)
            .map_err(|error| Failure::Image(self.request.image.clone(), error))?;
        let mut buffer = Vec::new();
        for process in &state.processes {
            refill(&image, process, &mut buffer)?;
        }
        self.frozen = true;
        self.undo()
    }
}

fn carried(plans: &[ThreadPlan]) -> std::collections::HashMap<i32, crate::wait::restart::Carried> {
    plans.iter().filter_map(|plan| Some((plan.tid, plan.carried()?))).collect()
}

impl ThreadPlan {
    /// As [`ThreadPlan::prepare`], but for a thread that stays stopped: a socket's time-out is left for later.
    fn prepare_quietly(&self, thread: &mut crate::trace::Thread, at: Duration) -> Result<(), TraceError> {
        let mut plan = *self;
        if let Some(interrupted) = &mut plan.interrupted {
            interrupted.timeout =
                interrupted.timeout.filter(|t| !matches!(t.place, crate::wait::restart::Place::Socket { .. }));
        }
        plan.prepare(thread, at).map(drop)
    }
}

/// What can be known while the app still runs.
fn prepare(pids: &[i32]) -> Result<(Began, Vec<(i32, Flags)>), Stop> {
    let mut flags = Vec::with_capacity(pids.len());
    for pid in pids {
        let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(3);
        match Flags::read(*pid) {
            Ok(found) => flags.push((*pid, found)),
            Err(error) if gone(&error) => continue,
            Err(error) => return Err(Failure::Look(error).into()),
        }
        for (fd, what) in crate::proc::descriptors(*pid).map_err(Failure::Look)? {
            if let Some((_, why)) = PINNING.iter().find(|(kind, _)| what.starts_with(kind)) {
                let name = crate::proc::name(*pid);
                return Err(Stop::Refused(format!("{why} (descriptor {fd} of process {pid}, {name})")));
            }
        }
    }
    Ok((Began::take(pids).map_err(Failure::Look)?, flags))
}

/// The process has the address space of one of `others`.
fn shares_with(pid: i32, others: &[i32]) -> Result<bool, Failure> {
    for other in others {
        if torpor_linux::kcmp::address_spaces(pid, *other).map_err(Failure::Look)?.is_eq() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Drops ranges of a parked process's memory. A range that the kernel will not drop stays, which only costs memory.
fn drop_ranges(process: &Process, park_address: u64, ranges: &[Range]) -> Result<(), TraceError> {
    const MADVISE: u64 = 28;
    const MADV_DONTNEED_LOCKED: u64 = 24;
    for Range { start, end } in ranges {
        let arguments = [*start, end - start, MADV_DONTNEED_LOCKED];
        match process.call(park_address, "madvise", MADVISE, &arguments) {
            Ok(_) => {}
            Err(TraceError::Call { pid, error, .. }) => {
                tracing::debug!(pid, start, end, %error, "memory stays");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
