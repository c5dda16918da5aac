//! The keeper as a process of its own: what is parked survives clients, and nothing that a client does harms it.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::OsStr;
use std::fs;
use std::io::{self, PipeReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::time::Timespec;
use torpor_keeper::{Client, Error, Listed, Refusal, StartOptions};

const PROGRAM: &str = env!("CARGO_BIN_EXE_torpor-keeper");

/// A keeper in a directory of its own; ended (and its end waited for) with the value.
struct Keeper {
    dir: tempfile::TempDir,
    client: Option<Client>,
}

impl Keeper {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let client = connect_or_spawn(&dir.path().join("k")).unwrap();
        Self { dir, client: Some(client) }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("k")
    }

    fn client(&self) -> &Client {
        self.client.as_ref().unwrap()
    }

    /// A new connection in place of the old one, as after a restart of the worker.
    fn reconnect(&mut self) {
        self.client = Some(Client::connect(&self.path()).unwrap());
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Ok(client) = Client::connect(&self.path()) {
            client.shutdown().unwrap();
        }
    }
}

fn connect_or_spawn(path: &Path) -> Result<Client, Error> {
    Client::connect_or_spawn(path, Path::new(PROGRAM), &[], &StartOptions::default())
}

fn borrow(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}

fn wait_for_end(pid: u32) {
    let pid = Pid::from_raw(pid as i32).unwrap();
    // Already gone is as good.
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let mut fds = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).unwrap(), 1, "process {pid:?} did not end");
}

/// Of the fields of `/proc/PID/stat` after the command's name (proc_pid_stat(5)).
const PPID: usize = 1;
const SESSION: usize = 3;

fn stat_fields(pid: &str) -> Vec<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_pipe_still_has_its_bytes() {
    let mut keeper = Keeper::start();
    let (reader, mut writer) = io::pipe().unwrap();
    writer.write_all(b"left behind").unwrap();
    keeper.client().put("app/1/out", b"blob", &[reader.as_fd()]).unwrap();
    drop((reader, writer));
    keeper.reconnect();
    for _ in 0..2 {
        let parked = keeper.client().get("app/1/out").unwrap().unwrap();
        assert_eq!(parked.blob, b"blob");
        assert_eq!(parked.fds.len(), 1);
    }
    let fd = keeper.client().get("app/1/out").unwrap().unwrap().fds.pop().unwrap();
    assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    let mut text = String::new();
    PipeReader::from(OwnedFd::from(fd)).read_to_string(&mut text).unwrap();
    assert_eq!(text, "left behind", "the writing end was not parked, so the pipe ends after its bytes");
}

#[test]
fn an_epoll_reports_what_happened_while_no_client_lived() {
    let mut keeper = Keeper::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
    epoll::add(&epoll, &listener, EventData::new_u64(42), EventFlags::IN | EventFlags::ET).unwrap();
    keeper.client().put("app/2", b"", &[epoll.as_fd(), listener.as_fd()]).unwrap();
    drop((epoll, listener));
    keeper.client = None;
    let mut visitor = std::net::TcpStream::connect(address).unwrap();
    visitor.write_all(b"hello").unwrap();
    keeper.reconnect();
    let mut fds = keeper.client().get("app/2").unwrap().unwrap().fds.into_iter();
    let (epoll, listener) = (fds.next().unwrap(), TcpListener::from(OwnedFd::from(fds.next().unwrap())));
    let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 4];
    let count = epoll::wait(&epoll, &mut events, Some(&Timespec { tv_sec: 5, tv_nsec: 0 })).unwrap();
    assert_eq!((count, events[0].data.u64()), (1, 42));
    let mut said = [0; 5];
    listener.accept().unwrap().0.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"hello");
}

/// What the client process of the next test does; nothing when it runs as a test of its own.
#[test]
fn helper_client_that_stops_midway() {
    let Some(path) = std::env::var_os("KEEPER_HELPER_SOCKET") else { return };
    let path = Path::new(&path);
    let client = Client::connect(path).unwrap();
    let (reader, mut writer) = io::pipe().unwrap();
    writer.write_all(b"from the dead").unwrap();
    client.put("whole", b"w", &[reader.as_fd()]).unwrap();
    // The first part of a put of 600, by hand: header, variant 1, key `half`, 600 as a varint, blob.
    let mut packet = b"TORK\x01\0\0\0\x01\x04half\xd8\x04".to_vec();
    packet.extend_from_slice(b"new");
    let raw = raw_connection(path);
    let fds = vec![reader.as_fd(); 253];
    raw_send(&raw, &packet, &fds);
    let mut reply = [0; 64];
    let (bytes, _) = rustix::net::recv(&raw, &mut reply, rustix::net::RecvFlags::empty()).unwrap();
    assert_eq!(&reply[..bytes], b"TORK\x01\0\0\0\x02", "the keeper asks for the rest");
    println!("MIDWAY");
    io::stdout().flush().unwrap();
    // Until the parent kills us: its end of standard input never says anything.
    let _ = io::stdin().read(&mut reply);
}

fn raw_connection(path: &Path) -> OwnedFd {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Recv,
        Some(Duration::from_secs(10)),
    )
    .unwrap();
    socket
}

fn raw_send(socket: &OwnedFd, packet: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(fds)));
    }
    let parts = [io::IoSlice::new(packet)];
    rustix::net::sendmsg(socket, &parts, &mut control, rustix::net::SendFlags::NOSIGNAL).unwrap();
}

#[test]
fn a_client_killed_midway_changes_nothing() {
    let keeper = Keeper::start();
    keeper.client().put("half", b"old", &[]).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["helper_client_that_stops_midway", "--exact", "--nocapture"])
        .env("KEEPER_HELPER_SOCKET", keeper.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("MIDWAY") {
        line.clear();
        assert_ne!(io::BufRead::read_line(&mut out, &mut line).unwrap(), 0, "the helper ended early");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(keeper.client().get("half").unwrap().unwrap().blob, b"old");
    let mut whole = keeper.client().get("whole").unwrap().unwrap();
    assert_eq!(whole.blob, b"w");
    let mut text = String::new();
    PipeReader::from(OwnedFd::from(whole.fds.pop().unwrap())).read_to_string(&mut text).unwrap();
    assert_eq!(text, "from the dead");
    let info = keeper.client().ping().unwrap();
    assert_eq!((info.keys, info.fds), (2, 1));
}

#[test]
fn many_keys_and_many_descriptors() {
    let mut keeper = Keeper::start();
    let limit = keeper.client().ping().unwrap().fds_limit;
    assert!(limit > 5_200, "this machine lets the keeper hold only {limit} descriptors: raise `ulimit -Hn`");
    let file = fs::File::open("/dev/null").unwrap();
    for n in 0..1_000 {
        keeper.client().put(&format!("many/{n:04}"), &[7; 100], &[file.as_fd(); 5]).unwrap();
    }
    let (_reader, writer) = io::pipe().unwrap();
    let mut big = vec![file.as_fd(); 600];
    big[599] = writer.as_fd();
    keeper.client().put("big", b"big", &big).unwrap();
    let info = keeper.client().ping().unwrap();
    assert_eq!((info.keys, info.fds, info.blob_bytes), (1_001, 5_600, 100_003));
    keeper.reconnect();
    let listed = keeper.client().list("many/").unwrap();
    assert_eq!(listed.len(), 1_000);
    assert_eq!(listed[999], Listed { key: "many/0999".into(), blob_bytes: 100, fds: 5 });
    let parked = keeper.client().get("big").unwrap().unwrap();
    assert_eq!(parked.fds.len(), 600);
    let (mine, theirs) = (rustix::fs::fstat(&writer).unwrap(), rustix::fs::fstat(&parked.fds[599]).unwrap());
    assert_eq!((mine.st_dev, mine.st_ino), (theirs.st_dev, theirs.st_ino), "order is kept across packets");
    assert_eq!(keeper.client().drop_prefix("many/05").unwrap(), 100);
    assert!(keeper.client().drop_key("big").unwrap());
    assert!(!keeper.client().drop_key("big").unwrap());
    assert!(keeper.client().get("big").unwrap().is_none());
    assert_eq!(keeper.client().ping().unwrap().fds, 4_500);
    assert_eq!(keeper.client().drop_prefix("").unwrap(), 900);
}

#[test]
fn replacing_closes_the_old_descriptors() {
    let keeper = Keeper::start();
    let (reader, writer) = io::pipe().unwrap();
    keeper.client().put("w", b"1", &[writer.as_fd()]).unwrap();
    drop(writer);
    let file = fs::File::open("/dev/null").unwrap();
    keeper.client().put("w", b"2", &[file.as_fd()]).unwrap();
    let mut rest = Vec::new();
    let mut reader = reader;
    reader.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    assert_eq!(keeper.client().get("w").unwrap().unwrap().blob, b"2");
}

#[test]
fn bounds_are_refused_with_their_numbers() {
    let keeper = Keeper::start();
    let client = keeper.client();
    for key in ["", "a\nb", &"k".repeat(201)] {
        let error = client.put(key, b"", &[]).unwrap_err();
        assert!(matches!(error, Error::Refused { source: Refusal::Key { .. }, .. }), "{error}");
    }
    assert!(client.put("k", &vec![0; 65_537], &[]).is_err());
    client.put("k", &vec![9; 65_536], &[]).unwrap();
    assert_eq!(client.get("k").unwrap().unwrap().blob, vec![9; 65_536]);
    client.put(&"k".repeat(200), b"", &[]).unwrap();
    assert!(client.get(&"x".repeat(5_000)).unwrap().is_none());
}

/// What is asked beforehand is answered as the put would be.
#[test]
fn the_keeper_tells_beforehand_whether_it_has_room() {
    let keeper = Keeper::start();
    let client = keeper.client();
    let share = client.ping().unwrap().fds_limit as usize / torpor_keeper::limits::APP_SHARE;
    let pipe: Vec<OwnedFd> = vec![io::pipe().unwrap().0.into()];
    client.put("app/1/watch", b"", &borrow(&pipe)).unwrap();
    client.put("app/2/files", b"", &borrow(&pipe)).unwrap();
    let most = torpor_keeper::limits::FDS_PER_KEY;
    if share > most {
        client.has_room("app/1/files", most).unwrap();
        let error = client.has_room("app/1/files", most + 1).unwrap_err();
        assert!(matches!(error, Error::Refused { source: Refusal::FdsPerKey { .. }, .. }), "{error}");
        return;
    }
    // One is taken by the other entry of the app.
    client.has_room("app/1/files", share - 1).unwrap();
    let error = client.has_room("app/1/files", share).unwrap_err();
    assert!(matches!(error, Error::Refused { source: Refusal::Share { held: 1, .. }, .. }), "{error}");
}

#[test]
fn hostile_packets_are_refused_and_other_clients_are_served() {
    let keeper = Keeper::start();
    let (reader, _writer) = io::pipe().unwrap();
    keeper.client().put("safe", b"safe", &[reader.as_fd()]).unwrap();
    let file = fs::File::open("/dev/null").unwrap();
    let before = open_files(keeper.client().ping().unwrap().pid);
    let packets: Vec<Vec<u8>> = vec![
        b"x".to_vec(),
        vec![0xff; 70_000],
        b"TORK\x01\0\0\0".to_vec(),
        b"TORK\x01\0\x01\0\0".to_vec(),
        b"TORK\x01\0\0\0\x01\xff\xff\xff\xff\x0f".to_vec(),
        b"TORK\x01\0\0\0\x01\x01k\xff\xff\xff\xff\x0f".to_vec(),
        b"TORK\x01\0\0\0\x02".to_vec(),
        b"TORK\x01\0\0\0\x01\x01k\x05".to_vec(),
        b"TORK\x01\0\0\0\x03\x02\xc3\x28\0".to_vec(),
        b"TORK\x01\0\0\0\x09".to_vec(),
    ];
    for packet in &packets {
        let raw = raw_connection(&keeper.path());
        raw_send(&raw, packet, &[file.as_fd(); 3]);
        let mut reply = [0; 256];
        let (bytes, _) = rustix::net::recv(&raw, &mut reply, rustix::net::RecvFlags::empty()).unwrap();
        assert_eq!(&reply[..9], b"TORK\x01\0\0\0\x06", "refused: {packet:?} was answered {:?}", &reply[..bytes]);
    }
    // One that asks and asks and never listens.
    let deaf = raw_connection(&keeper.path());
    rustix::io::ioctl_fionbio(&deaf, true).unwrap();
    let mut ask = b"TORK\x01\0\0\0\x03\x04safe\0".to_vec();
    loop {
        let mut control = rustix::net::SendAncillaryBuffer::default();
        let parts = [io::IoSlice::new(&ask)];
        match rustix::net::sendmsg(&deaf, &parts, &mut control, rustix::net::SendFlags::NOSIGNAL) {
            Ok(_) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let mut fds = [rustix::event::PollFd::new(&deaf, rustix::event::PollFlags::OUT)];
                rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 5, tv_nsec: 0 })).unwrap();
            }
            Err(errno) => {
                let hung_up = [rustix::io::Errno::PIPE, rustix::io::Errno::CONNRESET];
                assert!(hung_up.contains(&errno), "the keeper should hang up on it: {errno}");
                break;
            }
        }
    }
    ask.clear();
    drop(deaf);
    // Too many at once: those in excess hear so, and the first is still served.
    let crowd: Vec<_> = (0..80).map(|_| Client::connect(&keeper.path())).collect();
    let refused = crowd.iter().filter(|c| matches!(c, Err(Error::Refused { source: Refusal::Clients, .. }))).count();
    assert!(refused >= 16, "{refused} of 80 were refused");
    assert!(crowd.iter().filter(|c| c.is_ok()).count() >= 60);
    assert_eq!(keeper.client().get("safe").unwrap().unwrap().fds.len(), 1);
    drop(crowd);
    // It hears of the hang-ups soon, but not at once: a process that another test starts at this moment has copies of our
    // descriptors until it runs its own program.
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    let after = loop {
        let after = open_files(keeper.client().ping().unwrap().pid);
        if after <= before || std::time::Instant::now() > deadline {
            break after;
        }
    };
    assert!(after <= before, "descriptors that came with refused packets stay open: {before} before, {after} after");
}

/// Open files of the keeper.
fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

#[test]
fn an_unlike_version_is_a_clear_error_on_both_sides() {
    let keeper = Keeper::start();
    let raw = raw_connection(&keeper.path());
    raw_send(&raw, b"TORK\x63\0\0\0whatever", &[]);
    let mut reply = [0; 64];
    rustix::net::recv(&raw, &mut reply, rustix::net::RecvFlags::empty()).unwrap();
    assert_eq!(&reply[..6], b"TORK\x01\0", "the reply says which version the keeper speaks");

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("old");
    let old = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&old, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&old, 4).unwrap();
    let answering = std::thread::spawn(move || {
        let client = rustix::net::accept(&old).unwrap();
        let mut request = [0; 64];
        rustix::net::recv(&client, &mut request, rustix::net::RecvFlags::empty()).unwrap();
        raw_send(&client, b"TORK\0\0\0\0", &[]);
        old
    });
    let error = connect_or_spawn(&path).unwrap_err();
    assert!(matches!(error, Error::Version { keeper: 0, own: 1, .. }), "{error}");
    assert!(error.to_string().contains("speaks protocol version 0"), "{error}");
    drop(answering.join().unwrap());
}

#[test]
fn a_keeper_that_hangs_times_out() {
    let keeper = Keeper::start();
    let pid = Pid::from_raw(keeper.client().ping().unwrap().pid as i32).unwrap();
    let client = Client::connect_with_timeout(&keeper.path(), Duration::from_secs(2)).unwrap();
    client.put("k", b"1", &[]).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let error = client.put("k", b"2", &[]).unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    kill_process(pid, Signal::CONT).unwrap();
    // The late reply to the put is not taken for this one's.
    assert_eq!(keeper.client().get("k").unwrap().unwrap().blob, b"2");
    assert_eq!(client.get("k").unwrap().unwrap().blob, b"2");
}

#[test]
fn twenty_starters_make_one_keeper() {
    let keeper = Keeper { dir: tempfile::tempdir().unwrap(), client: None };
    let path = keeper.path();
    let pids: Vec<u32> = std::thread::scope(|scope| {
        let starters: Vec<_> =
            (0..20).map(|_| scope.spawn(|| connect_or_spawn(&path).unwrap().ping().unwrap().pid)).collect();
        starters.into_iter().map(|starter| starter.join().unwrap()).collect()
    });
    assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
    let second = Command::new(PROGRAM).arg("--socket").arg(&path).output().unwrap();
    assert!(!second.status.success());
    let said = String::from_utf8(second.stdout).unwrap();
    assert_eq!(said, format!("another keeper already serves {}", path.display()));
}

#[test]
fn the_keeper_is_no_child_of_its_starter_and_private() {
    let dir = tempfile::tempdir().unwrap();
    let (path, log, procs) = (dir.path().join("k"), dir.path().join("log"), dir.path().join("cgroup.procs"));
    fs::write(&procs, "").unwrap();
    let options = StartOptions { cgroup_procs: vec![procs.clone()], log: Some(log.clone()) };
    let client = Client::connect_or_spawn(&path, Path::new(PROGRAM), &[], &options).unwrap();
    let pid = client.ping().unwrap().pid;
    assert_eq!(fs::read_to_string(&procs).unwrap(), pid.to_string());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
    // Session 0 is one that was made outside of our pid namespace: no process id, but different all the same.
    let (own, its) = (stat_fields("self"), stat_fields(&pid.to_string()));
    assert_ne!(its[PPID], std::process::id().to_string(), "its parent");
    assert_ne!(its[SESSION], own[SESSION], "its session");
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), Path::new("/"));
    assert_eq!(fs::read_link(format!("/proc/{pid}/fd/1")).unwrap(), Path::new("/dev/null"));
    assert_eq!(fs::read_link(format!("/proc/{pid}/fd/2")).unwrap(), log);
    client.shutdown().unwrap();
    assert!(!path.exists());
    wait_for_end(pid);
}

#[test]
fn shutdown_closes_what_was_parked_and_a_new_keeper_starts_empty() {
    let keeper = Keeper::start();
    let (mut reader, writer) = io::pipe().unwrap();
    keeper.client().put("w", b"", &[writer.as_fd()]).unwrap();
    drop(writer);
    let pid = keeper.client().ping().unwrap().pid;
    Client::connect(&keeper.path()).unwrap().shutdown().unwrap();
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    assert!(matches!(Client::connect(&keeper.path()), Err(Error::NotRunning { .. })));
    let client = connect_or_spawn(&keeper.path()).unwrap();
    assert_ne!(client.ping().unwrap().pid, pid);
    assert_eq!(keeper.client().list("").unwrap(), vec![], "an old client connects again by itself");
}

#[test]
fn a_killed_keeper_is_replaced() {
    let keeper = Keeper::start();
    let pid = keeper.client().ping().unwrap().pid;
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    wait_for_end(pid);
    assert!(keeper.path().exists(), "the dead keeper's socket is still there");
    assert!(matches!(keeper.client().ping(), Err(Error::NotRunning { .. } | Error::Closed { .. })));
    assert_ne!(connect_or_spawn(&keeper.path()).unwrap().ping().unwrap().pid, pid);
}

/// Between the end of a killed keeper's connections and that of its socket, whoever connects is hung up on.
#[test]
fn a_keeper_that_is_just_ending_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("k");
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/hang_up.py");
    let mut ending = Command::new("python3").arg(program).arg(&path).stdout(Stdio::piped()).spawn().unwrap();
    let mut up = [0; 3];
    ending.stdout.take().unwrap().read_exact(&mut up).unwrap();
    let client = connect_or_spawn(&path).unwrap();
    assert!(ending.wait().unwrap().success(), "it was not killed");
    assert_ne!(client.ping().unwrap().pid, ending.id());
    client.shutdown().unwrap();
}

#[test]
fn a_start_that_fails_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    let words = connect_or_spawn(&file).unwrap_err();
    assert!(matches!(words, Error::Start { .. } | Error::NotRunning { .. }), "{words}");
    assert_eq!(fs::read(&file).unwrap(), b"precious", "only a socket is ever replaced");
    let missing =
        Client::connect_or_spawn(&dir.path().join("k"), Path::new("/nonexistent"), &[], &StartOptions::default());
    assert!(missing.unwrap_err().to_string().contains("/nonexistent"));
    let wordless =
        Client::connect_or_spawn(&dir.path().join("k"), Path::new("/bin/true"), &[], &StartOptions::default());
    assert!(wordless.unwrap_err().to_string().contains("without a word"));
    let args = [OsStr::new("--bogus")];
    let usage = Client::connect_or_spawn(&dir.path().join("k"), Path::new(PROGRAM), &args, &StartOptions::default());
    assert!(usage.unwrap_err().to_string().contains("unknown argument `--bogus`"));
}

#[test]
fn threads_take_turns_on_one_client() {
    let keeper = Keeper::start();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let client = keeper.client();
            scope.spawn(move || {
                let file = fs::File::open("/dev/null").unwrap();
                let fds = vec![OwnedFd::from(file)];
                for round in 0..200 {
                    let key = format!("t{thread}");
                    client.put(&key, round.to_string().as_bytes(), &borrow(&fds)).unwrap();
                    assert_eq!(client.get(&key).unwrap().unwrap().blob, round.to_string().as_bytes());
                }
            });
        }
    });
    assert_eq!(keeper.client().ping().unwrap().fds, 4);
}

/// How often a process has waited for something.
fn waits(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

fn set_open_files(pid: u32, soft: u64) {
    let pid = pid.to_string();
    let status = Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={soft}:")]).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_client_that_cannot_be_accepted_waits_and_other_clients_are_served() {
    let keeper = Keeper::start();
    let pid = keeper.client().ping().unwrap().pid;
    let highest = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(1 << 20);
    // Its standard streams are open: no descriptor is free.
    set_open_files(pid, 3);
    let path = keeper.path();
    let second = std::thread::spawn(move || Client::connect_with_timeout(&path, Duration::from_secs(60)).unwrap());
    let listens = || fs::read_to_string("/proc/net/unix").unwrap().matches(keeper.path().to_str().unwrap()).count();
    // The listener, the first client's end, and that of the second, which is not accepted yet.
    while listens() < 3 {
        std::thread::yield_now();
    }
    // It tries again and again, waiting in between; one that spins never waits.
    let (before, start) = (waits(pid), std::time::Instant::now());
    while waits(pid) < before + 3 {
        assert!(start.elapsed() < Duration::from_secs(60), "it does not wait between its tries");
        std::thread::yield_now();
    }
    keeper.client().put("a", b"still here", &[]).unwrap();
    assert!(!second.is_finished());
    set_open_files(pid, highest);
    let second = second.join().unwrap();
    assert_eq!(second.get("a").unwrap().unwrap().blob, b"still here");
}
