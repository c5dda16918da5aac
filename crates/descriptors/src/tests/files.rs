//! Files, pipes, and descriptors that are numbers.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{FlockOperation, MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fcntl_getfl, flock};
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_gettime,
    timerfd_settime,
};
use torpor_image::tree::{FileKind, LockKind};
use torpor_pages::source::ImageFile;

use crate::contract::Given;
use crate::contract::error::{DumpError, RestoreFileError};
use crate::list::{Descriptors, List};
use crate::restore::restore;
use crate::tests::{HERE, described, refusal, round, take};

fn seconds(tv_sec: i64) -> Timespec {
    Timespec { tv_sec, tv_nsec: 0 }
}

#[test]
fn files_keep_flags_position_and_sharing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a file");
    fs::write(&path, b"0123456789").unwrap();
    let mut file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(4)).unwrap();
    let same = file.try_clone().unwrap();
    let appending = OpenOptions::new().append(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&path).unwrap();
    let only_path =
        OpenOptions::new().read(true).custom_flags(OFlags::PATH.bits() as i32).open(directory.path()).unwrap();
    let listing = File::open(directory.path()).unwrap();
    let null = OpenOptions::new().write(true).open("/dev/null").unwrap();
    let renamed = directory.path().join("renamed");
    fs::rename(&path, &renamed).unwrap();
    let flags: Vec<OFlags> = [&file, &appending, &only_path].iter().map(|file| fcntl_getfl(file).unwrap()).collect();

    let made = round([file, same, appending, only_path, listing, null].map(OwnedFd::from).into());
    let mut made = made.into_iter().map(File::from);
    let (mut file, mut same, mut appending) = (made.next().unwrap(), made.next().unwrap(), made.next().unwrap());
    assert_eq!(fcntl_getfl(&file).unwrap(), flags[0]);
    assert_eq!(fcntl_getfl(&appending).unwrap(), flags[1]);
    assert_eq!(fcntl_getfl(made.next().unwrap()).unwrap(), flags[2]);
    assert_eq!(fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap(), renamed);
    let mut two = [0; 2];
    file.read_exact(&mut two).unwrap();
    same.read_exact(&mut two).unwrap();
    assert_eq!(&two, b"67");
    appending.write_all(b"end").unwrap();
    assert_eq!(fs::read(&renamed).unwrap(), b"0123456789end");
}

#[test]
fn files_that_have_changed_are_refused_when_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    type Change = (fn(&Path), &'static str);
    let changes: [Change; 4] = [
        (|path| fs::write(path, b"longer").unwrap(), "its length has changed"),
        (
            |path| File::options().write(true).open(path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap(),
            "it has been written to",
        ),
        (
            |path| {
                fs::write(path.with_extension("new"), b"").unwrap();
                fs::rename(path.with_extension("new"), path).unwrap();
            },
            "it is another file",
        ),
        (
            |path| {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            },
            "it is of another kind",
        ),
    ];
    for (change, expected) in changes {
        fs::write(&path, b"").unwrap();
        let taken = take(&[File::open(&path).unwrap().into()]).unwrap();
        change(&path);
        match restore(&taken.tree, &ImageFile::through_cache(&taken.image), Given::new(), HERE) {
            Err(RestoreFileError::Changed { how, .. }) => assert_eq!(how, expected),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn deleted_files_come_back_with_what_was_in_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gone");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(b"beginning", 0).unwrap();
    file.write_all_at(&[7; 100_000], 5 << 20).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::fchown(&file, Some(1234), Some(4321)).unwrap();
    let mut reader = File::open(&path).unwrap();
    reader.seek(SeekFrom::Start(3)).unwrap();
    fs::remove_file(&path).unwrap();

    let mut made = round(vec![file.into(), reader.into()]).into_iter().map(File::from);
    let (file, mut reader) = (made.next().unwrap(), made.next().unwrap());
    let meta = file.metadata().unwrap();
    assert_eq!((meta.len(), meta.nlink(), meta.mode() & 0o7777), ((5 << 20) + 100_000, 0, 0o640));
    assert_eq!((meta.uid(), meta.gid()), (1234, 4321));
    assert_eq!(reader.metadata().unwrap().ino(), meta.ino());
    assert!(meta.blocks() < 1000, "holes are kept: {}", meta.blocks());
    let mut six = [0; 6];
    reader.read_exact(&mut six).unwrap();
    assert_eq!(&six, b"inning");
    let mut tail = vec![0; 100_000];
    file.read_exact_at(&mut tail, 5 << 20).unwrap();
    assert!(tail.iter().all(|byte| *byte == 7));
    file.write_all_at(b"B", 0).unwrap();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_damaged_image_is_not_restored() {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(b"contents", 0).unwrap();
    let taken = take(&[file.into()]).unwrap();
    taken.image.write_all_at(b"x", 4096).unwrap();
    assert!(matches!(
        restore(&taken.tree, &ImageFile::through_cache(&taken.image), Given::new(), HERE),
        Err(RestoreFileError::Damaged { .. })
    ));
}

#[test]
fn memfds_keep_contents_seals_and_names() {
    let memory = rustix::fs::memfd_create("some memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let memory = File::from(memory);
    memory.set_len(3 << 20).unwrap();
    memory.write_all_at(b"hello", 2 << 20).unwrap();
    fcntl_add_seals(&memory, SealFlags::GROW | SealFlags::WRITE).unwrap();
    let plain = rustix::fs::memfd_create("plain", MemfdFlags::CLOEXEC).unwrap();
    let seals = [fcntl_get_seals(&memory).unwrap(), fcntl_get_seals(&plain).unwrap()];
    let made = round(vec![memory.into(), plain]);
    assert_eq!([fcntl_get_seals(&made[0]).unwrap(), fcntl_get_seals(&made[1]).unwrap()], seals);
    let name = fs::read_link(format!("/proc/self/fd/{}", made[0].as_raw_fd())).unwrap();
    assert_eq!(name.to_str(), Some("/memfd:some memory (deleted)"));
    let memory = File::from(made.into_iter().next().unwrap());
    let mut five = [0; 5];
    memory.read_exact_at(&mut five, 2 << 20).unwrap();
    assert_eq!((&five, memory.metadata().unwrap().len()), (b"hello", 3 << 20));
    assert!(memory.write_all_at(b"x", 0).is_err());
}

#[test]
fn pipes_keep_what_is_in_them() {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    fcntl_setpipe_size(&write, 256 << 10).unwrap();
    for n in 0..30_u8 {
        rustix::io::write(&write, &vec![n; 5000]).unwrap();
    }
    let made = round(vec![read, write]);
    assert_eq!(fcntl_getpipe_size(&made[0]).unwrap(), 256 << 10);
    let mut found = vec![0; 30 * 5000];
    File::from(made[0].try_clone().unwrap()).read_exact(&mut found).unwrap();
    assert!(found.chunks(5000).enumerate().all(|(n, part)| part.iter().all(|byte| *byte == n as u8)));
    rustix::io::write(&made[1], b"more").unwrap();
    let mut four = [0; 4];
    assert_eq!(rustix::io::read(&made[0], &mut four), Ok(4));
    assert_eq!(rustix::io::read(&made[0], &mut four), Err(rustix::io::Errno::AGAIN));
}

#[test]
fn packets_in_pipes_stay_apart() {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::DIRECT).unwrap();
    for packet in [&b"one"[..], b"second", b"3"] {
        rustix::io::write(&write, packet).unwrap();
    }
    let made = round(vec![read, write]);
    let mut buffer = [0; 100];
    for length in [3, 6, 1] {
        assert_eq!(rustix::io::read(&made[0], &mut buffer), Ok(length));
    }
}

#[test]
fn a_pipe_without_its_other_end_has_ended() {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    rustix::io::write(&write, b"last").unwrap();
    drop(write);
    let made = round(vec![read]);
    let mut buffer = [0; 100];
    assert_eq!(rustix::io::read(&made[0], &mut buffer), Ok(4));
    assert_eq!(rustix::io::read(&made[0], &mut buffer), Ok(0));
}

#[test]
fn a_pipe_to_a_process_outside_is_refused() {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let text = refusal(&[write]);
    assert!(text.contains("is read by a process outside of the tree"), "{text}");
    drop(read);
}

#[test]
fn fifos_keep_what_is_in_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let reader = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&path).unwrap();
    let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
    writer.write_all(b"through a name").unwrap();
    let made = round(vec![reader.into(), writer.into()]);
    let mut buffer = [0; 100];
    assert_eq!(rustix::io::read(&made[0], &mut buffer), Ok(14));
    drop(made);
    let alone = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&path).unwrap();
    round(vec![alone.into()]);
}

#[test]
fn counters_and_masks_and_clocks() {
    let counter = eventfd(5, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK).unwrap();
    let signals = torpor_linux::notify::signal_descriptor(1 << 11, 0o4000).unwrap();
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).unwrap();
    let value = Itimerspec { it_interval: seconds(7), it_value: seconds(1000) };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &value).unwrap();
    let absolute = timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::CLOEXEC).unwrap();
    let then = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec + 500;
    let value = Itimerspec { it_interval: seconds(0), it_value: seconds(then) };
    timerfd_settime(&absolute, TimerfdTimerFlags::ABSTIME, &value).unwrap();
    let fired = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC).unwrap();
    let value = Itimerspec { it_interval: seconds(0), it_value: Timespec { tv_sec: 0, tv_nsec: 1 } };
    timerfd_settime(&fired, TimerfdTimerFlags::empty(), &value).unwrap();
    let mut ready = [rustix::event::PollFd::new(&fired, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut ready, None).unwrap();

    let made = round(vec![counter, signals, timer, absolute, fired]);
    let mut eight = [0; 8];
    for _ in 0..5 {
        rustix::io::read(&made[0], &mut eight).unwrap();
        assert_eq!(u64::from_ne_bytes(eight), 1);
    }
    assert_eq!(rustix::io::read(&made[0], &mut eight), Err(rustix::io::Errno::AGAIN));
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", made[1].as_raw_fd())).unwrap();
    assert!(info.contains("sigmask:\t0000000000000800"), "{info}");
    let left = timerfd_gettime(&made[2]).unwrap();
    assert_eq!((left.it_interval.tv_sec, left.it_value.tv_sec), (7, 999));
    let left = timerfd_gettime(&made[3]).unwrap().it_value.tv_sec;
    assert!((498..=500).contains(&left), "{left}");
    rustix::io::read(&made[4], &mut eight).unwrap();
    assert_eq!(u64::from_ne_bytes(eight), 1);
}

#[test]
fn epoll_knows_its_members() {
    let watcher = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let (a, b) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let c = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    epoll::add(&watcher, &a, epoll::EventData::new_u64(77), epoll::EventFlags::IN | epoll::EventFlags::ET).unwrap();
    epoll::add(&watcher, &c, epoll::EventData::new_u64(78), epoll::EventFlags::IN).unwrap();
    let numbers = [a.as_raw_fd(), c.as_raw_fd()];
    let fds = vec![watcher, a, b, c];
    let taken = take(&fds).unwrap();
    let FileKind::Epoll { members } = &taken.tree.files[taken.files[0] as usize].kind else { panic!() };
    let mut found: Vec<_> = members.iter().map(|member| (member.fd, member.file, member.data)).collect();
    found.sort_unstable_by_key(|member| member.2);
    assert_eq!(found, [(numbers[0], taken.files[1], 77), (numbers[1], taken.files[3], 78)]);
    // A watched file that nobody has open under a number of the tree.
    assert!(
        refusal(&[fds[0].try_clone().unwrap(), fds[1].try_clone().unwrap(), fds[2].try_clone().unwrap()])
            .contains("which the tree has not open")
    );
}

/// Event counters share one inode. Those that still have their number are found at once, the others by halves.
#[test]
fn epoll_finds_its_members_among_many_of_one_inode() {
    let watcher = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let counters: Vec<_> = (0..300).map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap()).collect();
    for (n, counter) in counters.iter().enumerate() {
        epoll::add(&watcher, counter, epoll::EventData::new_u64(n as u64), epoll::EventFlags::IN).unwrap();
    }
    // The second half goes on under other numbers.
    let mut fds: Vec<_> = vec![watcher];
    for (n, counter) in counters.into_iter().enumerate() {
        fds.push(if n < 150 { counter } else { counter.try_clone().unwrap() });
    }
    let own = std::process::id() as i32;
    let mut numbers: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    numbers.sort_unstable();
    for descriptors in [false, true] {
        let mut list = List::default();
        let found = list.descriptors_among(own, own, false, &numbers, &|| true).unwrap();
        let file = |fd: &OwnedFd| found.iter().find(|one| one.fd == fd.as_raw_fd()).unwrap().file;
        let wanted: Vec<_> = fds[1..].iter().map(file).collect();
        let mut tables = Descriptors::new();
        if descriptors {
            tables.insert(own, found.clone());
        }
        let files = described(list, tables, &|| true).unwrap().files;
        let FileKind::Epoll { members } = &files[file(&fds[0]) as usize].kind else { panic!() };
        let mut members: Vec<_> = members.iter().map(|member| (member.data, member.file)).collect();
        members.sort_unstable();
        assert_eq!(members, wanted.into_iter().enumerate().map(|(n, file)| (n as u64, file)).collect::<Vec<_>>());
    }
}

/// Whoever asks for an end is heard while the members of one epoll descriptor are looked for.
#[test]
fn epoll_stops_when_asked_to() {
    let watcher = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    // 500 comparisons visit 500 registrations each.
    let counters: Vec<_> = (0..500).map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap()).collect();
    for counter in &counters {
        epoll::add(&watcher, counter, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
    }
    let own = std::process::id() as i32;
    let mut numbers: Vec<i32> = counters.iter().map(AsRawFd::as_raw_fd).collect();
    // The first file that is described.
    numbers.insert(0, watcher.as_raw_fd());
    let mut list = List::default();
    list.descriptors_among(own, own, false, &numbers, &|| true).unwrap();
    // For each of the files it is asked once while sockets are looked for, and once before the first is described.
    let asked = AtomicUsize::new(0);
    let go_on = || asked.fetch_add(1, Ordering::Relaxed) < numbers.len() + 1;
    assert!(matches!(described(list, Descriptors::new(), &go_on), Err(DumpError::Stopped)));
    assert_eq!(asked.load(Ordering::Relaxed), numbers.len() + 2, "it was asked behind the members");
}

#[test]
fn inotify_keeps_its_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("f");
    fs::write(&file, b"").unwrap();
    let watcher = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    let first = inotify::add_watch(&watcher, directory.path(), WatchFlags::CREATE).unwrap();
    inotify::remove_watch(&watcher, first).unwrap();
    let mut buffer = [0; 4096];
    rustix::io::read(&watcher, &mut buffer).unwrap();
    let one = inotify::add_watch(&watcher, directory.path(), WatchFlags::CREATE).unwrap();
    let two = inotify::add_watch(&watcher, &file, WatchFlags::MODIFY).unwrap();
    assert_eq!((one, two), (2, 3));
    let made = round(vec![watcher]);
    fs::write(&file, b"x").unwrap();
    let length = rustix::io::read(&made[0], &mut buffer).unwrap();
    assert!(length >= 16);
    assert_eq!(i32::from_ne_bytes(buffer[..4].try_into().unwrap()), two);
    fs::write(directory.path().join("new"), b"").unwrap();
    assert!(refusal(&made).contains("events that the program has not read"));
}

#[test]
fn inotify_whose_names_the_kernel_has_forgotten() {
    // Not in memory: there, names are never forgotten.
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let [below, deep, loud] = ["below", "below/deep", "below/loud"].map(|name| directory.path().join(name));
    let [beside, file] = [below.join("f"), deep.join("f")];
    for (directory, file) in [(&loud, &beside), (&deep, &file)] {
        fs::create_dir_all(directory).unwrap();
        fs::write(file, b"").unwrap();
    }
    let watcher = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    let watch = |path: &Path, events| inotify::add_watch(&watcher, path, events).unwrap();
    watch(&below, WatchFlags::CREATE);
    watch(&loud, WatchFlags::ALL_EVENTS);
    let watches = [watch(&beside, WatchFlags::ATTRIB), watch(&file, WatchFlags::ATTRIB)];
    // Dentries of what has just been used are spared once.
    rustix::fs::sync();
    (0..3).for_each(|_| fs::write("/proc/sys/vm/drop_caches", "2").unwrap());
    let fds = vec![watcher];
    let taken = take(&fds).unwrap();
    assert_eq!(rustix::io::ioctl_fionread(&fds[0]), Ok(0));
    drop(fds);
    let made = taken.descriptors();
    for (path, watch) in [&beside, &file].into_iter().zip(watches) {
        fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
        let mut buffer = [0; 4096];
        rustix::io::read(&made[0], &mut buffer).unwrap();
        assert_eq!(i32::from_ne_bytes(buffer[..4].try_into().unwrap()), watch);
    }
}

#[test]
fn inotify_is_not_told_of_the_restore() {
    let directory = tempfile::tempdir().unwrap();
    let watcher = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    let file = File::create(directory.path().join("f")).unwrap();
    let socket = std::os::unix::net::UnixDatagram::bind(directory.path().join("s")).unwrap();
    inotify::add_watch(&watcher, directory.path(), WatchFlags::ALL_EVENTS).unwrap();
    let fds = vec![watcher, file.into(), socket.into()];
    let taken = take(&fds).unwrap();
    drop(fds);
    let made = taken.descriptors();
    assert_eq!(rustix::io::ioctl_fionread(&made[0]), Ok(0));
}

#[test]
fn locks_are_taken_again() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let locked = File::options().read(true).write(true).open(file.path()).unwrap();
    flock(&locked, FlockOperation::LockExclusive).unwrap();
    torpor_linux::fcntl::set_open_file_lock(&locked, 1, 10, 5).unwrap();
    let own = tempfile::tempfile().unwrap();
    rustix::fs::fcntl_lock(&own, FlockOperation::LockShared).unwrap();
    let leased = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    let lease = File::open(&leased).unwrap();
    torpor_linux::fcntl::set_lease(&lease, 0).unwrap();
    let taken = take(&[own.into()]).unwrap();
    let kinds: Vec<LockKind> = taken.tree.files[0].locks.iter().map(|lock| lock.kind).collect();
    assert!(kinds.contains(&LockKind::Posix), "{kinds:?}");
    let made = round(vec![locked.into(), lease.into()]);
    let other = File::options().read(true).write(true).open(file.path()).unwrap();
    assert!(flock(&other, FlockOperation::NonBlockingLockShared).is_err());
    assert!(torpor_linux::fcntl::set_open_file_lock(&other, 1, 12, 1).is_err());
    torpor_linux::fcntl::set_open_file_lock(&other, 1, 15, 1).unwrap();
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", made[1].as_raw_fd())).unwrap();
    assert!(info.contains("LEASE"), "{info}");
}

#[test]
fn owners_and_signals_are_set_again() {
    use torpor_linux::fcntl;
    let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
    let owner = fcntl::Owner { kind: 1, id: std::process::id() as i32 };
    fcntl::set_owner(&a, owner).unwrap();
    // SIGURG: ignored where it is not asked for.
    fcntl::set_signal(&a, 23).unwrap();
    rustix::fs::fcntl_setfl(&a, OFlags::from_bits_retain(0o20000)).unwrap();
    let made = round(vec![a.into(), b.into()]);
    assert_eq!((fcntl::owner(&made[0]).unwrap(), fcntl::signal(&made[0]).unwrap()), (owner, 23));
    assert!(fcntl_getfl(&made[0]).unwrap().bits() & 0o20000 != 0);
}

#[test]
fn what_cannot_be_taken_is_named() {
    let own =
        rustix::process::pidfd_open(rustix::process::getppid().unwrap(), rustix::process::PidfdFlags::empty()).unwrap();
    assert!(refusal(&[own]).contains("outside of the tree"));
    let namespace = File::open("/proc/self/ns/net").unwrap();
    assert!(refusal(&[namespace.into()]).contains("a namespace's descriptor"));
    let parent = rustix::process::getppid().unwrap().as_raw_nonzero();
    let maps = File::open(format!("/proc/{parent}/maps")).unwrap();
    assert!(refusal(&[maps.into()]).contains("belongs to a process outside of the tree"));
}

#[test]
fn a_file_is_found_by_its_other_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("linked");
    let mut file = File::create(&path).unwrap();
    fs::hard_link(&path, directory.path().join("other")).unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all(b"one ").unwrap();
    let mut made = File::from(round(vec![file.into()]).remove(0));
    made.write_all(b"two").unwrap();
    assert_eq!(fs::read(directory.path().join("other")).unwrap(), b"one two");
}

#[test]
fn directories_and_fifos_that_were_removed_are_made_and_removed_again() {
    let directory = tempfile::tempdir().unwrap();
    let (inside, fifo) = (directory.path().join("inside"), directory.path().join("fifo"));
    fs::create_dir(&inside).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let both = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    let place = File::open(&inside).unwrap();
    fs::remove_dir(&inside).unwrap();
    fs::remove_file(&fifo).unwrap();
    (&both).write_all(b"waits").unwrap();
    let mut made = round(vec![place.into(), both.into()]);
    let (both, place) = (File::from(made.pop().unwrap()), File::from(made.pop().unwrap()));
    assert_eq!(rustix::fs::fstat(&place).unwrap().st_nlink, 0);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    let mut got = [0; 5];
    (&both).read_exact(&mut got).unwrap();
    assert_eq!(&got, b"waits");
}

#[test]
fn files_of_the_trees_processes_are_left_to_the_processes() {
    let taken = take(&[File::open("/proc/self/maps").unwrap().into()]).unwrap();
    assert!(matches!(&taken.tree.files[0].kind, FileKind::OfProcess { path } if path.ends_with(b"/maps")));
    assert!(taken.make().file(0).is_none());
}

#[test]
fn pidfds_of_the_tree_are_left_to_the_processes() {
    let own = rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty()).unwrap();
    let taken = take(&[own]).unwrap();
    assert_eq!(taken.tree.files[0].kind, FileKind::Process { pid: std::process::id() as i32 });
    assert!(taken.make().file(0).is_none());
}

#[test]
fn thousands_of_descriptors_are_taken() {
    let file = tempfile::tempfile().unwrap();
    crate::list::raise_limit();
    let fds: Vec<OwnedFd> = (0..3000)
        .map(|n| {
            if n % 2 == 0 {
                eventfd(n, EventfdFlags::CLOEXEC).unwrap()
            } else {
                file.as_fd().try_clone_to_owned().unwrap()
            }
        })
        .collect();
    let taken = take(&fds).unwrap();
    assert_eq!(taken.tree.files.len(), 1501);
}

#[test]
fn terminals_come_back_with_their_numbers_and_what_waits_in_them() {
    use rustix::pty::{OpenptFlags, openpt};
    use torpor_linux::tty::{self, Number};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    tty::set_locked(&master, false).unwrap();
    let flags = (OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC).bits() as i32;
    let slave = tty::open_peer(&master, flags).unwrap();
    let mut settings = tty::settings(&slave).unwrap();
    // No flags of input and local ones: raw; output processing stays on.
    settings[0..4].fill(0);
    settings[12..16].fill(0);
    tty::set_settings(&slave, &settings).unwrap();
    tty::set_size(&slave, [11, 22, 0, 0]).unwrap();
    let (number, mut typed, mut shown) = (tty::number(&master, Number::Pair).unwrap(), [0; 5], [0; 6]);
    let mut ends = [File::from(master), File::from(slave)];
    for _ in 0..2 {
        ends[0].write_all(b"typed").unwrap();
        ends[1].write_all(b"shown\n").unwrap();
        let mut made = round(ends.map(OwnedFd::from).into());
        ends = [made.remove(0).into(), made.remove(0).into()];
        assert_eq!(tty::number(&ends[0], Number::Pair).unwrap(), number);
        assert_eq!(tty::settings(&ends[1]).unwrap(), settings);
        assert_eq!(tty::size(&ends[1]).unwrap(), [11, 22, 0, 0]);
        ends[1].read_exact(&mut typed).unwrap();
        assert_eq!(&typed, b"typed");
        // The line's end has become two when it was shown, and no more since.
        ends[0].read_exact(&mut shown).unwrap();
        assert_eq!(&shown, b"shown\r");
        ends[0].read_exact(&mut shown[..1]).unwrap();
    }
}
