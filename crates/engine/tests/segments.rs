//! System V shared memory through an image and back: segments that are still there, that are gone, and that are taken.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead, BufReader, Write, stdin};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};

use common::process::{UNCHANGED, exit_status, restored, start};
use rustix::process::{Pid, Signal, kill_process};
use torpor_engine::{
    Checkpoint, CheckpointError, Fault, NoFaults, Restore, RestoreStep, Restored, checkpoint, restore,
};
use torpor_linux::ptrace::Seized;
use torpor_linux::shm::{self, Attached};
use torpor_testkit::programs::{only_standard_descriptors, python};
use torpor_testkit::skip;
use torpor_testkit::wait::soon;

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
        let child = start(python("attached_segment.py").args([&key.to_string(), go.to_str().unwrap(), how]), "ready");
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
        soon(&format!("the segment is attached {times} times"), || {
            shm::look(self.id).unwrap().unwrap().attached == times
        });
    }

    /// The restored program finds all as it was; then the segment goes.
    fn ends(self, restored: &Restored) {
        self.attached(2);
        let about = shm::look(self.id).unwrap().unwrap();
        assert_eq!((about.key, about.bytes), (self.key, 5000));
        assert_eq!((about.owner, about.maker, about.mode & 0o777), ((6, 7), (6, 7), 0o640));
        std::fs::write(self.folder.path().join("go"), "").unwrap();
        assert_eq!(exit_status(restored.pid), Some(UNCHANGED));
        shm::remove(self.id).unwrap();
    }
}

#[test]
fn a_segment_that_is_still_there_gets_its_contents_back() {
    let mut program = Program::new("whole");
    let image = program.capture().unwrap();
    let attached = Attached::new(program.id).unwrap();
    attached.write(0, &[1; 8192]).unwrap();
    shm::set(program.id, (1, 2), 0o600).unwrap();
    let error = restored(&image).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains(" is attached "), "{error}");
    drop(attached);
    program.attached(0);
    let restored = restored(&image).unwrap();
    program.ends(&restored);
}

#[test]
fn a_segment_that_is_gone_is_made_again() {
    let mut program = Program::new("whole");
    let (key, id) = (program.key, program.id);
    let image = program.capture().unwrap();
    shm::remove(id).unwrap();
    let fault = |step| if step == RestoreStep::Finished { Err(Fault(step)) } else { Ok(()) };
    restore(Restore { image: &image, standard: [None, None, None], lock: None, late: None, faults: &fault })
        .unwrap_err();
    assert_eq!(shm::look(id).unwrap(), None, "a restore that failed leaves a segment");

    let other = shm::make(key, 5000, id + (1 << 15), (0, 0), 0).unwrap();
    let error = restored(&image).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains(&format!("is that of segment {other} now")), "{error}");
    shm::remove(other).unwrap();
    assert_eq!(shm::make(0, 77, id, (0, 0), 0).unwrap(), id);
    let error = restored(&image).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("77 bytes is not the image's"), "{error}");
    shm::remove(id).unwrap();

    let restored = restored(&image).unwrap();
    program.ends(&restored);
}

/// Not a test of its own: the process that restores, and is killed.
#[test]
fn helper_that_restores() {
    let Some(image) = std::env::var_os("TORPOR_TEST_IMAGE") else { return };
    println!("\ntid {}", rustix::thread::gettid().as_raw_nonzero());
    stdin().lock().read_line(&mut String::new()).unwrap();
    restored(image.as_ref()).unwrap();
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
        command
            .args(["--exact", "helper_that_restores", "--nocapture", "--test-threads=1"])
            .env("TORPOR_TEST_IMAGE", &image);
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
        soon("what the restore made is removed, or the program has run", || ended.exists() || !all && !is_there());
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
    let own = ["-c", "listen_addresses=", "-c", "shared_buffers=16MB", "-c", "log_min_messages=panic"];
    let mut command = Command::new("setsid");
    command.args(user).arg(&postgres).args(["-D", &data, "-k", &home]).args(own);
    let mut child = only_standard_descriptors(&command).spawn().unwrap();
    let _server = Server(child.id() as i32);
    let query = |sql: &str| {
        let output = Command::new(tool("psql")).args(["-U", "postgres", "-h", &home, "-Atqc", sql]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    soon("the server answers", || query("select 1") == "1");
    query("create table kept as select generate_series(1, 1000) as n");
    let server = query("select pg_postmaster_start_time()");
    // Sessions end a moment after their clients.
    let pid = child.id() as i32;
    let mut image = None;
    soon("the session has ended", || {
        let folder = folder.path().join("image");
        match checkpoint(&Checkpoint { pid, folder: &folder, leave_running: false, lock: None, faults: &NoFaults }) {
            Ok(done) => image = Some(done.image),
            Err(CheckpointError::Refused { .. }) => {}
            Err(error) => panic!("{error:#?}"),
        }
        image.is_some()
    });
    let _ = child.wait();
    let restored = restored(&image.unwrap()).unwrap();
    assert!(restored.processes >= 5, "{restored:?}");
    assert_eq!(query("select count(*) from kept"), "1000");
    assert_eq!(query("insert into kept values (5000); checkpoint; select max(n) from kept"), "5000");
    assert_eq!(query("select pg_postmaster_start_time()"), server);
    kill_process(Pid::from_raw(pid).unwrap(), Signal::INT).unwrap();
    assert_eq!(exit_status(pid), Some(0), "it removes its segment and ends properly");
}
