//! What the golden images hold: small, and with every kind of state that the format knows at least once.
//!
//! A change here that is not a change of the format is a mistake: the files in `fixtures/` say what has been written once.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::sync::LazyLock;

use torpor_image::tree::{
    Action, AddressSpace, Advice, Area, Backing, Connection, Control, Credentials, Descriptor, Details, End,
    EpollMember, Executable, FanotifyMark, FileKind, FileLock, InetSocket, InetState, InotifyWatch, IntervalTimer,
    IpcObject, Layout, Limit, LiveProcess, LockKind, Login, Machine, MarkExtent, MemoryPolicy, Message, MessageQueue,
    NamespaceState, Namespaces, NetlinkPeer, Node, NodeContent, OpenFile, Owner, PacketMembership, PacketSocket,
    PathState, PendingSignal, Pipe, PipeEnd, PosixTimer, Process, Scheduling, SeccompFilter, SemaphoreSet,
    SharedMemory, SharedMemoryKind, Shares, SignalStack, SocketOption, Switches, Terminal, Thread, Times, Tmpfs, Tree,
    UnixSocket, UnixState, Wait, WaitPlace,
};
use torpor_image::{Content, Epoch, HEADER_BYTES, Header, Kind, Needs, PAGE, Region, State, VERSION, checksum};

/// Pages of every golden image.
pub(crate) const STORED_PAGES: u64 = 3;

/// The bytes of these pages: no two alike.
pub(crate) fn pages() -> Vec<u8> {
    static PAGES: LazyLock<Vec<u8>> = LazyLock::new(|| {
        (0..STORED_PAGES).flat_map(|page| (0..PAGE).map(move |at| (at / 16) as u8 ^ (page as u8 * 37))).collect()
    });
    PAGES.clone()
}

fn stored(start: u64, first: u64, count: u64) -> Region {
    let bytes = &pages()[(first * PAGE) as usize..((first + count) * PAGE) as usize];
    let content = Content::Stored { offset: HEADER_BYTES + first * PAGE, checksum: checksum(bytes) };
    Region { start, pages: count as u32, writable: true, content }
}

fn zero(start: u64, pages: u32) -> Region {
    Region { start, pages, writable: false, content: Content::Zero }
}

fn connection() -> Connection {
    Connection {
        outside: true,
        state: 8,
        received_to: 1000,
        written_to: 2000,
        received: b"in".to_vec(),
        written: b"out".to_vec(),
        sent: 2,
        segment: 1460,
        scale: Some((7, 8)),
        selective: true,
        timestamps: true,
        timestamp: 77,
        window: [1, 2, 3, 4, 5],
        buffers: (87_380, 131_072),
    }
}

fn terminal() -> Terminal {
    Terminal {
        path: path("/dev/ptmx"),
        number: 3,
        settings: (0..44).collect(),
        size: [33, 101, 0, 0],
        packets: true,
        locked: false,
        untouched: true,
        exclusive: (false, true),
        mode: 0o620,
        owner: (1000, 5),
        typed: b"ls".to_vec(),
        shown: b"$ ".to_vec(),
    }
}

fn path(path: &str) -> PathState {
    let path = path.as_bytes().to_vec();
    PathState { path, device: 0x801, inode: 77, mode: 0o100_644, bytes: 12_345, modified_ns: -5, gone: None }
}

fn option(name: i32) -> SocketOption {
    SocketOption { level: 1, name, value: vec![1, 0, 0, 0] }
}

fn message(files: Vec<u32>) -> Message {
    Message { bytes: b"hello".to_vec(), files, from: vec![2, 0, 0, 80], credentials: Some((40, 0, 0)) }
}

fn inet(state: InetState) -> FileKind {
    let queue = vec![message(Vec::new())];
    let (local, remote, options) = (vec![2, 0, 0, 80], vec![2, 0, 1, 2], vec![option(2)]);
    FileKind::Inet(Box::new(InetSocket { kind: (2, 1, 6), local, remote, state, options, queue, shut: 1 }))
}

fn packets() -> FileKind {
    let (interface, address) = (b"eth0".to_vec(), vec![1, 0, 0x5e, 1, 2, 3]);
    let memberships = vec![PacketMembership { interface: interface.clone(), kind: 0, address, count: 2 }];
    FileKind::Packet(Box::new(PacketSocket {
        kind: 3,
        protocol: 0x88b5,
        interface,
        memberships,
        options: vec![option(8)],
    }))
}

fn marks() -> Vec<FanotifyMark> {
    let extents = [MarkExtent::Inode, MarkExtent::Mount, MarkExtent::FileSystem];
    extents.map(|extent| FanotifyMark { extent, flags: 0x40, mask: 0x20, ignored: 2, path: path("/srv") }).to_vec()
}

fn unix(state: UnixState) -> FileKind {
    FileKind::Unix(Box::new(UnixSocket {
        kind: 1,
        name: b"\0name".to_vec(),
        path: Some(path("/run/socket")),
        state,
        options: vec![option(16)],
        queue: vec![message(vec![0])],
        shut: 2,
        peer_credentials: Some((40, 1, 2)),
    }))
}

fn open_files() -> Vec<OpenFile> {
    let members = vec![EpollMember { fd: 3, file: 3, events: 1, data: 9 }];
    let watches = vec![InotifyWatch { watch: 1, mask: 2, path: path("/etc") }];
    let pipe_end = |end| FileKind::Pipe { pipe: 0, end };
    let timer = FileKind::Timer { clock: 1, settime_flags: 1, ticks: 2, left_ns: 3, interval_ns: 4 };
    let netlink = FileKind::Netlink { kind: (3, 0), port: 40, groups: vec![1], options: vec![option(1)] };
    let kinds = vec![
        FileKind::Path(path("/etc/passwd")),
        pipe_end(PipeEnd::Read),
        pipe_end(PipeEnd::Write),
        FileKind::Fifo { path: path("/run/fifo"), pipe: 1, end: PipeEnd::Both },
        FileKind::Event { count: 5, semaphore: true },
        FileKind::Epoll { members },
        FileKind::Signal { mask: 0x4000 },
        timer,
        FileKind::Inotify { watches },
        FileKind::Memory { memory: 1 },
        FileKind::Process { pid: 41 },
        unix(UnixState::Idle),
        unix(UnixState::Listening { backlog: 5, waiting: vec![13] }),
        unix(UnixState::Connected { peer: 14 }),
        unix(UnixState::Connected { peer: 13 }),
        unix(UnixState::Lost { reset: true }),
        inet(InetState::Idle),
        inet(InetState::Listening { backlog: 511 }),
        inet(InetState::Established { repair: Some(Box::new(connection())) }),
        inet(InetState::Closed),
        netlink,
        FileKind::Outside { name: "anon_inode:[fanotify]".to_owned() },
        FileKind::OfProcess { path: b"/proc/40/status".to_vec() },
        FileKind::Master(Box::new(terminal())),
        FileKind::Slave { master: 23 },
        FileKind::Handle {
            state: PathState { gone: Some((1000, 100)), ..path("/srv/renamed") },
            handle: (1, vec![1, 2, 3, 4]),
        },
        packets(),
        FileKind::Ended { process: 99, status: 9 },
        FileKind::Fanotify { flags: 3, event_flags: 0o100_000, marks: marks() },
    ];
    let lock = |kind, pid| FileLock { kind, mode: 1, pid, start: 10, bytes: 20 };
    let locks = vec![
        lock(LockKind::Flock, 0),
        lock(LockKind::Posix, 40),
        lock(LockKind::OpenFile, 0),
        lock(LockKind::Lease, 0),
    ];
    let file = |kind| OpenFile { kind, flags: 0o2, position: 300, owner: Owner::default(), locks: Vec::new() };
    let mut files: Vec<OpenFile> = kinds.into_iter().map(file).collect();
    files[0].locks = locks;
    files[0].owner = Owner { kind: 1, id: 40, signal: 10 };
    files
}

fn memories() -> Vec<SharedMemory> {
    let kinds = [
        SharedMemoryKind::Anonymous,
        SharedMemoryKind::Memfd { name: b"mem".to_vec(), seals: 1, flags: 2, mode: 0o777, owner: (1, 2) },
        SharedMemoryKind::SystemV { key: 5, id: 6, mode: 0o600, owners: [1, 2, 3, 4] },
        SharedMemoryKind::Deleted { state: path("/tmp/gone"), owner: (3, 4) },
    ];
    let memory = |kind| SharedMemory { kind, bytes: 3 * PAGE, pages: vec![zero(0, 1), stored(PAGE, 2, 1)] };
    kinds.into_iter().map(memory).collect()
}

fn space() -> AddressSpace {
    let area = |start: u64, pages: u64, backing, regions| Area {
        start,
        end: start + pages * PAGE,
        protection: 3,
        backing,
        advice: Advice {
            madvise: vec![14],
            locked: Some(1),
            name: b"heap".to_vec(),
            policy: MemoryPolicy { mode: 2, nodes: vec![1] },
        },
        key: 0,
        pages: regions,
    };
    let areas = vec![
        area(0x40_0000, 2, Backing::File { file: 0, offset: PAGE, shared: false, may_write: true }, Vec::new()),
        area(
            0x50_0000,
            8,
            Backing::Anonymous { grows_down: true, droppable: true, no_reserve: true },
            vec![stored(0x50_0000, 0, 2), zero(0x50_4000, 3)],
        ),
        area(0x60_0000, 3, Backing::Shared { memory: 0, offset: 0, shared: true, may_write: false }, Vec::new()),
        area(0x70_0000, 1, Backing::Aio { head: 3, waiting: vec![0x11; 64] }, Vec::new()),
        area(0x7fff_0000_0000, 2, Backing::Kernel { name: "[vdso]".to_owned() }, Vec::new()),
    ];
    let layout = Layout {
        code: (0x40_0000, 0x40_1000),
        data: (0x40_1000, 0x40_1800),
        heap: (0x50_0000, 0x50_8000),
        stack: 0x50_7000,
        arguments: (0x50_7100, 0x50_7200),
        environment: (0x50_7200, 0x50_7300),
        auxiliary: vec![6, PAGE, 0, 0],
    };
    AddressSpace { areas, files: vec![path("/usr/bin/program")], layout, executable: Executable::File(0) }
}

fn thread(tid: i32, place: WaitPlace) -> Thread {
    Thread {
        tid,
        registers: (0..27).map(|n| n * 0x1_0001).collect(),
        xstate: vec![0x37; 64],
        wait: Some(Wait { left_ns: 1_000_000_007, place }),
        signal_mask: 0x1_0000,
        signal_stack: SignalStack { address: 0x50_0000, flags: 1, bytes: 8192 },
        pending: vec![PendingSignal { info: vec![12; 128] }],
        name: b"worker".to_vec(),
        robust_list: (0x50_0100, 24),
        clear_tid_address: 0x50_0200,
        rseq: Some((0x50_0300, 32, 0x5305_3053, 0)),
        credentials: Credentials {
            users: [1, 2, 3, 4],
            groups: [5, 6, 7, 8],
            supplementary: vec![100, 101],
            capabilities: [0, 1, 1, u64::MAX >> 23, 0],
            securebits: 1,
        },
        no_new_privileges: true,
        seccomp: vec![SeccompFilter { flags: 2, instructions: vec![0x7fff_0000_0000_0006] }],
        parent_death_signal: 15,
        scheduling: Scheduling { policy: 2, priority: 1, flags: 1, nice: -5, processors: vec![3], io_priority: 8199 },
        timer_slack_ns: 50_000,
        time_stamp_counter: 1,
        strict: true,
        memory_error_policy: 2,
        memory_policy: MemoryPolicy::default(),
    }
}

fn life(threads: Vec<Thread>) -> LiveProcess {
    let descriptor = |n: usize| Descriptor { fd: n as i32, file: n as u32, close_on_exec: n.is_multiple_of(2) };
    let timer = IntervalTimer { left_ns: 1, interval_ns: 2 };
    LiveProcess {
        threads,
        space: space(),
        descriptors: (0..open_files().len()).map(descriptor).collect(),
        cwd: path("/srv"),
        root: Some(path("/srv/root")),
        umask: 0o27,
        limits: vec![Limit { soft: 1024, hard: u64::MAX }; 16],
        oom_score_adjustment: -7,
        actions: (1..=64).map(|n| Action { handler: n, flags: 4, restorer: 0x40_0000, mask: n << 8 }).collect(),
        pending: vec![PendingSignal { info: vec![10; 128] }],
        interval_timers: [timer; 3],
        posix_timers: vec![PosixTimer {
            id: 0,
            clock: 1,
            signal: 14,
            notify: 4,
            thread: 40,
            value: 7,
            timer,
            overrun: 1,
        }],
        dumpable: 1,
        subreaper: true,
        no_huge_pages: true,
        personality: 0x4_0000,
        stopped_by: Some(19),
        terminal: Some((24, 40)),
        shares: Shares::default(),
        switches: Switches {
            coredump_filter: 0x33,
            deny_write_execute: 1,
            merge_memory: true,
            lock_future: true,
            barriers: 16,
        },
    }
}

/// The tree of the complete image.
pub(crate) fn tree() -> Tree {
    let threads = vec![thread(40, WaitPlace::Timespec(0x50_0400)), thread(42, WaitPlace::Milliseconds(12))];
    let process = |pid, parent, end| Process { pid, parent, group: 40, session: 40, end };
    let mut child = life(vec![thread(41, WaitPlace::Timeval(0x50_0500))]);
    child.shares = Shares { descriptors: true, directories: true };
    Tree {
        machine: Machine {
            kernel: "6.18.0-golden".to_owned(),
            boot: [11, 12],
            realtime_ns: 1_700_000_000_000_000_000,
            monotonic_ns: 5_000_000_000,
            boottime_ns: 6_000_000_000,
            clock_offsets_ns: [-1, 2],
            wake_after_ns: Some(60_000_000_000),
        },
        processes: vec![
            process(40, 0, End::Alive(Box::new(life(threads)))),
            process(41, 40, End::Alive(Box::new(child))),
            process(43, 40, End::Zombie { status: 0x100, name: b"gone".to_vec() }),
        ],
        files: open_files(),
        pipes: vec![
            Pipe { capacity: 65_536, contents: vec![b"in the pipe".to_vec()] },
            Pipe { capacity: 4096, contents: Vec::new() },
        ],
        memories: memories(),
        namespaces: Namespaces { user: true, time: true },
        surroundings: surroundings(),
        details: details(),
        contents: Vec::new(),
        loading: Vec::new(),
        used: Vec::new(),
    }
}

fn details() -> Details {
    let netlink = open_files().iter().position(|file| matches!(file.kind, FileKind::Netlink { .. }));
    let netlink = netlink.expect("there is one of every kind");
    Details {
        logins: vec![Login { tid: 40, user: 1000 }, Login { tid: 42, user: 0 }],
        times: vec![Times { memory: 3, accessed_ns: 1_700_000_000_000_000_001, modified_ns: -2 }],
        controls: vec![Control { tid: 42, option: Control::SPECULATION, arguments: [0, 4] }],
        netlink_peers: vec![NetlinkPeer { file: netlink as u32, port: 77, groups: 1 << 31 }],
    }
}

fn surroundings() -> NamespaceState {
    let node = |parent, name: &[u8], inode, mode, content| Node {
        parent,
        name: name.to_vec(),
        inode,
        mode,
        owner: (1000, 100),
        times_ns: [1_700_000_000_000_000_001, 1_700_000_000_000_000_002],
        attributes: Vec::new(),
        content,
    };
    let mut file = node(1, b"f", 3, 0o100_644, NodeContent::File { bytes: 8000, pages: vec![stored(0x1000, 0, 1)] });
    file.attributes = vec![(b"user.a".to_vec(), b"b".to_vec())];
    let nodes = vec![
        node(0, b"", 1, 0o041_777, NodeContent::Nothing),
        node(0, b"d", 2, 0o040_700, NodeContent::Nothing),
        file,
        node(0, b"again", 3, 0o100_644, NodeContent::Again(2)),
        node(0, b"link", 4, 0o120_777, NodeContent::Link(b"d/f".to_vec())),
        node(0, b"gap", 5, 0o020_000, NodeContent::Device(0)),
        node(0, b"pts", 0, 0, NodeContent::Covered),
    ];
    let object = |id| IpcObject { key: 0x700, id, mode: 0o640, owners: [1, 2, 3, 4] };
    NamespaceState {
        tmpfs: vec![Tmpfs { path: b"/dev/shm".to_vec(), device: 77, nodes }],
        semaphores: vec![SemaphoreSet { object: object(5), values: vec![1, 32_767] }],
        queues: vec![MessageQueue { object: object(6), most_bytes: 16_384, messages: vec![(4, b"hello".to_vec())] }],
        host_name: b"web".to_vec(),
        domain_name: b"(none)".to_vec(),
        lost: vec!["a terminal".to_owned()],
    }
}

/// The state of the dozing images.
pub(crate) fn dozing() -> State {
    let thread = |tid, wait| torpor_image::Thread {
        tid,
        registers: std::array::from_fn(|n| n as u64 * 0x1_0001),
        signal_mask: 0x1_0000,
        wait,
    };
    let wait = torpor_image::Wait { deadline_ns: 9_000_000_000, total_ns: 1_000_000_000 };
    let process = |pid, regions, threads| torpor_image::Process {
        pid,
        start_ticks: 4711,
        park_address: 0x7fff_0000_0040,
        regions,
        threads,
    };
    let regions = vec![stored(0x50_0000, 0, 2), zero(0x50_4000, 3), stored(0x7f00_0000_0000, 2, 1)];
    let threads = vec![thread(4000, Some(wait)), thread(4002, None)];
    let processes = vec![process(4000, regions, threads), process(4001, Vec::new(), vec![thread(4001, None)])];
    State { processes, loading: Vec::new() }
}

/// What stands for the plan: plans belong to one build of Torpor, and are made again where they do not fit.
pub(crate) const PLAN: &[u8] = b"not a plan of any build";

/// Header of the image of `kind` with this state.
pub(crate) fn header(kind: Kind, state: &[u8], plan: &[u8]) -> Header {
    let needs = match kind {
        Kind::Dozing => Needs::default(),
        Kind::Complete => Needs { kernel: (6, 1), cpu: [1, 2, 3, 4], xstate_mask: 7 },
    };
    Header {
        version: VERSION,
        kind,
        app: 0x0123_4567_89ab_cdef,
        epoch: Epoch::FIRST,
        generation: 42,
        boot: [11, 12],
        pages_bytes: STORED_PAGES * PAGE,
        state_bytes: state.len() as u64,
        state_checksum: checksum(state),
        plan_bytes: plan.len() as u64,
        plan_checksum: if plan.is_empty() { 0 } else { checksum(plan) },
        needs,
    }
}

/// The complete image, as this version writes it.
pub(crate) fn complete_image() -> Vec<u8> {
    let state = tree().encode();
    [header(Kind::Complete, &state, PLAN).encode(), pages(), state, PLAN.to_vec()].concat()
}

/// The dozing image, as this version writes it.
pub(crate) fn dozing_image() -> Vec<u8> {
    let state = dozing().encode();
    [header(Kind::Dozing, &state, &[]).encode(), pages(), state].concat()
}
