//! Programs of the conformance suite as apps of a daemon: through the level warm, and through a power cut while they are warm.
//!
//! By default a few of each kind, which must all be well; all of them with `make test-all`, where the list of exceptions is the
//! truth in both directions. `tests/conformance.rs` sends the suite through `torpor checkpoint`, and the engine's own tests
//! through warm.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use Expected::{NotThere, Ok as Well, Refused, Wrong};
use torpor_testkit::conformance::{Apps, Between, Program, Verdict, native, pools, program, programs};
use torpor_testkit::skip::skipped;

/// What is expected of a program.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// It finds everything as it was.
    Ok,
    /// It does not go warm, with these words among others, and goes on untouched.
    Refused(&'static str),
    /// It is built again, and this is not as it was: a known fault, or what a power cut ends.
    Wrong(&'static str),
    /// It cannot be set up in a sandbox, with these words among others.
    NotThere(&'static str),
}

/// With open files parked and after a power cut; all others find everything as it was.
const EXCEPTIONS: &[(&str, Expected)] = &[
    ("aio_inherited", Refused("the ring of an AIO context that a process has inherited by fork (io_setup)")),
    ("aio_poll", Refused("requests under way: they wait for descriptors")),
    ("aio_poll_answered", Refused("requests under way: they wait for descriptors")),
    ("avx", Refused("is at work")),
    ("avx512", Refused("is at work")),
    ("bpf_map", NotThere("bpf")),
    ("bpf_program", NotThere("bpf")),
    ("cgroup_namespace", Refused("it is in another cgroup namespace")),
    ("directory_notification", Refused("is watched with F_NOTIFY")),
    ("ended_leader", Refused("no vDSO with room")),
    ("executables", NotThere("/bin/sleep")),
    ("fanotify", NotThere("fanotify")),
    ("fanotify_permission", NotThere("fanotify")),
    ("fanotify_unread", NotThere("fanotify")),
    ("file_system_context", Refused("a kernel object that is not known here (anon_inode:[fscontext])")),
    ("fuse_connection", NotThere("/dev/fuse")),
    ("general_registers", Refused("is at work")),
    ("host_name", Refused("it is in another uts namespace")),
    ("huge_file", NotThere("mount")),
    ("huge_segment", NotThere("no segment of huge pages")),
    ("io_flusher", NotThere("PR_SET_IO_FLUSHER")),
    ("io_uring", Refused("io_uring may hold its memory")),
    ("ipc_namespace", Refused("it is in another ipc namespace")),
    ("landlock", Refused("it has restricted itself with Landlock")),
    ("local_descriptor_table", Refused("it has a local descriptor table (modify_ldt)")),
    ("memory_file", Refused("may only be opened by its process")),
    ("mount_namespace", Refused("it is in another mount namespace")),
    ("named_memory", NotThere("names")),
    ("network_namespace", Refused("it is in another network namespace")),
    ("no_virtual_object", Refused("no vDSO with room")),
    ("perf_event", NotThere("perf_event_open")),
    ("pid_namespace", Refused("it is in another pid (for its children) namespace")),
    ("pipe_spliced", Refused("it has more than an image can hold")),
    ("proc_files", Refused("may only be opened by its process")),
    ("protection_key_rights", NotThere("no protection keys")),
    ("replaced_executable", Refused("another file has its name")),
    ("realtime", NotThere("real-time scheduling")),
    ("sealed_memory", Refused("sealed memory (mseal)")),
    ("seccomp_notify", Refused("a seccomp supervisor's descriptor (anon_inode:seccomp notify)")),
    ("secret_memory", Refused("secret memory (memfd_secret): /secretmem (deleted)")),
    ("session_keyring", Refused("it has a session keyring of its own with keys")),
    ("shared_address_space", Refused("it shares its memory (CLONE_VM, vfork)")),
    ("sse", Refused("is at work")),
    ("syscall_dispatch", Refused("it handles its own system calls (PR_SET_SYSCALL_USER_DISPATCH)")),
    ("system_v_semaphore", Refused("which may have to be undone when it ends (SEM_UNDO)")),
    ("thread_descriptor_of_another", Refused("a descriptor of a thread")),
    ("time_namespace", Refused("it is in another time (for its children) namespace")),
    ("timer_overrun", Refused("has expired several times")),
    ("traced", Refused("is traced by")),
    ("tracing", Refused("is traced by")),
    ("tunnel", NotThere("/dev/net/tun")),
    ("unix_listener_abstract_waiting", Refused("a connection that waits to be accepted, on which data has been sent")),
    ("unix_listener_waiting", Refused("a connection that waits to be accepted, on which data has been sent")),
    ("user_namespace", Refused("it is in another user namespace")),
    ("userfaultfd", Refused("registered with a userfaultfd")),
    ("vfork", Refused("cannot be stopped")),
    ("virtual_machine", NotThere("/dev/kvm")),
    ("x87", Refused("is at work")),
];

/// What only parking keeps: well with open files parked, not so after a power cut.
const ENDED_BY_A_POWER_CUT: &[(&str, &str)] = &[
    ("detached_mount", "it was not attached to any tree"),
    ("inotify_deleted", "events of before are gone"),
    ("inotify_queued", "events of before are gone"),
    ("landlock_rules", "a ruleset cannot be read"),
    ("namespace_descriptor", "the namespace is another"),
    ("netlink_queued", "what the kernel told before is gone"),
    ("posix_messages", "queues end with the machine"),
    ("process_descriptor_ended", "it is closed"),
    ("process_descriptor_outside", "it is closed"),
    ("tcp_closed_end", "connections end"),
    ("tcp_ended", "connections end"),
    ("tcp_waiting", "connections end"),
    ("terminal", "what waits unread in it is gone"),
    ("terminal_hung_up", "what waits unread in it is gone"),
    ("terminal_line", "what waits unread in it is gone"),
    ("terminal_packets", "what waits unread in it is gone"),
    ("unix_connection", "SO_PEERCRED names nobody"),
    ("unix_credentials", "the sender of a message that waits"),
    ("vsock_listener", "it is closed"),
];

/// Daemons at once.
const AT_ONCE: usize = 2;

/// A few of each kind, all of which are well.
const DAILY: &[&str] = &[
    "anonymous_memory",
    "heap",
    "growing_stack",
    "shared_file_memory",
    "limits",
    "hard_limits_below_use",
    "memory_limits_below_use",
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
    "stopped_orphans",
    "controlling_terminal",
    "job_control",
    "zombies",
    "file",
    "renamed_file",
    "deleted_file",
    "deleted_file_times",
    "deleted_directory_shared",
    "deleted_file_memory",
    "closed_streams",
    "contended_mutex",
    "robust_futex",
    "rseq",
    "epoll_edge",
    "epoll_nested",
    "epoll_one_shot",
    "inotify",
    "inotify_root",
    "signal_descriptor",
    "pipe_contents",
    "fifo",
    "record_locks",
    "flock_lock",
    "flock_owner",
    "memfd",
    "memfd_executable",
    "shared_anonymous",
    "huge_private",
    "huge_shared",
    "huge_memfd",
    "system_v_shared_memory",
    "posix_timer_fires",
    "thread_timer",
    "tcp_listener",
    "tcp_shared_ports",
    "udp",
    "udp_shut",
    "mptcp_listener",
    "unix_listener",
    "unix_stream",
    "unix_descriptors",
    "unix_packets",
    "posix_shared_memory",
    "posix_shared_memory_unlinked",
    "tmpfs_tree",
    "tmpfs_open",
    "tmpfs_socket",
    "system_v_messages",
    "system_v_objects",
    "interval_timers",
    "posix_timers",
    "timer_meanwhile",
    "timer_descriptor",
    "epoll_members",
    "udp_queued",
];

/// Whether it is as expected; what it is, if not.
fn unexpected(program: &Program, verdict: &Verdict, between: Between) -> Option<String> {
    let exception = EXCEPTIONS.iter().find(|(name, _)| *name == program.name).map(|(_, expected)| *expected);
    let ended = ENDED_BY_A_POWER_CUT.iter().find(|(name, _)| *name == program.name && between == Between::PowerCut);
    let expected = exception.or(ended.map(|(_, what)| Wrong(what))).unwrap_or(Well);
    match (verdict, expected) {
        (Verdict::Ok, Well) => return None,
        (Verdict::Failed { .. }, Wrong(what)) => {
            eprintln!("KNOWN FAULT {}: {what}: {verdict}", program.name);
            return None;
        }
        (Verdict::Refused(said), Refused(words)) | (Verdict::Skipped(said), NotThere(words))
            if said.contains(words) =>
        {
            return None;
        }
        // This machine cannot do it at all.
        (Verdict::Skipped(why), _) if matches!(native(program), Ok(Verdict::Skipped(_))) => {
            skipped(module_path!(), &format!("{}: {why}", program.name));
            return None;
        }
        _ => {}
    }
    Some(format!("{} ({}): expected {expected:?}, got {verdict}", program.name, program.what))
}

/// Sends programs through a daemon; those that are not as expected.
fn judged(programs: &[Program], between: Between) -> Vec<String> {
    let binary = Path::new(env!("CARGO_BIN_EXE_torpor"));
    let _pools = pools(programs).unwrap();
    let verdicts = Apps::start(binary, programs).unwrap().judge(between).unwrap();
    assert_eq!(verdicts.len(), programs.len());
    programs.iter().filter_map(|program| unexpected(program, &verdicts[program.name], between)).collect()
}

fn daily(between: Between) {
    let programs: Vec<_> = DAILY.iter().map(|name| program(name).unwrap()).collect();
    let wrong = judged(&programs, between);
    assert!(wrong.is_empty(), "{between:?}:\n{}", wrong.join("\n"));
}

fn all(between: Between) {
    // Those with one of these in their names.
    let only = std::env::var("TORPOR_CONFORMANCE_ONLY").unwrap_or_default();
    let is_wanted = |program: &Program| only.split(',').any(|part| program.name.contains(part));
    let programs: Vec<_> = programs().into_iter().filter(is_wanted).collect();
    let [alone, batches] = Apps::batches(&programs);
    let wrong = Mutex::new(alone.iter().flat_map(|batch| judged(batch, between)).collect::<Vec<_>>());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = judged(batch, between);
                    wrong.lock().unwrap().extend(found);
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{between:?}:\n{}", wrong.join("\n"));
}

#[test]
fn exceptions_are_programs() {
    let names: Vec<&str> =
        EXCEPTIONS.iter().map(|(name, _)| *name).chain(ENDED_BY_A_POWER_CUT.iter().map(|(name, _)| *name)).collect();
    for (at, name) in names.iter().enumerate() {
        assert!(program(name).is_ok(), "{name}");
        assert!(!names[..at].contains(name), "{name} is there twice");
        assert!(!DAILY.contains(name), "{name} is not well");
    }
}

#[test]
fn with_their_open_files_parked() {
    daily(Between::Nothing);
}

#[test]
fn after_a_power_cut() {
    daily(Between::PowerCut);
}

#[test]
#[ignore = "all programs take ten minutes: make test-all"]
fn every_program_with_its_open_files_parked() {
    all(Between::Nothing);
}

#[test]
#[ignore = "all programs take ten minutes: make test-all"]
fn every_program_after_a_power_cut() {
    all(Between::PowerCut);
}
