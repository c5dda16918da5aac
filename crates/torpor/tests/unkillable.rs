//! What an app can do to stay: commands that stop before they begin, processes that do not end. Nothing of it stays for ever, and
//! nobody else waits for it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use support::{PATIENCE, told};
use torpor_linux::ptrace::Seized;
use torpor_testkit::client::Session;
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native::{self, LineSession};
use torpor_testkit::wait::{eventually, eventually_ok};

const AWAKE: &str = "[idle]\nsleep = false\n";

fn memcheck(daemon: &mut Daemon, name: &str) -> LineSession {
    let memcheck = native::program("memcheck", &["8", "3", "7000", "0"], &[7000]).unwrap();
    let address = daemon.run_program(&memcheck, name, "").unwrap()[0];
    eventually_ok("memcheck answers", PATIENCE, || LineSession::open(address)).unwrap()
}

fn spawn(daemon: &Daemon, line: &[&str]) -> Child {
    daemon.command(line).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Children of the daemon that have ended and that it has not reaped.
fn zombies(daemon: &Daemon) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{}/task", daemon.pid().unwrap())).unwrap();
    let children = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let pids: Vec<String> = children.flat_map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>()).collect();
    let status = |pid: &String| fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    pids.into_iter().filter(|pid| status(pid).contains("State:\tZ")).collect()
}

/// No command of `exec` is left, nor what counts it.
fn no_session_is_left(daemon: &Daemon, app: &str) {
    let none = eventually_ok("no session is left", PATIENCE, || {
        let explained = daemon.json(&["explain", app]).unwrap();
        let left = explained["keeps_awake"].to_string();
        let zombies = zombies(daemon);
        if left.contains("exec") || !zombies.is_empty() { Err(format!("{left} {zombies:?}")) } else { Ok(()) }
    });
    none.unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(daemon, app), daemon.log()));
}

#[test]
fn exec_that_is_interrupted_at_any_moment_leaves_nothing() {
    let mut daemon = Daemon::start_with(AWAKE, &[]).unwrap();
    let mut session = memcheck(&mut daemon, "check");
    // It says how it is used, and ends.
    let line = ["exec", "check", "--", "/bin/memcheck"];
    let begun = Instant::now();
    assert_eq!(spawn(&daemon, &line).wait().unwrap().code(), Some(2));
    let whole = begun.elapsed();
    for part in 0..30 {
        let mut client = spawn(&daemon, &line);
        // A moment of its own for each.
        std::thread::sleep(whole * part / 30);
        client.kill().unwrap();
        client.wait().unwrap();
    }
    no_session_is_left(&daemon, "check");
    support::warm(&daemon, "check");
    session.step().unwrap();
    daemon.ok(&["rm", "-f", "check"]).unwrap();
    assert_eq!(daemon.down().unwrap(), Vec::<String>::new());
}

#[test]
fn an_app_that_stops_every_command_is_removed_all_the_same() {
    let mut daemon = Daemon::start_with(AWAKE, &[]).unwrap();
    let stopall = native::program("stopall", &["7000"], &[7000]).unwrap();
    let address = daemon.run_program(&stopall, "evil", "").unwrap()[0];
    let mut stream = eventually_ok("it takes connections", PATIENCE, || TcpStream::connect(address)).unwrap();
    stream.write_all(b"begin\n").unwrap();
    stream.read_exact(&mut [0; 9]).unwrap();

    let line = ["exec", "--timeout", "2s", "evil", "--", "/bin/stopall", "7001"];
    let late = daemon.cli(&line).unwrap();
    let said = String::from_utf8_lossy(&late.stderr).into_owned();
    assert_eq!(late.status.code(), Some(6), "{said}");
    assert!(said.contains("evil: the command had not"), "{said}");
    no_session_is_left(&daemon, "evil");
    for _ in 0..3 {
        let mut client = spawn(&daemon, &["exec", "evil", "--", "/bin/stopall", "7001"]);
        let begun = || daemon.json(&["stats", "evil"]).unwrap()["processes"].as_u64().unwrap() > 1;
        eventually("its process is there", PATIENCE, begun).unwrap();
        client.kill().unwrap();
        client.wait().unwrap();
    }
    // One that had just begun goes on without its client, stopped; it goes with the app.
    eventually("all that has ended is reaped", PATIENCE, || zombies(&daemon).is_empty()).unwrap();
    daemon.ok(&["rm", "-f", "evil"]).unwrap();
    eventually("all that has ended is reaped", PATIENCE, || zombies(&daemon).is_empty()).unwrap();
    assert_eq!(daemon.down().unwrap(), Vec::<String>::new());
}

#[test]
fn others_go_on_while_processes_cannot_be_killed() {
    let mut daemon = Daemon::start_with(AWAKE, &[]).unwrap();
    let mut other = memcheck(&mut daemon, "other");
    support::doze(&daemon, "other");
    let names = ["one", "two", "three", "four"];
    // Nobody reaps a process that is traced before its tracer has: this one.
    let held: Vec<Seized> = names
        .iter()
        .map(|&name| {
            drop(memcheck(&mut daemon, name));
            let status = daemon.json(&["inspect", name]).unwrap()["status"].clone();
            Seized::seize(i32::try_from(status["pid"].as_i64().unwrap()).unwrap()).unwrap()
        })
        .collect();
    let stops: Vec<Child> = names
        .iter()
        .map(|&name| {
            let mut stop = daemon.command(&["stop", "--grace", "0s", "--timeout", "40s", name]);
            stop.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for name in names {
        daemon.wait_state(name, "stopping", PATIENCE).unwrap();
    }
    // As long as they are tried to be killed, and then some.
    while names.iter().any(|name| !daemon.ok(&["explain", name]).unwrap().contains("traced by process")) {
        let begun = Instant::now();
        let apps = daemon.json(&["ps"]).unwrap();
        assert_eq!(apps.as_array().unwrap().len(), names.len() + 1);
        other.step().unwrap();
        support::doze(&daemon, "other");
        other.step().unwrap();
        support::doze(&daemon, "other");
        // Not a matter of speed: behind a kill it waits for twenty seconds or more.
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}\n{}", begun.elapsed(), daemon.log());
    }
    let tracer = format!("traced by process {}", std::process::id());
    for stop in stops {
        let output = stop.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(6), "{said}");
        assert!(said.contains("goes on") && said.contains(&tracer), "{said}");
    }
    for name in names {
        assert_eq!(daemon.state(name).unwrap(), "stopping");
    }
    drop(held);
    for name in names {
        daemon.wait_state(name, "stopped", PATIENCE).unwrap();
        daemon.ok(&["rm", name]).unwrap();
    }
    assert_eq!(daemon.down().unwrap(), Vec::<String>::new());
}
