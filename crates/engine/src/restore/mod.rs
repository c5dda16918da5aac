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
//! for before [`restore`] comes back. The image is only read. From the moment that the first process is let go
//! everything is complete, and only what is not yet let go would die with the restorer.
//!
//! # What is not the same
//! Who had a parent outside of the tree has the restorer as its parent, and no parent-death signal. A root whose session or
//! group was made outside of the tree is in the restorer's.

mod calls;
mod check;
mod compile;
mod error;
mod finish;
mod open;
mod plan;
mod run;
mod staged;
mod step;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use torpor_image::tree::{FileKind, Life, Process, Tree};
use torpor_image::{FormatError, HEADER_BYTES, Header, Kind, checksum};

pub use compile::{CompileError, compile};
pub use error::RestoreError;
pub use step::{RestoreFaults, RestoreStep};

use self::open::Opened;
use self::plan::Plan;
use self::run::Building;
use self::staged::Staged;
use crate::files::{self, Given};
use crate::step::Timings;

/// What to restore.
pub struct Restore<'a> {
    /// The image's file.
    pub image: &'a Path,
    /// For standard input, output and error of the tree that came from outside.
    pub standard: [Option<OwnedFd>; 3],
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

/// An image that was read.
struct Loaded {
    file: File,
    tree: Tree,
    plan: Plan,
    needs: torpor_image::Needs,
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
    let Loaded { file, tree, mut plan, needs } = load(request.image)?;
    reached(RestoreStep::Read)?;

    let staged = Staged::of(&tree).ok_or(CompileError::NoNumbers)?;
    let mut wrong = check::machine(&needs, &tree);
    wrong.extend(check::ids(&plan));
    let paths = open::paths(&staged).unwrap_or_else(|changed| {
        wrong.extend(changed);
        Vec::new()
    });
    if !wrong.is_empty() {
        return Err(RestoreError::Refused(wrong));
    }
    let mut warnings = Vec::new();
    lower_limits(&tree, &mut plan, &mut warnings);
    reached(RestoreStep::Checked)?;

    let given = given(&tree, request.standard);
    let made = files::make(&tree, &file, given)?;
    let mut opened = Opened::new(&tree, &staged, &plan, made, paths, &file)?;
    reached(RestoreStep::Opened)?;

    let mut building = Building::launch(&tree, &plan, &opened)?;
    reached(RestoreStep::Launched)?;
    building.born()?;
    reached(RestoreStep::Born)?;
    let page_bytes = check::pages(request.image, &file, &tree)?;
    reached(RestoreStep::Verified)?;
    building.built()?;
    reached(RestoreStep::Built)?;
    opened.made.finish(&tree)?;
    finish::finish(&building, &tree, &plan, &file, &mut warnings)?;
    reached(RestoreStep::Finished)?;
    building.release()?;
    opened.made.keep();
    timings.mark(RestoreStep::Running);
    let lives = tree.processes.iter().filter_map(Process::alive);
    Ok(Restored {
        pid: tree.processes[0].pid,
        processes: tree.processes.len(),
        threads: lives.map(|life| life.threads.len()).sum(),
        page_bytes,
        warnings,
        timings,
    })
}

fn load(path: &Path) -> Result<Loaded, RestoreError> {
    /// More than any tree's state or plan.
    const MOST_BYTES: u64 = 1 << 30;
    let wrong = |error| RestoreError::Read(path.to_owned(), error);
    let format = |error| RestoreError::Format(path.to_owned(), error);
    let file = File::open(path).map_err(wrong)?;
    let bytes = file.metadata().map_err(wrong)?.len();
    let mut header = vec![0; bytes.min(HEADER_BYTES) as usize];
    file.read_exact_at(&mut header, 0).map_err(wrong)?;
    let header = Header::decode(&header, bytes).map_err(format)?;
    if header.kind != Kind::Complete {
        return Err(RestoreError::Dozing(path.to_owned()));
    }
    let length = header.state_bytes.saturating_add(header.plan_bytes);
    if length > MOST_BYTES {
        return Err(format(FormatError::Invalid("length of the state")));
    }
    let mut body = vec![0; length as usize];
    file.read_exact_at(&mut body, header.state_offset()).map_err(wrong)?;
    let (state, plan) = body.split_at(header.state_bytes as usize);
    if checksum(state) != header.state_checksum {
        return Err(format(FormatError::Checksum("the state")));
    }
    let tree = Tree::decode(state, header.pages()).map_err(format)?;
    if tree.processes.is_empty() {
        return Err(CompileError::Empty.into());
    }
    let key = plan::key(header.state_checksum);
    let stored = (checksum(plan) == header.plan_checksum).then(|| Plan::decode(plan, key)).flatten();
    let plan = match stored.filter(|plan| check::tasks(&tree, plan)) {
        Some(plan) => plan,
        None => compile::plan(&tree, key)?,
    };
    Ok(Loaded { file, tree, plan, needs: header.needs })
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
            given.entry(there.file).or_insert(own);
        }
    }
    given
}

/// Without CAP_SYS_RESOURCE hard limits cannot be raised over ours: lowers them in the plan.
fn lower_limits(tree: &Tree, plan: &mut Plan, warnings: &mut Vec<String>) {
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    let status = crate::proc::read("/proc/self/status").unwrap_or_default();
    let able = crate::proc::field(&status, "CapEff").and_then(|set| u64::from_str_radix(set, 16).ok());
    if able.is_some_and(|set| set & CAP_SYS_RESOURCE != 0) {
        return;
    }
    let Ok(own) = own_limits() else { return };
    for task in plan.tasks.clone() {
        let Some(table) = plan.limits(&task) else { continue };
        let lowered = lower(table, &own);
        let process = &tree.processes[task.process as usize];
        if !lowered.is_empty() {
            warnings.push(format!(
                "process {}: hard limits {lowered:?} are lower than they were: CAP_SYS_RESOURCE is missing",
                process.pid
            ));
        }
    }
}

/// Lowers pairs of limits to `own` hard ones; gives the numbers of those that were higher.
fn lower(table: &mut [u8], own: &[u64]) -> Vec<usize> {
    let mut lowered = Vec::new();
    for (n, (pair, own)) in table.chunks_exact_mut(16).zip(own).enumerate() {
        let (soft, hard) = pair.split_at_mut(8);
        let mut changed = false;
        for word in [soft, hard] {
            let value = u64::from_ne_bytes(std::array::from_fn(|n| word[n]));
            if value > *own {
                word.copy_from_slice(&own.to_ne_bytes());
                changed = true;
            }
        }
        if changed {
            lowered.push(n);
        }
    }
    lowered
}

/// Our own hard limits, by number.
fn own_limits() -> io::Result<Vec<u64>> {
    use rustix::process::{Resource, getrlimit};
    const ALL: [Resource; 16] = [
        Resource::Cpu,
        Resource::Fsize,
        Resource::Data,
        Resource::Stack,
        Resource::Core,
        Resource::Rss,
        Resource::Nproc,
        Resource::Nofile,
        Resource::Memlock,
        Resource::As,
        Resource::Locks,
        Resource::Sigpending,
        Resource::Msgqueue,
        Resource::Nice,
        Resource::Rtprio,
        Resource::Rttime,
    ];
    Ok(ALL.iter().map(|resource| getrlimit(*resource).maximum.unwrap_or(u64::MAX)).collect())
}

impl Building<'_> {
    /// Lets everything go, the root last.
    fn release(mut self) -> Result<(), RestoreError> {
        self.released = true;
        for n in (0..self.newborns.len()).rev() {
            let Some(newborn) = self.newborns[n].take() else { continue };
            let task = &self.tasks()[n];
            let stopped = self.life(n).and_then(|life| life.stopped_by).filter(|_| task.kind == plan::Kind::Thread(0));
            let signal = stopped.unwrap_or(0);
            newborn.detach(signal).map_err(|error| RestoreError::Set { pid: task.tid, what: "letting go", error })?;
        }
        Ok(())
    }

    fn life(&self, n: usize) -> Option<&Life> {
        self.tree().processes[self.tasks()[n].process as usize].alive()
    }
}
