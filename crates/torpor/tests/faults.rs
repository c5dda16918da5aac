//! Nothing is lost when something fails: the worker is killed or fails at every step of falling asleep and of waking, an
//! image is damaged, the disk is full. The program in the sandbox checks all of its memory by itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{FALLING_ASLEEP, PATIENCE, is_dead, memcheck, restart, sleep};
use torpor_testkit::client::Session;
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native::LineSession;
use torpor_testkit::wait::eventually;

/// Steps of waking from dozing, behind those of [`FALLING_ASLEEP`].
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
    daemon.wait_state("check", "running", PATIENCE).unwrap();
    assert!(daemon.ok(&["explain", "check"]).unwrap().contains("No space left"));
    drop(disk);
    sleep(&daemon, "check", &[]);
    session.step().unwrap();
}

/// Its memory is not brought back for an image that has no room.
#[test]
fn a_full_disk_keeps_it_dozing() {
    let (daemon, _, mut session) = memcheck("8");
    support::doze(&daemon, "check");
    let folder = app_directory(&daemon);
    let dozing = image(&daemon);
    let disk = SmallDisk::over(&folder);
    // What it wakes from is there, as on a disk that others have filled.
    let output = daemon.cli(&["sleep", "--level", "warm", "check"]).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("is full") && said.contains("No space left"), "{said}");
    assert_eq!(daemon.state("check").unwrap(), "dozing", "{}", daemon.log());
    let left = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let left: Vec<String> = left.filter(|name| name.contains(".image")).collect();
    assert_eq!(left, [""; 0], "nothing of the attempt stays");
    drop(disk);
    assert!(dozing.exists());
    session.step().unwrap();
    support::doze(&daemon, "check");
    support::warm(&daemon, "check");
    session.step().unwrap();
}

/// Takes all room of a file system, by files that begin with `name`.
fn fill(folder: &Path, name: &str) {
    for (n, size) in ["1G", "16M", "1M", "64K", "16K", "4K", "4K", "4K", "4K"].into_iter().enumerate() {
        let path = folder.join(format!("{name}-{n}"));
        // What fits of it stays.
        let tried = Command::new("fallocate").args(["--length", size]).arg(path).output().unwrap();
        assert!(n == 0 || !tried.stderr.is_empty() || tried.status.success());
    }
}

#[test]
fn a_daemon_starts_on_a_full_disk_by_the_room_set_aside_and_else_says_so() {
    let mut daemon = Daemon::start_on_disk("").unwrap();
    let data = daemon.data_dir();
    daemon.term().unwrap();
    fill(&data, "first");
    daemon.up().unwrap();
    daemon.ok(&["ps"]).unwrap();
    daemon.term().unwrap();
    fill(&data, "second");
    let error = daemon.up().unwrap_err().to_string();
    assert!(error.contains("the disk is full: make room"), "{error}");
    for entry in std::fs::read_dir(&data).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("first-") || name.starts_with("second-") {
            std::fs::remove_file(path).unwrap();
        }
    }
    daemon.up().unwrap();
    daemon.ok(&["ps"]).unwrap();
}
