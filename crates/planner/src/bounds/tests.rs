//! Each attack by itself, on a state that holds every kind once and is otherwise what an app could have.

use std::path::Path;

use torpor_image::Header;
use torpor_image::tree::{
    FanotifyMark, FileKind, InetState, LiveProcess, MarkExtent, OpenFile, Owner, PacketSocket, PathState,
    SharedMemoryKind, SocketOption, Tree,
};

use super::sample::{bounds, tame};
use super::*;

pub(super) fn golden() -> Tree {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../image/tests/fixtures/complete-2.image");
    let bytes = std::fs::read(golden).unwrap();
    let header = Header::decode(&bytes, bytes.len() as u64).unwrap();
    let mut tree = Tree::read(&bytes[header.state_offset() as usize..header.plan_offset() as usize], &header).unwrap();
    tame(&mut tree);
    tree
}

fn life(tree: &mut Tree) -> &mut LiveProcess {
    match &mut tree.processes[0].end {
        End::Alive(life) => life,
        End::Zombie { .. } => panic!("the first process lives"),
    }
}

fn add(tree: &mut Tree, kind: FileKind) -> &mut OpenFile {
    tree.files.push(OpenFile { kind, flags: 2, position: 0, owner: Owner::default(), locks: Vec::new() });
    tree.files.last_mut().unwrap()
}

fn path(path: &str) -> PathState {
    PathState { path: path.into(), mode: 0o100_600, ..PathState::default() }
}

fn inet(tree: &mut Tree) -> &mut torpor_image::tree::InetSocket {
    let found = tree.files.iter_mut().find_map(|file| match &mut file.kind {
        FileKind::Inet(socket) if socket.state == InetState::Idle => Some(socket),
        _ => None,
    });
    found.unwrap()
}

fn option(level: i32, name: i32, value: &[u8]) -> SocketOption {
    SocketOption { level, name, value: value.to_vec() }
}

#[test]
fn what_an_app_can_have_is_taken() {
    let mut tree = golden();
    assert_eq!(vet(&mut tree, &bounds()).refused, [""; 0]);
    // The second time nothing is left to lower.
    assert_eq!(vet(&mut tree, &bounds()), Vetted::default());
}

#[test]
fn what_no_app_can_have_is_refused() {
    type Attack = (&'static str, fn(&mut Tree));
    let attacks: &[Attack] = &[
        ("a fanotify group", |tree| {
            let path = path("/sys/fs/cgroup");
            let mark = FanotifyMark { extent: MarkExtent::FileSystem, flags: 0, mask: 0x20, ignored: 0, path };
            add(tree, FileKind::Fanotify { flags: 3, event_flags: 2, marks: vec![mark] });
        }),
        ("found by its handle", |tree| {
            add(tree, FileKind::Handle { state: path("/x"), handle: (1, vec![7; 8]) });
        }),
        ("which no app has", |tree| {
            add(tree, FileKind::Path(path("/proc/1/mem")));
        }),
        ("which no app has", |tree| life(tree).cwd.path = b"/..".to_vec()),
        ("which no app has", |tree| life(tree).root = Some(path("srv"))),
        ("which no app has", |tree| life(tree).space.files[0].path = b"/proc/1/exe".to_vec()),
        ("which no app has", |tree| {
            add(tree, FileKind::OfProcess { path: b"/proc/1/maps".to_vec() }).flags = 0;
        }),
        ("which no app has", |tree| {
            add(tree, FileKind::OfProcess { path: b"/proc/40/root/etc".to_vec() }).flags = 0;
        }),
        ("which no app has", |tree| {
            add(tree, FileKind::OfProcess { path: b"/proc/40/status".to_vec() });
        }),
        ("no file or device", |tree| {
            let state = PathState { mode: 0o060_600, bytes: 0x801, ..path("/dev/sda") };
            add(tree, FileKind::Path(state));
        }),
        ("no file or device", |tree| {
            let state = PathState { mode: 0o020_600, bytes: 0x101, ..path("/dev/mem") };
            add(tree, FileKind::Path(state));
        }),
        ("with flags 0o102", |tree| add(tree, FileKind::Path(path("/x"))).flags = 0o102),
        ("with flags 0o1001", |tree| add(tree, FileKind::Path(path("/x"))).flags = 0o1001),
        ("are told to process 1", |tree| tree.files[0].owner = Owner { kind: 1, id: 1, signal: 9 }),
        ("family 2, type 3", |tree| inet(tree).kind = (2, 3, 255)),
        ("family 16, type 3", |tree| inet(tree).kind = (16, 3, 9)),
        ("address of another family", |tree| inet(tree).local = vec![40, 0, 1, 2, 3, 4, 5, 6]),
        ("a connection that has ended", |tree| inet(tree).state = InetState::Closed),
        ("a packet socket", |tree| {
            let (interface, memberships, options) = (Vec::new(), Vec::new(), Vec::new());
            let socket = PacketSocket { kind: 3, protocol: 3, interface, memberships, options };
            add(tree, FileKind::Packet(Box::new(socket)));
        }),
        ("a netlink socket of type 3 and protocol 9", |tree| {
            let (groups, options) = (Vec::new(), Vec::new());
            add(tree, FileKind::Netlink { kind: (3, 9), port: 0, groups, options });
        }),
        ("groups of generic netlink", |tree| {
            let (groups, options) = (vec![3], Vec::new());
            add(tree, FileKind::Netlink { kind: (3, 16), port: 0, groups, options });
        }),
        ("option 1 50 of a socket", |tree| inet(tree).options.push(option(1, 50, &[0; 8]))),
        ("terminal number 4000", |tree| each_terminal(tree, |terminal| terminal.number = 4000)),
        ("by opening /etc/shadow", |tree| each_terminal(tree, |terminal| terminal.path = path("/etc/shadow"))),
        ("terminal 3", |tree| each_terminal(tree, |terminal| terminal.settings[16] = 3)),
        ("terminal 3", |tree| each_terminal(tree, |terminal| terminal.typed = vec![b'x'; 1 << 20])),
        ("a timer with clock 8", |tree| {
            add(tree, FileKind::Timer { clock: 8, settime_flags: 0, ticks: 0, left_ns: 1, interval_ns: 1 });
        }),
        ("a timer of process 40", |tree| life(tree).posix_timers[0].clock = 9),
        ("timer -1", |tree| life(tree).posix_timers[0].id = -1),
        ("advises [100]", |tree| life(tree).space.areas[0].advice.madvise = vec![100]),
        ("user or group 65536", |tree| life(tree).threads[0].credentials.users[1] = 65_536),
        ("user or group 1048576", |tree| {
            let memory = tree.memories.iter_mut().find_map(|memory| match &mut memory.kind {
                SharedMemoryKind::Memfd { owner, .. } => Some(owner),
                _ => None,
            });
            memory.unwrap().1 = 1 << 20;
        }),
        ("user or group 70000", |tree| tree.surroundings.tmpfs[0].nodes[1].owner.0 = 70_000),
        ("user or group 70000", |tree| tree.surroundings.queues[0].object.owners[2] = 70_000),
        ("an attribute of f", |tree| {
            tree.surroundings.tmpfs[0].nodes[2].attributes = vec![(b"trusted.overlay.opaque".to_vec(), b"y".to_vec())];
        }),
        ("a memory file system at", |tree| tree.surroundings.tmpfs[0].path = b"/a//b".to_vec()),
        ("stopped by signal", |tree| life(tree).stopped_by = Some(9)),
        ("a filter with flags 0x8", |tree| life(tree).threads[0].seccomp[0].flags = 8),
        ("a process 1", |tree| tree.processes[1].pid = 1),
        ("clocks that are centuries off", |tree| tree.machine.clock_offsets_ns[0] = i64::MIN),
        ("open and mapped files", |tree| {
            tree.files.extend(vec![tree.files[4].clone(); MOST_FILES]);
        }),
        ("descriptors, more than", |tree| {
            let one = life(tree).descriptors[0];
            life(tree).descriptors.extend(vec![one; Sizes::MOST.descriptors]);
        }),
        ("inotify watch number", |tree| {
            let watch = torpor_image::tree::InotifyWatch { watch: i32::MAX, mask: 2, path: path("/") };
            add(tree, FileKind::Inotify { watches: vec![watch] });
        }),
    ];
    for (n, (words, attack)) in attacks.iter().enumerate() {
        let mut tree = golden();
        attack(&mut tree);
        let refused = vet(&mut tree, &bounds()).refused.join("; ");
        assert!(refused.contains(words), "attack {n} is not refused with {words:?}: {refused:?}");
    }
}

fn each_terminal(tree: &mut Tree, change: impl Fn(&mut torpor_image::tree::Terminal)) {
    for file in &mut tree.files {
        if let FileKind::Master(terminal) = &mut file.kind {
            change(terminal);
        }
    }
}

#[test]
fn what_raises_privileges_is_lowered() {
    let mut tree = golden();
    let first = life(&mut tree);
    first.oom_score_adjustment = -1000;
    first.limits.iter_mut().for_each(|limit| (limit.soft, limit.hard) = (u64::MAX, u64::MAX));
    let scheduling = &mut first.threads[0].scheduling;
    (scheduling.policy, scheduling.priority, scheduling.nice, scheduling.io_priority) = (1, 99, -20, 1 << 13);
    first.space.areas[0].end = first.space.areas[0].start + (1 << 30);
    inet(&mut tree).options = vec![
        option(1, 7, &(i32::MAX as u32).to_ne_bytes()),
        option(1, 8, &(i32::MAX as u32).to_ne_bytes()),
        option(1, 36, &7_u32.to_ne_bytes()),
        option(1, 12, &7_u32.to_ne_bytes()),
        option(6, 13, b"bbr\0"),
        option(0, 19, &1_u32.to_ne_bytes()),
        option(1, 9, &1_u32.to_ne_bytes()),
    ];
    tree.pipes[0].capacity = 2 << 30;
    tree.surroundings.queues[0].most_bytes = u64::MAX;
    for memory in &mut tree.memories {
        if let SharedMemoryKind::SystemV { mode, .. } = &mut memory.kind {
            *mode |= 0o2000;
            memory.bytes = 1 << 40;
        }
    }
    let vetted = vet(&mut tree, &bounds());
    assert_eq!(vetted.refused, [""; 0]);
    let told = vetted.lowered.join("; ");
    for word in ["oom_score_adj", "memlock", "rtprio", "real-time priority", "nice", "I/O", "locked", "pipe", "queue"] {
        assert!(told.contains(word), "{word}: {told}");
    }
    let options = inet(&mut tree).options.clone();
    let most = MachineLimits::default();
    let buffers = [most.send_buffer_bytes, most.receive_buffer_bytes].map(|bytes| bytes.to_ne_bytes().to_vec());
    assert_eq!(options.iter().map(|option| (option.level, option.name)).collect::<Vec<_>>(), [(1, 7), (1, 8), (1, 9)]);
    assert_eq!([options[0].value.clone(), options[1].value.clone()], buffers);
    assert_eq!((tree.pipes[0].capacity, tree.surroundings.queues[0].most_bytes), (most.pipe_bytes, 16_384));
    let first = life(&mut tree);
    let limits = [8, 13, 14].map(|n: usize| (first.limits[n].soft, first.limits[n].hard));
    assert_eq!(limits, [(64 << 20, 64 << 20), (0, 0), (0, 0)]);
    let scheduling = &first.threads[0].scheduling;
    let found = (scheduling.policy, scheduling.priority, scheduling.nice, scheduling.io_priority);
    assert_eq!((first.oom_score_adjustment, found), (0, (0, 0, 0, 0)));
    assert_eq!(first.space.areas[0].advice.locked, None);
    assert!(!first.switches.merge_memory);
}

#[test]
fn capabilities_of_the_description_count() {
    let mut tree = golden();
    inet(&mut tree).kind = (2, 3, 1);
    inet(&mut tree).options = vec![option(1, 36, &7_u32.to_ne_bytes())];
    let able = Bounds { capabilities: u64::MAX, ..bounds() };
    assert_eq!(vet(&mut tree.clone(), &able).refused, [""; 0]);
    let mut same = tree.clone();
    vet(&mut same, &able);
    assert_eq!(inet(&mut same).options, inet(&mut tree).options);
    // In its own namespaces; on the machine they count only without a user namespace.
    life(&mut tree).threads[0].scheduling.nice = -5;
    let mut inside = tree.clone();
    vet(&mut inside, &able);
    assert_eq!(life(&mut inside).threads[0].scheduling.nice, 0);
    let outside = Bounds { user_namespace: false, ..able };
    vet(&mut tree, &outside);
    assert_eq!(life(&mut tree).threads[0].scheduling.nice, -5);
}

#[test]
fn owners_of_the_other_machine_become_the_apps() {
    let mut tree = golden();
    life(&mut tree).cwd = PathState { gone: Some((5_000_000, 12)), mode: 0o040_755, ..path("/gone") };
    assert_eq!(vet(&mut tree, &bounds()).refused, [""; 0]);
    assert_eq!(life(&mut tree).cwd.gone, Some((1 << 20, 12)));
}
