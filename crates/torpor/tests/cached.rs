//! Images in the page cache: those of the apps that fell asleep last stay, up to the bound; the others leave memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{PATIENCE, doze, program, stats, step};
use torpor_testkit::client::Session;
use torpor_testkit::daemon::Daemon;
use torpor_testkit::wait::{eventually, eventually_ok};

/// Room for one lighttpd's image and not for two.
const BOUND_BYTES: u64 = 300 << 10;

fn config(bytes: u64) -> String {
    format!("[memory]\ncached_images = {bytes}\n[idle]\nsleep = false\ntimers_over = '10m'\n")
}

/// The image of a dozing app.
fn image(daemon: &Daemon, app: &str) -> PathBuf {
    let id = daemon.json(&["inspect", app]).unwrap()["status"]["id"].as_str().unwrap().to_owned();
    let files = std::fs::read_dir(daemon.data_dir().join("apps").join(id)).unwrap();
    let mut images =
        files.map(|file| file.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "image"));
    let image = images.next().unwrap_or_else(|| panic!("{app} has no image"));
    assert_eq!(images.next(), None, "{app} has one image");
    image
}

/// Bytes of a file that are in the page cache, by mincore(2).
fn resident(path: &Path) -> u64 {
    let output = Command::new("fincore").args(["--bytes", "--noheadings", "--output", "RES"]).arg(path).output();
    let output = output.expect("fincore, of the package util-linux-extra or util-linux");
    String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or_else(|_| panic!("{output:?}"))
}

fn wait_gone(daemon: &Daemon, app: &str) {
    let image = image(daemon, app);
    eventually_ok(&format!("{app}'s image leaves the page cache"), PATIENCE, || match resident(&image) {
        0 => Ok(()),
        bytes => Err(format!("{bytes} bytes are there; {}", daemon.log())),
    })
    .unwrap();
}

fn assert_there(daemon: &Daemon, app: &str) {
    let image = image(daemon, app);
    let bytes = image.metadata().unwrap().len();
    assert!(bytes <= BOUND_BYTES && 2 * bytes > BOUND_BYTES, "{bytes} bytes: the bound is not for one image any more");
    assert!(resident(&image) >= bytes, "{} of {bytes} bytes of {app}'s image are in the cache", resident(&image));
}

fn run(daemon: &mut Daemon, app: &str) -> (SocketAddr, Box<dyn Session>) {
    let mut running = daemon.run_session(&program("lighttpd"), app).unwrap();
    step(daemon, app, &mut *running.1);
    running
}

#[test]
fn only_the_image_that_is_newest_stays_cached_and_every_wake_is_right() {
    let mut daemon = Daemon::start_with(&config(BOUND_BYTES), &[]).unwrap();
    let apps = ["a", "b", "c"];
    let mut sessions = apps.map(|app| run(&mut daemon, app));
    for app in apps {
        doze(&daemon, app);
    }
    wait_gone(&daemon, "a");
    wait_gone(&daemon, "b");
    assert_there(&daemon, "c");
    // One that has woken gives its room back, and one from the disk is what it was.
    for (app, (_, session)) in apps.iter().zip(&mut sessions) {
        step(&daemon, app, &mut **session);
        assert_eq!(stats(&daemon, app).wakes, 1, "{app}");
    }
    doze(&daemon, "b");
    assert_there(&daemon, "b");
    doze(&daemon, "a");
    wait_gone(&daemon, "b");
    assert_there(&daemon, "a");
    // The next daemon knows them all, and who fell asleep last.
    daemon.kill9().unwrap();
    daemon.up().unwrap();
    doze(&daemon, "c");
    wait_gone(&daemon, "a");
    assert_there(&daemon, "c");
    for (app, (_, session)) in apps.iter().zip(&mut sessions) {
        assert_eq!(daemon.state(app).unwrap(), "dozing");
        step(&daemon, app, &mut **session);
    }
}

#[test]
fn with_no_room_none_stays() {
    let mut daemon = Daemon::start_with(&config(0), &[]).unwrap();
    let (_, mut session) = run(&mut daemon, "web");
    doze(&daemon, "web");
    wait_gone(&daemon, "web");
    step(&daemon, "web", &mut *session);
    eventually("it has woken", PATIENCE, || stats(&daemon, "web").wakes == 1).unwrap();
}

#[test]
fn a_smaller_bound_is_kept_from_the_next_start_on() {
    let mut daemon = Daemon::start_with(&config(BOUND_BYTES * 10), &[]).unwrap();
    let mut sessions = ["a", "b"].map(|app| run(&mut daemon, app));
    for app in ["a", "b"] {
        doze(&daemon, app);
    }
    for app in ["a", "b"] {
        assert_there(&daemon, app);
    }
    daemon.term().unwrap();
    let path = daemon.data_dir().with_file_name("torpor.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace(&config(BOUND_BYTES * 10), &config(BOUND_BYTES))).unwrap();
    daemon.up().unwrap();
    wait_gone(&daemon, "a");
    assert_there(&daemon, "b");
    for (app, (_, session)) in ["a", "b"].iter().zip(&mut sessions) {
        step(&daemon, app, &mut **session);
    }
}
