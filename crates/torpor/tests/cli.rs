//! The command against a real hub with a worker in memory: what users read, and the exit codes.
#![allow(clippy::unwrap_used, reason = "a test that fails")]

#[path = "../../hub/tests/fake/mod.rs"]
mod fake;

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use fake::{FakeWorker, Running};
use tokio::io::AsyncWriteExt;

const PROGRAM: &str = env!("CARGO_BIN_EXE_torpor");

async fn torpor(socket: &Path, args: &[&str], input: Option<&[u8]>) -> Output {
    let mut command = tokio::process::Command::new(PROGRAM);
    command.args(args).env_clear().env("TORPOR_SOCKET", socket).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() }).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    // Beside reading its output: it may wait for us to read before it reads on.
    let feed = child
        .stdin
        .take()
        .zip(input.map(<[u8]>::to_vec))
        .map(|(mut stdin, input)| tokio::spawn(async move { stdin.write_all(&input).await.unwrap() }));
    let output =
        tokio::time::timeout(Duration::from_secs(60), child.wait_with_output()).await.expect("it ends").unwrap();
    if let Some(feed) = feed {
        feed.await.unwrap();
    }
    output
}

/// Runs a command that must end with `code`; gives standard output and standard error.
async fn expect(running: &Running, args: &[&str], code: i32) -> (String, String) {
    let output = torpor(&running.socket, args, None).await;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert_eq!(output.status.code(), Some(code), "{args:?}: {out}{err}");
    (out, err)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_with_torpor() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    let run = ["run", "--name", "web", "-p", "8080:80", "tar:/srv/app.tar", "--", "/bin/server", "-x"];
    assert_eq!(expect(&running, &run, 0).await.0, "web is running, on *:8080->80/tcp\n");
    assert_eq!(running.worker.apps()[0].record.spec.command, ["/bin/server", "-x"]);
    let (_, err) = expect(&running, &run, 4).await;
    assert!(err.contains("already an app `web`") && err.contains("torpor rm web"), "{err}");

    let (out, _) = expect(&running, &["ps"], 0).await;
    assert!(out.lines().nth(1).unwrap().starts_with("web   running"), "{out}");
    let (out, _) = expect(&running, &["ps", "--json"], 0).await;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&out).unwrap()[0]["name"], "web");
    assert_eq!(expect(&running, &["sleep", "web"], 0).await.0, "web is dozing, on *:8080->80/tcp\n");
    assert_eq!(expect(&running, &["sleep", "--level", "warm", "web"], 0).await.0, "web is warm, on *:8080->80/tcp\n");
    let (out, _) = expect(&running, &["ps", "-o", "name,addresses"], 0).await;
    assert!(out.starts_with("NAME  ADDRESSES\nweb   10.213."), "{out}");
    let (out, _) = expect(&running, &["ps", "--json"], 0).await;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&out).unwrap()[0]["state"], "warm");
    expect(&running, &["wake", "web"], 0).await;
    expect(&running, &["pin", "web"], 0).await;
    expect(&running, &["unpin", "web"], 0).await;
    for command in ["inspect", "explain", "stats"] {
        assert!(expect(&running, &[command, "web"], 0).await.0.contains("web"), "{command}");
        let (out, _) = expect(&running, &[command, "--json", "web"], 0).await;
        serde_json::from_str::<serde_json::Value>(&out).unwrap();
    }
    let (out, err) = expect(&running, &["logs", "-n", "2", "web"], 0).await;
    assert_eq!((out.as_str(), err.as_str()), ("line 8\n", "line 9\n"));
    let (out, _) = expect(&running, &["events", "-n", "3", "--json"], 0).await;
    assert_eq!(out.lines().count(), 3);
    expect(&running, &["restart", "-t", "1s", "web"], 0).await;
    let (_, err) = expect(&running, &["rm", "web"], 4).await;
    assert!(err.contains("torpor stop web"), "{err}");
    assert_eq!(expect(&running, &["stop", "web"], 0).await.0, "web is stopped\n");
    expect(&running, &["start", "web"], 0).await;
    let (out, err) = expect(&running, &["rm", "-f", "none", "web"], 3).await;
    assert!(out.contains("web is removed") && err.contains("no app `none`"), "{out}{err}");
    assert_eq!(
        expect(&running, &["images", "load", "debian", "tar:/srv/d.tar"], 0).await.0,
        "image debian is stored\n"
    );
    assert!(expect(&running, &["images"], 0).await.0.contains("debian"));
    expect(&running, &["images", "rm", "debian"], 0).await;
    expect(&running, &["images", "rm", "debian"], 3).await;
    assert!(expect(&running, &["doctor"], 0).await.0.contains("degraded  freezer"));
    assert!(expect(&running, &["version"], 0).await.0.contains("daemon "));
    assert!(expect(&running, &["completion", "bash"], 0).await.0.contains("_torpor"));
    // Not by `torpor down`: that waits for the end of the daemon's process, which is this test's own.
    running.client.teardown(true, |_| {}).await.unwrap();
    running.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_ends_at_once_is_shown_with_its_status_and_last_output() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    let (_, err) = expect(&running, &["run", "--name", "bad", "tar:/srv/a.tar", "--", "exit", "3"], 1).await;
    assert!(err.contains("bad has ended: exited with status 3") && err.contains("  line 9\n"), "{err}");
    assert!(err.contains("torpor logs bad"), "{err}");
    let (out, err) = expect(&running, &["run", "--name", "job", "tar:/srv/a.tar", "--", "exit", "0"], 0).await;
    assert!(out.is_empty() && err.contains("job has ended: exited with status 0"), "{out}{err}");
    let (out, _) = expect(&running, &["start", "--json", "bad"], 1).await;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&out).unwrap()["last_exit"]["code"], 3);
    let (_, err) = expect(&running, &["restart", "bad"], 1).await;
    assert!(err.contains("bad has ended: exited with status 3") && err.contains("  line 9\n"), "{err}");
    let (out, _) = expect(&running, &["ps"], 0).await;
    assert!(out.contains("stopped (exited with status 3)"), "{out}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_passes_streams_and_status() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    expect(&running, &["run", "tar:/srv/web.tar"], 0).await;
    expect(&running, &["exec", "web", "exit", "42"], 42).await;
    assert_eq!(expect(&running, &["exec", "web", "--", "say", "-i"], 0).await, ("say -i".into(), "warned".into()));
    let data = vec![7_u8; 300_000];
    let output = torpor(&running.socket, &["exec", "-i", "web", "cat"], Some(&data)).await;
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout == data, "{} bytes came back", output.stdout.len());
    assert_eq!(expect(&running, &["exec", "web", "cat"], 0).await.0, "", "no input without -i");
    let (_, err) = expect(&running, &["exec", "-t", "web", "size"], 2).await;
    assert!(err.contains("terminal"), "{err}");
    expect(&running, &["exec", "none", "ls"], 3).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_to_a_file_begins_again_when_the_app_wakes() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    expect(&running, &["run", "--name", "restless", "tar:/srv/web.tar"], 0).await;
    let file = dir.path().join("restless.torpor");
    let line = ["image", "export", "restless", "-o", file.to_str().unwrap()];
    // Twice it wakes, and with --no-sleep that is the end of it.
    let (_, err) = expect(&running, &[&line[..], &["--no-sleep"]].concat(), 4).await;
    assert!(err.contains("restless woke while it was exported") && !file.exists(), "{err}");
    let (out, err) = expect(&running, &line, 0).await;
    assert!(out.contains("restless is exported") && err.matches("begins again").count() == 1, "{out}{err}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3, "the directories of the daemon, and the archive");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_name_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    for line in [
        "inspect @",
        "explain @",
        "logs @",
        "stats @",
        "exec @ ls",
        "sleep @",
        "wake @",
        "start @",
        "stop @",
        "restart @",
        "pin @",
        "unpin @",
        "rm web @",
        "events --app @",
        "images rm @",
        "images load @ tar:/x",
        "images pull @",
        "image rm @",
        "image export @ -o /x",
        "image import x --name @",
        "run --name @ tar:/x",
    ] {
        let line: Vec<&str> = line.split(' ').map(|word| if word == "@" { "" } else { word }).collect();
        let (out, err) = expect(&running, &line, 2).await;
        assert!(out.is_empty() && err.contains("a name is not empty"), "{line:?}: {out}{err}");
    }
    // An app that is not there has no events, unless it had some or may have some.
    let (out, err) = expect(&running, &["events", "--app", "web"], 3).await;
    assert!(out.is_empty() && err.contains("there is no app `web`") && err.contains("--follow"), "{err}");
    expect(&running, &["run", "--name", "web", "tar:/srv/web.tar"], 0).await;
    let id = serde_json::from_str::<serde_json::Value>(&expect(&running, &["inspect", "web", "--json"], 0).await.0);
    let id = id.unwrap()["status"]["id"].as_str().unwrap().to_owned();
    let (by_name, _) = expect(&running, &["events", "--app", "web"], 0).await;
    assert!(by_name.contains("created"), "{by_name}");
    assert_eq!(expect(&running, &["events", "--app", &id], 0).await.0, by_name);
    expect(&running, &["rm", "-f", "web"], 0).await;
    assert!(expect(&running, &["events", "--app", "web"], 0).await.0.contains("created"));

    // Files: one code, and words without numbers.
    let nowhere = dir.path().join("nowhere");
    let nowhere = nowhere.to_str().unwrap();
    for line in [
        &["image", "inspect", nowhere][..],
        &["image", "verify", nowhere],
        &["image", "diff", nowhere, nowhere],
        &["image", "import", nowhere],
        &["restore", "--image", nowhere],
        &["run", "-f", nowhere],
        &["run", "--env-file", nowhere, "tar:/srv/web.tar"],
        &["run", "--name", "x", &format!("{nowhere}/app.tar")],
        &["images", "load", "x", &format!("{nowhere}.tar")],
    ] {
        // These talk to no daemon, and reject its socket.
        let mut command = std::process::Command::new(PROGRAM);
        command.args(line).env_clear().env("TORPOR_SOCKET", &running.socket);
        let output = tokio::task::block_in_place(|| command.output()).unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{line:?}: {err}");
        assert!(err.contains(nowhere) && !err.contains("os error"), "{line:?}: {err}");
    }
    for number in ["nan", "inf", "half"] {
        let (_, err) = expect(&running, &["run", "--name", "x", "--cpus", number, "tar:/x"], 2).await;
        assert!(err.contains("expected a number, as 0.5"), "{err}");
    }
    let (_, err) =
        expect(&running, &["run", "--name", "x", "--cap-add", "all", "--cap-add", "net_admin", "tar:/x"], 2).await;
    assert!(
        err.contains("`all` names no capability") && err.contains("NET_ADMIN, ") && err.contains("dropped"),
        "{err}"
    );
    expect(&running, &["run", "--name", "x", "--cap-add", "cap_net_admin", "--cap-drop", "all", "tar:/x"], 0).await;
    running.stop().await;
}

/// What a command shows at a terminal of so many columns.
fn at_terminal(running: &Running, args: &[&str], columns: u16) -> String {
    use std::io::Read;
    use std::os::unix::ffi::OsStrExt;

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{Winsize, tcsetwinsize};

    let mut terminal = std::fs::File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap());
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let shown = std::fs::File::options().write(true).open(std::ffi::OsStr::from_bytes(name.as_bytes())).unwrap();
    let mut command = std::process::Command::new(PROGRAM);
    command.args(args).env_clear().env("TORPOR_SOCKET", &running.socket);
    let mut child = command.stdin(Stdio::null()).stdout(shown).spawn().unwrap();
    // The last one that has it open.
    drop(command);
    let mut text = Vec::new();
    // At its end the terminal has no other side: an error, EIO.
    let _ended = terminal.read_to_end(&mut text);
    assert!(child.wait().unwrap().success(), "{args:?}");
    String::from_utf8(text).unwrap().replace("\r\n", "\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_fit_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    for (name, ports) in [("web", "8080:80"), ("a-name-of-thirty-characters-abc", "[::1]:9090:9090")] {
        expect(&running, &["run", "--name", name, "-p", ports, "tar:/srv/web.tar"], 0).await;
        expect(&running, &["images", "load", name, "tar:/srv/d.tar"], 0).await;
        expect(&running, &["sleep", "--level", "warm", name], 0).await;
    }
    tokio::task::block_in_place(|| {
        for args in [&["ps"][..], &["stats"], &["images"], &["image", "ls"], &["doctor"], &["stats", "web"]] {
            for columns in [60, 80, 200] {
                let text = at_terminal(&running, args, columns);
                let fits = |line: &str| line.chars().count() <= columns.into();
                assert!(text.lines().all(fits) && text.lines().count() > 1, "{args:?} at {columns}:\n{text}");
            }
        }
        assert!(at_terminal(&running, &["ps"], 60).contains("\na-name-of-thirty-characters-abc  warm "));
        assert!(at_terminal(&running, &["stats", "web"], 60).contains("\nlines lost  0\n"));
        // A size of 0 says nothing.
        assert!(at_terminal(&running, &["ps"], 0).contains("RESTARTS"));
    });
    // Where there is no terminal, all is there.
    assert!(expect(&running, &["stats"], 0).await.0.contains("LINES LOST"));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("api.sock");
    let output = torpor(&socket, &["ps"], None).await;
    assert_eq!(output.status.code(), Some(1));
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.contains("not running") && err.contains("torpor up"), "{err}");
    assert!(output.stdout.is_empty());
    let output = torpor(&socket, &["version"], None).await;
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(torpor(&socket, &["frobnicate"], None).await.status.code(), Some(2));
    assert_eq!(torpor(&socket, &["completion", "zsh"], None).await.status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_leaves_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    let shell = format!("{PROGRAM} completion bash | head -n 1; exit ${{PIPESTATUS[0]}}");
    let output = tokio::process::Command::new("bash").args(["-c", &shell]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    running.stop().await;
}

#[test]
fn configurations_are_refused_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("torpor.toml");
    for (text, about) in [("dataa_dir = '/x'", "dataa_dir"), ("[api]\nlisten = '127.0.0.1:1'", "token_file")] {
        std::fs::write(&file, text).unwrap();
        let output = std::process::Command::new(PROGRAM).args(["up", "--config"]).arg(&file).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(err.contains(about), "{err}");
    }
    let output = std::process::Command::new(PROGRAM).args(["up", "--config", "/nonexistent"]).output().unwrap();
    assert_ne!(output.status.code(), Some(0));
}

#[test]
fn only_root_may_start_it() {
    use std::os::unix::process::CommandExt;
    assert!(rustix::process::geteuid().is_root(), "this test needs root to become someone else");
    // Somewhere that user can reach the program.
    let dir = tempfile::Builder::new().prefix("torpor-cli").tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let copy = dir.path().join("torpor");
    std::fs::copy(PROGRAM, &copy).unwrap();
    for command in ["up", "down"] {
        let output = std::process::Command::new(&copy).arg(command).uid(65_534).gid(65_534).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{err}");
        assert!(err.contains("root"), "{err}");
    }
}
