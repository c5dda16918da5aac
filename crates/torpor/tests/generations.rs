//! Apps that fall asleep again while they miss most of their memory: each image refers to pages of the ones before it. Their memory comes
//! only when it is touched.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use support::{FALLING_ASLEEP, PATIENCE, is_dead, restart, sleep};
use torpor_testkit::client::Session;
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native::{self, LineSession};
use torpor_testkit::wait::{eventually, eventually_ok};

/// Changes and checks a few pages, and does not fork.
const SOME: &str = "some";
/// What is touched stays where it is: with a working set, it would lie together at the front of each image.
const NO_SET: &str = "[idle]\nworking_set = 'none'\n";

/// A daemon with `changer` as the app `check`, which sleeps on command only, and a connection to it.
fn changer(megabytes: &str, tables: &str) -> (Daemon, LineSession) {
    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n[wake]\nbackfill = false\n", &[]).unwrap();
    let changer = native::program("changer", &[megabytes, "7000"], &[7000]).unwrap();
    let address = daemon.run_program(&changer, "check", tables).unwrap()[0];
    let session = eventually_ok("it answers", PATIENCE, || LineSession::open(address)).unwrap();
    (daemon, session)
}

/// Tells it what to do.
fn tell(session: &mut LineSession, daemon: &Daemon, words: &str) {
    let said = || daemon.ok(&["logs", "check"]).unwrap_or_default();
    session.tell(words).unwrap_or_else(|error| panic!("{words}: {error}\n{}\n{}", said(), daemon.log()));
}

fn images(daemon: &Daemon) -> Vec<PathBuf> {
    let id = daemon.json(&["inspect", "check"]).unwrap()["status"]["id"].as_str().unwrap().to_owned();
    let files = std::fs::read_dir(daemon.data_dir().join("apps").join(id)).unwrap().map(|entry| entry.unwrap().path());
    // One that is being folded has a partial file beside it.
    files
        .filter(|path| path.to_string_lossy().contains(".image") && path.extension() != Some("part".as_ref()))
        .collect()
}

/// Its image: length of the file, and what it takes on disk.
fn image(daemon: &Daemon) -> (u64, u64) {
    let images = images(daemon);
    let [image] = &images[..] else { panic!("{images:?}") };
    let file = image.metadata().unwrap();
    (file.len(), file.blocks() * 512)
}

fn assert_not_lost(daemon: &Daemon) {
    let events = daemon.ok(&["events", "--app", "check"]).unwrap();
    assert!(!events.contains("lost"), "{events}");
}

#[test]
fn an_app_sleeps_again_and_again_without_its_memory() {
    let (daemon, mut session) = changer("64", "");
    sleep(&daemon, "check", &[]);
    let (first, _) = image(&daemon);
    assert!(first > 24 << 20, "{first}");
    let mut before = first;
    for round in 0..30 {
        // One that sleeps deeper is built again, and misses the same.
        let level = if round % 5 == 4 { &["--level", "warm"][..] } else { &[] };
        tell(&mut session, &daemon, SOME);
        sleep(&daemon, "check", level);
        let (bytes, _) = image(&daemon);
        assert!(bytes > before && bytes - before < 16 << 20, "round {round}: {bytes} after {before}");
        before = bytes;
    }
    let path = images(&daemon).remove(0);
    let verified = daemon.ok(&["image", "verify", path.to_str().unwrap()]).unwrap();
    assert!(verified.contains("sound"), "{verified}");
    // What lies in front is given back where nothing refers to it.
    eventually("what is dead takes no space", PATIENCE, || {
        let (bytes, allocated) = image(&daemon);
        allocated + (8 << 20) < bytes && allocated < 96 << 20
    })
    .unwrap_or_else(|error| panic!("{error}: {:?}", image(&daemon)));
    // All of it at once, checked and changed.
    session.step().unwrap();
    sleep(&daemon, "check", &[]);
    assert!(image(&daemon).0 < 80 << 20, "{:?}", image(&daemon));
    session.step().unwrap();
    assert_not_lost(&daemon);
}

#[test]
fn an_image_that_is_scattered_over_its_file_is_folded_while_it_sleeps() {
    let (daemon, mut session) = changer("64", NO_SET);
    sleep(&daemon, "check", &[]);
    let mut longest = 0;
    let mut folded = || {
        for _ in 0..40 {
            for _ in 0..60 {
                tell(&mut session, &daemon, SOME);
            }
            sleep(&daemon, "check", &[]);
            longest = longest.max(image(&daemon).0);
            // A new file, with nothing dead in it.
            if eventually("it is folded", Duration::from_secs(2), || image(&daemon).0 < longest).is_ok() {
                return true;
            }
        }
        false
    };
    assert!(folded(), "{longest} bytes, never folded\n{}", daemon.log());
    let path = images(&daemon).remove(0);
    let verified = daemon.ok(&["image", "verify", path.to_str().unwrap()]).unwrap();
    assert!(verified.contains("sound"), "{verified}");
    // It goes on as with any other image: behind it, from warm, and with all of its memory.
    for level in [&[][..], &["--level", "warm"]] {
        tell(&mut session, &daemon, SOME);
        sleep(&daemon, "check", level);
    }
    session.step().unwrap();
    assert_not_lost(&daemon);
}

#[test]
fn the_worker_is_killed_while_an_app_sleeps_again() {
    let (mut daemon, mut session) = changer("32", "");
    for (n, step) in FALLING_ASLEEP.into_iter().enumerate() {
        for action in ["kill", "error"] {
            let level = if n % 2 == 0 { &["--level", "warm"][..] } else { &[] };
            sleep(&daemon, "check", level);
            tell(&mut session, &daemon, SOME);
            let fault = format!("{step}:{action}");
            // The app runs on meanwhile, with pages missing.
            restart(&mut daemon, Some(&fault));
            tell(&mut session, &daemon, SOME);
            let _tried = daemon.ok(&["sleep", "check"]);
            if action == "kill" {
                eventually("the worker is killed", PATIENCE, || is_dead(&daemon)).unwrap();
                daemon.kill9().unwrap();
            }
            restart(&mut daemon, None);
            tell(&mut session, &daemon, SOME);
            sleep(&daemon, "check", &[]);
            session.step().unwrap_or_else(|error| panic!("{fault}: {error}\n{}", daemon.log()));
        }
    }
    assert_not_lost(&daemon);
}

#[test]
fn the_phase_of_an_app_that_sleeps_again_is_lost() {
    let (mut daemon, mut session) = changer("32", "");
    for (level, step) in [(&[][..], "copied"), (&["--level", "warm"][..], "synced"), (&[][..], "committed")] {
        sleep(&daemon, "check", level);
        tell(&mut session, &daemon, SOME);
        restart(&mut daemon, Some(&format!("{step}:kill")));
        tell(&mut session, &daemon, SOME);
        let _killed = daemon.ok(&["sleep", "check"]);
        eventually("the worker is killed", PATIENCE, || is_dead(&daemon)).unwrap();
        daemon.kill9().unwrap();
        let id = {
            let apps = daemon.run_dir().join("apps");
            std::fs::read_dir(apps).unwrap().next().unwrap().unwrap().path()
        };
        std::fs::remove_file(id.join("phase")).unwrap();
        restart(&mut daemon, None);
        session.step().unwrap_or_else(|error| panic!("{step}: {error}\n{}", daemon.log()));
    }
    assert_not_lost(&daemon);
}

#[test]
fn a_child_that_misses_memory_is_waited_for() {
    let (daemon, mut session) = changer("32", "");
    for _ in 0..3 {
        sleep(&daemon, "check", &[]);
        tell(&mut session, &daemon, "forks 3");
        sleep(&daemon, "check", &[]);
        tell(&mut session, &daemon, SOME);
    }
    session.step().unwrap();
}

#[test]
fn memory_is_missed_by_its_address_space_and_not_by_the_program_that_came_after() {
    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n[wake]\nbackfill = false\n", &[]).unwrap();
    let heir = native::program("heir", &["16", "7000"], &[7000, 7001]).unwrap();
    let addresses = daemon.run_program(&heir, "check", "").unwrap();
    let mut first = eventually_ok("it answers", PATIENCE, || LineSession::open(addresses[0])).unwrap();
    sleep(&daemon, "check", &[]);
    // Its child has the memory that is missing, and its process another program.
    tell(&mut first, &daemon, "pass");
    eventually_ok("the second program answers", PATIENCE, || LineSession::open(addresses[1])).unwrap();
    for _ in 0..2 {
        sleep(&daemon, "check", &[]);
        tell(&mut first, &daemon, "check");
        LineSession::open(addresses[1]).unwrap();
    }
    assert_not_lost(&daemon);
}
