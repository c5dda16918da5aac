//! A warm app whose sandbox cannot be made after a reboot: its image is kept, it is said what is in the way, and the app is there
//! again once that is gone.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;

use support::{PATIENCE, told, warm};
use torpor_testkit::client::Session;
use torpor_testkit::daemon::{Daemon, leftovers};
use torpor_testkit::native::{LineSession, program};
use torpor_testkit::wait::{eventually, eventually_ok};

const APP: &str = "ledger";

/// A warm app with a published port, after a power cut and before the next start.
fn switched_off() -> (Daemon, SocketAddr, String) {
    switched_off_with("")
}

fn switched_off_with(tables: &str) -> (Daemon, SocketAddr, String) {
    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n", &[]).unwrap();
    let ledger = program("ledger", &["7000"], &[7000]).unwrap();
    let address = daemon.run_program(&ledger, APP, tables).unwrap()[0];
    let mut session = eventually_ok("the ledger answers", PATIENCE, || LineSession::open(address)).unwrap();
    session.tell("add").unwrap();
    let before = session.ask().unwrap();
    drop(session);
    warm(&daemon, APP);
    daemon.power_off().unwrap();
    (daemon, address, before)
}

/// Somebody else has the app's port.
fn taken(address: SocketAddr) -> TcpListener {
    TcpListener::bind(("0.0.0.0", address.port())).unwrap()
}

fn answer(daemon: &Daemon, address: SocketAddr) -> String {
    let session = eventually_ok("the ledger answers", PATIENCE, || LineSession::open(address));
    session.unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(daemon, APP), daemon.log())).ask().unwrap()
}

/// It is known to be in trouble, and for which reason.
fn is_blocked(daemon: &Daemon, app: &str, reason: &str) {
    assert_eq!(daemon.state(app).unwrap(), "wake-blocked", "{}", told(daemon, app));
    let explained = daemon.ok(&["explain", app]).unwrap();
    for words in [reason, "torpor restart"] {
        assert!(explained.contains(words), "{explained}\n{}", daemon.log());
    }
    let events = daemon.ok(&["events", "-n", "20", "--app", app]).unwrap();
    assert!(events.contains("wake-refused") && !events.contains("lost"), "{events}");
}

#[test]
fn it_waits_for_a_port_that_is_taken() {
    let (mut daemon, address, before) = switched_off();
    let other = taken(address);
    daemon.up().unwrap();
    let port = address.port().to_string();
    is_blocked(&daemon, APP, &port);
    // Whoever asks is told.
    let refused = daemon.cli(&["wake", APP]).unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains(&port), "{said}");
    is_blocked(&daemon, APP, &port);
    // The next daemon finds the same.
    daemon.kill9().unwrap();
    daemon.up().unwrap();
    is_blocked(&daemon, APP, &port);
    drop(other);
    // By itself it is only made reachable; the first connection wakes it.
    daemon.wait_state(APP, "warm", PATIENCE).unwrap_or_else(|error| panic!("{error}\n{}", daemon.log()));
    assert_eq!(answer(&daemon, address), before);
    warm(&daemon, APP);
    assert_eq!(answer(&daemon, address), before);
}

#[test]
fn a_wake_that_was_asked_for_is_done_when_the_port_is_free() {
    let (mut daemon, address, before) = switched_off();
    let other = taken(address);
    daemon.up().unwrap();
    assert!(!daemon.cli(&["wake", APP]).unwrap().status.success());
    drop(other);
    daemon.wait_state(APP, "running", PATIENCE).unwrap_or_else(|error| panic!("{error}\n{}", daemon.log()));
    assert_eq!(answer(&daemon, address), before);
}

#[test]
fn it_is_kept_by_down_and_can_be_stopped_and_started_afresh() {
    let (mut daemon, address, before) = switched_off();
    let other = taken(address);
    daemon.up().unwrap();
    let config = daemon.data_dir().with_file_name("torpor.toml");
    daemon
        .ok(&["down", "--config", config.to_str().unwrap()])
        .unwrap_or_else(|error| panic!("{error}\n{}", daemon.log()));
    let dirs: [&Path; 1] = [config.parent().unwrap()];
    assert_eq!(leftovers(&daemon.instance(), &dirs), Vec::<String>::new(), "{}", daemon.log());
    daemon.up().unwrap();
    is_blocked(&daemon, APP, &address.port().to_string());
    drop(other);
    assert_eq!(answer(&daemon, address), before);
    // Somebody who ends it gives up its memory.
    warm(&daemon, APP);
    daemon.power_off().unwrap();
    let other = taken(address);
    daemon.up().unwrap();
    daemon.ok(&["stop", APP]).unwrap();
    assert_eq!(daemon.state(APP).unwrap(), "stopped");
    drop(other);
    daemon.ok(&["start", APP]).unwrap();
    let after = answer(&daemon, address);
    assert!(after.starts_with("ok count=1 ") && after != before, "{before} {after}");
}

#[test]
fn a_listener_that_cannot_be_made_is_given_up_where_that_is_wished() {
    let (mut daemon, address, before) = switched_off_with("[idle]\nwake_blocked = 'restart'\n");
    daemon.set_environment("TORPOR_FAULT", Some("adopt-reopened:error"));
    daemon.up().unwrap();
    let after = answer(&daemon, address);
    assert!(after.starts_with("ok count=1 ") && after != before, "{before} {after}");
    let events = daemon.ok(&["events", "-n", "20", "--app", APP]).unwrap();
    assert!(events.contains("lost"), "{events}");
    assert_eq!(daemon.down().unwrap(), Vec::<String>::new());
}

#[test]
fn a_crash_while_its_sandbox_is_made_loses_nothing() {
    for fault in ["adopt-recorded:kill", "adopt-reopened:kill", "adopt-reopened:error"] {
        let (mut daemon, address, before) = switched_off();
        daemon.set_environment("TORPOR_FAULT", Some(fault));
        daemon.up_at_once().unwrap_or_else(|error| panic!("{fault}: {error}"));
        daemon.set_environment("TORPOR_FAULT", None);
        if fault.ends_with("kill") {
            eventually("the daemon is killed", PATIENCE, || support::is_dead(&daemon)).unwrap();
            daemon.kill9().unwrap();
            daemon.up().unwrap();
        }
        daemon.wait_state(APP, "warm", PATIENCE).unwrap_or_else(|error| panic!("{fault}: {error}\n{}", daemon.log()));
        assert_eq!(answer(&daemon, address), before, "{fault}: {}", daemon.log());
        assert_eq!(daemon.down().unwrap(), Vec::<String>::new(), "{fault}");
    }
}

#[test]
fn an_adoption_that_does_not_end_holds_nobody_up() {
    let (mut daemon, address, before) = switched_off();
    let pipe = daemon.data_dir().with_file_name("held");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    daemon.set_environment("TORPOR_FAULT_PIPE", pipe.to_str());
    daemon.set_environment("TORPOR_FAULT", Some("adopt-reopened:hang"));
    let socket = daemon.data_dir().with_file_name("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    daemon.set_environment("NOTIFY_SOCKET", socket.to_str());
    daemon.up_at_once().unwrap();
    // The service manager hears what is to come, and is asked for more time.
    let first = heard(&manager);
    assert!(first.starts_with("EXTEND_TIMEOUT_USEC=") && first.contains("STATUS=adopting apps, 1 to come"), "{first}");
    // The API answers; nobody waits for this one.
    daemon.wait_state(APP, "not-answering", PATIENCE).unwrap_or_else(|error| panic!("{error}\n{}", daemon.log()));
    daemon.ok(&["ps"]).unwrap();
    daemon.ok(&["doctor"]).unwrap();
    let other = program("memcheck", &["1", "1", "7000", "0"], &[7000]).unwrap();
    let other = daemon.run_program(&other, "other", "").unwrap()[0];
    eventually_ok("the other app answers", PATIENCE, || LineSession::open(other)).unwrap().step().unwrap();
    // It is not waited for without end: what is ordered behind the daemon begins.
    let ready = eventually_ok("it is ready", PATIENCE, || {
        Some(heard(&manager)).filter(|told| told.contains("READY=1")).ok_or("not yet")
    });
    assert_eq!(ready.unwrap(), "READY=1\nSTATUS=");
    // A restart of the daemon is not held up either, and finds the app as it was.
    daemon.set_environment("TORPOR_FAULT", None);
    daemon.term().unwrap();
    assert_eq!(heard(&manager), "STOPPING=1");
    daemon.up().unwrap();
    while !heard(&manager).contains("READY=1") {}
    assert_eq!(answer(&daemon, address), before, "{}", daemon.log());
}

/// What the service manager is told next.
fn heard(manager: &UnixDatagram) -> String {
    let mut buffer = [0; 512];
    let count = manager.recv(&mut buffer).unwrap();
    String::from_utf8(buffer[..count].to_vec()).unwrap()
}
