//! `torpor down`: it leaves nothing but what the next daemon wakes from, where a daemon runs, where it hangs and where none does any
//! more, and is not held up by one app after the other.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod python;
mod support;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use python::Place;
use support::{PATIENCE, doze, memcheck, program};
use torpor_testkit::client::Session;
use torpor_testkit::daemon::{Daemon, binary, leftovers};
use torpor_testkit::native::{self, LineSession};
use torpor_testkit::wait::{eventually, eventually_ok};

/// Ends by SIGKILL only.
const STUBBORN: &str = "idle.py --ignore SIGTERM";

#[test]
fn down_without_a_daemon_makes_its_apps_warm() {
    let lighttpd = program("lighttpd");
    let mut daemon = Daemon::start().unwrap();
    for app in ["awake", "asleep"] {
        let addresses = daemon.run_program(&lighttpd, app, "[idle]\nsleep = false\ntimers_over = '10m'").unwrap();
        eventually_ok(&format!("{app} answers"), PATIENCE, || lighttpd.connect(addresses[0])).unwrap();
    }
    doze(&daemon, "asleep");
    daemon.term().unwrap();
    let (data, run) = (daemon.data_dir(), daemon.run_dir());
    let dir = data.parent().unwrap();
    let still: Vec<String> = leftovers(&daemon.instance(), &[&run]);
    assert!(!still.is_empty(), "the apps live on without their daemon");
    let config = dir.join("torpor.toml");
    let mut down = Command::new(binary().unwrap());
    // Of another daemon: the one that was named counts.
    down.arg("down").arg("--config").arg(&config).env("TORPOR_SOCKET", "/nonexistent/api.sock");
    let output = down.output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    assert!(said.contains("awake is warm") && said.contains("asleep is warm"), "{said}");
    let dirs: [&Path; 1] = [dir];
    assert_eq!(leftovers(&daemon.instance(), &dirs), Vec::<String>::new(), "{said}");
    daemon.up().unwrap();
    for app in ["awake", "asleep"] {
        assert_eq!(daemon.state(app).unwrap(), "warm", "{}", daemon.log());
        daemon.ok(&["wake", app]).unwrap();
    }
}

#[test]
fn clients_that_only_listen_learn_that_their_connections_have_ended() {
    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n", &[]).unwrap();
    let program = native::program("memcheck", &["2", "1", "7000", "0"], &[7000]).unwrap();
    let clients = ["awake", "dozing", "warm"].map(|app| {
        let address = daemon.run_program(&program, app, "").unwrap()[0];
        let mut session = eventually_ok("it answers", PATIENCE, || LineSession::open(address)).unwrap();
        session.step().unwrap();
        let listens = std::net::TcpStream::connect(address).unwrap();
        listens.set_read_timeout(Some(PATIENCE)).unwrap();
        (app, session, listens)
    });
    doze(&daemon, "dozing");
    support::warm(&daemon, "warm");
    daemon.ok(&["down"]).unwrap();
    for (app, session, mut listens) in clients {
        match listens.read(&mut [0; 1]) {
            Ok(0) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            told => panic!("{app}: {told:?}"),
        }
        drop(session);
    }
    let log = daemon.log();
    assert!(!log.contains("holds its output open"), "{log}");
    daemon.up().unwrap();
    for app in ["awake", "dozing", "warm"] {
        daemon.ok(&["wake", app]).unwrap();
    }
}

/// What `down --json` says of each app: its name, whether its memory is kept, and why not.
fn down(daemon: &Daemon, options: &[&str]) -> Vec<(String, bool, String)> {
    let config = daemon.data_dir().with_file_name("torpor.toml");
    let mut args = vec!["down", "--json", "--config", config.to_str().unwrap()];
    args.extend(options);
    let output = daemon.cli(&args).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let apps: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}\n{said}\n{}", daemon.log()));
    let apps = apps.as_array().unwrap().iter();
    let lost = apps.clone().any(|app| app["kept"] == false && app["reasons"] != serde_json::json!([]));
    let code = if lost { Some(7) } else { Some(0) };
    assert_eq!(output.status.code(), code, "{said}");
    assert_eq!(said.contains("is not kept"), lost, "{said}");
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    apps.map(|app| (text(&app["app"]), app["kept"].as_bool().unwrap(), app["reasons"].to_string())).collect()
}

/// Nothing of it is left on the machine at this moment.
fn is_gone(daemon: &Daemon) {
    let pid = daemon.pid().unwrap();
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z "), "{state}");
    let data = daemon.data_dir();
    let dirs: [&Path; 1] = [data.parent().unwrap()];
    assert_eq!(leftovers(&daemon.instance(), &dirs), Vec::<String>::new());
}

/// With an app that does nothing.
fn busy() -> Place {
    let place = Place::with("[idle]\nsleep = false\n");
    place.run("busy", STUBBORN, &[]);
    place.wait_log("busy", "up");
    place
}

#[test]
fn apps_that_can_go_warm_keep_their_memory_and_the_others_are_named() {
    let Place { mut daemon, .. } = busy();
    let memcheck = native::program("memcheck", &["8", "3", "7000", "0"], &[7000]).unwrap();
    let address = daemon.run_program(&memcheck, "check", "").unwrap()[0];
    let mut session = eventually_ok("memcheck answers", PATIENCE, || LineSession::open(address)).unwrap();
    let mut exec = daemon.command(&["exec", "-i", "busy", "--", "/bin/cat"]);
    let mut exec = exec.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null()).spawn().unwrap();
    eventually("its session is there", PATIENCE, || daemon.ok(&["explain", "busy"]).unwrap().contains("exec session"))
        .unwrap();
    session.step().unwrap();
    let apps = down(&daemon, &[]);
    is_gone(&daemon);
    drop(exec.stdin.take());
    exec.wait().unwrap();
    assert_eq!(apps.len(), 2, "{apps:?}");
    assert!(!apps[0].1 && apps[0].2.contains("exec session"), "{apps:?}");
    assert_eq!((apps[1].0.as_str(), apps[1].1), ("check", true), "{apps:?}");
    // At once, again and again.
    for _ in 0..3 {
        daemon.up().unwrap();
        assert_eq!(daemon.state("check").unwrap(), "warm", "{}", daemon.log());
        eventually_ok("it is still there", PATIENCE, || session.again(address)).map(|again| session = again).unwrap();
        assert!(down(&daemon, &[]).iter().any(|app| app.0 == "check" && app.1));
        is_gone(&daemon);
    }
    daemon.up().unwrap();
    assert!(down(&daemon, &["--discard"]).iter().all(|app| !app.1));
    is_gone(&daemon);
    daemon.up().unwrap();
    assert_ne!(daemon.state("check").unwrap(), "warm");
}

#[test]
fn down_kills_a_hanging_daemon_and_keeps_its_warm_apps() {
    let (mut daemon, address, session) = memcheck("8");
    support::warm(&daemon, "check");
    let pid = rustix::process::Pid::from_raw(daemon.pid().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let apps = down(&daemon, &[]);
    assert_eq!((apps.len(), apps[0].1), (1, true), "{apps:?}");
    is_gone(&daemon);
    daemon.up().unwrap();
    assert_eq!(daemon.state("check").unwrap(), "warm", "{}", daemon.log());
    eventually_ok("it is still there", PATIENCE, || session.again(address)).unwrap();
}

#[test]
fn apps_that_ignore_sigterm_are_waited_for_in_parallel() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let apps = ["one", "two", "three", "four"];
    for app in apps {
        place.run(app, STUBBORN, &[]);
        place.wait_log(app, "up");
    }
    let begun = Instant::now();
    assert_eq!(place.daemon.down().unwrap(), Vec::<String>::new());
    // Each is given ten seconds: one after the other would take forty.
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(9) && took < Duration::from_secs(40), "{took:?}");
    let log = place.daemon.log();
    assert!(log.contains("every app rests") && !log.contains("left as they are"), "{log}");
}

fn cgroup2() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("a cgroup v2 mount");
    line.split(' ').nth(4).unwrap().into()
}

#[test]
fn down_removes_what_a_crash_left_of_a_starting_app() {
    let mut daemon = Daemon::start().unwrap();
    let group = cgroup2().join(daemon.instance()).join("00000000deadbeef");
    std::fs::create_dir(&group).unwrap();
    let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
    std::fs::write(group.join("cgroup.procs"), process.id().to_string()).unwrap();
    let left = daemon.down();
    // A process leaves its group a moment before its parent can wait for it.
    let killed = eventually("it is killed", PATIENCE, || process.try_wait().unwrap().is_some());
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(left.unwrap(), Vec::<String>::new());
    killed.unwrap();
    assert!(!group.exists());
}

#[test]
fn down_names_the_process_that_keeps_a_cgroup_in_use() {
    let mut daemon = Daemon::start().unwrap();
    let group = cgroup2().join(daemon.instance()).join("support");
    let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
    std::fs::write(group.join("cgroup.procs"), process.id().to_string()).unwrap();
    let config = daemon.data_dir().with_file_name("torpor.toml");
    let output = daemon.cli(&["down", "--config", config.to_str().unwrap()]).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(process.try_wait().unwrap().is_none(), "a stranger is not killed");
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(!output.status.success() && said.contains(&format!("process {} (sleep)", process.id())), "{said}");
    // And then it can be done.
    assert_eq!(daemon.down().unwrap(), Vec::<String>::new());
}

/// One whose own timer is due while others are still put away is not woken any more: that would use up its image.
#[test]
fn timers_do_not_wake_an_app_that_down_has_put_away() {
    let mut place = Place::with("[idle]\nsleep = false\ntimers_over = '500ms'\n");
    for (app, script) in [("busy", STUBBORN), ("ticks", "count_connections.py --poll 1.5")] {
        place.run(app, script, &[]);
        place.wait_log(app, "up");
    }
    let daemon = &mut place.daemon;
    // It stays busy, and is killed after its grace.
    let mut exec = daemon.command(&["exec", "-i", "busy", "--", "/bin/cat"]);
    let mut exec = exec.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null()).spawn().unwrap();
    eventually("its session is there", PATIENCE, || daemon.ok(&["explain", "busy"]).unwrap().contains("exec session"))
        .unwrap();
    let ask = |daemon: &Daemon| {
        let status = daemon.json(&["inspect", "ticks"]).unwrap();
        let address = format!("{}:80", status["status"]["addresses"][0].as_str().unwrap());
        let mut text = String::new();
        std::net::TcpStream::connect(address).unwrap().read_to_string(&mut text).unwrap();
        text
    };
    assert_eq!(ask(daemon), "1");
    let put_away = down(daemon, &[]);
    drop(exec.stdin.take());
    exec.wait().unwrap();
    let kept = |app: &str| put_away.iter().any(|(name, kept, _)| name == app && *kept);
    assert!(kept("ticks"), "{put_away:?}");
    daemon.up().unwrap();
    assert_eq!(ask(daemon), "2", "{put_away:?}\n{}", daemon.log());
}
