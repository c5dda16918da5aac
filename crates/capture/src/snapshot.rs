//! What can be learned of living processes without touching them.
//!
//! All of it stands under `/proc`, which any thread may read: several share the processes of a tree.

use std::io;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;

use torpor_image::tree::{AddressSpace, Limit, PathState};

use super::credentials::{Status, status};
use super::space::UserfaultContexts;
use super::{CaptureError, Look, blockers, process, space};
use torpor_descriptors::SharedArea;
use torpor_proc::maps::Area;
use torpor_proc::smaps::{Mapping, mappings};
use torpor_process::blocker::{Blocker, Place};
use torpor_process::view::{View, identity};

/// Threads that look, the caller's among them.
const THREADS: usize = 2;
/// Processes for each of them at least.
const PROCESSES: usize = 4;

/// What was learned of a process.
pub(super) struct Snapshot {
    pub(super) mappings: Vec<Mapping>,
    /// Of the mappings.
    pub(super) areas: Vec<Area>,
    /// By thread.
    pub(super) statuses: Vec<Status>,
    pub(super) cwd: PathState,
    pub(super) root: Option<PathState>,
    /// Without the end of its heap.
    pub(super) space: AddressSpace,
    /// What areas that are shared name by their places here.
    pub(super) shared: Vec<SharedArea>,
    pub(super) limits: Vec<Limit>,
    pub(super) oom_score_adjustment: i32,
    pub(super) personality: u32,
    pub(super) coredump_filter: u32,
    /// What is in the way.
    pub(super) obstacles: Vec<Blocker>,
}

/// Looks at all processes of a tree, with their threads: what is in the way of it as a whole, and each of them. Where `go_on` says
/// no, it ends with [`CaptureError::Stopped`].
pub(super) fn look_at_all(
    view: &View,
    tree: &[(i32, Vec<i32>)],
    contexts: UserfaultContexts,
    go_on: &(dyn Fn() -> bool + Sync),
) -> (io::Result<Vec<Blocker>>, Result<Vec<Snapshot>, CaptureError>) {
    let next = AtomicUsize::new(0);
    let some = || {
        let mut found = Vec::new();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some((pid, threads)) = tree.get(n) else { return found };
            found.push((n, look(view, *pid, threads, contexts, go_on)));
        }
    };
    let threads: usize = tree.iter().map(|(_, threads)| threads.len()).sum();
    std::thread::scope(|scope| {
        let helpers = (threads / PROCESSES).min(THREADS - 1);
        let helpers: Vec<_> = (0..helpers).filter_map(|_| Builder::new().spawn_scoped(scope, some).ok()).collect();
        let as_a_whole = blockers::find(view, tree);
        let mut found = some();
        for helper in helpers {
            found.extend(helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        found.sort_unstable_by_key(|(n, _)| *n);
        (as_a_whole, found.into_iter().map(|(_, looked)| looked).collect())
    })
}

/// All shared areas, whose places the areas then name.
pub(super) fn shared(looked: &mut [Snapshot]) -> Vec<SharedArea> {
    let mut all = Vec::new();
    for looked in looked {
        let before = all.len() as u32;
        space::rename_shared(&mut looked.space, |place| place + before);
        all.append(&mut looked.shared);
    }
    all
}

/// Looks at a process with these threads.
pub(super) fn look(
    view: &View,
    pid: i32,
    threads: &[i32],
    contexts: UserfaultContexts,
    go_on: &dyn Fn() -> bool,
) -> Result<Snapshot, CaptureError> {
    let mut obstacles = Vec::new();
    let mappings = mappings(pid).look(pid)?;
    let mut statuses = Vec::with_capacity(threads.len());
    for tid in threads {
        if !go_on() {
            return Err(CaptureError::Stopped);
        }
        let status = status(pid, *tid).look(pid)?;
        let mut refuse = |what: &str| obstacles.push(Blocker::new(pid, Place::Thread(*tid), what, ""));
        if status.shadow_stack {
            refuse("a shadow stack");
        }
        statuses.push(status);
    }
    if !mappings.iter().any(|mapping| mapping.area.name == "[vdso]") {
        // Calls are made in it.
        obstacles.push(Blocker::new(pid, Place::Process, "it has unmapped its vDSO", ""));
    }
    let (cwd, root) = directories(view, pid, &mut obstacles)?;
    let mut shared = Vec::new();
    Ok(Snapshot {
        space: space::space(view, pid, (&mappings, contexts), &mut shared, &mut obstacles)?,
        areas: mappings.iter().map(|mapping| mapping.area.clone()).collect(),
        mappings,
        statuses,
        cwd,
        root,
        shared,
        limits: process::limits(pid).look(pid)?,
        oom_score_adjustment: process::number(pid, "oom_score_adj").look(pid)?,
        personality: process::hexadecimal(pid, "personality").look(pid)?,
        coredump_filter: process::hexadecimal(pid, "coredump_filter").look(pid)?,
        obstacles,
    })
}

/// Working directory, and root directory if it is not ours.
fn directories(
    view: &View,
    pid: i32,
    obstacles: &mut Vec<Blocker>,
) -> Result<(PathState, Option<PathState>), CaptureError> {
    let mut directory = |link: &str, what: &str| -> Result<PathState, CaptureError> {
        match space::linked(view, &format!("/proc/{pid}/{link}")).look(pid)? {
            Ok(path) => Ok(path),
            Err(why) => {
                obstacles.push(Blocker::new(pid, Place::Process, format!("its {what} {why}"), ""));
                Ok(PathState::default())
            }
        }
    };
    let cwd = directory("cwd", "working directory")?;
    let usual = identity(&format!("{}/root", view.reference())).look(pid)?;
    let same = usual == identity(&format!("/proc/{pid}/root")).look(pid)?;
    Ok((cwd, if same { None } else { Some(directory("root", "root directory")?) }))
}
