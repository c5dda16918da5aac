//! The daemon goes and comes back: apps, their output and their ends outlive it, and `torpor down` leaves nothing.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod python;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use python::{PATIENCE, Place, program};
use serde_json::Value;
use torpor_testkit::daemon::Daemon;
use torpor_testkit::wait::{eventually, eventually_ok};

fn try_tell(address: SocketAddr, words: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(words.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map(|_| text)
}

/// What it answers; nothing where it ends instead.
fn tell(address: SocketAddr, words: &str) -> String {
    try_tell(address, words).unwrap_or_default()
}

fn start(place: &mut Place, name: &str, args: &[&str]) -> SocketAddr {
    let port = place.daemon.port().unwrap();
    let publish = format!("{port}:80");
    let mut line = vec!["-p", publish.as_str()];
    line.extend(args);
    place.run(name, "take_orders.py", &line);
    place.wait_log(name, "up");
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn pid(daemon: &Daemon, app: &str) -> i64 {
    daemon.json(&["inspect", app]).unwrap()["status"]["pid"].as_i64().unwrap_or_default()
}

/// What may not change when a daemon takes an app over.
fn lasting(daemon: &Daemon, app: &str) -> Value {
    let mut status = daemon.json(&["inspect", app]).unwrap()["status"].take();
    let status = status.as_object_mut().unwrap();
    status.remove("memory_bytes");
    status.remove("since");
    Value::Object(std::mem::take(status))
}

#[test]
fn apps_survive_the_end_and_the_kill_of_the_daemon() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let awake = start(&mut place, "awake", &[]);
    let asleep = start(&mut place, "asleep", &[]);
    place.daemon.ok(&["pin", "awake"]).unwrap();
    assert_eq!(tell(awake, "one"), "1");
    assert_eq!(tell(asleep, "one"), "1");
    place.sleep("asleep");
    for kill in [false, true] {
        let before = (lasting(&place.daemon, "awake"), lasting(&place.daemon, "asleep"));
        let wakes = place.wakes("asleep");
        let word = if kill { "killed" } else { "ended" };
        let expected = if kill { "4" } else { "2" };
        let gone = if kill { place.daemon.kill9() } else { place.daemon.term().map(drop) };
        gone.unwrap();
        // The running one answers, and its output is kept for the next daemon.
        assert_eq!(tell(awake, &format!("while {word}")), expected);
        place.daemon.up().unwrap();
        assert_eq!((lasting(&place.daemon, "awake"), lasting(&place.daemon, "asleep")), before, "{word}");
        let log = place.wait_log("awake", &format!("while {word}"));
        assert_eq!(log.matches("up ").count(), 1, "{log}");
        assert_eq!(place.daemon.state("asleep").unwrap(), "dozing");
        assert_eq!(place.wakes("asleep"), wakes, "{word}");
        assert_eq!(tell(asleep, "again"), if kill { "3" } else { "2" });
        assert_eq!(tell(awake, "again"), if kill { "5" } else { "3" });
        place.sleep("asleep");
    }
    let events = place.daemon.ok(&["events", "--app", "asleep"]).unwrap();
    let adopted = events.lines().filter(|line| line.contains("adopted")).count();
    assert_eq!(adopted, 2, "{events}");
}

/// Numbers after `word` in a log.
fn numbers(log: &str, word: &str) -> Vec<u64> {
    log.lines().filter_map(|line| line.strip_prefix(word)?.trim().parse().ok()).collect()
}

/// Kills the daemon and its keeper.
fn kill_both(daemon: &mut Daemon) {
    let keeper = torpor_keeper::Client::connect(&daemon.run_dir().join("keeper.sock")).unwrap();
    let pid = rustix::process::Pid::from_raw(keeper.ping().unwrap().pid.cast_signed()).unwrap();
    daemon.kill9().unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually("the keeper has ended", PATIENCE, || keeper.ping().is_err()).unwrap();
}

#[test]
fn output_continues_after_daemon_and_keeper_are_both_killed() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    place.run("ticker", "write_lines.py tick 0.05 0", &[]);
    place.wait_log("ticker", "tick 3");
    let addresses: Vec<SocketAddr> =
        ["awake", "dozing", "warm"].iter().map(|name| start(&mut place, name, &[])).collect();
    for (name, address) in ["awake", "dozing", "warm"].iter().zip(&addresses) {
        assert_eq!(tell(*address, "first"), "1");
        place.wait_log(name, "line 1 first");
    }
    let first: Vec<i64> = ["ticker", "awake", "dozing", "warm"].iter().map(|app| pid(&place.daemon, app)).collect();
    for round in 2..=3 {
        place.sleep("dozing");
        eventually_ok("it is warm", PATIENCE, || place.daemon.ok(&["sleep", "warm", "--level", "warm"])).unwrap();
        kill_both(&mut place.daemon);
        // It writes into a pipe that nobody reads, and lives.
        assert_eq!(tell(addresses[0], "while killed"), (2 * round - 2).to_string());
        place.daemon.up().unwrap();
        place.wait_log("awake", &format!("line {} while killed", 2 * round - 2));
        assert_eq!(tell(addresses[0], "again"), (2 * round - 1).to_string());
        place.wait_log("awake", &format!("line {} again", 2 * round - 1));
        for (name, address) in [("dozing", addresses[1]), ("warm", addresses[2])] {
            let answer = eventually_ok("it answers", PATIENCE, || try_tell(address, "again")).unwrap();
            assert_eq!(answer, round.to_string(), "{name} keeps its memory");
            place.wait_log(name, &format!("line {round} again"));
        }
        let before = numbers(&place.daemon.ok(&["logs", "ticker"]).unwrap(), "tick ").last().copied().unwrap();
        let log = place.wait_log("ticker", &format!("tick {}\n", before + 5));
        // What the daemon had just read when it was killed may be missing; nothing of the time after.
        let ticks = numbers(&log, "tick ");
        let missing: u64 = ticks.windows(2).map(|pair| pair[1] - pair[0] - 1).sum();
        assert!(ticks[0] == 1 && missing < round, "{ticks:?}");
    }
    let last: Vec<i64> = ["ticker", "awake", "dozing"].iter().map(|app| pid(&place.daemon, app)).collect();
    assert_eq!(last, first[..3], "none was started again");
}

fn echoes(mut stream: &TcpStream, text: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes())?;
    heard(stream, text)
}

fn heard(mut stream: &TcpStream, text: &str) -> io::Result<()> {
    let mut answer = vec![0; text.len()];
    stream.read_exact(&mut answer)?;
    assert_eq!(String::from_utf8_lossy(&answer), text);
    Ok(())
}

#[test]
fn data_that_arrives_while_daemon_and_keeper_are_dead_reaches_apps_with_processes() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let names = ["awake", "dozing", "warm"];
    let addresses = names.map(|name| {
        let address = SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, place.daemon.port().unwrap()));
        let (tcp, udp) = (format!("{}:80", address.port()), format!("{}:80/udp", address.port()));
        place.run(name, "echo.py", &["-p", &tcp, "-p", &udp]);
        place.wait_log(name, "up");
        address
    });
    let connect = |address: SocketAddr| {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE)).map(|()| stream)
    };
    let open = addresses.map(|address| connect(address).unwrap());
    let datagrams = addresses.map(|address| {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    });
    for stream in &open {
        echoes(stream, "first").unwrap();
    }
    place.sleep("dozing");
    eventually_ok("it is warm", PATIENCE, || place.daemon.ok(&["sleep", "warm", "--level", "warm"])).unwrap();
    kill_both(&mut place.daemon);

    echoes(&open[0], "awake").unwrap();
    // Dozing: the kernel takes all of it for the frozen processes.
    (&open[1]).write_all(b"established").unwrap();
    datagrams[1].send(b"datagram").unwrap();
    let new = connect(addresses[1]).unwrap();
    (&new).write_all(b"new").unwrap();
    // Warm: its sockets were the keeper's.
    let reset = open[2].take_error().unwrap().is_some() || echoes(&open[2], "lost").is_err();
    assert!(reset, "as compatibility and threat model say");
    assert_eq!(connect(addresses[2]).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);

    place.daemon.up().unwrap();
    heard(&open[1], "established").unwrap();
    heard(&new, "new").unwrap();
    let mut answer = [0; 20];
    let length = datagrams[1].recv(&mut answer).unwrap();
    assert_eq!(&answer[..length], b"datagram");
    for stream in [&open[0], &open[1], &new] {
        echoes(stream, "again").unwrap();
    }
    let stream = eventually_ok("it is reached again", PATIENCE, || connect(addresses[2])).unwrap();
    echoes(&stream, "again").unwrap();
    datagrams[2].send(b"again").unwrap();
    let again = eventually_ok("datagrams reach it", PATIENCE, || datagrams[2].recv(&mut answer));
    assert_eq!(again.unwrap(), 5);
}

#[test]
fn a_request_to_a_sleeping_app_waits_for_the_next_daemon() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let address = start(&mut place, "app", &[]);
    place.sleep("app");
    place.daemon.term().unwrap();
    let asking = std::thread::spawn(move || tell(address, "waiting"));
    place.daemon.up().unwrap();
    assert_eq!(asking.join().unwrap(), "1");
}

#[test]
fn an_app_that_ends_without_a_daemon_is_reported_with_its_exit_status() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let never = start(&mut place, "never", &["--restart", "no"]);
    let failing = start(&mut place, "failing", &[]);
    let killed = start(&mut place, "killed", &["--restart", "no"]);
    let first = pid(&place.daemon, "failing");
    place.daemon.term().unwrap();
    for (address, words) in [(never, "exit 7"), (failing, "exit 9"), (killed, "kill")] {
        tell(address, words);
    }
    eventually("it has ended", PATIENCE, || !fs::exists(format!("/proc/{first}")).unwrap()).unwrap();
    place.daemon.up().unwrap();
    place.daemon.wait_state("never", "stopped", PATIENCE).unwrap();
    let exit = |app: &str| place.daemon.json(&["inspect", app]).unwrap()["status"]["last_exit"].clone();
    assert_eq!(exit("never")["code"], 7, "{}", exit("never"));
    place.daemon.wait_state("killed", "stopped", PATIENCE).unwrap();
    assert_eq!(exit("killed")["signal"], 9, "{}", exit("killed"));
    assert!(place.daemon.ok(&["logs", "never"]).unwrap().contains("bye"));
    // Its restart policy starts it again.
    eventually("it is started again", PATIENCE, || ![first, 0].contains(&pid(&place.daemon, "failing"))).unwrap();
    assert_eq!(exit("failing")["code"], 9, "{}", exit("failing"));
    place.wait_log("failing", "bye");
    eventually_ok("it answers", PATIENCE, || try_tell(failing, "x")).unwrap();
    let events = place.daemon.ok(&["events"]).unwrap();
    for text in ["exited with status 7", "exited with status 9"] {
        assert!(events.contains(text), "{events}");
    }
}

#[test]
fn up_after_down_starts_apps_afresh() {
    let program = program("lighttpd");
    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n", &[]).unwrap();
    let (address, mut session) = daemon.run_session(&program, "web").unwrap();
    daemon.ok(&["run", "--name", "stopped", program.tarball.to_str().unwrap(), "--", "/bin/true"]).unwrap();
    daemon.wait_state("stopped", "stopped", PATIENCE).unwrap();
    session.step().unwrap();
    let first = pid(&daemon, "web");
    for asleep in [false, true] {
        if asleep {
            eventually_ok("it sleeps", PATIENCE, || daemon.ok(&["sleep", "web"])).unwrap();
        }
        let left = daemon.down().unwrap();
        assert_eq!(left, Vec::<String>::new());
        assert!(TcpStream::connect(address).is_err(), "somebody listens after down");
        daemon.up().unwrap();
        daemon.wait_state("web", "running", PATIENCE).unwrap();
        eventually_ok("it answers", PATIENCE, || program.connect(address).map(drop)).unwrap();
        assert_eq!(daemon.state("stopped").unwrap(), "stopped");
        assert_ne!(pid(&daemon, "web"), first);
        let detail = daemon.json(&["inspect", "web"]).unwrap();
        assert_eq!(detail["status"]["restarts"], 0, "{detail}");
    }
    // An app that the user stopped stays so.
    daemon.ok(&["stop", "web"]).unwrap();
    daemon.down().unwrap();
    daemon.up().unwrap();
    assert_eq!(daemon.state("web").unwrap(), "stopped");
    daemon.ok(&["start", "web"]).unwrap();
    eventually_ok("it answers", PATIENCE, || program.connect(address).map(drop)).unwrap();
}
