//! What a stored plan may ask of the kernel. The plan is data of the image; a good checksum says that it is whole, not who made it.
//!
//! A plan is taken only if every step is one that a plan of this tree can have: a call of the list, and wherever a call names a
//! process, one of the tree's own. So a made-up plan cannot signal, limit, join or trace anything else, has no child that is
//! not traced (and so not ended with the restorer), and enters no namespace that the state does not name. What is not so is
//! dropped, and the plan made anew from the state.
//!
//! This is a second line, not a sandbox: the programs in an image run as the users and with the capabilities that its state
//! names, and may then do what these may. Who must not trust an image checks its state (`docs/threat-model.md`).

use std::collections::{BTreeSet, HashMap};

use torpor_image::tree::{End, Tree};
use torpor_linux::restorer::{ANY, CHILD, EXACT, FROM_VDSO, NO_ERROR, STEP_BYTES, STOP, Step};
use torpor_linux::uapi::file::{AT_FDCWD, F_SETFL, F_SETLEASE, F_SETLK, TIOCSCTTY, TIOCSPGRP};
use torpor_linux::uapi::prctl::PR_SET_SECCOMP;
use torpor_linux::uapi::process::{
    CLONE_FILES, CLONE_FS, CLONE_NEWTIME, CLONE_NEWUSER, CLONE_PARENT, CLONE_PTRACE, IOPRIO_WHO_PROCESS,
    SECCOMP_MODE_STRICT,
};
use torpor_linux::uapi::signal::SIGCHLD;

use super::calls;
use crate::plan::{BORN, CLONE_THREAD_FLAGS, DONE, FILL, JOINED, Kind, Plan, Task};

/// Words of `struct clone_args`, as plans have it.
const CLONE_WORDS: usize = 11;
const FILE_COMMANDS: [u64; 3] = [F_SETFL, F_SETLK, F_SETLEASE];
const TERMINAL_REQUESTS: [u64; 2] = [TIOCSCTTY, TIOCSPGRP];

/// Whether the plan's steps are those of a plan of this tree; `Plan::decode` has seen to it that they lie within the data.
pub fn is_allowed(tree: &Tree, plan: &Plan) -> bool {
    let vet = Vet::new(tree, plan);
    plan.tasks.iter().all(|task| vet.list(task))
}

/// Of a plan that was just made: its steps that would not be taken from an image. The list here and what `compile` makes are
/// two places that must agree.
pub(super) fn strangers(tree: &Tree, plan: &Plan) -> Vec<Step> {
    let vet = Vet::new(tree, plan);
    let steps = plan.tasks.iter().flat_map(|task| plan.steps(task));
    steps.map(|(_, step)| step).filter(|step| !vet.step(step)).collect()
}

/// Whether the plan makes the processes and threads of this tree, and nothing else.
pub fn is_of(tree: &Tree, plan: &Plan) -> bool {
    let ended = tree.processes.iter().filter(|process| process.alive().is_none()).count();
    let wanted = tree.threads().count() + ended;
    let mut counted = 0;
    let fits = plan.tasks.iter().all(|task| {
        let Some(process) = tree.processes.get(task.process as usize) else { return false };
        counted += usize::from(task.kind != Kind::Helper);
        match (task.kind, &process.end) {
            (Kind::Thread(n), End::Alive(life)) => {
                life.threads.get(n as usize).is_some_and(|thread| thread.tid == task.tid)
            }
            (Kind::Zombie, End::Zombie { .. }) => process.pid == task.tid,
            (kind, _) => kind == Kind::Helper,
        }
    });
    fits && counted == wanted && plan.tasks.first().is_some_and(|task| task.tid == tree.processes[0].pid)
}

struct Vet<'a> {
    tree: &'a Tree,
    plan: &'a Plan,
    /// Processes and threads that the plan makes.
    ids: BTreeSet<u64>,
    groups: BTreeSet<u64>,
    /// By the address of its first step: whose list it is.
    lists: HashMap<u64, i32>,
}

impl<'a> Vet<'a> {
    fn new(tree: &'a Tree, plan: &'a Plan) -> Self {
        let ids: BTreeSet<u64> = plan.tasks.iter().map(|task| task.tid as u64).collect();
        let groups = tree.processes.iter().map(|process| process.group as u64);
        let mut lists = HashMap::new();
        for task in &plan.tasks {
            lists.entry(task.first).or_insert(task.tid);
        }
        Self { tree, plan, groups: groups.chain(ids.iter().copied()).collect(), ids, lists }
    }

    /// The interpreter runs from the first step to a stop or an end: that has to be the last.
    fn list(&self, task: &Task) -> bool {
        if !(task.end - task.first).is_multiple_of(STEP_BYTES as u64) {
            return false;
        }
        let mut last = None;
        let sound = self.plan.steps(task).all(|(_, step)| {
            last = Some(step.number);
            self.step(&step)
        });
        sound && last.is_some_and(|last| last == STOP || i64::from(last) == calls::EXIT_GROUP)
    }

    fn step(&self, step: &Step) -> bool {
        if step.number == STOP {
            // Behind FILL is a table: what of it lies within the plan is looked at when it is used.
            return [BORN, JOINED, DONE, FILL].contains(&(step.expected as u64));
        }
        if step.flags & !(EXACT | NO_ERROR | ANY | FROM_VDSO | CHILD) != 0 || !calls::is_known(step.number) {
            return false;
        }
        let [first, second, ..] = step.arguments;
        let is_child = step.flags & CHILD != 0;
        match i64::from(step.number) {
            calls::CLONE3 => is_child && self.child(step),
            _ if is_child => false,
            calls::RT_SIGQUEUEINFO | calls::PIDFD_OPEN | calls::WAIT4 => self.ids.contains(&first),
            calls::RT_TGSIGQUEUEINFO => self.ids.contains(&first) && self.ids.contains(&second),
            calls::SETPGID => first == 0 && (second == 0 || self.groups.contains(&second)),
            calls::PRLIMIT64 | calls::SCHED_SETATTR | calls::SCHED_SETAFFINITY => first == 0,
            calls::IOPRIO_SET => first == IOPRIO_WHO_PROCESS && second == 0,
            calls::FCNTL => FILE_COMMANDS.contains(&second),
            calls::PRCTL if first == PR_SET_SECCOMP => second == SECCOMP_MODE_STRICT,
            calls::PRCTL => calls::is_known_prctl(first),
            calls::IOCTL => TERMINAL_REQUESTS.contains(&second),
            calls::OPENAT => first == AT_FDCWD && self.is_of_proc(second),
            calls::SETNS => match second {
                CLONE_NEWTIME => self.tree.namespaces.time,
                CLONE_NEWUSER => self.tree.namespaces.user,
                _ => false,
            },
            _ => true,
        }
    }

    /// Files of processes are opened from inside; all others by the restorer, which compares them.
    fn is_of_proc(&self, address: u64) -> bool {
        let at = address.checked_sub(self.plan.data_address()).and_then(|at| self.plan.data.get(at as usize..));
        let path = at.and_then(|bytes| bytes.split(|byte| *byte == 0).next());
        path.is_some_and(|path| path.starts_with(b"/proc/") && !path.windows(2).any(|two| two == b".."))
    }

    /// A traced child with an id of the plan's, which goes on with its own list.
    fn child(&self, step: &Step) -> bool {
        let [place, size, list, ..] = step.arguments;
        let Some(words) = self.words::<CLONE_WORDS>(place) else { return false };
        let [flags, pidfd, child_tid, parent_tid, signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup] =
            words;
        let nothing = [pidfd, child_tid, parent_tid, stack, stack_size, tls, cgroup] == [0; 7];
        let own = flags & !CLONE_PTRACE;
        let known = own == CLONE_THREAD_FLAGS || own & !(CLONE_PARENT | CLONE_FS | CLONE_FILES) == 0;
        let id = self.words::<1>(set_tid).map(|[id]| id);
        size == (CLONE_WORDS * 8) as u64
            && flags & CLONE_PTRACE != 0
            && known
            && nothing
            && (signal == 0 || signal == SIGCHLD as u64)
            && set_tid_size == 1
            && id == Some(step.expected as u64)
            && self.lists.get(&list).is_some_and(|tid| i64::from(*tid) == step.expected)
    }

    fn words<const N: usize>(&self, address: u64) -> Option<[u64; N]> {
        let at = address.checked_sub(self.plan.data_address())? as usize;
        let bytes = self.plan.data.get(at..at.checked_add(N * 8)?)?;
        let (words, _) = bytes.as_chunks::<8>();
        words.iter().map(|word| u64::from_ne_bytes(*word)).collect::<Vec<_>>().try_into().ok()
    }
}
