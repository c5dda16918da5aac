//! Vetting: what an image from elsewhere may ask for.
//!
//! The state of an image is carried out by a restorer with the machine's privileges. An image that this machine has captured says
//! what a program had made with its own, smaller ones. An image from elsewhere may say anything. So before it is adopted every
//! process, thread, descriptor and object in it is compared with what a capture of an app with these [`Bounds`] can produce:
//!
//! - What no app can make (a fanotify group, a file found by a handle, a raw socket without the capability) is **refused**.
//! - What is a matter of degree (limits, priorities, sizes of buffers) is **lowered** to what a fresh start of the app would
//!   give. A program may lower such values itself, so it has to cope with it.
//!
//! How much there is of anything is bounded ([`size`]).
//!
//! Nothing here has a default. Every kind is matched and every field is named, so that a new one does not compile until somebody
//! has decided what an archive may say of it.

mod details;
mod file;
mod machine;
mod memory;
mod options;
mod process;
#[doc(hidden)]
pub mod sample;
mod size;
mod socket;
mod surroundings;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use torpor_image::tree::{End, Machine, Namespaces, Process, Tree};

pub use self::machine::MachineLimits;
use self::size::Sizes;

/// Highest process or thread id of any kernel (`PID_MAX_LIMIT`).
const HIGHEST_PID: i32 = 4 << 20;
/// Open files, memories and mapped files of one image: the restorer has them all open at once.
const MOST_FILES: usize = 1 << 16;
/// Refusals that are told; whoever reads them wants to know the first.
const MOST_REFUSALS: usize = 20;
/// Parts of a loading set, one for each cause of a wake.
const MOST_LOADING: usize = 64;
/// Highest id of a user or group in an app's user namespace, plus one.
const USERS: u32 = 1 << 16;

/// Numbers of capabilities (`linux/capability.h`).
mod capability {
    pub(super) const NET_BROADCAST: u32 = 11;
    pub(super) const NET_ADMIN: u32 = 12;
    pub(super) const NET_RAW: u32 = 13;
    pub(super) const SYS_ADMIN: u32 = 21;
    pub(super) const SYS_NICE: u32 = 23;
    pub(super) const SYS_RESOURCE: u32 = 24;
    pub(super) const LEASE: u32 = 28;
    pub(super) const WAKE_ALARM: u32 = 35;
}

/// What the programs in an image may do at most.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Ids of users and groups are those of a user namespace.
    pub user_namespace: bool,
    /// The machine's id of the app's root.
    pub first_id: u32,
    /// Capabilities, a bit for each.
    pub capabilities: u64,
    /// A filter of system calls that each thread must have: instructions as the kernel has them.
    pub filter: Option<Vec<u64>>,
    /// No privileges by set-uid programs.
    pub no_new_privileges: bool,
    /// Hard limits of a fresh start, by resource number (`getrlimit(2)`); `u64::MAX` is infinity.
    pub hard_limits: [u64; 16],
    /// What this machine lets programs without privileges have.
    pub machine: MachineLimits,
}

impl Bounds {
    /// The app has a capability in its own namespaces.
    fn has(&self, capability: u32) -> bool {
        self.capabilities & 1 << capability != 0
    }

    /// The app has a capability that counts only on the machine itself.
    fn has_on_machine(&self, capability: u32) -> bool {
        !self.user_namespace && self.has(capability)
    }
}

/// What came of vetting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vetted {
    /// What no app can have; the image must not be adopted.
    pub refused: Vec<String>,
    /// What was lowered.
    pub lowered: Vec<String>,
}

/// What each part is compared with.
struct Vetting<'a> {
    bounds: &'a Bounds,
    /// Processes, threads and groups of the tree.
    ids: HashSet<i32>,
    found: Vetted,
}

/// Compares a tree with what an app with these bounds could have, and lowers what is higher.
pub fn vet(tree: &mut Tree, bounds: &Bounds) -> Vetted {
    let groups = tree.processes.iter().flat_map(|process| [process.pid, process.group, process.session]);
    let threads = tree.threads().map(|thread| thread.tid);
    let ids = groups.chain(threads).filter(|id| *id > 0).collect();
    let mut vetting = Vetting { bounds, ids, found: Vetted::default() };
    for beyond in Sizes::of(tree).beyond(&Sizes::MOST) {
        vetting.refuse(beyond);
    }
    if vetting.found.refused.is_empty() {
        vetting.tree(tree);
    }
    vetting.found
}

impl Vetting<'_> {
    fn refuse(&mut self, what: impl Into<String>) {
        if self.found.refused.len() < MOST_REFUSALS {
            // What an archive says is shown to people.
            self.found.refused.push(what.into().escape_default().to_string());
        }
    }

    fn sure(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.refuse(what());
        }
    }

    fn lowered(&mut self, what: impl Into<String>) {
        let what = what.into();
        if self.found.lowered.len() < MOST_REFUSALS && !self.found.lowered.contains(&what) {
            self.found.lowered.push(what);
        }
    }

    fn tree(&mut self, tree: &mut Tree) {
        let Tree {
            machine,
            processes,
            files,
            pipes,
            memories,
            namespaces,
            surroundings,
            details,
            contents,
            loading,
            used,
        } = tree;
        self.machine(machine);
        self.details(details);
        // Its bounds say whether there is a user namespace; the home says whether there is one for time.
        let Namespaces { user: _, time: _ } = namespaces;
        let mapped = processes.iter().filter_map(Process::alive).map(|life| life.space.files.len()).sum::<usize>();
        let open = files.len() + memories.len() + mapped;
        self.sure(open <= MOST_FILES, || format!("{open} open and mapped files"));
        // They are compared with files that are found by the tree's own paths, and with nothing else.
        self.sure(contents.len() <= mapped, || format!("contents of {} files", contents.len()));
        // Only what its wakes bring back first: they check it against the pages of the file.
        self.sure(loading.len() <= MOST_LOADING, || format!("{} parts of a loading set", loading.len()));
        // Read ahead only of files that it may map; how much is bounded by its checks.
        self.sure(used.len() <= mapped, || format!("used pages of {} files", used.len()));
        for process in &mut *processes {
            self.process(process);
        }
        for file in files {
            self.open_file(file);
        }
        for pipe in pipes {
            self.pipe(pipe);
        }
        self.memories(memories);
        self.surroundings(surroundings);
    }

    fn machine(&mut self, machine: &Machine) {
        let Machine { kernel: _, boot: _, realtime_ns, monotonic_ns, boottime_ns, clock_offsets_ns, wake_after_ns } =
            machine;
        const CENTURY_NS: u64 = 100 * 366 * 24 * 3600 * 1_000_000_000;
        let clocks = [*realtime_ns, *monotonic_ns, *boottime_ns];
        let offsets = clock_offsets_ns.map(i64::unsigned_abs);
        // A timer may be set for ever.
        let _ = wake_after_ns;
        let sane = clocks.into_iter().chain(offsets).all(|ns| ns < CENTURY_NS);
        self.sure(sane, || "clocks that are centuries off".to_owned());
    }

    fn process(&mut self, process: &mut Process) {
        let Process { pid, parent, group, session, end } = process;
        let (pid, ids) = (*pid, [*parent, *group, *session]);
        // 1 is the sandbox's init.
        self.sure((2..=HIGHEST_PID).contains(&pid), || format!("a process {pid}"));
        self.sure(ids.iter().all(|id| (0..=HIGHEST_PID).contains(id)), || format!("groups of process {pid}"));
        match end {
            // What its parent is told.
            End::Zombie { status: _, name: _ } => {}
            End::Alive(life) => self.life(pid, life),
        }
    }

    /// An id of a user or group of the app's own.
    fn users(&mut self, ids: &[u32], whose: &str) {
        if let Some(beyond) = ids.iter().find(|id| self.bounds.user_namespace && **id >= USERS) {
            self.refuse(format!("user or group {beyond} of {whose}, which is not one of the app's"));
        }
    }
}
