//! A checkpoint, and a restore, that is killed behind any of its system calls: either the program runs with its connection, or
//! its image brings it back with it. No byte is lost, nobody sees a reset, and only tables are left that nobody is kept away by.

use std::fs;
use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use torpor_linux::ptrace::{Seized, Tracee};
use torpor_testkit::wait::eventually;

use super::{Server, WITHIN, answer, said, tables, torpor};

/// A command that stands before its first call. Its first thread makes one after the other.
struct Stepped {
    child: std::process::Child,
    tracee: Tracee,
}

impl Stepped {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "read go; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_torpor")]).args(arguments);
        let null = || Stdio::null();
        let mut child = command.stdin(Stdio::piped()).stdout(null()).stderr(Stdio::piped()).spawn().unwrap();
        let tracee = Seized::seize(child.id() as i32).unwrap().stopped().unwrap();
        tracee.set_signal_mask(u64::MAX).unwrap();
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        // It is another program then.
        while fs::read_link(format!("/proc/{}/exe", child.id())).unwrap() != Path::new(env!("CARGO_BIN_EXE_torpor")) {
            tracee.make_call().unwrap();
        }
        Self { child, tracee }
    }

    /// Lets it make so many calls; `false`: it has ended before.
    fn makes(&mut self, calls: usize) -> bool {
        let made = (0..calls).take_while(|_| self.tracee.make_call().is_ok()).count();
        if made < calls {
            let mut told = String::new();
            self.child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
            eprintln!("it has ended after {made} calls: {told}");
        }
        made == calls
    }

    /// Kills it, and waits until nothing is left of it.
    fn kill(mut self) {
        let held = format!("torpor_tcp_held_{}", self.child.id());
        // Where it has ended, the tracer knows already.
        let _ = self.child.kill();
        drop(self.tracee);
        let _ = self.child.wait();
        eventually("what it held is let go", WITHIN, || !tables().contains(&held)).unwrap();
    }
}

/// A program of two processes with a connection, and its image.
struct Killed {
    server: Server,
    /// Its second process.
    other: Pid,
    client: TcpStream,
    answers: BufReader<TcpStream>,
    nonce: String,
    count: u32,
    image: PathBuf,
    _folder: tempfile::TempDir,
}

/// Removes tables that were left for this client's connection, which the next command would only do by and by.
fn forget_tables(client: &TcpStream) {
    let client = client.local_addr().unwrap().to_string();
    let nft = |arguments: &[&str]| said(&Command::new("nft").args(arguments).output().unwrap());
    for table in tables().lines().filter_map(|line| line.strip_prefix("table inet ")) {
        if table.starts_with("torpor_tcp_") && nft(&["list", "table", "inet", table]).contains(&client) {
            nft(&["delete", "table", "inet", table]);
        }
    }
}

/// Where it is found.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Running,
    InItsImage,
}

impl Killed {
    fn start() -> Self {
        let server = Server::of("paired", 1);
        let mut client = server.connect();
        client.set_read_timeout(Some(WITHIN)).unwrap();
        let mut answers = BufReader::new(client.try_clone().unwrap());
        client.write_all(b"first\n").unwrap();
        let (nonce, count) = answer(&mut answers);
        assert_eq!(count, "count=1");
        let pid = server.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let other = Pid::from_raw(children.trim().parse().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        Self { server, other, client, answers, nonce, count: 1, image, _folder: folder }
    }

    fn image(&self) -> &str {
        self.image.to_str().unwrap()
    }

    fn checkpoint(&self) -> Vec<String> {
        let pid = self.server.child.id().to_string();
        ["checkpoint", "--tcp-established", "--pid", &pid, "--image", self.image()].map(str::to_owned).into()
    }

    fn restore(&self) -> Vec<String> {
        ["restore", "--detach", "--image", self.image()].map(str::to_owned).into()
    }

    /// What was asked is answered, by both of its processes, as they were; or they are gone, and are brought back for that.
    fn answers(&mut self, when: &str) -> Found {
        self.count += 1;
        let answered = (self.nonce.clone(), format!("count={}", self.count));
        let mut found = Found::Running;
        let (mut got, mut line) = ([0; 1], Vec::new());
        self.client.set_nonblocking(true).unwrap();
        let first = eventually(when, WITHIN, || match self.answers.read(&mut got) {
            Ok(bytes) => {
                assert_eq!(bytes, 1, "{when}: the connection has ended");
                line.push(got[0]);
                true
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{when}");
                if found == Found::Running && self.is_gone() {
                    found = Found::InItsImage;
                    let restore = self.restore();
                    let restored = torpor(&restore.iter().map(String::as_str).collect::<Vec<_>>());
                    assert!(restored.status.success(), "{when}: {}", said(&restored));
                }
                false
            }
        });
        first.unwrap();
        self.client.set_nonblocking(false).unwrap();
        let mut rest = BufReader::new(line.as_slice()).chain(&mut self.answers);
        assert_eq!(answer(&mut rest), answered, "{when}");
        found
    }

    fn is_gone(&mut self) -> bool {
        // Only the first time it is our child.
        let _ = self.server.child.try_wait();
        let ids = [self.server.child.id(), self.other.as_raw_nonzero().get() as u32];
        ids.iter().all(|id| !Path::new("/proc").join(id.to_string()).exists())
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // It does not end with the other one.
        let _ = kill_process(self.other, Signal::KILL);
    }
}

/// Behind how many calls it is killed: each so many, and from so many on. All of them take long.
fn moments() -> impl Iterator<Item = usize> {
    let number = |name: &str, usual| std::env::var(name).map_or(usual, |number| number.parse().unwrap());
    (number("TORPOR_TEST_FROM", 0)..).step_by(number("TORPOR_TEST_EVERY", 61))
}

/// Has the command that `ready` prepares be killed at each moment: every time the program runs, or is in its image.
fn killed_at_any_moment(mut ready: impl FnMut(&mut Killed) -> Vec<String>) {
    let mut program = Killed::start();
    let (mut running, mut ended) = (0, 0);
    for calls in moments() {
        let arguments = ready(&mut program);
        let mut stepped = Stepped::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let goes_on = stepped.makes(calls);
        program.client.write_all(b"next\n").unwrap();
        stepped.kill();
        match program.answers(&format!("killed behind {calls} calls")) {
            Found::Running => running += 1,
            Found::InItsImage => ended += 1,
        }
        if !goes_on {
            eprintln!("killed until call {calls}: {running} times it ran, {ended} times it was in its image");
            break;
        }
    }
    assert!(ended > 0, "{running}");
}

#[test]
fn a_checkpoint_killed_at_any_moment_loses_nothing() {
    killed_at_any_moment(|program| {
        forget_tables(&program.client);
        program.checkpoint()
    });
}

#[test]
fn a_restore_killed_at_any_moment_loses_nothing() {
    killed_at_any_moment(|program| {
        let checkpoint = program.checkpoint();
        let taken = torpor(&checkpoint.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(taken.status.success(), "{}", said(&taken));
        eventually("it is gone", WITHIN, || program.is_gone()).unwrap();
        program.restore()
    });
}
