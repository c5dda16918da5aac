//! Images and plans made by an enemy: what is read of them is whole, or refused; making a plan of any tree that was read ends
//! with a plan or an error.

use std::path::PathBuf;

use torpor_image::tree::{End, Process, Tree};
use torpor_image::{Header, PAGE};
use torpor_linux::restorer::{STEP_BYTES, STOP, Step};

use crate::plan::{LIMITS_BYTES, Plan};
use crate::{allowed, calls, compile};

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../image/tests/fixtures/complete-3.image")
}

/// Numbers that are the same in every run (xorshift64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }

    /// One to four changes: a bit, a byte, eight bytes, a piece from elsewhere, a cut.
    fn change(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let (length, at) = (bytes.len(), self.below(bytes.len()));
            match self.below(8) {
                0..3 => bytes[at] ^= 1 << self.below(8),
                3 | 4 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                5 => {
                    let from = self.below(length);
                    let piece = bytes[from..length.min(from + 40)].to_vec();
                    bytes.splice(at..length.min(at + piece.len()), piece);
                }
                6 => {
                    let word = [u64::MAX, u64::MAX >> 1, 1 << 47, PAGE][self.below(4)].to_le_bytes();
                    bytes.splice(at..length.min(at + 8), word);
                }
                _ if self.below(4) == 0 => bytes.truncate(at.max(1)),
                _ => {}
            }
        }
    }
}

fn parts() -> (Header, Vec<u8>) {
    let image = std::fs::read(golden()).expect("the fixture is part of the repository");
    let header = Header::decode(&image, image.len() as u64).expect("a golden image");
    let state = image[header.state_offset() as usize..header.plan_offset() as usize].to_vec();
    (header, state)
}

/// The plan of the golden tree, and the places of its steps in the data.
fn golden_plan() -> (Tree, Plan, Vec<usize>) {
    let (header, state) = parts();
    let tree = Tree::read(&state, &header).expect("a golden image");
    let plan = compile::plan(&tree, 9).expect("a golden image");
    let steps = plan.tasks.iter().flat_map(|task| plan.steps(task).map(|(address, _)| address));
    let places = steps.map(|address| (address - plan.data_address()) as usize).collect();
    (tree, plan, places)
}

/// The step at a place of the data.
fn step_at(plan: &Plan, place: usize) -> Step {
    plan.step(plan.data_address() + place as u64).expect("a golden image")
}

#[test]
fn plans_ask_for_nothing_but_what_plans_need() {
    let (tree, plan, places) = golden_plan();
    assert!(allowed::is_allowed(&tree, &plan));
    let changed = |place: usize, change: &dyn Fn(&mut Step)| {
        let mut bad = plan.clone();
        let mut step = step_at(&plan, place);
        change(&mut step);
        bad.set_step(plan.data_address() + place as u64, &step);
        allowed::is_allowed(&tree, &bad)
    };
    // kill, ptrace, reboot, init_module, mount, open, socket, execve, process_vm_writev, kexec_load, bpf, clone, pivot_root
    for number in [62, 101, 169, 175, 165, 2, 257, 41, 59, 311, 246, 321, 56, 155, u32::MAX] {
        for place in places.iter().filter(|place| step_at(&plan, **place).number != number) {
            assert!(!changed(*place, &|step| step.number = number), "call {number} at {place}");
        }
    }
    let of = |number: i64| {
        let found = places.iter().copied().filter(|place| i64::from(step_at(&plan, *place).number) == number);
        found.collect::<Vec<_>>()
    };
    // Other processes than those of the tree, init and this one among them.
    let strangers = [1, u64::from(std::process::id()), u64::MAX, 44];
    let named = [
        (calls::RT_SIGQUEUEINFO, 0),
        (calls::RT_TGSIGQUEUEINFO, 0),
        (calls::RT_TGSIGQUEUEINFO, 1),
        (calls::SETPGID, 0),
        (calls::PRLIMIT64, 0),
        (calls::SCHED_SETATTR, 0),
        (calls::SCHED_SETAFFINITY, 0),
        (calls::IOPRIO_SET, 1),
        (calls::PIDFD_OPEN, 0),
    ];
    for (call, argument) in named {
        let places = of(call);
        assert!(!places.is_empty(), "call {call} is not in the golden plan");
        for (place, stranger) in places.into_iter().flat_map(|place| strangers.map(|stranger| (place, stranger))) {
            assert!(!changed(place, &|step| step.arguments[argument] = stranger), "call {call} on {stranger}");
        }
    }
    for place in of(calls::CLONE3) {
        assert!(!changed(place, &|step| step.expected = 1));
        assert!(!changed(place, &|step| step.arguments[0] += 8));
        assert!(!changed(place, &|step| step.arguments[2] += 64));
    }
    for place in of(calls::PRCTL) {
        // PR_SET_PTRACER, PR_SET_SYSCALL_USER_DISPATCH.
        for option in [0x5961_6d61, 59] {
            assert!(!changed(place, &|step| step.arguments[0] = option));
        }
    }
    for place in of(calls::SETNS) {
        // CLONE_NEWNS, CLONE_NEWPID, anything.
        for kind in [0x2_0000, 0x2000_0000, 0] {
            assert!(!changed(place, &|step| step.arguments[1] = kind));
        }
    }
}

/// Children that would not be traced, or would get something of their own.
#[test]
fn made_up_children_are_refused() {
    let (tree, plan, places) = golden_plan();
    let clone = places.iter().find(|place| i64::from(step_at(&plan, **place).number) == calls::CLONE3).unwrap();
    let words = step_at(&plan, *clone).arguments[0];
    for (word, value) in [(0, 0), (0, 0x2000 | 0x1000_0000), (1, 8), (4, 9), (5, 4096), (9, 2), (10, 3)] {
        let mut bad = plan.clone();
        bad.bytes(words + 8 * word, 8).unwrap().copy_from_slice(&u64::to_ne_bytes(value));
        assert!(!allowed::is_allowed(&tree, &bad), "word {word} is {value}");
    }
}

/// Whatever is changed: what is taken ends where it should, and speaks of its own processes only.
#[test]
fn changed_steps_are_refused_or_speak_of_the_tree() {
    let (tree, plan, places) = golden_plan();
    let ids: Vec<u64> = plan.tasks.iter().map(|task| task.tid as u64).collect();
    let mut numbers = Numbers(0x6a09_e667_f3bc_c909);
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..4000 {
        let mut bad = plan.clone();
        let at = places[numbers.below(places.len())];
        let mut bytes = bad.data[at..at + STEP_BYTES].to_vec();
        numbers.change(&mut bytes);
        bytes.resize(STEP_BYTES, 0);
        bad.data[at..at + STEP_BYTES].copy_from_slice(&bytes);
        if !allowed::is_allowed(&tree, &bad) {
            refused += 1;
            continue;
        }
        taken += 1;
        let step = step_at(&bad, at);
        if [calls::RT_SIGQUEUEINFO, calls::RT_TGSIGQUEUEINFO, calls::PIDFD_OPEN].contains(&i64::from(step.number)) {
            assert!(ids.contains(&step.arguments[0]), "{step:?}");
        }
        assert!(step.number == STOP || calls::is_known(step.number), "{step:?}");
    }
    assert!(taken > 500 && refused > 500, "{taken} taken, {refused} refused");
}

/// Everything that the restorer would take from it lies within the plan.
fn look_at(plan: &mut Plan) {
    assert!(plan.data.len().is_multiple_of(PAGE as usize));
    for task in plan.tasks.clone() {
        assert_eq!(plan.steps(&task).count() as u64, (task.end - task.first).div_ceil(64));
        assert_eq!(plan.limits(&task).map(|found| found.len()), (task.limits != 0).then_some(LIMITS_BYTES));
    }
}

#[test]
fn hostile_plans_are_refused_or_whole() {
    let (header, state) = parts();
    let tree = Tree::read(&state, &header).unwrap();
    let plan = compile::plan(&tree, 9).unwrap();
    let good = plan.encode();
    // The steps are vetted below.
    let head = good.len() - plan.data.len();
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for _ in 0..4000 {
        let mut bad = good[..head].to_vec();
        numbers.change(&mut bad);
        bad.extend_from_slice(&good[head..]);
        if let Some(mut plan) = Plan::decode(&bad, 9) {
            look_at(&mut plan);
            let _ = allowed::is_of(&tree, &plan);
        }
    }
}

#[test]
fn a_plan_of_a_hostile_tree_is_made_or_refused() {
    let (header, state) = parts();
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    let mut read = 0;
    for _ in 0..4000 {
        let mut bad = state.clone();
        numbers.change(&mut bad);
        let Ok(tree) = Tree::decode(&bad, header.pages()) else { continue };
        read += 1;
        if let Ok(mut plan) = compile::plan(&tree, 9) {
            look_at(&mut plan);
            assert!(allowed::is_allowed(&tree, &plan), "a plan of our own making is not sound");
        }
    }
    assert!(read > 200, "only {read} trees were read");
}

/// A size that takes minutes where each process is compared with each other one.
#[test]
fn a_plan_of_many_ended_children_takes_no_more_than_their_number() {
    const MANY: i32 = 100_000;
    let (mut tree, plan, _) = golden_plan();
    let Process { pid, group, session, .. } = tree.processes[0];
    let ended = || End::Zombie { status: 0, name: Vec::new() };
    tree.processes.extend((0..MANY).map(|n| Process { pid: 1000 + n, parent: pid, group, session, end: ended() }));
    let large = compile::plan(&tree, 9).unwrap();
    assert_eq!(large.tasks.len(), plan.tasks.len() + MANY as usize);
    assert!(allowed::is_allowed(&tree, &large));
}
