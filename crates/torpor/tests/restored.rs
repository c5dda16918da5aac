//! `torpor restore --lazy`: a tree runs before its memory is back, while its pagers and its guard are killed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use torpor_testkit::daemon::binary;
use torpor_testkit::native::executable;
use torpor_testkit::programs::only_standard_descriptors;
use torpor_testkit::wait::{PATIENCE, eventually_ok};

/// A tree that changes its memory in every way when it is asked, and checks it.
struct Tree {
    folder: tempfile::TempDir,
    pid: i32,
    port: u16,
    images: u32,
}

fn torpor(args: &[&str]) -> Output {
    Command::new(binary().unwrap()).args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned()
}

impl Tree {
    fn start(megabytes: &str) -> (Self, Child) {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut command = Command::new(executable("changer").unwrap());
        let mut command = only_standard_descriptors(command.arg(megabytes));
        let out = folder.path().join("out");
        let child = command.stdout(File::create(&out).unwrap()).spawn().unwrap();
        let printed = eventually_ok("it prints its port", PATIENCE, || {
            fs::read_to_string(&out).unwrap_or_default().trim().parse().map_err(|error| format!("{error}"))
        });
        let pid = child.id().cast_signed();
        (Self { folder, pid, port: printed.unwrap(), images: 0 }, child)
    }

    /// Captures it, which ends it.
    fn capture(&mut self) -> PathBuf {
        self.images += 1;
        let image = self.folder.path().join(format!("image-{}", self.images));
        let taken = torpor(&["checkpoint", "--pid", &self.pid.to_string(), "--image", image.to_str().unwrap()]);
        assert!(taken.status.success(), "{}", said(&taken));
        image
    }

    /// It is restored, and nobody traces it any more.
    fn runs(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        status.lines().any(|line| line.split_ascii_whitespace().eq(["TracerPid:", "0"]))
    }

    /// Asks it by a new connection, which is answered when it has changed its memory.
    fn ask(&self, line: &'static str) -> JoinHandle<String> {
        let port = self.port;
        std::thread::spawn(move || {
            let connect = || TcpStream::connect(("127.0.0.1", port));
            let mut stream = eventually_ok("it listens", PATIENCE, connect).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(format!("{line}\n").as_bytes()).unwrap();
            let mut answer = String::new();
            BufReader::new(stream).read_line(&mut answer).unwrap();
            answer.trim().split(" nonce=").next().unwrap_or_default().to_owned()
        })
    }
}

fn restore(image: &Path) -> Child {
    let mut command = Command::new(binary().unwrap());
    command.args(["restore", "--lazy", "--image"]).arg(image).stderr(Stdio::piped()).spawn().unwrap()
}

/// A child of process `pid` that was called with this word.
fn child_of(pid: u32, word: &str) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let mut children = children.split_ascii_whitespace().filter_map(|child| child.parse().ok());
    children.find(|child: &u32| {
        let words = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|one| one == word.as_bytes())
    })
}

fn kill(pid: u32) {
    // It may have come to its end.
    let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
}

#[test]
fn pagers_and_their_guard_are_killed_while_memory_is_missing() {
    let (mut tree, mut first) = Tree::start("256");
    let mut followed = 0;
    for round in 0..6 {
        let image = tree.capture();
        if round == 0 {
            first.wait().unwrap();
        }
        let mut restored = restore(&image);
        // Without forks: a pager that is killed between the receipt of a child's context and its parking takes the tree with it.
        let asked = tree.ask("split");
        let guard =
            eventually_ok("there is a guard", PATIENCE, || child_of(restored.id(), "restored-guard").ok_or("none"));
        let guard = guard.unwrap();
        let mut killed = None;
        for _ in 0..3 {
            // None: all of its memory is back.
            let Ok(pager) = eventually_ok("there is a pager", PATIENCE, || match child_of(guard, "restored-pager") {
                Some(pager) if Some(pager) != killed => Ok(Some(pager)),
                _ if fs::metadata(format!("/proc/{guard}")).is_err() => Ok(None),
                _ if child_of(restored.id(), "restored-guard").is_none() => Ok(None),
                _ => Err("none"),
            }) else {
                panic!("neither a pager nor the end of the guard");
            };
            let Some(pager) = pager else { break };
            followed += u32::from(killed.is_some());
            if round % 2 == 1 {
                // Before that, its end would be that of the restore.
                eventually_ok("the tree runs", PATIENCE, || tree.runs().then_some(()).ok_or("it is traced")).unwrap();
                // Its pager goes on alone.
                kill(guard);
                break;
            }
            kill(pager);
            killed = Some(pager);
        }
        assert_eq!(asked.join().unwrap(), "ok split", "round {round}");
        assert_eq!(tree.ask("again").join().unwrap(), "ok again", "round {round}");
        if round == 5 {
            kill(tree.pid.cast_unsigned());
            assert_eq!(restored.wait().unwrap().code(), Some(137));
        } else {
            // The next capture ends it.
            drop(std::thread::spawn(move || restored.wait()));
        }
    }
    assert!(followed > 0, "no pager was killed while memory was missing");
}

#[test]
fn a_tree_whose_image_is_damaged_is_ended() {
    let (mut tree, mut first) = Tree::start("64");
    let image = tree.capture();
    first.wait().unwrap();
    let path = fs::read_dir(&image).unwrap().next().unwrap().unwrap().path();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let middle = file.metadata().unwrap().len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[!byte[0]], middle).unwrap();
    let mut restored = restore(&image);
    assert_eq!(restored.wait().unwrap().code(), Some(137));
    let mut told = String::new();
    restored.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert!(told.contains("checksum") && told.contains("ended"), "{told}");
}

#[test]
fn a_detached_restore_returns_while_memory_is_missing() {
    let (mut tree, mut first) = Tree::start("64");
    let image = tree.capture();
    first.wait().unwrap();
    let restored = torpor(&["restore", "--lazy", "--detach", "--json", "--image", image.to_str().unwrap()]);
    assert!(restored.status.success(), "{}", said(&restored));
    let outcome: serde_json::Value = serde_json::from_slice(&restored.stdout).unwrap();
    assert!(outcome["late_bytes"].as_u64().unwrap() > 32 << 20, "{outcome}");
    assert_eq!(tree.ask("change").join().unwrap(), "ok change");
    kill(tree.pid.cast_unsigned());
}
