//! Apps that write much, logs that are long, a disk that is full: nobody else waits, nothing hangs, and logging goes on.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod python;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use python::{PATIENCE, Place, said, text_of};
use torpor_testkit::wait::{eventually, eventually_ok};

/// What writes a line of 200 bytes every 2 ms, and answers each connection with how many it has written.
const WRITER: &str = "write_lines.py line 0.002 199";
const COUNTER: &str = "count_connections.py";

/// More lines of [`WRITER`] than its pipe has room for.
const PIPE_LINES: u64 = (64 << 10) / 200 + 100;

fn start(place: &mut Place, name: &str, program: &str) -> u16 {
    let port = place.daemon.port().unwrap();
    place.run(name, program, &["-p", &format!("{port}:80")]);
    ask(port);
    port
}

fn ask(port: u16) -> u64 {
    eventually_ok("it answers", PATIENCE, || {
        let mut text = String::new();
        let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_to_string(&mut text).map_err(|error| error.to_string())?;
        text.parse::<u64>().map_err(|error| format!("{text:?}: {error}"))
    })
    .unwrap()
}

fn dropped(place: &Place, app: &str) -> u64 {
    place.daemon.json(&["stats", app]).unwrap()["dropped_lines"].as_u64().unwrap()
}

#[test]
fn apps_that_write_without_end_delay_no_other_app() {
    let mut place = Place::with("[idle]\nsleep = false\n[logs]\nrate = \"64k\"\n");
    place.run("noise", "write_without_end.py", &[]);
    place.run("more-noise", "write_without_end.py", &[]);
    eventually("lines are dropped", PATIENCE, || dropped(&place, "noise") > 0).unwrap();
    // The next app starts, and others fall asleep and wake.
    let port = start(&mut place, "quiet", COUNTER);
    for round in 2..8 {
        if round % 3 == 0 {
            eventually_ok("it is warm", PATIENCE, || place.daemon.ok(&["sleep", "quiet", "--level", "warm"])).unwrap();
        } else {
            place.sleep("quiet");
        }
        assert_eq!(ask(port), round);
    }
    assert_eq!(dropped(&place, "quiet"), 0);
    // What is missing is said among the lines, and those are the app's.
    let told = place.wait_text(&["logs", "-n", "20000", "noise"], "dropped: more than 64k/s (`logs.rate`)");
    assert!(told.lines().all(|line| line == "y" || line.starts_with("torpor: ")), "{told}");
    let mut following =
        place.daemon.command(&["logs", "-f", "-n", "0", "noise"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "y");
    following.kill().unwrap();
    following.wait().unwrap();
    // They can be stopped, and the count of lines is kept over a restart of the daemon.
    place.daemon.ok(&["stop", "-t", "1s", "noise"]).unwrap();
    let before = dropped(&place, "noise");
    place.daemon.term().unwrap();
    place.daemon.up().unwrap();
    assert_eq!(dropped(&place, "noise"), before);
    eventually("lines are dropped", PATIENCE, || dropped(&place, "more-noise") > 0).unwrap();
    place.daemon.ok(&["rm", "-f", "more-noise"]).unwrap();
    assert_eq!(ask(port), 8);
}

/// Peak resident memory of a process since it was last reset, bytes. The kernel counts by processor: a later value may be a little less.
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn a_long_log_is_streamed() {
    const LINES: u64 = 150_000;
    const MOST: u64 = 8 << 20;
    let place = Place::with("[idle]\nsleep = false\n[logs]\nsize = \"64M\"\n");
    place.run("app", "idle.py", &[]);
    place.wait_log("app", "up");
    let id = place.daemon.json(&["inspect", "app"]).unwrap()["status"]["id"].as_str().unwrap().to_owned();
    let folder = place.daemon.data_dir().join("apps").join(id);
    let mut older = std::io::BufWriter::new(File::create(folder.join("log.1")).unwrap());
    for n in 0..LINES {
        writeln!(older, "2026-01-02T03:04:05.678Z out line {n} {}", ".".repeat(150)).unwrap();
    }
    older.into_inner().unwrap();
    let daemon = place.daemon.pid().unwrap();
    // Resets its peak (`proc(5)`).
    fs::write(format!("/proc/{daemon}/clear_refs"), "5").unwrap();
    let before = peak(daemon);
    let mut client = place.daemon.command(&["logs", "app"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("line 0 "));
    let client_before = peak(client.id());
    for n in 1..LINES {
        let line = lines.next().unwrap();
        assert!(line.starts_with(&format!("line {n} ")), "{line}");
        if n == LINES - 2000 {
            let grown = peak(client.id()).saturating_sub(client_before);
            assert!(grown < MOST, "the client grew by {grown} bytes");
        }
    }
    assert_eq!((lines.next().unwrap().as_str(), lines.next()), ("up", None));
    assert!(client.wait().unwrap().success());
    let grown = peak(daemon).saturating_sub(before);
    assert!(grown < MOST, "the daemon grew by {grown} bytes");
    assert_eq!(place.daemon.ok(&["logs", "-n", "1", "app"]).unwrap(), "up\n");
    let two = place.daemon.ok(&["logs", "-n", "2", "app"]).unwrap();
    assert!(two.starts_with(&format!("line {} ", LINES - 1)) && two.ends_with("\nup\n"), "{two}");
}

/// Fills the file system of `folder`; without this file there is room again.
fn fill(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("filler");
    let file = File::create(&path).unwrap();
    let flags = rustix::fs::FallocateFlags::empty();
    let mut bytes = 0;
    for step in [64 << 20, 1 << 20, 64 << 10, 4 << 10] {
        while rustix::fs::fallocate(&file, flags, bytes, step).is_ok() {
            bytes += step;
        }
    }
    file.sync_all().unwrap();
    path
}

/// Runs a command, which must come to its end; whether it succeeded, and what it said.
fn within(place: &Place, args: &[&str]) -> (bool, String) {
    let mut child = place.daemon.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let ended = eventually(&format!("{args:?} comes to its end"), PATIENCE, || child.try_wait().unwrap().is_some());
    if ended.is_err() {
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    ended.unwrap_or_else(|error| panic!("{error}: {}\n{}", said(&output), place.daemon.log()));
    (output.status.success(), text_of(&output))
}

#[test]
fn on_a_full_disk_no_command_hangs_and_logging_resumes_afterwards() {
    let mut place = Place::on_disk("[idle]\nsleep = false\n");
    let writer = start(&mut place, "writer", WRITER);
    let quiet = start(&mut place, "quiet", COUNTER);
    let stopped = start(&mut place, "stopped", COUNTER);
    let ender = place.daemon.port().unwrap();
    place.run("ender", "exit.py 7 --on-connection", &["-p", &format!("{ender}:80"), "--restart", "no"]);
    place.wait_log("ender", "up");
    place.daemon.ok(&["stop", "stopped"]).unwrap();
    let filler = fill(&place.daemon.data_dir());
    eventually("lines are dropped", PATIENCE, || dropped(&place, "writer") > 0).unwrap();
    // It writes on: more than its pipe has room for.
    let before = ask(writer);
    eventually("it writes on", PATIENCE, || ask(writer) > before + PIPE_LINES).unwrap();
    for args in [
        &["ps"][..],
        &["stats"],
        &["inspect", "quiet"],
        &["explain", "quiet"],
        &["events"],
        &["logs", "-n", "5", "quiet"],
        &["images"],
        &["wake", "quiet"],
    ] {
        let (succeeded, text) = within(&place, args);
        assert!(succeeded, "{args:?}: {text}");
    }
    // What needs room says so, and the app stays as it is.
    for level in ["dozing", "warm"] {
        let (succeeded, text) = within(&place, &["sleep", "quiet", "--level", level]);
        assert!(!succeeded && text.contains("No space left on device"), "{level}: {text}");
        assert_eq!(place.daemon.state("quiet").unwrap(), "running");
    }
    let asked = ask(quiet);
    for args in [&["start", "stopped"][..], &["pin", "quiet"], &["unpin", "quiet"], &["restart", "-t", "1s", "writer"]]
    {
        let (succeeded, text) = within(&place, args);
        assert!(succeeded || text.contains("full") || text.contains("No space left"), "{args:?}: {text}");
    }
    let another = place.run_line("another", COUNTER, &[]);
    let another: Vec<&str> = another.iter().map(String::as_str).collect();
    let (succeeded, text) = within(&place, &another);
    assert!(!succeeded && (text.contains("full") || text.contains("No space left")), "{text}");
    assert_eq!(ask(quiet), asked + 1, "it has been there all the time");
    // A daemon that comes now takes all of them over.
    place.daemon.kill9().unwrap();
    place.daemon.up().unwrap();
    assert_eq!(ask(quiet), asked + 2);
    drop(TcpStream::connect(("127.0.0.1", ender)).unwrap());
    place.daemon.wait_state("ender", "stopped", PATIENCE).unwrap();

    fs::remove_file(filler).unwrap();
    place.wait_text(&["events", "--app", "ender"], "exited with status 7");
    let first = ask(writer);
    place.wait_log("writer", "dropped: No space left on device");
    // Some lines may have been dropped still when there was room.
    eventually_ok("its lines are kept again", PATIENCE, || {
        let log = place.daemon.ok(&["logs", "-n", "5", "writer"]).unwrap();
        let numbers = log.lines().filter_map(|line| line.strip_prefix("line ")?.split(' ').next()?.parse::<u64>().ok());
        if numbers.max() >= Some(first + PIPE_LINES) { Ok(()) } else { Err(log) }
    })
    .unwrap();
    place.sleep("quiet");
    assert_eq!(ask(quiet), asked + 3);
    place.daemon.ok(&["start", "stopped"]).unwrap();
    ask(stopped);
    let (succeeded, text) = within(&place, &another);
    assert!(succeeded, "{text}");
    let sync = Command::new("sync").arg("-f").arg(place.daemon.data_dir()).status().unwrap();
    assert!(sync.success());
}
