//! System V shared memory through an image and back: segments that are still there, that are gone, and that are taken.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Write, stdin};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use torpor_engine::{
    Checkpoint, CheckpointError, Fault, NoFaults, Restore, RestoreError, RestoreStep, Restored, checkpoint, restore,
};
use torpor_linux::ptrace::Seized;
use torpor_linux::shm::{self, Attached};
use torpor_testkit::skip;

/// Attaches a segment twice, the second time for reading; when `go` is there, ends with status 7 if all is as it was.
const PROGRAM: &str = "
import ctypes, os, sys, time
c = ctypes.CDLL(None, use_errno=True)
c.shmat.restype = ctypes.c_void_p
c.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
c.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
os.setresgid(7, 7, 7)
os.setresuid(6, 6, 6)
id = c.shmget(int(sys.argv[1]), 5000, 0o1640)
both, reading = c.shmat(id, None, 0), c.shmat(id, None, 0o10000)
# Behind its end too: the page is there.
ctypes.memmove(both, b'x' * 6000, 6000)
if sys.argv[3] == 'part':
    c.munmap(reading + 4096, 4096)
before = [line for line in open('/proc/self/maps') if 'SYSV' in line]
c.prctl(15, b'ready')
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
same = before == [line for line in open('/proc/self/maps') if 'SYSV' in line]
same = same and ctypes.string_at(both, 6000) == b'x' * 6000 == ctypes.string_at(reading, 6000)
ctypes.memmove(both, b'y', 1)
open(sys.argv[2] + '.ended', 'w')
sys.exit(7 if same and ctypes.string_at(reading, 1) == b'y' else 1)
";

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..4000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{what} does not come");
}

/// A program without the descriptors of whoever runs the tests.
fn start(line: &[&str]) -> Child {
    let close = "for f in /proc/self/fd/*; do n=${f##*/}; [ $n -gt 2 ] && eval \"exec $n>&-\"; done; exec \"$@\"";
    let file = || Stdio::from(std::fs::File::open("/etc/passwd").unwrap());
    let mut command = Command::new("bash");
    command.args(["-c", close, "bash"]).args(line).stdin(file()).stdout(file()).stderr(file()).spawn().unwrap()
}

struct Program {
    folder: tempfile::TempDir,
    key: i32,
    id: i32,
    child: Child,
}

impl Program {
    fn new(how: &str) -> Self {
        static COUNT: AtomicI32 = AtomicI32::new(0);
        let key = 0x7a00_0000 | (std::process::id() as i32) << 4 | COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = tempfile::tempdir().unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let go = folder.path().join("go");
        let child = start(&["python3", "-c", PROGRAM, &key.to_string(), go.to_str().unwrap(), how]);
        let name = format!("/proc/{}/comm", child.id());
        until("the program", || std::fs::read_to_string(&name).is_ok_and(|name| name.trim() == "ready"));
        let id = shm::find(key).unwrap().unwrap();
        Self { folder, key, id, child }
    }

    fn capture(&mut self) -> Result<PathBuf, CheckpointError> {
        let (pid, folder) = (self.child.id() as i32, self.folder.path().join("image"));
        let done =
            checkpoint(&Checkpoint { pid, folder: &folder, leave_running: false, lock: None, faults: &NoFaults })?;
        // The tracer that ended it may have been the one to wait for it.
        let _ = self.child.wait();
        Ok(done.image)
    }

    /// What is in the way of a capture, after which the program is ended.
    fn refused(mut self) -> String {
        let CheckpointError::Refused { obstacles, .. } = self.capture().unwrap_err() else { panic!("not refused") };
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        shm::remove(self.id).unwrap();
        format!("{obstacles:?}")
    }

    /// Not at once: what other tests fork meanwhile is attached to what this process is, until it executes.
    fn attached(&self, times: u64) {
        until("the number of attachments", || shm::look(self.id).unwrap().unwrap().attached == times);
    }

    /// The restored program finds all as it was; then the segment goes.
    fn ends(self, restored: &Restored) {
        self.attached(2);
        let about = shm::look(self.id).unwrap().unwrap();
        assert_eq!((about.key, about.bytes), (self.key, 5000));
        assert_eq!((about.owner, about.maker, about.mode & 0o777), ((6, 7), (6, 7), 0o640));
        std::fs::write(self.folder.path().join("go"), "").unwrap();
        let status = waitpid(Pid::from_raw(restored.pid), WaitOptions::empty()).unwrap().unwrap().1;
        assert_eq!(status.exit_status(), Some(7));
        shm::remove(self.id).unwrap();
    }
}

fn again(image: &Path) -> Result<Restored, RestoreError> {
    restore(Restore { image, standard: [None, None, None], lock: None, faults: &|_| Ok(()) })
}

#[test]
fn a_segment_that_is_still_there_gets_its_contents_back() {
    let mut program = Program::new("whole");
    let image = program.capture().unwrap();
    let attached = Attached::new(program.id).unwrap();
    attached.write(0, &[1; 8192]).unwrap();
    shm::set(program.id, (1, 2), 0o600).unwrap();
    let error = again(&image).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains(" is attached "), "{error}");
    drop(attached);
    program.attached(0);
    let restored = again(&image).unwrap();
    program.ends(&restored);
}

#[test]
fn a_segment_that_is_gone_is_made_again() {
    let mut program = Program::new("whole");
    let (key, id) = (program.key, program.id);
    let image = program.capture().unwrap();
    shm::remove(id).unwrap();
    let fault = |step| if step == RestoreStep::Finished { Err(Fault(step)) } else { Ok(()) };
    restore(Restore { image: &image, standard: [None, None, None], lock: None, faults: &fault }).unwrap_err();
    assert_eq!(shm::look(id).unwrap(), None, "a restore that failed leaves a segment");

    let other = shm::make(key, 5000, id + (1 << 15), (0, 0), 0).unwrap();
    let error = again(&image).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains(&format!("is that of segment {other} now")), "{error}");
    shm::remove(other).unwrap();
    assert_eq!(shm::make(0, 77, id, (0, 0), 0).unwrap(), id);
    let error = again(&image).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("77 bytes is not the image's"), "{error}");
    shm::remove(id).unwrap();

    let restored = again(&image).unwrap();
    program.ends(&restored);
}

/// Not a test of its own: the process that restores, and is killed.
#[test]
fn restores() {
    let Some(image) = std::env::var_os("TORPOR_TEST_IMAGE") else { return };
    println!("\ntid {}", rustix::thread::gettid().as_raw_nonzero());
    stdin().lock().read_line(&mut String::new()).unwrap();
    again(image.as_ref()).unwrap();
}

#[test]
fn a_restore_that_is_killed_leaves_no_segment() {
    let mut program = Program::new("whole");
    let id = program.id;
    let image = program.capture().unwrap();
    shm::remove(id).unwrap();
    let go = program.folder.path().join("go");
    // It ends at once if it runs, and says so.
    std::fs::write(&go, "").unwrap();
    let ended = go.with_extension("ended");
    let is_there = || shm::look(id).unwrap().is_some();
    let mut made = 0;
    let every = std::env::var("TORPOR_TEST_EVERY").map_or(37, |every| every.parse().unwrap());
    for calls in (0..).step_by(every) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "restores", "--nocapture", "--test-threads=1"]).env("TORPOR_TEST_IMAGE", &image);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let tid = lines.find_map(|line| line.ok()?.strip_prefix("tid ")?.parse().ok()).unwrap();
        let tracee = Seized::seize(tid).unwrap().stopped().unwrap();
        tracee.set_signal_mask(u64::MAX).unwrap();
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let all = (0..calls).any(|_| tracee.make_call().is_err());
        made += usize::from(is_there());
        child.kill().unwrap();
        drop(tracee);
        child.wait().unwrap();
        until("what it made is removed, or the program has run", || ended.exists() || !all && !is_there());
        if ended.exists() {
            let _ = shm::remove(id);
            std::fs::remove_file(&ended).unwrap();
        }
        if all {
            eprintln!("killed until call {calls}: {made} times there was a segment");
            break;
        }
    }
    assert!(made > 1, "{made}");
}

#[test]
fn a_segment_that_others_are_attached_to_is_refused() {
    let program = Program::new("whole");
    let _attached = Attached::new(program.id).unwrap();
    let why = program.refused();
    // Not how many: what is forked here meanwhile is attached as well.
    assert!(why.contains("mappings, 2 of them in the tree"), "{why}");
}

#[test]
fn a_part_of_a_segment_is_refused() {
    let why = Program::new("part").refused();
    assert!(why.contains("maps a part of a System V segment"), "{why}");
}

/// A server, shut down at once if the test fails.
struct Server(i32);

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = kill_process(Pid::from_raw(self.0).unwrap(), Signal::QUIT);
        }
    }
}

/// A database server with its segment, its shared memory and its six processes.
#[test]
fn postgresql_goes_on() {
    let Some(bin) = std::fs::read_dir("/usr/lib/postgresql").ok().and_then(|mut versions| versions.next()) else {
        skip!("PostgreSQL is not installed (package postgresql)");
    };
    let bin = bin.unwrap().path().join("bin");
    let tool = |name: &str| bin.join(name).to_str().unwrap().to_owned();
    let folder = tempfile::Builder::new().prefix("pg").tempdir().unwrap();
    let home = folder.path().to_str().unwrap().to_owned();
    let user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"];
    assert!(Command::new("chown").args(["postgres", &home]).status().unwrap().success());
    let data = format!("{home}/data");
    let mut initdb = Command::new(user[0]);
    initdb.args(&user[1..]).args([&tool("initdb"), "-D", &data, "-A", "trust", "-N"]).stdout(Stdio::null());
    assert!(initdb.status().unwrap().success());
    let postgres = tool("postgres");
    let settings = [
        "-D",
        &data,
        "-k",
        &home,
        "-c",
        "listen_addresses=",
        "-c",
        "shared_buffers=16MB",
        "-c",
        "log_min_messages=panic",
    ];
    let mut child = start(&[&["setsid"][..], &user, &[&postgres], &settings].concat());
    let _server = Server(child.id() as i32);
    let query = |sql: &str| {
        let output = Command::new(tool("psql")).args(["-U", "postgres", "-h", &home, "-Atqc", sql]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    until("the server", || query("select 1") == "1");
    query("create table kept as select generate_series(1, 1000) as n");
    let server = query("select pg_postmaster_start_time()");
    // Sessions end a moment after their clients.
    let pid = child.id() as i32;
    let mut image = None;
    until("the end of the session", || {
        let folder = folder.path().join("image");
        match checkpoint(&Checkpoint { pid, folder: &folder, leave_running: false, lock: None, faults: &NoFaults }) {
            Ok(done) => image = Some(done.image),
            Err(CheckpointError::Refused { .. }) => {}
            Err(error) => panic!("{error:#?}"),
        }
        image.is_some()
    });
    let _ = child.wait();
    let restored = again(&image.unwrap()).unwrap();
    assert!(restored.processes >= 5, "{restored:?}");
    assert_eq!(query("select count(*) from kept"), "1000");
    assert_eq!(query("insert into kept values (5000); checkpoint; select max(n) from kept"), "5000");
    assert_eq!(query("select pg_postmaster_start_time()"), server);
    kill_process(Pid::from_raw(pid).unwrap(), Signal::INT).unwrap();
    let status = waitpid(Pid::from_raw(pid), WaitOptions::empty()).unwrap().unwrap().1;
    assert_eq!(status.exit_status(), Some(0), "it removes its segment and ends properly");
}
