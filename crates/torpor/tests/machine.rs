//! The daemon on its machine: what it refuses, who may use it, its checks, its HTTP API.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod python;

use std::fs;
use std::io::Write;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use python::{Place, said};
use serde_json::{Value, json};
use torpor_testkit::daemon::{Daemon, binary};
use torpor_testkit::{native, programs};

fn refused(daemon: &Daemon, args: &[&str], code: i32, words: &[&str]) {
    let output = daemon.cli(args).unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    for words in words {
        assert!(text.contains(words), "{args:?} without {words:?}: {text}");
    }
}

#[test]
fn names_and_ports_that_are_taken_are_refused_and_nothing_is_left() {
    let mut daemon = Daemon::start().unwrap();
    let tarball = native::program("ignorer", &[], &[]).unwrap().tarball;
    let tarball = tarball.to_str().unwrap();
    let ports: Vec<u16> = (0..4).map(|_| daemon.port().unwrap()).collect();
    let publish: Vec<String> = ports.iter().map(|port| format!("{port}:7004")).collect();
    let command = ["--", "/bin/ignorer", "7003", "7004"];
    let run = |name: &str, flags: &[&str]| [&["run", "--name", name], flags, &[tarball], &command].concat().join(" ");
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let line = words(&run("first", &["-p", &publish[0]]));
    daemon.ok(&line).unwrap();
    let check = |line: &str, words_of: &[&str]| {
        let line = words(line);
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        refused(&daemon, &line, 4, words_of);
        assert_eq!(daemon.json(&["ps"]).unwrap().as_array().unwrap().len(), 1, "{line:?}");
        assert_eq!(python::names(&daemon.data_dir().join("apps")).len(), 1, "{line:?}");
    };
    check(&run("first", &[]), &["already an app `first`", "torpor rm first"]);
    check(&run("second", &["-p", &publish[0]]), &["`second`", "`first`", &ports[0].to_string()]);
    // Held by other programs of the machine.
    let _tcp = TcpListener::bind(("0.0.0.0", ports[1])).unwrap();
    check(&run("second", &["-p", &publish[1]]), &["`second`", &ports[1].to_string()]);
    let _local = TcpListener::bind(("127.0.0.1", ports[2])).unwrap();
    check(&run("second", &["-p", &publish[2]]), &["`second`", &ports[2].to_string()]);
    let _udp = UdpSocket::bind(("0.0.0.0", ports[3])).unwrap();
    check(&run("second", &["-p", &format!("{}/udp", publish[3])]), &["`second`", &ports[3].to_string()]);
    // The other protocol of that port is free.
    daemon.ok(&words(&run("second", &["-p", &publish[3]]))).unwrap();
    daemon.ok(&["rm", "-f", "first"]).unwrap();
    daemon.ok(&words(&run("first", &["-p", &publish[0]]))).unwrap();
}

#[test]
fn descriptions_with_mistakes_are_refused_with_their_place() {
    let place = Place::new();
    let source = "name = 'x'\n[source.tarball]\npath = '/x.tar'\n";
    for (text, words) in [
        (format!("{source}[limits]\nmemry = '1M'\n"), "memry"),
        (format!("colour = 1\n{source}"), "colour"),
        (format!("{source}[idle]\nafter = 'soon'\n"), "soon"),
        (format!("{source}[[ports]]\nhost = 0\napp = 80\n"), "port"),
        (format!("{source}[security]\ncap_add = ['CAP_FLY']\n"), "FLY"),
        ("name = 'Not A Name'\n[source.tarball]\npath = '/x.tar'\n".to_owned(), "Not A Name"),
        ("name = ".to_owned(), "TOML"),
        ("name = 'x'\n".to_owned(), "source"),
    ] {
        let path = place.write("app.toml", &text);
        refused(&place.daemon, &["run", "-f", path.to_str().unwrap()], 2, &[words]);
    }
    refused(&place.daemon, &["run", "-f", "/nonexistent.toml"], 3, &["/nonexistent.toml"]);
    assert_eq!(place.daemon.json(&["ps"]).unwrap(), json!([]));
    // From standard input, with flags over it.
    fs::copy(programs::tarball().unwrap(), place.path("x.tar")).unwrap();
    let text = "name = 'x'\ncommand = ['/usr/bin/python3', '-u', '/programs/idle.py']\n[source.tarball]\npath = 'x.tar'\nbase = 'python'\n";
    let mut command = place.daemon.command(&["run", "-f", "-", "--name", "named"]);
    command.current_dir(place.path("")).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    place.wait_log("named", "up");
}

#[test]
fn a_second_daemon_with_its_directories_is_refused() {
    let daemon = Daemon::start().unwrap();
    let config = daemon.run_dir().parent().unwrap().join("torpor.toml");
    let output = Command::new(binary().unwrap()).args(["up", "--config"]).arg(&config).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(said(&output).contains("run"), "{}", said(&output));
    // Its own data directory, but the same sockets.
    let text = fs::read_to_string(&config).unwrap();
    let other = config.with_file_name("other.toml");
    let data = format!("data_dir = '{}'", daemon.data_dir().display());
    fs::write(&other, text.replace(&data, &format!("{}x'", data.trim_end_matches('\'')))).unwrap();
    let output = Command::new(binary().unwrap()).args(["up", "--config"]).arg(&other).output().unwrap();
    assert!(!output.status.success() && said(&output).contains("torpor"), "{}", said(&output));
    assert_eq!(daemon.json(&["ps"]).unwrap(), json!([]), "the first one goes on");
}

/// The command as somebody who is not root.
fn as_nobody(program: &Path, daemon: &Daemon, args: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(program).args(args);
    command.env("TORPOR_SOCKET", daemon.socket()).output().unwrap()
}

#[test]
fn only_root_may_use_it() {
    let daemon = Daemon::start().unwrap();
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = directory.path().join("torpor");
    fs::copy(binary().unwrap(), &program).unwrap();
    for args in [&["ps"][..], &["up"], &["down"], &["run", "--name", "x", "tar:/etc/passwd"]] {
        let output = as_nobody(&program, &daemon, args);
        let text = said(&output);
        assert!(!output.status.success() && text.contains("root"), "{args:?}: {text}");
        assert!(!text.contains("not running"), "{args:?}: {text}");
    }
    let output = as_nobody(&program, &daemon, &["completion", "bash"]);
    assert!(output.status.success(), "{}", said(&output));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&daemon.run_dir()), mode(&daemon.data_dir()), mode(&daemon.socket())), (0o700, 0o700, 0o600));
}

#[test]
fn doctor_reports_what_the_machine_offers() {
    let daemon = Daemon::start().unwrap();
    let text = daemon.ok(&["doctor"]).unwrap();
    let checks = daemon.json(&["doctor"]).unwrap();
    let checks = checks.as_array().unwrap();
    assert!(checks.len() > 10, "{checks:?}");
    for check in checks {
        let name = check["name"].as_str().unwrap();
        assert!(text.contains(name) && !check["found"].as_str().unwrap().is_empty(), "{name}: {text}");
        let fine = check["outcome"] == "ok";
        assert!(fine || !check["meaning"].as_str().unwrap().is_empty(), "{check} says not what follows");
        assert_ne!(check["outcome"], "missing", "{check}");
    }
    for about in ["kernel", "cgroup", "nft", "parked descriptors"] {
        assert!(text.contains(about), "nothing about {about}: {text}");
    }
    // Without a daemon too.
    let config = daemon.run_dir().parent().unwrap().join("torpor.toml");
    let mut daemon = daemon;
    daemon.term().unwrap();
    let mut command = Command::new(binary().unwrap());
    let output = command.args(["doctor", "--json", "--config"]).arg(&config).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let alone: Value = serde_json::from_slice(&output.stdout).unwrap();
    // A daemon tells all of that, and of what only it can know: apps still to be adopted, rules that were removed.
    let names = |checks: &[Value]| -> Vec<String> { checks.iter().map(|check| check["name"].to_string()).collect() };
    let (alone, told) = (names(alone.as_array().unwrap()), names(checks));
    assert!(alone.len() > 10 && alone.iter().all(|name| told.contains(name)), "{alone:?} {told:?}");
    // And where a worker could not start: no rules can be written.
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-net_admin", "--inh-caps=-net_admin"]).arg(binary().unwrap());
    let output = command.args(["doctor", "--config"]).arg(config).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
    assert!(said(&output).contains("MISSING   nft"), "{}", said(&output));
    daemon.up().unwrap();
}

#[test]
fn completion_scripts_are_sound() {
    let directory = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = Command::new(binary().unwrap()).args(["completion", shell]).output().unwrap();
        assert!(output.status.success() && output.stdout.len() > 1000, "{shell}: {}", output.stdout.len());
        if shell == "bash" {
            let path = directory.path().join("completion");
            fs::write(&path, &output.stdout).unwrap();
            let parsed = Command::new("bash").arg("-n").arg(&path).output().unwrap();
            assert!(parsed.status.success() && parsed.stderr.is_empty(), "{}", said(&parsed));
            let script = "source \"$1\"; COMP_WORDS=(torpor ex); COMP_CWORD=1; _torpor torpor ex torpor; echo \"${COMPREPLY[@]}\"";
            let completed = Command::new("bash").args(["-c", script, "bash"]).arg(&path).output().unwrap();
            let words = String::from_utf8_lossy(&completed.stdout).into_owned();
            assert!(words.contains("exec") && words.contains("explain"), "{}", said(&completed));
        }
    }
}

/// Status and body of a request.
fn curl(args: &[&str]) -> (u32, String) {
    let mut command = Command::new("curl");
    let output =
        command.args(["--silent", "--show-error", "--write-out", "\n%{http_code}"]).args(args).output().unwrap();
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, code) = text.rsplit_once('\n').unwrap();
    (code.parse().unwrap(), body.to_owned())
}

#[test]
fn the_api_over_tcp_requires_the_token() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    fs::write(&token, "a-token-of-many-letters\n").unwrap();
    fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let tables = format!("[api]\nlisten = '127.0.0.1:{port}'\ntoken_file = '{}'\n", token.display());
    let daemon = Daemon::start_with(&tables, &[]).unwrap();
    let url = |path: &str| format!("http://127.0.0.1:{port}{path}");
    let right = "Authorization: Bearer a-token-of-many-letters";
    let apps = url("/v1/apps");
    for wrong in [&[][..], &["-H", "Authorization: Bearer other"], &["-H", "Authorization: Basic eDp5"]] {
        let (code, body) = curl(&[wrong, &[&apps]].concat());
        assert_eq!(code, 401, "{wrong:?}: {body}");
        assert!(serde_json::from_str::<Value>(&body).unwrap()["message"].is_string(), "{body}");
    }
    assert_eq!(curl(&["-H", right, &apps]), (200, "[]".to_owned()));
    let (code, body) = curl(&["-H", right, &url("/openapi.json")]);
    let described: Value = serde_json::from_str(&body).unwrap();
    assert!(code == 200 && described["openapi"].as_str().unwrap().starts_with("3."), "{code}");
    for path in ["/v1/apps", "/v1/apps/{name}/sleep", "/v1/apps/{name}/explain", "/v1/events", "/v1/images"] {
        assert!(described["paths"][path].is_object(), "{path}: {:?}", described["paths"].as_object().unwrap().keys());
    }
    assert_eq!(curl(&["-H", right, &url("/v1/apps/none")]).0, 404);
    assert_eq!(curl(&["-H", right, &url("/nothing")]).0, 404);
    let socket = daemon.socket();
    assert_eq!(curl(&["--unix-socket", socket.to_str().unwrap(), "http://torpor/v1/apps"]).0, 200);
    // The commands over TCP.
    let mut command = Command::new(binary().unwrap());
    command.args(["ps", "--json", "--address", &format!("127.0.0.1:{port}"), "--token-file"]).arg(&token);
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "[]", "{}", said(&output));
    // A token that others can read is refused.
    fs::set_permissions(&token, PermissionsExt::from_mode(0o644)).unwrap();
    let output = command.output().unwrap();
    assert!(!output.status.success() && said(&output).contains("chmod 600"), "{}", said(&output));
}
