//! Programs of the conformance suite as apps of a daemon: through the level warm, and through a power cut while they are warm.
//!
//! A few of each kind; the engine's own tests send the whole suite through warm, and `tests/conformance.rs` through
//! `torpor checkpoint`.
#![allow(clippy::unwrap_used, reason = "tests")]

use torpor_testkit::conformance::{Apps, Between, Verdict, program};

/// Each must find everything as it was, with its open files parked and without.
const PROGRAMS: &[&str] = &[
    "anonymous_memory",
    "heap",
    "growing_stack",
    "shared_file_memory",
    "limits",
    "working_directory",
    "root_directory",
    "clocks",
    "handlers",
    "pending_of_thread",
    "alternate_stack",
    "blocked_epoll_wait",
    "blocked_futex",
    "blocked_nanosleep",
    "blocked_poll",
    "blocked_accept",
    "capabilities",
    "thread_ids",
    "no_new_privileges",
    "children",
    "threads",
    "sessions",
    "zombies",
    "file",
    "renamed_file",
    "deleted_file",
    "deleted_file_memory",
    "closed_streams",
    "contended_mutex",
    "robust_futex",
    "rseq",
    "epoll_edge",
    "epoll_nested",
    "epoll_one_shot",
    "inotify",
    "signal_descriptor",
    "pipe_contents",
    "fifo",
    "record_locks",
    "flock_lock",
    "memfd",
    "shared_anonymous",
    "system_v_shared_memory",
    "posix_timer_fires",
    "thread_timer",
    "tcp_listener",
    "udp",
    "mptcp_listener",
    "unix_listener",
    "unix_stream",
    "unix_descriptors",
    "unix_packets",
];

fn all_are_well(between: Between) {
    let programs: Vec<_> = PROGRAMS.iter().map(|name| program(name).unwrap()).collect();
    let verdicts = Apps::start(&programs).unwrap().judge(between).unwrap();
    assert_eq!(verdicts.len(), PROGRAMS.len());
    let wrong: Vec<String> = verdicts
        .iter()
        .filter(|(_, verdict)| **verdict != Verdict::Ok)
        .map(|(name, verdict)| format!("{name}: {verdict}"))
        .collect();
    assert!(wrong.is_empty(), "{between:?}:\n{}", wrong.join("\n"));
}

#[test]
fn with_their_open_files_parked() {
    all_are_well(Between::Nothing);
}

#[test]
fn after_a_power_cut() {
    all_are_well(Between::PowerCut);
}
