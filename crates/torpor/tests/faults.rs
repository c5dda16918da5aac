//! Nothing is lost when something fails: the worker is killed or fails at every step of falling asleep and of waking, an
//! image is damaged, the disk is full. The program in the sandbox checks all of its memory by itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{PATIENCE, is_dead, memcheck, restart, sleep};
use torpor_testkit::client::Session;
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native::LineSession;
use torpor_testkit::wait::eventually;

/// Steps of `torpor-engine`, in order; the first of waking is `opened`.
const FALLING_ASLEEP: [&str; 11] = [
    "prepared",
    "frozen",
    "stopped",
    "watched",
    "copied",
    "synced",
    "committed",
    "parked",
    "dropped",
    "released",
    "dozing",
];
const WAKING: [&str; 5] = ["opened", "refilled", "awake", "adjusted", "thawed"];

#[test]
fn the_worker_is_killed_at_every_step_of_falling_asleep() {
    let (mut daemon, _, mut session) = memcheck("8");
    for step in FALLING_ASLEEP {
        restart(&mut daemon, Some(&format!("{step}:kill")));
        eventually("the worker is killed", PATIENCE, || {
            let output = daemon.cli(&["sleep", "check"]).unwrap();
            assert!(!output.status.success(), "{step}: the worker lives on");
            is_dead(&daemon)
        })
        .unwrap();
        daemon.kill9().unwrap();
        // While nobody watches, a request arrives.
        let asked = std::thread::spawn(move || session.ask().map(|answer| (answer, session)));
        daemon.set_environment("TORPOR_FAULT", None);
        daemon.up().unwrap();
        let (answer, again) = asked.join().unwrap().unwrap_or_else(|error| panic!("{step}: {error}\n{}", daemon.log()));
        session = again;
        assert!(answer.starts_with("ok "), "{step}: {answer}");
        daemon.wait_state("check", "running", PATIENCE).unwrap();
        sleep(&daemon, "check", &[]);
        session.step().unwrap();
    }
}

#[test]
fn the_worker_is_killed_at_every_step_of_waking() {
    let (mut daemon, _, mut session) = memcheck("8");
    for step in WAKING {
        restart(&mut daemon, Some(&format!("{step}:kill")));
        sleep(&daemon, "check", &[]);
        let asked = std::thread::spawn(move || session.ask().map(|answer| (answer, session)));
        eventually("the worker is killed", PATIENCE, || is_dead(&daemon)).unwrap();
        daemon.kill9().unwrap();
        daemon.set_environment("TORPOR_FAULT", None);
        daemon.up().unwrap();
        let (answer, again) = asked.join().unwrap().unwrap_or_else(|error| panic!("{step}: {error}\n{}", daemon.log()));
        session = again;
        assert!(answer.starts_with("ok "), "{step}: {answer}");
        sleep(&daemon, "check", &[]);
        session.step().unwrap();
    }
}

#[test]
fn an_error_at_every_step_leaves_it_whole() {
    let (mut daemon, _, mut session) = memcheck("8");
    for step in FALLING_ASLEEP.into_iter().chain(WAKING) {
        restart(&mut daemon, Some(&format!("{step}:error")));
        // Falling asleep, the command says why, and behind the point of no return the app is brought back.
        let mut output = daemon.cli(&["sleep", "check"]).unwrap();
        while String::from_utf8_lossy(&output.stderr).contains("at work") {
            output = daemon.cli(&["sleep", "check"]).unwrap();
        }
        let failed = FALLING_ASLEEP.contains(&step);
        assert_eq!(output.status.success(), !failed, "{step}: {output:?}");
        if failed {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains(step), "{step}: {said}");
        }
        session.step().unwrap_or_else(|error| panic!("{step}: {error}\n{}", daemon.log()));
        sleep(&daemon, "check", &[]);
        session.step().unwrap_or_else(|error| panic!("{step}: {error}\n{}", daemon.log()));
    }
}

fn app_directory(daemon: &Daemon) -> PathBuf {
    let id = daemon.json(&["inspect", "check"]).unwrap()["status"]["id"].as_str().unwrap().to_owned();
    daemon.data_dir().join("apps").join(id)
}

fn image(daemon: &Daemon) -> PathBuf {
    let images = std::fs::read_dir(app_directory(daemon)).unwrap().map(|entry| entry.unwrap().path());
    images.into_iter().find(|path| path.extension().is_some_and(|end| end == "image")).expect("it has an image")
}

#[test]
fn a_damaged_image_is_refused_and_the_app_starts_afresh() {
    let (daemon, address, mut session) = memcheck("8");
    sleep(&daemon, "check", &[]);
    let path = image(&daemon);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(&path, bytes).unwrap();
    assert!(session.ask().is_err(), "it answered from a damaged image");
    eventually("it starts afresh", PATIENCE, || LineSession::open(address).is_ok()).unwrap();
    let events = daemon.ok(&["events"]).unwrap();
    assert!(events.contains("lost") && events.contains("damaged"), "{events}");
    assert!(path.with_extension("damaged").exists(), "the damaged image is kept for inspection");
}

/// A small file system over a directory, unmounted at the end.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn over(path: &Path) -> Self {
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k", "torpor-test"]).arg(path).status();
        assert!(status.unwrap().success());
        Self(path.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let status = Command::new("umount").arg(&self.0).status();
        assert!(status.unwrap().success(), "{} stays mounted", self.0.display());
    }
}

#[test]
fn a_full_disk_keeps_it_awake_and_whole() {
    let (daemon, _, mut session) = memcheck("8");
    let disk = SmallDisk::over(&app_directory(&daemon));
    let mut said = String::new();
    eventually("the disk is full", PATIENCE, || {
        let output = daemon.cli(&["sleep", "check"]).unwrap();
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "it sleeps on a full disk");
        !said.contains("at work")
    })
    .unwrap();
    assert!(said.contains("No space left"), "{said}");
    session.step().unwrap();
    assert_eq!(daemon.state("check").unwrap(), "running");
    assert!(daemon.ok(&["explain", "check"]).unwrap().contains("No space left"));
    drop(disk);
    sleep(&daemon, "check", &[]);
    session.step().unwrap();
}
