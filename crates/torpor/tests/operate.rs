//! Day to day work with apps: exec, logs, ends and restarts, pins, events, numbers, explanations.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod python;
mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

use python::{PATIENCE, Place, said};
use serde_json::Value;
use torpor_testkit::programs;
use torpor_testkit::wait::eventually;

/// Greets each connection to its TCP port 80.
const WAITER: &str = "hello.py";
/// Three processes of a session, which live on.
const LASTING: &str = "session_of_three.py";

fn waiting(tables: &str) -> Place {
    let place = Place::with(tables);
    place.run("app", WAITER, &["-e", "GREETING=hello", "-w", "/srv"]);
    place.wait_log("app", "up");
    place
}

/// The words of `exec` of a Python program.
fn exec_line(place: &Place, flags: &[&str], program: &str) -> Vec<String> {
    let words = [&["exec"], flags, &["app", "--"]].concat();
    words.into_iter().map(str::to_owned).chain(place.program_line(program)).collect()
}

fn exec(place: &Place, flags: &[&str], program: &str, input: &[u8]) -> Output {
    let mut command = place.daemon.command(&exec_line(place, flags, program));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeding = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    feeding.join().unwrap();
    output
}

fn status(place: &Place, app: &str) -> Value {
    place.daemon.json(&["inspect", app]).unwrap()["status"].clone()
}

#[test]
fn exec_passes_streams_user_directory_and_status() {
    let place = waiting("[idle]\nsleep = false\n");
    for code in [0, 1, 42, 255] {
        let output = exec(&place, &[], &format!("exit.py {code}"), b"");
        assert_eq!(output.status.code(), Some(code), "{}", said(&output));
    }
    let killed = exec(&place, &[], "exit.py SIGTERM", b"");
    assert_eq!(killed.status.code(), Some(143), "{}", said(&killed));
    let data: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
    let output = exec(&place, &["-i"], "echo_input.py", &data);
    assert!(output.stdout == data && output.stderr == b"1000000\n", "{} bytes", output.stdout.len());
    let output = exec(&place, &[], "echo_input.py", &data);
    assert_eq!((output.stdout.len(), output.stderr.as_slice()), (0, b"0\n".as_slice()), "no input without -i");

    let who = "who_am_i.py";
    let text = |flags: &[&str]| String::from_utf8(exec(&place, flags, who, b"").stdout).unwrap();
    assert_eq!(text(&[]), "0 0 /srv hello None\n");
    assert_eq!(text(&["-u", "nobody", "-w", "/tmp", "-e", "MORE=x=y"]), "65534 65534 /tmp hello x=y\n");
    assert_eq!(text(&["-u", "7:8", "-e", "GREETING=other"]), "7 8 /srv other None\n");
    for (flags, words) in [(["-u", "whoever"], "whoever"), (["-w", "/nowhere"], "/nowhere")] {
        let output = exec(&place, &flags, who, b"");
        assert!(!output.status.success() && said(&output).contains(words), "{}", said(&output));
    }
    let old = r"printf '\177ELF\1' > /tmp/old && truncate -s 104 /tmp/old && chmod 755 /tmp/old";
    place.daemon.ok(&["exec", "app", "--", "/bin/sh", "-c", old]).unwrap();
    let old = place.refused(&["exec", "app", "--", "/tmp/old"], 126);
    assert!(old.contains("`/tmp/old` is a 32-bit program"), "{old}");
    let none = place.refused(&["exec", "app", "--", "/bin/none"], 127);
    assert!(none.contains("/bin/none"), "{none}");
    assert!(place.refused(&["exec", "nobody", "--", "/bin/x"], 3).contains("nobody"));
    // It sees the app, and nothing of the machine.
    let inside: Value = serde_json::from_slice(&exec(&place, &[], "look_around.py", b"").stdout).unwrap();
    assert_eq!(inside["processes"].as_array().unwrap().len(), 3, "init, the program, the command: {inside}");
    assert_eq!(inside["hostname"], "app");
    // Nothing of it stays.
    assert_eq!(place.daemon.json(&["stats", "app"]).unwrap()["processes"].as_u64().unwrap(), 1);
}

#[test]
fn exec_ends_its_session_at_the_time_out() {
    let place = waiting("[idle]\nsleep = false\n");
    let alone = place.daemon.json(&["stats", "app"]).unwrap()["processes"].as_u64().unwrap();
    for (program, words) in [(LASTING, "was ended"), (&format!("{LASTING} SIGTERM"), "was killed")] {
        // Time enough to begin, on a busy machine too.
        let output = exec(&place, &["--timeout", "4s"], program, b"");
        assert_eq!(output.status.code(), Some(6), "{}", said(&output));
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            told.contains("app: the command had not ended") && told.contains(words) && told.contains("4s"),
            "{told}"
        );
        assert_eq!(String::from_utf8_lossy(&output.stdout), "begun\n");
        let left = place.daemon.json(&["stats", "app"]).unwrap()["processes"].as_u64().unwrap();
        assert_eq!(left, alone, "{program}");
        // Its session is over.
        support::warm(&place.daemon, "app");
    }
    // What ends in time is not touched.
    let output = exec(&place, &["--timeout", "1m"], "exit.py 3", b"");
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert_eq!(
        place.daemon.cli(&["exec", "--timeout", "0s", "app", "--", "/bin/true"]).unwrap().status.code(),
        Some(2)
    );
}

#[test]
fn a_time_out_counts_the_wake_and_the_start() {
    let mut place = waiting("[idle]\nsleep = false\n");
    let pipe = place.path("held");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let release = || std::fs::File::options().write(true).open(&pipe).map(drop).unwrap();
    place.daemon.set_environment("TORPOR_FAULT_PIPE", pipe.to_str());
    support::warm(&place.daemon, "app");
    support::restart(&mut place.daemon, Some("resume-built:hang"));
    let output = place.daemon.cli(&["exec", "--timeout", "1s", "app", "--", "/bin/true"]).unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", said(&output));
    assert!(said(&output).contains("torpor explain app"), "{}", said(&output));
    release();
    place.daemon.wait_state("app", "running", PATIENCE).unwrap();
    // The session that came too late does not keep it awake.
    support::warm(&place.daemon, "app");
    support::restart(&mut place.daemon, Some("start-prepared:hang"));
    let output = place.try_run("slow", WAITER, &["--timeout", "1s"]);
    assert_eq!(output.status.code(), Some(6), "{}", said(&output));
    release();
    place.daemon.wait_state("slow", "running", PATIENCE).unwrap();
}

#[test]
fn exec_with_a_terminal_has_its_size_and_input() {
    let place = waiting("[idle]\nsleep = false\n");
    let program = place.daemon.command(&[] as &[&str]).get_program().to_str().unwrap().to_owned();
    let inside = exec_line(&place, &["-it"], "describe_terminal.py").join(" ");
    let line = format!("stty cols 101 rows 31; exec {program} {inside}");
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    command.env("TORPOR_SOCKET", place.daemon.socket()).env("TERM", "vt220").env("SHELL", "/bin/sh");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let first = lines.find(|line| line.contains("True")).unwrap();
    assert_eq!(first.trim(), "True True os.terminal_size(columns=101, lines=31) vt220");
    stdin.write_all(b"typed\n").unwrap();
    let rest: Vec<String> = lines.collect();
    assert!(rest.iter().any(|line| line.contains("got typed")), "{rest:?}");
    assert_eq!(child.wait().unwrap().code(), Some(9), "{rest:?}");
    drop(stdin);
    let refused = place.refused(&["exec", "-t", "app", "--", "/bin/true"], 2);
    assert!(refused.contains("terminal"), "{refused}");
}

#[test]
fn an_exec_session_wakes_it_and_keeps_it_awake() {
    let place = waiting("[idle]\nafter = \"500ms\"\nmin_awake = \"100ms\"\n");
    place.daemon.wait_state("app", "dozing", PATIENCE).unwrap();
    let before = place.wakes("app");
    let mut command = place.daemon.command(&["exec", "-i", "app", "--", "/bin/sh", "-c", "echo in; read line"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!((line.as_str(), place.wakes("app")), ("in\n", before + 1));
    place.wait_text(&["explain", "app"], "exec session");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(place.daemon.state("app").unwrap(), "running");
    let refused = place.refused(&["sleep", "app"], 4);
    assert!(refused.contains("exec session"), "{refused}");
    assert!(!place.daemon.json(&["explain", "app"]).unwrap()["keeps_awake"].as_array().unwrap().is_empty());
    child.stdin.take().unwrap().write_all(b"end\n").unwrap();
    assert!(child.wait().unwrap().success());
    place.daemon.wait_state("app", "dozing", PATIENCE).unwrap();
    let wakes = place.daemon.json(&["explain", "app"]).unwrap()["wakes"].clone();
    assert_eq!(wakes[0]["cause"], "exec", "{wakes}");
    // A client that is killed ends its session too.
    let mut command = place.daemon.command(&["exec", "-i", "app", "--", "/bin/sh", "-c", "echo in; read line"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    place.daemon.wait_state("app", "dozing", PATIENCE).unwrap();
}

#[test]
fn a_command_without_a_terminal_is_hung_up_when_its_client_leaves() {
    let place = waiting("[idle]\nsleep = false\n");
    let processes = || place.daemon.json(&["stats", "app"]).unwrap()["processes"].as_u64().unwrap();
    let alone = processes();
    let deaf = format!("{LASTING} SIGHUP");
    for (program, left) in [(LASTING, 0), (&deaf, 3)] {
        let mut command = place.daemon.command(&exec_line(&place, &[], program));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        assert_eq!(processes(), alone + 3);
        child.kill().unwrap();
        child.wait().unwrap();
        if left == 0 {
            eventually("the whole session has ended", PATIENCE, || processes() == alone).unwrap();
            support::warm(&place.daemon, "app");
            place.daemon.ok(&["wake", "app"]).unwrap();
        } else {
            // As `nohup` runs it.
            assert!(place.refused(&["sleep", "app"], 4).contains("exec session"));
            assert_eq!(processes(), alone + left);
        }
    }
}

#[test]
fn logs_are_kept_followed_and_rotated() {
    let mut place = Place::with("[idle]\nsleep = false\n[logs]\nsize = \"4k\"\nfiles = 3\n");
    let port = place.daemon.port().unwrap();
    place.run("app", "write_lines_on_request.py", &["-p", &format!("{port}:80")]);
    place.wait_log("app", "up");
    let say = |count: u32| {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(count.to_string().as_bytes()).unwrap();
    };
    say(5);
    place.wait_log("app", "line 4");
    let output = place.daemon.cli(&["logs", "app"]).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "warned\n");
    assert_eq!(place.daemon.ok(&["logs", "-n", "2", "app"]).unwrap(), "line 3\nline 4\n");
    let timed = place.daemon.ok(&["logs", "-n", "1", "-t", "app"]).unwrap();
    assert!(timed.starts_with("20") && timed.ends_with("Z  line 4\n"), "{timed}");
    let json: Value = serde_json::from_str(&place.daemon.ok(&["logs", "-n", "1", "--json", "app"]).unwrap()).unwrap();
    assert_eq!((&json["stream"], &json["line"]), (&Value::from("out"), &Value::from("line 4")));

    let mut following = place.daemon.command(&["logs", "-f", "-n", "1", "app"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "line 4");
    say(3);
    for n in 5..8 {
        assert_eq!(lines.next().unwrap(), format!("line {n}"));
    }
    // Asleep and awake again, the same follower goes on.
    place.sleep("app");
    say(1);
    assert_eq!(lines.next().unwrap(), "line 8");
    following.kill().unwrap();
    following.wait().unwrap();

    place.daemon.term().unwrap();
    place.daemon.up().unwrap();
    say(1);
    assert!(place.wait_log("app", "line 9").contains("line 8"));
    say(1000);
    let log = place.wait_log("app", "line 1009");
    let kept = log.lines().filter(|line| line.starts_with("line")).count();
    assert!((100..600).contains(&kept), "{kept} lines are kept");
    let id = status(&place, "app")["id"].as_str().unwrap().to_owned();
    let folder = place.daemon.data_dir().join("apps").join(id);
    let files = python::names(&folder).into_iter().filter(|name| name.starts_with("log"));
    let sizes: Vec<u64> = files.map(|name| std::fs::metadata(folder.join(name)).unwrap().len()).collect();
    assert!(sizes.len() == 3 && sizes.iter().all(|size| *size <= 4096), "{sizes:?}");
    assert!(place.refused(&["logs", "nobody"], 3).contains("nobody"));
}

/// How it ended, everywhere where a user may look.
fn ended(place: &Place, app: &str, reason: &str) -> Value {
    place.wait_text(&["inspect", app], reason);
    place.wait_text(&["ps"], reason);
    place.wait_text(&["events", "--app", app], reason);
    status(place, app)["last_exit"].clone()
}

#[test]
fn ends_are_visible_with_their_reason_and_follow_the_restart_policy() {
    let place = Place::with("[idle]\nsleep = false\n");
    let stopped = |app: &str| place.daemon.wait_state(app, "stopped", PATIENCE).unwrap();
    place.run("done", "exit.py 0", &[]);
    stopped("done");
    assert_eq!(ended(&place, "done", "exited with status 0")["code"], 0);
    place.run_to_its_end("failed", "exit.py 3", &["--restart", "no"]);
    stopped("failed");
    assert_eq!(ended(&place, "failed", "exited with status 3")["code"], 3);
    assert!(place.daemon.ok(&["explain", "failed"]).unwrap().contains("exited with status 3"));
    place.run_to_its_end("signal", "exit.py SIGSEGV", &["--restart", "no"]);
    stopped("signal");
    assert_eq!(ended(&place, "signal", "signal 11")["signal"], 11);
    place.run_to_its_end("hungry", "fill_memory.py", &["--restart", "no", "--memory", "48M"]);
    stopped("hungry");
    assert_eq!(ended(&place, "hungry", "killed by the memory limit (48 MiB)")["signal"], 9);

    // Failing, it is started again and again, more slowly each time; done, not.
    place.run("again", "exit.py 1", &[]);
    eventually("it is restarted", PATIENCE, || status(&place, "again")["restarts"].as_u64().unwrap() >= 2).unwrap();
    place.wait_text(&["explain", "again"], "restart policy");
    place.daemon.ok(&["stop", "again"]).unwrap();
    assert_eq!(place.daemon.state("again").unwrap(), "stopped");
    place.run("always", "exit.py 0", &["--restart", "always"]);
    eventually("it is restarted", PATIENCE, || status(&place, "always")["restarts"].as_u64().unwrap() >= 1).unwrap();
    place.daemon.ok(&["rm", "-f", "always"]).unwrap();
    // One that sleeps is killed by somebody.
    place.run("asleep", WAITER, &["--restart", "no"]);
    place.wait_log("asleep", "up");
    place.sleep("asleep");
    let pid = status(&place, "asleep")["pid"].to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    stopped("asleep");
    ended(&place, "asleep", "signal 9");
}

#[test]
fn limits_hold() {
    let place = Place::with("[idle]\nsleep = false\n");
    place.run("few", "use_up_limits.py", &["--processes", "10", "--cpus", "0.25"]);
    let log = place.wait_log("few", "cpu");
    assert!(log.contains("forked") && log.contains("Resource temporarily unavailable"), "{log}");
    let used: f64 = log.split("cpu ").nth(1).unwrap().trim().parse().unwrap();
    assert!(used < 0.5, "{used} s of CPU in a second");
}

#[test]
fn stop_start_restart_pin_and_remove() {
    let place = Place::with("[idle]\nafter = \"500ms\"\nmin_awake = \"100ms\"\n");
    place.run("app", WAITER, &[]);
    place.wait_log("app", "up");
    let pid = |app: &str| status(&place, app)["pid"].clone();
    let first = pid("app");
    assert_eq!(place.daemon.ok(&["stop", "app"]).unwrap(), "app is stopped\n");
    assert!(place.refused(&["sleep", "app"], 4).contains("torpor start app"));
    assert!(place.refused(&["exec", "app", "--", "/bin/true"], 4).contains("stopped"));
    place.daemon.ok(&["stop", "app"]).unwrap();
    assert!(place.daemon.ok(&["explain", "app"]).unwrap().contains("stopped"));
    place.daemon.ok(&["start", "app"]).unwrap();
    assert_ne!(pid("app"), first);
    let second = pid("app");
    // Of one that sleeps too.
    place.daemon.wait_state("app", "dozing", PATIENCE).unwrap();
    place.daemon.ok(&["restart", "app"]).unwrap();
    assert_ne!(pid("app"), second);
    place.daemon.wait_state("app", "dozing", PATIENCE).unwrap();

    place.daemon.ok(&["pin", "app"]).unwrap();
    place.daemon.wait_state("app", "running", PATIENCE).unwrap();
    assert!(place.daemon.ok(&["ps"]).unwrap().contains("pinned"));
    place.wait_text(&["explain", "app"], "pin");
    assert!(place.refused(&["sleep", "app"], 4).contains("torpor unpin app"));
    std::thread::sleep(std::time::Duration::from_millis(1200));
    assert_eq!(place.daemon.state("app").unwrap(), "running");
    place.daemon.ok(&["unpin", "app"]).unwrap();
    place.daemon.wait_state("app", "dozing", PATIENCE).unwrap();

    assert!(place.refused(&["rm", "app"], 4).contains("torpor rm -f app"));
    place.run("deaf", "idle.py --ignore SIGTERM", &[]);
    place.wait_log("deaf", "up");
    place.daemon.ok(&["stop", "-t", "300ms", "deaf"]).unwrap();
    let events = place.daemon.ok(&["events", "--app", "deaf"]).unwrap();
    assert!(events.contains("killed") && events.contains("signal 9"), "{events}");
    place.daemon.ok(&["start", "deaf"]).unwrap();
    place.daemon.ok(&["rm", "-f", "app", "deaf"]).unwrap();
    assert_eq!(place.daemon.json(&["ps"]).unwrap(), serde_json::json!([]));
    assert_eq!(python::names(&place.daemon.data_dir().join("apps")), [""; 0]);
    assert!(place.refused(&["inspect", "app"], 3).contains("torpor ps"));
}

#[test]
fn events_stats_and_explain_report_sleeps_and_wakes() {
    let mut place = Place::with("[idle]\nafter = \"500ms\"\nmin_awake = \"100ms\"\n");
    let mut following = place.daemon.command(&["events", "-f", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(following.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut events = lines.map(|line| serde_json::from_str::<Value>(&line).unwrap());
    let port = place.daemon.port().unwrap();
    place.run("app", WAITER, &["-p", &format!("{port}:80")]);
    for kind in ["created", "falling-asleep", "dozing"] {
        assert!(events.any(|event| event["kind"] == kind && event["app"] == "app"), "{kind}");
    }
    let asleep = place.daemon.json(&["explain", "app"]).unwrap();
    assert_eq!((&asleep["status"]["state"], &asleep["keeps_awake"]), (&"dozing".into(), &serde_json::json!([])));
    assert!(asleep["wake_sources"].to_string().contains("tcp 80"), "{asleep}");
    assert!(asleep["sleeps"][0]["phases"].as_array().unwrap().len() > 3, "{asleep}");
    let stats = place.daemon.json(&["stats", "app"]).unwrap();
    let number = |key: &str| stats[key].as_u64().unwrap_or_else(|| panic!("{key} in {stats}"));
    assert!(number("private_bytes") < 256 << 10 && number("image_bytes") > 1 << 20, "{stats}");
    assert!(number("sleeps") >= 1 && number("processes") >= 1 && number("cpu_us") > 1000, "{stats}");
    drop(std::net::TcpStream::connect(("127.0.0.1", port)).unwrap());
    let woken = events.find(|event| event["kind"] == "woken").unwrap();
    assert!(woken["message"].as_str().unwrap().contains("tcp 80"), "{woken}");
    assert!(woken["fields"]["total_us"].as_u64().is_some(), "{woken}");
    let awake = place.daemon.json(&["explain", "app"]).unwrap();
    assert!(!awake["wakes"][0]["phases"].as_array().unwrap().is_empty(), "{awake}");
    place.daemon.wait_state("app", "dozing", PATIENCE).unwrap();
    let text = place.daemon.ok(&["explain", "app"]).unwrap();
    for words in ["app is dozing", "last wakes", "last sleeps", "woken by"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // Numbered without gaps; a reader goes on where it was.
    let all: Vec<u64> = place
        .daemon
        .ok(&["events", "--json"])
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64().unwrap())
        .collect();
    assert!(all.windows(2).all(|two| two[1] == two[0] + 1), "{all:?}");
    let since = place.daemon.ok(&["events", "--since", &all[1].to_string(), "--json"]).unwrap();
    let first: Value = serde_json::from_str(since.lines().next().unwrap()).unwrap();
    assert_eq!(first["seq"].as_u64().unwrap(), all[2]);
    following.kill().unwrap();
    following.wait().unwrap();
    // An app that keeps itself busy.
    place.run("busy", "compute.py", &[]);
    place.wait_text(&["explain", "busy"], "CPU");
    assert_eq!(place.daemon.state("busy").unwrap(), "running");
    let all = place.daemon.json(&["stats"]).unwrap();
    assert_eq!(all.as_array().unwrap().len(), 2, "{all}");
}

/// Asks the app's own record how it last ended.
fn last_exit(place: &Place, app: &str) -> (i64, String) {
    let exit = place.daemon.json(&["inspect", app]).unwrap()["status"]["last_exit"].clone();
    (exit["code"].as_i64().unwrap(), exit["reason"].as_str().unwrap().to_owned())
}

#[test]
fn a_program_that_cannot_be_run_gives_the_exit_codes_of_shells() {
    let place = Place::new();
    let tarball = programs::tarball().unwrap();
    let (tarball, opt) = (tarball.to_str().unwrap(), place.directory("opt"));
    let volume = format!("{}:/opt", opt.display());
    let run = |command: &str| -> Vec<String> {
        let line =
            ["run", "--name", "app", "--base", "python", "--restart", "no", "-v", &volume, tarball, "--", command];
        line.map(str::to_owned).to_vec()
    };
    let tried = |command: &str, code: i32| {
        let line = run(command);
        let said = place.refused(&line.iter().map(String::as_str).collect::<Vec<_>>(), code);
        assert!(said.contains(command) && said.contains("was not made"), "{said}");
        assert_eq!(place.daemon.json(&["ps"]).unwrap(), Value::Array(Vec::new()), "nothing is left of it");
    };
    tried("/no/such/program", 127);
    tried("no-such-program", 127);
    tried("/srv", 126);
    let events = place.daemon.ok(&["events", "--app", "app"]).unwrap();
    assert!(events.contains("program `/no/such/program` not found"), "{events}");
    // One that is lost later.
    let program = opt.join("program");
    std::fs::write(&program, "#!/bin/sh\nexec sleep 1000\n").unwrap();
    let mode = |mode| std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    mode(0o755);
    place.daemon.ok(&run("/opt/program")).unwrap();
    let said = place.refused(&["exec", "app", "--", "no-such-command"], 127);
    assert!(said.contains("no-such-command"), "{said}");
    place.refused(&["exec", "app", "--", "/srv"], 126);
    place.daemon.ok(&["stop", "-t", "0s", "app"]).unwrap();
    mode(0o644);
    place.refused(&["start", "app"], 126);
    assert_eq!(last_exit(&place, "app").0, 126);
    std::fs::remove_file(&program).unwrap();
    place.refused(&["restart", "app"], 127);
    let (code, reason) = last_exit(&place, "app");
    assert!(code == 127 && reason.contains("`/opt/program` not found"), "{code}: {reason}");
    assert_eq!(place.daemon.state("app").unwrap(), "stopped");
    let events = place.daemon.ok(&["events", "--app", "app"]).unwrap();
    assert!(events.contains("could not be started: program `/opt/program` not found"), "{events}");
}

#[test]
fn an_app_whose_record_cannot_be_written_is_not_started() {
    let place = Place::new();
    let shared = place.directory("shared");
    std::fs::set_permissions(&shared, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let volume = format!("{}:/shared", shared.display());
    place.run("app", "idle.py --touch /shared/ran", &["--restart", "no", "-v", &volume]);
    place.wait_log("app", "up");
    let id = status(&place, "app")["id"].as_str().unwrap().to_owned();
    place.daemon.ok(&["stop", "-t", "0s", "app"]).unwrap();
    // A failure before, which has a status of its own.
    std::fs::remove_file(shared.join("ran")).unwrap();
    std::fs::remove_dir(&shared).unwrap();
    place.refused(&["start", "app"], 2);
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    // Its record cannot take the place of a directory.
    let record = place.daemon.data_dir().with_file_name("run").join("apps").join(&id).join("sandbox.json");
    std::fs::create_dir(&record).unwrap();
    let said = place.refused(&["start", "app"], 1);
    assert!(said.contains("sandbox.json"), "{said}");
    assert_eq!(place.daemon.state("app").unwrap(), "stopped");
    assert!(!shared.join("ran").exists(), "its program has run");
    std::fs::remove_dir(&record).unwrap();
    place.daemon.ok(&["start", "app"]).unwrap();
    eventually("it runs", PATIENCE, || shared.join("ran").exists()).unwrap();
}

#[test]
fn why_an_app_is_stopped_is_known_after_a_restart_of_the_daemon() {
    let mut place = Place::new();
    place.run_to_its_end("fails", "exit.py 7", &["--restart", "no"]);
    place.run("asked", "idle.py", &[]);
    place.wait_log("asked", "up");
    place.daemon.ok(&["stop", "-t", "0s", "asked"]).unwrap();
    place.daemon.wait_state("fails", "stopped", PATIENCE).unwrap();
    let why = |place: &Place, app| status(place, app)["stop_reason"].as_str().unwrap().to_owned();
    for _ in 0..2 {
        assert!(why(&place, "fails").contains("status 7"), "{}", why(&place, "fails"));
        assert_eq!(why(&place, "asked"), "by request");
        place.daemon.term().unwrap();
        place.daemon.up().unwrap();
    }
}
