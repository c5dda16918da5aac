//! Making a process tree from its image.
//!
//! ```text
//! read ▶ checked ▶ opened ▶ launched ▶ forked ▶ verified ▶ built ▶ finished ▶ running
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
//! To let go takes several calls. A [`CrashGuard`] that is there until behind the last of them kills all processes should the
//! restorer die in between, some of which may have run for a moment. TCP connections to the outside live before that already,
//! while a lock keeps their packets away: the guard closes them without a word, and they wait for the next restore. System V
//! segments, which would outlive us, have one from before they are made. If we are killed after that, the tree runs; the
//! lock's last part, which a killed restorer leaves, is in nobody's way.
//!
//! # What is not the same
//! Who had a parent outside of the tree has the restorer as its parent, and no parent-death signal. A root whose session or
//! group was made outside of the tree is in the restorer's.
#![forbid(unsafe_code)]

pub mod check;
mod error;
mod fill;
mod finish;
pub mod huge_pages;
pub mod lazy;
mod limits;
mod load;
pub mod logins;
pub mod open;
pub mod read_ahead;
mod release;
pub mod run;
pub mod sequence;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use torpor_image::Region;
use torpor_image::tree::{Namespaces, Tree};
use torpor_linux::guard::CrashGuard;

pub use error::RestoreError;
pub use torpor_planner::compile::{CompileError, compile};
pub use torpor_process::step::{RestoreFaults, RestoreStep};

use self::lazy::{LatePages, Lazy};
pub use self::limits::lower_limits;
pub use self::load::{Loaded, load, plan_again};
use self::logins::Logins;
use self::open::{Opened, PathError, Starters};
use self::run::Building;
use self::sequence::{Launched, Seed, Source};
use torpor_descriptors::registry::{Stage, needs};
use torpor_descriptors::{ConnectionLock, Given, Network, Removed, RestoreContext, Root};
use torpor_pages::source::ImageFile;
use torpor_planner::plan::{Kind, Task};
use torpor_planner::staged::Staged;
use torpor_process::step::Timings;
use torpor_process::wait::socket::SocketChanges;

/// What to restore.
pub struct Restore<'a> {
    /// The image's file.
    pub image: &'a Path,
    /// For standard input, output and error of the tree that came from outside.
    pub standard: [Option<OwnedFd>; 3],
    /// For TCP connections to the outside, whose packets it keeps away until they are there again.
    pub lock: Option<&'a dyn ConnectionLock>,
    /// Serves pages that may come after the tree runs; without, all of them come first.
    pub late: Option<&'a dyn LatePages>,
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
    /// Bytes of pages that come while it runs.
    pub late_bytes: u64,
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
        Ok((request.faults)(step)?)
    };
    let Loaded { file, header, tree, mut plan } = load(request.image)?;
    reached(RestoreStep::Read)?;

    let same_boot = torpor_proc::boot().map_or(true, |boot| boot == tree.machine.boot);
    let around = RestoreContext {
        root: Root::Own,
        same_boot,
        network: Network::Same,
        passed: None,
        removed: None,
        charge: None,
        piece: None,
    };
    let given = given(&tree, request.standard);
    let staged = Staged::of(&tree).ok_or(CompileError::NoNumbers)?;
    let mut wrong = check::machine(&header.needs, &tree);
    wrong.extend(huge_pages::lacking(&tree, torpor_descriptors::has_segment));
    wrong.extend(check::ids(&plan));
    if tree.namespaces != Namespaces::default() {
        wrong.push("it is of an app, which lives in namespaces of its own".to_owned());
    }
    let mut changed = |error: PathError| match error {
        PathError::Changed(lines) => {
            wrong.extend(lines);
            Ok(())
        }
        passing => Err(RestoreError::from(passing)),
    };
    let removed = match Removed::of(&tree, &given, around.root) {
        Ok(removed) => removed,
        Err((path, error)) => changed(PathError::of(&path, error.into())).map(|()| Removed::default())?,
    };
    let around = RestoreContext { removed: Some(&removed), ..around };
    let paths = match open::paths(&staged, &tree.contents, around) {
        Ok(paths) => paths,
        Err(error) => changed(error).map(|()| Vec::new())?,
    };
    let outside = torpor_descriptors::outside(&tree);
    if !outside.is_empty() && request.lock.is_none() {
        wrong.push("it has TCP connections to the outside, and nobody to keep their packets away".to_owned());
    }
    if !wrong.is_empty() {
        return Err(RestoreError::Refused(wrong));
    }
    let mut warnings = Vec::new();
    read_ahead::begin(&tree, &staged, &paths);
    lower_limits(&tree, &mut plan, &mut warnings);
    reached(RestoreStep::Checked)?;

    let lock = request.lock.filter(|_| !outside.is_empty());
    lock.map_or(Ok(()), |lock| lock.hold(&outside)).map_err(RestoreError::Lock)?;
    let segments = torpor_descriptors::segments_to_make(&tree.memories)?;
    let no_segments = guard(&[], &[], &segments)?;
    let made = torpor_descriptors::restore(&tree, &ImageFile::through_cache(&file), given, around)?;
    let pages = ImageFile::past_cache(&file);
    let opened = Opened::new(&tree, Starters::new(&staged, &plan)?, made, paths, &pages, None)?;
    let mut opened = opened.out_of_the_way(&staged)?;
    reached(RestoreStep::Opened)?;

    let logins = Logins::prepare(&tree).map_err(|error| RestoreError::Own("reading its login id", error))?;
    let no_processes = guard(&[], &connections(&tree, &opened), &[])?;
    let source = Source { tree: &tree, plan: &plan, path: request.image, pages: &pages, passed: Duration::ZERO };
    let launched = Launched::launch(source, &opened, Seed::Child, &mut reached)?;
    let lazy = request.late.map(|late| Lazy { device: late.device(), loading: &[] });
    let mut filled = launched.fork(&mut reached)?.fill(None, lazy.as_ref())?;
    let late = filled.take_late();
    let late_bytes = late.iter().flat_map(|late| &late.regions).map(Region::bytes).sum();
    let connected = filled.build(&mut reached, &mut warnings)?.connect(&mut opened, logins, &mut warnings)?;
    let page_bytes = connected.page_bytes();
    let mut runs = None;
    let frozen = connected.freeze(|building| -> Result<(), RestoreError> {
        runs = guard(&building.pidfds()?, &connections(&tree, &opened), &segments)?;
        Ok(())
    })?;
    dismiss(no_processes);
    dismiss(no_segments);
    let mut complete = frozen.give_registers()?;
    let mut changes = SocketChanges::default();
    let time_outs = |error| RestoreError::Own("setting the time-outs of sockets", error);
    for wait in complete.socket_waits() {
        changes.shorten(wait).map_err(time_outs)?;
    }
    reached(RestoreStep::Finished)?;
    if let Some(pages) = request.late.filter(|_| !late.is_empty()) {
        let unserved = |error| RestoreError::Own("having the rest of its memory served", error);
        pages.serve(&file, late).map_err(unserved)?;
    }
    complete.release(&mut warnings)?;
    // Now it runs, whatever comes.
    dismiss(runs);
    opened.made.keep();
    if let Err(error) = changes.undo() {
        warnings.push(format!("time-outs of sockets stay shortened: {error}"));
    }
    if let Some(lock) = lock {
        if let Err(error) = lock.release(&torpor_descriptors::lock_name(&tree.machine)) {
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
        late_bytes,
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
) -> Result<Option<CrashGuard>, RestoreError> {
    CrashGuard::of_end(processes, connections, segments).map_err(|error| RestoreError::Own("starting a guard", error))
}

fn connections<'a>(tree: &'a Tree, opened: &'a Opened) -> Vec<BorrowedFd<'a>> {
    opened.made.connections(tree).map(|(fd, ..)| fd.as_fd()).collect()
}

/// Where it had been ended by somebody, nothing is different.
fn dismiss(guard: Option<CrashGuard>) {
    let _ = guard.map_or(Ok(()), CrashGuard::dismiss);
}

/// What was standard input, output or error of the root and came from outside gets ours.
fn given(tree: &Tree, standard: [Option<OwnedFd>; 3]) -> Given {
    let mut given = Given::new();
    let root = tree.processes[0].alive().map_or(&[][..], |life| &life.descriptors);
    for (fd, own) in standard.into_iter().enumerate() {
        let there = root.iter().find(|descriptor| descriptor.fd == fd as i32);
        if let (Some(there), Some(own)) = (there, own)
            && needs(&tree.files[there.file as usize].kind).stage == Stage::Given
        {
            given.entry(there.file).or_insert(own.into());
        }
    }
    given
}

impl Building<'_> {
    /// Descriptors of all processes that live.
    fn pidfds(&self) -> Result<Vec<OwnedFd>, RestoreError> {
        let open = |(n, task): (usize, &Task)| {
            let pid = Pid::from_raw(self.id(n)).ok_or(Errno::SRCH);
            let opened = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
            opened.map_err(|error| RestoreError::Set { pid: task.tid, what: "opening", error: error.into() })
        };
        let leaders = self.tasks().iter().enumerate().filter(|(_, task)| task.kind == Kind::Thread(0));
        leaders.map(open).collect()
    }
}
