//! Steps for what each thread has of its own.

use torpor_image::tree::{Control, Details, LiveProcess, SeccompFilter, Thread};
use torpor_linux::uapi::prctl::{
    PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, PR_CAP_AMBIENT_RAISE, PR_CAPBSET_DROP, PR_MCE_KILL, PR_MCE_KILL_SET,
    PR_SET_NAME, PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_SECUREBITS, PR_SET_TIMERSLACK,
    PR_SET_TSC,
};
use torpor_linux::uapi::process::{
    IOPRIO_WHO_PROCESS, SECBIT_NO_SETUID_FIXUP, SECCOMP_MODE_STRICT, SECCOMP_SET_MODE_FILTER,
};
use torpor_linux::uapi::signal::{SS_DISABLE, SS_ONSTACK};

use super::build::{Argument, Builder, Steps};
use crate::calls;

/// `CAP_LAST_CAP` of the kernels that are known.
const LAST_CAPABILITY: u64 = 40;

/// Filters that all threads of a process have: set before the others are made, so that they share them.
pub(super) fn common_filters(life: &LiveProcess) -> usize {
    let leader = &life.threads[0].seccomp;
    let common = |thread: &Thread| thread.seccomp.iter().zip(leader).take_while(|(a, b)| a == b).count();
    life.threads.iter().map(common).min().unwrap_or(0)
}

/// Sets filters. They do not apply as long as the thread is traced.
pub(super) fn filters(filters: &[SeccompFilter], builder: &mut Builder, steps: &mut Steps) {
    for filter in filters {
        let instructions = builder.numbers(&filter.instructions);
        // struct sock_fprog.
        let program = builder.words(&[(filter.instructions.len() as u64).into(), instructions]);
        steps.call(calls::SECCOMP, &[SECCOMP_SET_MODE_FILTER.into(), u64::from(filter.flags).into(), program]);
    }
}

/// Name, places that the kernel writes to, scheduling, and what else it has set.
pub(super) fn attributes(thread: &Thread, details: &Details, builder: &mut Builder, steps: &mut Steps) {
    let mut name = thread.name.clone();
    name.push(0);
    let name = builder.bytes(&name);
    steps.call(calls::PRCTL, &[PR_SET_NAME.into(), name]);
    steps.exact(calls::SET_TID_ADDRESS, thread.tid as u64, &[thread.clear_tid_address.into()]);
    if thread.robust_list.0 != 0 {
        steps.call(calls::SET_ROBUST_LIST, &[thread.robust_list.0.into(), thread.robust_list.1.into()]);
    }
    if let Some((address, bytes, signature, _)) = thread.rseq {
        let arguments = [address.into(), u64::from(bytes).into(), 0_u64.into(), u64::from(signature).into()];
        steps.call(calls::RSEQ, &arguments);
    }
    let stack = thread.signal_stack;
    if stack.flags & SS_DISABLE == 0 && stack.bytes != 0 {
        let flags = stack.flags & !SS_ONSTACK;
        let place = builder.numbers(&[stack.address, u64::from(flags as u32), stack.bytes]);
        steps.call(calls::SIGALTSTACK, &[place, 0_u64.into()]);
    }
    steps.call(calls::PRCTL, &[PR_SET_TIMERSLACK.into(), thread.timer_slack_ns.into()]);
    const ENABLED: u8 = 1;
    if thread.time_stamp_counter != ENABLED {
        steps.call(calls::PRCTL, &[PR_SET_TSC.into(), u64::from(thread.time_stamp_counter).into()]);
    }
    const DEFAULT: u8 = 2;
    if thread.memory_error_policy != DEFAULT {
        let policy = u64::from(thread.memory_error_policy).into();
        steps.call(calls::PRCTL, &[PR_MCE_KILL.into(), PR_MCE_KILL_SET.into(), policy, 0_u64.into(), 0_u64.into()]);
    }
    if thread.memory_policy.mode != 0 {
        let (nodes, count) = super::memory::nodes(&thread.memory_policy, builder);
        steps.call(calls::SET_MEMPOLICY, &[u64::from(thread.memory_policy.mode).into(), nodes, count]);
    }
    for Control { option, arguments: [first, second], .. } in details.controls(thread.tid) {
        // A processor may have nothing of the kind.
        let arguments = [*option, *first, *second, 0, 0].map(|word| Argument::from(u64::from(word)));
        steps.any(calls::PRCTL, &arguments);
    }
    scheduling(thread, builder, steps);
}

fn scheduling(thread: &Thread, builder: &mut Builder, steps: &mut Steps) {
    /// `SCHED_ATTR_SIZE_VER0`.
    const BYTES: u64 = 48;
    let scheduling = &thread.scheduling;
    let nice = u64::from(scheduling.nice as u32) | u64::from(scheduling.priority) << 32;
    let words = [BYTES | u64::from(scheduling.policy) << 32, scheduling.flags, nice, 0, 0, 0];
    let attributes = builder.numbers(&words);
    steps.call(calls::SCHED_SETATTR, &[0_u64.into(), attributes, 0_u64.into()]);
    let all = vec![u64::MAX; 128];
    let processors = if scheduling.processors.is_empty() { &all } else { &scheduling.processors };
    let set = builder.numbers(processors);
    steps.call(calls::SCHED_SETAFFINITY, &[0_u64.into(), (size_of_val(processors.as_slice()) as u64).into(), set]);
    if scheduling.io_priority != 0 {
        let priority = u64::from(scheduling.io_priority).into();
        steps.call(calls::IOPRIO_SET, &[IOPRIO_WHO_PROCESS.into(), 0_u64.into(), priority]);
    }
}

/// Who it is and what it may do; what comes after these steps needs no privilege.
pub(super) fn credentials(thread: &Thread, builder: &mut Builder, steps: &mut Steps) {
    let who = &thread.credentials;
    let none = Argument::Value(0);
    let groups: Vec<u8> = who.supplementary.iter().flat_map(|group| group.to_ne_bytes()).collect();
    let groups = builder.bytes(&groups);
    steps.call(calls::SETGROUPS, &[(who.supplementary.len() as u64).into(), groups]);
    // So that changing ids leaves the capabilities alone.
    steps.call(calls::PRCTL, &[PR_SET_SECUREBITS.into(), SECBIT_NO_SETUID_FIXUP.into(), none, none, none]);
    let [real, effective, saved, file] = who.groups.map(|id| Argument::Value(u64::from(id)));
    steps.call(calls::SETRESGID, &[real, effective, saved]);
    steps.any(calls::SETFSGID, &[file]);
    let [real, effective, saved, file] = who.users.map(|id| Argument::Value(u64::from(id)));
    steps.call(calls::SETRESUID, &[real, effective, saved]);
    steps.any(calls::SETFSUID, &[file]);
    let [inheritable, permitted, able, bounding, ambient] = who.capabilities;
    const VERSION_3: u64 = 0x2008_0522;
    const CAP_SETPCAP: u64 = 1 << 8;
    let header = builder.numbers(&[VERSION_3]);
    let low = |set: u64| set & 0xffff_ffff;
    let pair = |effective: u64, permitted: u64, inheritable: u64| {
        [
            low(effective) | low(permitted) << 32,
            low(inheritable) | (effective >> 32) << 32,
            (permitted >> 32) | (inheritable >> 32) << 32,
        ]
    };
    if inheritable != 0 {
        // Before the bounding set, which limits them; ambient ones need them.
        let first = builder.numbers(&pair(able | CAP_SETPCAP, permitted | CAP_SETPCAP, inheritable));
        steps.call(calls::CAPSET, &[header, first]);
    }
    for capability in (0..=LAST_CAPABILITY).filter(|n| bounding & (1 << n) == 0) {
        steps.call(calls::PRCTL, &[PR_CAPBSET_DROP.into(), capability.into(), none, none, none]);
    }
    let clear = [PR_CAP_AMBIENT.into(), PR_CAP_AMBIENT_CLEAR_ALL.into(), none, none, none];
    steps.call(calls::PRCTL, &clear);
    for capability in (0..=LAST_CAPABILITY).filter(|n| ambient & (1 << n) != 0) {
        let raise = [PR_CAP_AMBIENT.into(), PR_CAP_AMBIENT_RAISE.into(), capability.into(), none, none];
        steps.call(calls::PRCTL, &raise);
    }
    steps.call(calls::PRCTL, &[PR_SET_SECUREBITS.into(), u64::from(who.securebits).into(), none, none, none]);
    let sets = builder.numbers(&pair(able, permitted, inheritable));
    steps.call(calls::CAPSET, &[header, sets]);
}

/// Strict seccomp, after which nothing is allowed; it does not apply as long as the thread is traced.
pub(super) fn strict(thread: &Thread, steps: &mut Steps) {
    if thread.strict {
        steps.call(calls::PRCTL, &[PR_SET_SECCOMP.into(), SECCOMP_MODE_STRICT.into()]);
    }
}

/// What must come after the credentials, and the signals that wait for this thread.
pub(super) fn last(pid: i32, thread: &Thread, death_signal: bool, builder: &mut Builder, steps: &mut Steps) {
    let none = Argument::Value(0);
    if thread.no_new_privileges {
        steps.call(calls::PRCTL, &[PR_SET_NO_NEW_PRIVS.into(), 1_u64.into(), none, none, none]);
    }
    let signal = if death_signal { thread.parent_death_signal } else { 0 };
    steps.call(calls::PRCTL, &[PR_SET_PDEATHSIG.into(), signal.into()]);
    for signal in &thread.pending {
        let number = super::process::signal_number(&signal.info);
        let info = builder.bytes(&signal.info);
        steps.call(calls::RT_TGSIGQUEUEINFO, &[pid.into(), thread.tid.into(), number.into(), info]);
    }
}
