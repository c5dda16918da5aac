//! Making a process tree from its image.
//!
//! ```text
//! read ▶ checked ▶ opened ▶ launched ▶ born ▶ verified ▶ built ▶ finished ▶ running
//! └─ nothing is started ──┘ └──────── any error or our death: all of it is killed ──┘
//! ```
//! The restorer is the tracer and the parent of the tree's root. It opens every file, starts a seed that inherits them,
//! and runs the plan (see [`compile`]) in it: each process and thread makes the system calls that turn it into what the
//! image says. The restorer waits at barriers, checks the pages meanwhile, and in the end gives each thread its registers
//! by ptrace and lets it go, the root last. So no code of the restorer ever runs after the program's own does, and no
//! writable page of it stays.
//!
//! # Failing
//! All tracees have `PTRACE_O_EXITKILL`: if the restorer dies, at any step, they die. On an error they are killed and waited
//! for before [`restore`] comes back. The image is only read.
//!
//! To let go takes several calls. A [`Guard`] that is there until behind the last of them kills all processes should the
//! restorer die in between, some of which may have run for a moment. TCP connections to the outside live before that already,
//! while a lock keeps their packets away: the guard closes them without a word, and they wait for the next restore. System V
//! segments, which would outlive us, have one from before they are made. Where we are killed behind that, the tree runs; the
//! lock's last part, which a killed restorer leaves, is in nobody's way.
//!
//! # What is not the same
//! Who had a parent outside of the tree has the restorer as its parent, and no parent-death signal. A root whose session or
//! group was made outside of the tree is in the restorer's.

pub(crate) mod calls;
pub(crate) mod check;
mod compile;
mod error;
pub(crate) mod fill;
pub(crate) mod finish;
mod limits;
mod load;
pub(crate) mod logins;
pub(crate) mod open;
pub(crate) mod plan;
pub(crate) mod pool;
pub(crate) mod run;
pub(crate) mod staged;
mod step;
#[cfg(test)]
mod tests;
mod vet;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use torpor_image::tree::{FileKind, Life, Namespaces, Tree};
use torpor_linux::guard::Guard;

pub use compile::{CompileError, compile};
pub use error::RestoreError;
pub use step::{RestoreFaults, RestoreStep};

use self::finish::Inherited;
pub(crate) use self::limits::lower_limits;
pub(crate) use self::load::{Loaded, load, plan_again};
use self::logins::Logins;
use self::open::{Opened, Starters};
use self::run::Building;
use self::staged::Staged;
use crate::files::{self, Around, ConnectionLock, Given, Removed, Root};
use crate::proc;
use crate::step::Timings;
use crate::wait::socket::SocketChanges;

/// How long it may take until a process that was stopped has stopped again.
const STOPS_WITHIN: Duration = Duration::from_secs(1);
/// Between two looks at it.
const STOP_PAUSE: Duration = Duration::from_micros(50);

/// What to restore.
pub struct Restore<'a> {
    /// The image's file.
    pub image: &'a Path,
    /// For standard input, output and error of the tree that came from outside.
    pub standard: [Option<OwnedFd>; 3],
    /// For TCP connections to the outside, whose packets it keeps away until they are there again.
    pub lock: Option<&'a dyn ConnectionLock>,
    /// Told of every step.
    pub faults: RestoreFaults<'a>,
}

/// A tree that runs again.
#[derive(Debug)]
pub struct Restored {
    /// Its root, a child of this process.
    pub pid: i32,
    /// Its processes, those that have ended too.
    pub processes: usize,
    /// Their threads.
    pub threads: usize,
    /// Bytes of pages that were read.
    pub page_bytes: u64,
    /// What is not as it was, and why.
    pub warnings: Vec<String>,
    /// How long each step took.
    pub timings: Timings<RestoreStep>,
}

/// Restores a tree. The calling thread becomes the parent of its root.
///
/// # Errors
/// See [`RestoreError`]: nothing of the tree is left then.
pub fn restore(request: Restore<'_>) -> Result<Restored, RestoreError> {
    let mut timings = Timings::begin();
    let mut reached = |step| {
        timings.mark(step);
        (request.faults)(step)
    };
    let Loaded { file, header, tree, mut plan } = load(request.image)?;
    reached(RestoreStep::Read)?;

    let same_boot = crate::collect::boot().map_or(true, |boot| boot == tree.machine.boot);
    let around = Around { root: Root::Own, same_boot, passed: None, removed: None, charge: None, piece: None };
    let given = given(&tree, request.standard);
    let staged = Staged::of(&tree).ok_or(CompileError::NoNumbers)?;
    let mut wrong = check::machine(&header.needs, &tree);
    wrong.extend(pool::lacking(&tree, files::has_segment));
    wrong.extend(check::ids(&plan));
    if tree.namespaces != Namespaces::default() {
        wrong.push("it is of an app, which lives in namespaces of its own".to_owned());
    }
    let removed = Removed::of(&tree, &given, around.root).unwrap_or_else(|(path, error)| {
        wrong.push(format!("{}: {}", String::from_utf8_lossy(&path), std::io::Error::from(error)));
        Removed::default()
    });
    let around = Around { removed: Some(&removed), ..around };
    let paths = open::paths(&staged, &tree.contents, around).unwrap_or_else(|changed| {
        wrong.extend(changed);
        Vec::new()
    });
    let outside = files::outside(&tree);
    if !outside.is_empty() && request.lock.is_none() {
        wrong.push("it has TCP connections to the outside, and nobody to keep their packets away".to_owned());
    }
    if !wrong.is_empty() {
        return Err(RestoreError::Refused(wrong));
    }
    let mut warnings = Vec::new();
    lower_limits(&tree, &mut plan, &mut warnings);
    reached(RestoreStep::Checked)?;

    let lock = request.lock.filter(|_| !outside.is_empty());
    lock.map_or(Ok(()), |lock| lock.hold(&outside)).map_err(RestoreError::Lock)?;
    let segments = files::segments_to_make(&tree.memories)?;
    let no_segments = guard(&[], &[], &segments)?;
    let made = files::make(&tree, &file, given, around)?;
    let opened = Opened::new(&tree, Starters::new(&staged, &plan)?, made, paths, &file, None)?;
    let mut opened = opened.out_of_the_way(&staged)?;
    reached(RestoreStep::Opened)?;

    let logins = Logins::prepare(&tree).map_err(|error| RestoreError::Own("reading its login id", error))?;
    let no_processes = guard(&[], &connections(&tree, &opened), &[])?;
    let mut building = Building::launch(&tree, &plan, &opened)?;
    reached(RestoreStep::Launched)?;
    building.born()?;
    reached(RestoreStep::Born)?;
    finish::attributes(&building, &Inherited::look()?, &mut warnings)?;
    let page_bytes = fill::pages(&mut building, request.image, &file, None)?;
    reached(RestoreStep::Verified)?;
    building.built()?;
    reached(RestoreStep::Built)?;
    opened.made.finish(&tree, |id| id)?;
    finish::clear(&building, &plan, (&file, Duration::ZERO), (logins, opened.blob()), &mut warnings)?;
    finish::give_all(&building, Duration::ZERO)?;
    let guard = guard(&building.pidfds()?, &connections(&tree, &opened), &segments)?;
    dismiss(no_processes);
    dismiss(no_segments);
    opened.made.reconnect(&tree)?;
    let mut changes = SocketChanges::default();
    let time_outs = |error| RestoreError::Own("setting the time-outs of sockets", error);
    for wait in finish::socket_waits(&building, &opened.made, Duration::ZERO)? {
        changes.shorten(wait).map_err(time_outs)?;
    }
    reached(RestoreStep::Finished)?;
    building.release()?;
    // Now it runs, whatever comes.
    dismiss(guard);
    opened.made.keep();
    if let Err(error) = changes.undo() {
        warnings.push(format!("time-outs of sockets stay shortened: {error}"));
    }
    if let Some(lock) = lock {
        if let Err(error) = lock.release(&files::lock_name(&tree.machine)) {
            warnings.push(format!("packets of its TCP connections are still kept away: {error}"));
        }
        if let Err(error) = opened.made.nudge(&tree) {
            warnings.push(format!("a TCP connection goes on after a moment only: {error}"));
        }
    }
    timings.mark(RestoreStep::Running);
    Ok(Restored {
        pid: tree.processes[0].pid,
        processes: tree.processes.len(),
        threads: tree.threads().count(),
        page_bytes,
        warnings,
        timings,
    })
}

/// Where single steps leave something in between: should we be killed before all are made, these processes are ended, the
/// connections closed without a word, so that their peers wait for the next restore, and those of the segments removed that we have
/// made.
fn guard(
    processes: &[OwnedFd],
    connections: &[BorrowedFd<'_>],
    segments: &[i32],
) -> Result<Option<Guard>, RestoreError> {
    Guard::of_end(processes, connections, segments).map_err(|error| RestoreError::Own("starting a guard", error))
}

fn connections<'a>(tree: &'a Tree, opened: &'a Opened) -> Vec<BorrowedFd<'a>> {
    opened.made.connections(tree).map(|(fd, ..)| fd.as_fd()).collect()
}

/// Where it had been ended by somebody, nothing is different.
fn dismiss(guard: Option<Guard>) {
    let _ = guard.map_or(Ok(()), Guard::dismiss);
}

/// What was standard input, output or error of the root and came from outside gets ours.
fn given(tree: &Tree, standard: [Option<OwnedFd>; 3]) -> Given {
    let mut given = Given::new();
    let root = tree.processes[0].alive().map_or(&[][..], |life| &life.descriptors);
    for (fd, own) in standard.into_iter().enumerate() {
        let there = root.iter().find(|descriptor| descriptor.fd == fd as i32);
        if let (Some(there), Some(own)) = (there, own)
            && matches!(tree.files[there.file as usize].kind, FileKind::Outside { .. })
        {
            given.entry(there.file).or_insert(own.into());
        }
    }
    given
}

impl Building<'_> {
    /// Descriptors of all processes that live.
    fn pidfds(&self) -> Result<Vec<OwnedFd>, RestoreError> {
        let open = |(n, task): (usize, &plan::Task)| {
            let pid = Pid::from_raw(self.id(n)).ok_or(Errno::SRCH);
            let opened = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
            opened.map_err(|error| RestoreError::Set { pid: task.tid, what: "opening", error: error.into() })
        };
        let leaders = self.tasks().iter().enumerate().filter(|(_, task)| task.kind == plan::Kind::Thread(0));
        leaders.map(open).collect()
    }

    /// Lets everything go, the root last. After an error what was let go is there.
    pub(crate) fn release(mut self) -> Result<(), RestoreError> {
        self.released = true;
        for n in (0..self.newborns.len()).rev() {
            let Some(newborn) = self.newborns[n].take() else { continue };
            let task = &self.tasks()[n];
            let stopped = self.life(n).and_then(|life| life.stopped_by).filter(|_| task.kind == plan::Kind::Thread(0));
            let signal = stopped.unwrap_or(0);
            newborn.detach(signal).map_err(|error| RestoreError::Set { pid: task.tid, what: "letting go", error })?;
            if stopped.is_some() {
                self.wait_until_stopped(n);
            }
        }
        Ok(())
    }

    /// A stopped process stops by itself, also in the freezer. Before it has, SIGCONT would only take back the stop, and a parent that
    /// sends it would wait for ever for its child to continue (`WCONTINUED`).
    fn wait_until_stopped(&self, n: usize) {
        let path = format!("/proc/{}/stat", self.id(n));
        let deadline = Instant::now() + STOPS_WITHIN;
        // There is no event for who is not its parent. One that has been killed meanwhile is not there.
        while proc::stat(&path).is_ok_and(|stat| !matches!(stat.state, 'T' | 'Z' | 'X')) {
            if Instant::now() >= deadline {
                tracing::warn!(pid = self.id(n), "a process that was stopped has not stopped again yet");
                return;
            }
            std::thread::sleep(STOP_PAUSE);
        }
    }

    fn life(&self, n: usize) -> Option<&Life> {
        self.tree().processes[self.tasks()[n].process as usize].alive()
    }
}
