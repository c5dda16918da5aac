//! `torpor checkpoint --tcp-established`: a peer outside of the tree waits for the restore, and loses nothing; nor does it when the
//! checkpoint fails or is killed.
//!
//! Needs root and nftables.
#![allow(clippy::unwrap_used, reason = "tests")]

mod killed;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use torpor_testkit::native;
use torpor_testkit::wait::eventually;

/// How long anything may take that ought to take a moment.
const WITHIN: Duration = Duration::from_secs(30);

/// A program with the test's connections; killed in the end, whoever its parent is by then.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// Of one process.
    fn start() -> Self {
        Self::of("ignorer", 2)
    }

    /// A program that answers on the last of so many ports.
    fn of(name: &str, ports: usize) -> Self {
        let free: Vec<TcpListener> = (0..ports).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = free.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        drop(free);
        let program = native::executable(name).unwrap();
        // What whoever runs the tests has open.
        torpor_linux::spawn::close_on_exec_from(3).unwrap();
        let child = Command::new(program)
            .args(ports.iter().map(u16::to_string))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, port: ports[ports.len() - 1] }
    }

    fn connect(&self) -> TcpStream {
        let begun = Instant::now();
        loop {
            match TcpStream::connect(("127.0.0.1", self.port)) {
                Ok(stream) => return stream,
                Err(error) if begun.elapsed() > Duration::from_secs(10) => panic!("{error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        let _ = self.child.wait();
    }
}

fn torpor(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_torpor")).args(arguments).output().unwrap()
}

fn tables() -> String {
    said(&Command::new("nft").args(["list", "tables"]).output().unwrap())
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

/// `nonce=… count=N …`: which process, and how often it was asked.
fn answer(stream: &mut impl BufRead) -> (String, String) {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    let mut words = line.split_ascii_whitespace();
    (words.next().unwrap().to_owned(), words.next().unwrap().to_owned())
}

#[test]
fn a_peer_outside_waits_for_the_restore() {
    let mut server = Server::start();
    let mut client = server.connect();
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut answers = BufReader::new(client.try_clone().unwrap());
    client.write_all(b"one\n").unwrap();
    let (nonce, count) = answer(&mut answers);
    assert_eq!(count, "count=1");
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let (pid, image) = (server.child.id().to_string(), image.to_str().unwrap());

    let refused = torpor(&["checkpoint", "--pid", &pid, "--image", image]);
    assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));
    assert!(said(&refused).contains("--tcp-established"), "{}", said(&refused));

    let copied = torpor(&["checkpoint", "--tcp-established", "--leave-running", "--pid", &pid, "--image", image]);
    assert!(copied.status.success(), "{}", said(&copied));
    client.write_all(b"two\n").unwrap();
    assert_eq!(answer(&mut answers), (nonce.clone(), "count=2".to_owned()), "it runs on with its connection");

    let taken = torpor(&["checkpoint", "--tcp-established", "--json", "--pid", &pid, "--image", image]);
    assert!(taken.status.success(), "{}", said(&taken));
    server.child.wait().unwrap();
    let table = serde_json::from_slice::<serde_json::Value>(&taken.stdout).unwrap()["locked"].clone();
    let table = table.as_str().unwrap().to_owned();
    assert!(tables().contains(&table));
    // Nobody is there: neither an answer nor a reset comes.
    client.write_all(b"three\n").unwrap();
    client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(answers.fill_buf().is_err());
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();

    let restored = torpor(&["restore", "--detach", "--image", image]);
    assert!(restored.status.success(), "{}", said(&restored));
    assert!(!tables().contains(&table));
    assert_eq!(answer(&mut answers), (nonce, "count=3".to_owned()));
}

/// Steps of a checkpoint, in order; from `ending` on its processes end.
const STEPS: [&str; 9] =
    ["prepared", "stopped", "copied", "synced", "committed", "files-parked", "ending", "ended", "released"];

/// A checkpoint that fails or is killed at each step: either the program runs on with its connection, or the image has both.
/// A table that is left then has been named, and keeps nobody away who is there.
fn interrupted(how: &str) {
    let mut server = Server::start();
    let mut client = server.connect();
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut answers = BufReader::new(client.try_clone().unwrap());
    client.write_all(b"first\n").unwrap();
    let (nonce, _) = answer(&mut answers);
    let folder = tempfile::tempdir().unwrap();
    for (n, step) in STEPS.into_iter().enumerate() {
        let image = folder.path().join(step);
        let (pid, image) = (server.child.id().to_string(), image.to_str().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_torpor"));
        command.args(["checkpoint", "--tcp-established", "--pid", &pid, "--image", image]);
        let child = command.env("TORPOR_FAULT", format!("{step}:{how}")).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = child.spawn().unwrap();
        let held = format!("torpor_tcp_held_{}", child.id());
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success(), "{step}: {}", said(&output));
        eventually(step, WITHIN, || !tables().contains(&held)).unwrap();
        let told = said(&output);
        let kept = told.split("nft delete table inet ").nth(1).map(|rest| rest.lines().next().unwrap().to_owned());
        let is_kept = kept.as_ref().is_some_and(|table| tables().contains(table));
        client.write_all(b"next\n").unwrap();
        if ["ending", "ended", "released"].contains(&step) {
            // Only the first time it is our child.
            server.child.wait().unwrap();
            eventually("it is gone", WITHIN, || !Path::new("/proc").join(&pid).exists()).unwrap();
            assert!(is_kept, "{step}: {told}");
            let restored = torpor(&["restore", "--detach", "--image", image]);
            assert!(restored.status.success(), "{step}: {}", said(&restored));
        } else {
            assert_eq!(server.child.try_wait().unwrap(), None, "{step}");
            assert_eq!(is_kept, (step, how) == ("files-parked", "kill"), "{step}: {told}");
        }
        assert_eq!(answer(&mut answers), (nonce.clone(), format!("count={}", n + 2)), "{step}");
        let Some(table) = kept else { continue };
        if step == "files-parked" && is_kept {
            let image = folder.path().join("next");
            let next = torpor(&[
                "checkpoint",
                "--tcp-established",
                "--leave-running",
                "--pid",
                &pid,
                "--image",
                image.to_str().unwrap(),
            ]);
            assert!(next.status.success(), "{}", said(&next));
            assert!(said(&next).contains(&format!("removed nftables table inet {table},")), "{}", said(&next));
        }
        assert!(!tables().contains(&table), "{step}");
    }
}

#[test]
fn a_checkpoint_that_fails_loses_no_connection() {
    interrupted("error");
}

#[test]
fn a_checkpoint_that_is_killed_loses_no_connection() {
    interrupted("kill");
}
