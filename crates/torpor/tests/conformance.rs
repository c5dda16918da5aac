//! The conformance suite under `torpor checkpoint` and `torpor restore`: what each program must say.
//!
//! The list is the truth in both directions: a program that stops being well fails here, and one that begins to be must be
//! entered. `refused` names words that the refusal must contain; nothing may be restored wrongly. Every program is captured twice: once ended and restored, once left running.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::Path;

use torpor_testkit::conformance::{Mode, Torpor, Verdict, captured, pools, program, programs};
use torpor_testkit::skip::skipped;

/// What is expected of a program.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// It finds everything as it was.
    Ok,
    /// It is refused before anything is touched, with these words among others.
    Refused(&'static str),
}

fn check(name: &str, expected: Expected) {
    let program = program(name).unwrap();
    let _pools = pools(std::slice::from_ref(&program)).unwrap();
    let torpor = Torpor { program: Path::new(env!("CARGO_BIN_EXE_torpor")).to_owned() };
    for mode in [Mode::Restored, Mode::LeftRunning] {
        let verdict = captured(&program, &torpor, mode).unwrap_or_else(|error| panic!("{name}: {error}"));
        match (&verdict, expected) {
            (Verdict::Skipped(why), _) => return skipped(module_path!(), &format!("{name}: {why}")),
            (Verdict::Ok, Expected::Ok) => {}
            (Verdict::Refused(why), Expected::Refused(words)) if why.contains(words) => {}
            _ => panic!("{name} ({}), {mode:?}: expected {expected:?}, got {verdict}", program.what),
        }
    }
}

macro_rules! expected {
    (ok) => {
        Expected::Ok
    };
    (refused $words:literal) => {
        Expected::Refused($words)
    };
}

macro_rules! conformance {
    ($($name:ident: $expected:ident $($words:literal)?,)*) => {
        const LISTED: &[&str] = &[$(stringify!($name),)*];
        $(
            #[test]
            fn $name() {
                check(stringify!($name), expected!($expected $($words)?));
            }
        )*
    };
}

#[test]
fn every_program_is_in_the_list() {
    let listed: BTreeSet<&str> = LISTED.iter().copied().collect();
    let there: BTreeSet<&str> = programs().iter().map(|program| program.name).collect();
    assert_eq!(listed, there);
}

conformance! {
    // processes.c
    children: ok,
    executables: ok,
    sessions: ok,
    groups: ok,
    group_without_leader: ok,
    session_without_leader: ok,
    zombies: ok,
    subreaper: ok,
    stopped: ok,
    threads: ok,
    many_threads: ok,
    ended_leader: refused "its first thread has ended while others live on",
    shared_descriptors: ok,
    shared_directory: ok,
    shared_address_space: refused "it shares its memory",
    vfork: refused "it waits in the kernel and cannot be stopped",
    name: ok,
    fork_after: ok,
    // credentials.c
    user_ids: ok,
    unprivileged: ok,
    capabilities: ok,
    kept_capabilities: ok,
    securebits: ok,
    no_new_privileges: ok,
    thread_ids: ok,
    seccomp: ok,
    seccomp_filters: ok,
    seccomp_thread: ok,
    seccomp_strict: ok,
    seccomp_notify: refused "a seccomp supervisor's descriptor",
    landlock: refused "it has restricted itself with Landlock",
    session_keyring: refused "it has a session keyring of its own with keys",
    // context.c
    working_directory: ok,
    working_directory_deleted: ok,
    root_directory: ok,
    file_mode_mask: ok,
    limits: ok,
    limit_below_descriptors: ok,
    scheduling: ok,
    realtime: ok,
    affinity: ok,
    timer_slack: ok,
    login_id: ok,
    oom_score: ok,
    coredump_filter: ok,
    not_dumpable: ok,
    parent_death_signal: ok,
    no_huge_pages: ok,
    personality: ok,
    deny_write_execute: ok,
    merge_memory: ok,
    time_stamp_counter: ok,
    membarrier: ok,
    memory_policy: ok,
    memory_policy_of_area: ok,
    syscall_dispatch: refused "it handles its own system calls",
    local_descriptor_table: refused "it has a local descriptor table",
    segment_base: ok,
    speculation: ok,
    memory_error_policy: ok,
    io_flusher: ok,
    clocks: ok,
    // namespaces.c
    host_name: refused "it is in another uts namespace",
    ipc_namespace: refused "it is in another ipc namespace",
    mount_namespace: refused "it is in another mount namespace",
    network_namespace: refused "it is in another network namespace",
    pid_namespace: refused "it is in another pid",
    user_namespace: refused "it is in another user namespace",
    cgroup_namespace: refused "it is in another cgroup namespace",
    time_namespace: refused "it is in another time",
    namespace_descriptor: refused "a namespace's descriptor",
    // signals.c
    handlers: ok,
    signal_masks: ok,
    alternate_stack: ok,
    inside_handler: ok,
    pending_of_process: ok,
    pending_of_thread: ok,
    pending_of_child: ok,
    ignored_child: ok,
    // timers.c
    interval_timers: ok,
    interval_timer_fires: ok,
    processor_timer_fires: ok,
    posix_timers: ok,
    posix_timer_fires: ok,
    timer_meanwhile: ok,
    thread_timer: ok,
    timer_overrun: refused "has expired several times",
    // futexes.c
    robust_futex: ok,
    contended_mutex: ok,
    priority_inheritance: ok,
    condition_variable: ok,
    join: ok,
    rseq: ok,
    // registers.c
    sse: ok,
    avx: ok,
    avx512: ok,
    general_registers: ok,
    x87: ok,
    protection_key_rights: ok,
    // blocked.c
    blocked_nanosleep: ok,
    blocked_clock_nanosleep: ok,
    blocked_sleep_until: ok,
    blocked_poll: ok,
    blocked_ppoll: ok,
    blocked_select: ok,
    blocked_pselect: ok,
    blocked_epoll_wait: ok,
    blocked_epoll_pwait2: ok,
    blocked_futex: ok,
    blocked_futex_until: ok,
    blocked_futex_waitv: ok,
    blocked_sigtimedwait: ok,
    blocked_receive_timeout: ok,
    blocked_semtimedop: ok,
    blocked_io_getevents: ok,
    blocked_read: ok,
    blocked_write: ok,
    blocked_receive: ok,
    blocked_poll_infinite: ok,
    blocked_epoll_infinite: ok,
    blocked_eventfd: ok,
    blocked_timerfd: ok,
    blocked_sigsuspend: ok,
    blocked_pause: ok,
    blocked_wait: ok,
    blocked_accept: ok,
    blocked_flock: ok,
    blocked_record_lock: ok,
    blocked_message_queue: ok,
    blocked_netlink: ok,
    // memory.c
    anonymous_memory: ok,
    discarded_memory: ok,
    file_memory: ok,
    shared_file_memory: ok,
    shared_read_only_file: ok,
    deleted_file_memory: ok,
    deleted_executable: ok,
    replaced_executable: ok,
    memory_executable: ok,
    growing_stack: ok,
    growing_area: ok,
    heap: ok,
    protections: ok,
    advice: ok,
    locked_memory: ok,
    locked_future: ok,
    huge_pages_advised: ok,
    huge_private: ok,
    huge_forked: ok,
    huge_unreserved: ok,
    huge_shared: ok,
    huge_memfd: ok,
    huge_segment: ok,
    huge_gigantic: ok,
    huge_file: ok,
    droppable_memory: ok,
    named_memory: ok,
    guard_pages: ok,
    sealed_memory: refused "sealed memory",
    reserved_memory: ok,
    many_areas: ok,
    zero_device_memory: ok,
    secret_memory: refused "secret memory",
    virtual_object: ok,
    no_virtual_object: refused "it has unmapped its vDSO",
    soft_limit_of_memory: ok,
    // shared.c
    shared_anonymous: ok,
    inherited_memory: ok,
    sharing_kept: ok,
    sharing_of_families: ok,
    sharing_moved: ok,
    memfd: ok,
    memfd_executable: ok,
    memfd_seals: ok,
    memfd_private: ok,
    system_v_shared_memory: ok,
    system_v_removed: ok,
    posix_shared_memory: ok,
    posix_shared_memory_unlinked: ok,
    // files.c
    file: ok,
    shared_offset: ok,
    deleted_file: ok,
    deleted_file_times: ok,
    deleted_twice: ok,
    deleted_with_other_name: ok,
    unnamed_file: ok,
    renamed_file: ok,
    replaced_file: ok,
    path_descriptor: ok,
    directory: ok,
    deleted_directory: ok,
    deleted_directory_shared: ok,
    devices: ok,
    proc_files: ok,
    proc_file_of_child: ok,
    memory_file: ok,
    close_on_exec: ok,
    high_descriptors: ok,
    many_descriptors: ok,
    closed_streams: ok,
    signal_owner: ok,
    directory_notification: refused "is watched with F_NOTIFY",
    terminal: ok,
    terminal_packets: ok,
    terminal_locked: ok,
    terminal_hung_up: ok,
    terminal_exclusive: ok,
    controlling_terminal: ok,
    terminal_line: refused "with lines that have been typed and not been read",
    job_control: ok,
    // locks.c
    flock_lock: ok,
    flock_owner: ok,
    flock_inherited: ok,
    record_locks: ok,
    open_file_locks: ok,
    lease: ok,
    // pipes.c
    pipe_contents: ok,
    pipe_full: ok,
    pipe_packets: ok,
    pipe_closed: ok,
    pipe_between: ok,
    pipe_size: ok,
    fifo: ok,
    fifo_deleted: ok,
    // unix.c
    unix_stream: ok,
    unix_datagram: ok,
    unix_packets: ok,
    unix_much: ok,
    unix_shutdown: ok,
    unix_orphan: ok,
    unix_listener: ok,
    unix_listener_abstract: ok,
    unix_listener_waiting: refused "a connection that waits to be accepted, on which data has been sent",
    unix_listener_abstract_waiting: refused "a connection that waits to be accepted, on which data has been sent",
    unix_listener_deleted: ok,
    unix_connection: ok,
    unix_bound_datagram: ok,
    unix_descriptors: ok,
    unix_credentials: ok,
    unix_options: ok,
    unix_outside: refused "a unix socket connected to a process outside of the tree",
    // inet.c
    tcp_listener: ok,
    tcp_listener_v6: ok,
    mptcp_listener: ok,
    tcp_options: ok,
    tcp_shared_port: ok,
    tcp_shared_ports: ok,
    udp_shared_port: ok,
    tcp_unconnected: ok,
    tcp_waiting: refused "wait to be accepted",
    tcp_connection: ok,
    tcp_ended: ok,
    tcp_half_closed: ok,
    tcp_half_closed_v6: ok,
    tcp_shut_ends: ok,
    tcp_closed_end: refused "a TCP socket whose connection has ended, and which the program has not closed",
    tcp_reset: refused "a TCP socket whose connection has ended, and which the program has not closed",
    udp: ok,
    udp_queued: ok,
    udp_shut: ok,
    udp_shut_v6: ok,
    udp_multicast: ok,
    socket_filter: ok,
    raw_socket: ok,
    raw_sockets: ok,
    ip_options: ok,
    ip_extension_headers: ok,
    packet_socket: ok,
    netlink: ok,
    netlink_connected: ok,
    netlink_queued: refused "a netlink socket with messages that the program has not read",
    vsock_listener: refused "a vsock socket",
    // events.c
    epoll_level: ok,
    epoll_edge: ok,
    epoll_edge_pending: ok,
    epoll_one_shot: ok,
    epoll_nested: ok,
    epoll_closed_member: ok,
    epoll_reused_number: ok,
    epoll_shared: ok,
    epoll_members: ok,
    event_counter: ok,
    event_semaphore: ok,
    signal_descriptor: ok,
    timer_descriptor: ok,
    timer_descriptor_ticks: ok,
    inotify: ok,
    inotify_root: ok,
    inotify_queued: refused "events that the program has not read",
    inotify_deleted: ok,
    process_descriptor: ok,
    process_descriptor_of_self: ok,
    process_descriptor_ended: ok,
    process_descriptor_outside: refused "of process 1, outside of the tree",
    thread_descriptor: ok,
    thread_descriptor_of_another: refused "a descriptor of a thread",
    // kernel.c
    io_uring: refused "io_uring",
    userfaultfd: refused "memory registered with a userfaultfd",
    perf_event: refused "a performance counter",
    bpf_map: refused "a BPF object",
    bpf_program: refused "a BPF object",
    fanotify: ok,
    fanotify_unread: refused "bytes of events that the program has not read",
    fanotify_permission: refused "asks for permission",
    traced: refused "traces it",
    tracing: refused "traces it",
    aio: ok,
    aio_contexts: ok,
    aio_idle: ok,
    aio_inherited: refused "a process has inherited by fork",
    aio_poll: refused "requests under way: they wait for descriptors",
    system_v_semaphore: ok,
    system_v_messages: ok,
    posix_messages: refused "a POSIX message queue",
    landlock_rules: refused "a landlock ruleset",
    file_system_context: refused "a kernel object that is not known here",
    detached_mount: refused "mounted over",
    tunnel: refused "/dev/net/tun",
    virtual_machine: refused "a virtual machine",
    fuse_connection: refused "/dev/fuse",
    // surroundings.c
    tmpfs_tree: ok,
    tmpfs_open: ok,
    tmpfs_socket: ok,
    system_v_objects: ok,
}
