//! Apps exported from one daemon and imported into another, with other directories, addresses and users: what they had in
//! memory and files is there when a packet wakes them. Whatever is wrong with an archive or happens on the way leaves nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod python;
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use python::{Place, said};
use support::{PATIENCE, program, say, stats, told};
use torpor_testkit::client::http;
use torpor_testkit::client::redis::{Redis, Value};
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native::{self, LineSession};
use torpor_testkit::wait::{eventually, eventually_ok};

/// Sleeps on command only.
const ON_COMMAND: &str = "[idle]\nsleep = false\ntimers_over = '10m'";

/// Exports an app, again where a client has just woken it.
fn export(daemon: &Daemon, app: &str, to: &Path) -> serde_json::Value {
    let exported = eventually_ok(&format!("{app} is exported"), PATIENCE, || {
        daemon.json(&["image", "export", app, "-o", to.to_str().unwrap()])
    });
    exported.unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(daemon, app), daemon.log()))
}

/// Imports an archive with its one port elsewhere; the new address.
fn import(daemon: &mut Daemon, archive: &Path, port: u16, more: &[&str]) -> SocketAddr {
    let host = daemon.port().unwrap();
    let ports = format!("{host}:{port}");
    let line = [&["image", "import", archive.to_str().unwrap(), "-p", &ports], more].concat();
    daemon.ok(&line).unwrap_or_else(|error| panic!("{error}\n{}", daemon.log()));
    (Ipv4Addr::LOCALHOST, host).into()
}

fn try_import(daemon: &Daemon, archive: &Path, more: &[&str]) -> Output {
    daemon.cli(&[&["image", "import", archive.to_str().unwrap()], more].concat()).unwrap()
}

/// Directories of apps that a daemon has.
fn directories(daemon: &Daemon) -> Vec<String> {
    python::names(&daemon.data_dir().join("apps"))
}

/// Nothing of an import is left, and its name is free.
fn assert_nothing_left(daemon: &Daemon, when: &str) {
    let apps = daemon.json(&["ps"]).unwrap();
    assert_eq!(apps.as_array().map(Vec::len), Some(0), "{when}: {apps}");
    eventually_ok(&format!("{when}: no directory is left"), PATIENCE, || {
        let left = directories(daemon);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}\n{}", daemon.log())) }
    })
    .unwrap();
    assert_eq!(python::names(&daemon.data_dir().join("files/tmp")), [""; 0], "{when}");
}

/// A ledger, which counts in memory and in files, exported after two entries; its archive and what it answered last.
fn ledger(folder: &Path) -> (Daemon, PathBuf, String) {
    let mut from = Daemon::start().unwrap();
    let ledger = native::program("ledger", &["7000"], &[7000]).unwrap();
    let address = from.run_program(&ledger, "ledger", ON_COMMAND).unwrap()[0];
    let mut session = eventually_ok("the ledger answers", PATIENCE, || LineSession::open(address)).unwrap();
    session.tell("add").unwrap();
    let last = session.tell("add").unwrap();
    drop(session);
    let archive = folder.join("ledger.torpor");
    export(&from, "ledger", &archive);
    (from, archive, last)
}

#[test]
fn unread_exports_do_not_block_apps() {
    /// More than a pool has threads.
    const STREAMS: usize = 520;
    let (daemon, _, mut session) = support::memcheck("8");
    support::warm(&daemon, "check");
    let unread: Vec<UnixStream> = (0..STREAMS)
        .map(|_| {
            let mut stream = UnixStream::connect(daemon.run_dir().join("api.sock")).unwrap();
            stream.write_all(b"GET /v1/apps/check/archive HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            stream
        })
        .collect();
    let mut answers = BTreeMap::<String, usize>::new();
    for mut stream in &unread {
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        *answers.entry(String::from_utf8_lossy(&status).into_owned()).or_default() += 1;
    }
    let expected = [("HTTP/1.1 200".to_owned(), 8), ("HTTP/1.1 409".to_owned(), STREAMS - 8)];
    assert_eq!(answers, BTreeMap::from(expected), "{}", daemon.log());
    let answered = session.ask();
    answered.unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(&daemon, "check"), daemon.log()));
    assert_eq!(stats(&daemon, "check").state, "running");
    daemon.ok(&["images"]).unwrap();
}

#[test]
fn servers_move_with_their_state() {
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (Daemon::start().unwrap(), Daemon::start().unwrap());
    let redis_there = from.run_program(&program("redis"), "redis", ON_COMMAND).unwrap()[0];
    let lighttpd = program("lighttpd");
    let lighttpd_there = from.run_program(&lighttpd, "web", ON_COMMAND).unwrap()[0];
    let redis = |at| eventually_ok("redis answers", PATIENCE, || Redis::connect(at)).unwrap();
    eventually_ok("lighttpd answers", PATIENCE, || lighttpd.connect(lighttpd_there).map(drop)).unwrap();
    eventually_ok("redis answers", PATIENCE, || redis(redis_there).command(&["PING"])).unwrap();
    for n in 0..=20 {
        let set = redis(redis_there).command(&["APPEND", "key", &format!("{n};")]);
        set.unwrap_or_else(|error| panic!("{error}\n{}", told(&from, "redis")));
    }
    let value = redis(redis_there).command(&["GET", "key"]).unwrap();
    let archives = ["redis", "web"].map(|app| folder.path().join(format!("{app}.torpor")));
    for (app, archive) in ["redis", "web"].iter().zip(&archives) {
        let told = export(&from, app, archive);
        let file = fs::metadata(archive).unwrap();
        assert_eq!((told["app"].as_str(), told["bytes"].as_u64()), (Some(*app), Some(file.len())));
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&file.permissions()) & 0o7777, 0o600);
        say(&format!("{app}: an archive of {} MiB", file.len() >> 20));
    }
    // The other machine has none of their layers, and other addresses.
    let redis_here = import(&mut to, &archives[0], redis_port(), &[]);
    let web_here = import(&mut to, &archives[1], lighttpd.ports[0].0, &["--name", "site"]);
    for app in ["redis", "site"] {
        assert_eq!(stats(&to, app).state, "warm", "{}", told(&to, app));
    }
    let answer = redis(redis_here).command(&["GET", "key"]);
    assert_eq!(answer.unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(&to, "redis"), to.log())), value);
    let answered = eventually_ok("lighttpd answers", PATIENCE, || lighttpd.connect(web_here).map(drop));
    answered.unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(&to, "site"), to.log()));
    for app in ["redis", "site"] {
        assert_eq!(stats(&to, app).state, "running");
    }
    // Those that were exported are where they were, and go their own way.
    assert_eq!(stats(&from, "redis").state, "warm");
    redis(redis_here).command(&["SET", "key", "other"]).unwrap();
    assert_eq!(redis(redis_there).command(&["GET", "key"]).unwrap(), value);
    assert_eq!(redis(redis_here).command(&["GET", "key"]).unwrap(), Value::Text(b"other".to_vec()));
    // What was imported sleeps as any app does, and can be sent on.
    let again = folder.path().join("again.torpor");
    export(&to, "redis", &again);
    let once_more = import(&mut from, &again, redis_port(), &["--name", "back"]);
    assert_eq!(redis(once_more).command(&["GET", "key"]).unwrap(), Value::Text(b"other".to_vec()));
}

fn redis_port() -> u16 {
    program("redis").ports[0].0
}

#[test]
fn files_of_all_kinds_come_along_and_random_numbers_do_not() {
    let mut from = Place::new();
    let host = from.daemon.port().unwrap();
    from.run("counter", "files_of_all_kinds.py", &["-p", &format!("{host}:80"), "--no-sleep"]);
    let ask = |daemon: &Daemon, app: &str, at: SocketAddr| -> Vec<String> {
        let answer = eventually_ok("the counter answers", PATIENCE, || http::get(at, "/"));
        let answer = answer.unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(daemon, app), daemon.log()));
        answer.text().split(' ').map(str::to_owned).collect()
    };
    let there = (Ipv4Addr::LOCALHOST, host).into();
    for n in 1..=3 {
        assert_eq!(ask(&from.daemon, "counter", there)[0], n.to_string());
    }
    let archive = from.path("counter.torpor");
    export(&from.daemon, "counter", &archive);
    let mut to = Daemon::start().unwrap();
    let first = import(&mut to, &archive, 80, &[]);
    let second = import(&mut to, &archive, 80, &["--name", "copy"]);
    let told = [ask(&from.daemon, "counter", there), ask(&to, "counter", first), ask(&to, "copy", second)];
    for told in &told {
        let rest = ["4", "4", "unnamed", "2", "../log", "0o10640", "1000", "False", "counter"];
        assert_eq!(told[..rest.len()], rest);
    }
    let random: std::collections::BTreeSet<_> = told.iter().map(|told| told.last().unwrap()).collect();
    assert_eq!(random.len(), 3, "{told:?}");
}

#[test]
fn failed_imports_and_exports_name_the_reason_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (mut from, archive, last) = ledger(folder.path());
    let mut to = Daemon::start().unwrap();
    let whole = fs::read(&archive).unwrap();
    let bad = folder.path().join("bad.torpor");
    let refused = |bytes: &[u8], code: i32, words: &str, to: &Daemon| {
        fs::write(&bad, bytes).unwrap();
        let output = try_import(to, &bad, &["--no-publish"]);
        assert_eq!(output.status.code(), Some(code), "{}", said(&output));
        assert!(said(&output).contains(words), "{words}: {}", said(&output));
        assert_nothing_left(to, words);
    };
    for part in [1, 2, 3] {
        refused(&whole[..whole.len() * part / 4], 2, "cut off", &to);
        let mut damaged = whole.clone();
        damaged[whole.len() * part / 4] ^= 4;
        refused(&damaged, 2, "damaged", &to);
    }
    refused(&whole[..whole.len() - 1], 2, "cut off", &to);
    refused(&[&whole[..], b"more"].concat(), 2, "bytes follow", &to);
    refused(b"no archive", 2, "not an archive", &to);
    refused(b"", 2, "not an archive", &to);

    // The name is taken; the port is taken.
    let at = import(&mut to, &archive, 7000, &[]);
    let output = try_import(&to, &archive, &["--no-publish"]);
    assert!(output.status.code() == Some(4) && said(&output).contains("--name"), "{}", said(&output));
    let taken = format!("{}:7000", at.port());
    let output = try_import(&to, &archive, &["--name", "other", "-p", &taken]);
    assert!(output.status.code() == Some(4) && said(&output).contains("--no-publish"), "{}", said(&output));
    let json = to.json(&["image", "import", archive.to_str().unwrap(), "--name", "third", "--no-publish"]).unwrap();
    assert_eq!((json["name"].as_str(), json["state"].as_str()), (Some("third"), Some("warm")));
    assert_eq!(LineSession::open(at).unwrap().ask().unwrap(), last, "{}", to.log());

    // What cannot be exported.
    let failed = |daemon: &Daemon, line: &[&str], code: i32, words: &str| {
        let output = daemon.cli(line).unwrap();
        assert!(output.status.code() == Some(code) && said(&output).contains(words), "{line:?}: {}", said(&output));
    };
    let out = folder.path().join("out.torpor");
    let out = out.to_str().unwrap();
    failed(&to, &["image", "export", "ledger", "--no-sleep", "-o", out], 4, "torpor sleep --level warm");
    failed(&to, &["image", "export", "nobody", "-o", out], 3, "no app");
    failed(&to, &["image", "export", "ledger", "-o", "/nowhere/x"], 1, "/nowhere/x");
    let volume = folder.path().join("volume");
    fs::create_dir(&volume).unwrap();
    let ledger = native::program("ledger", &["7000"], &[7000]).unwrap();
    for (name, read_only) in [("writes", false), ("reads", true)] {
        let host = volume.display();
        let tables = format!("{ON_COMMAND}\n[[volumes]]\nhost = '{host}'\napp = '/v'\nread_only = {read_only}\n");
        from.run_program(&ledger, name, &tables).unwrap();
    }
    failed(&from, &["image", "export", "writes", "-o", out], 4, "volume");
    assert_eq!(from.state("writes").unwrap(), "running", "it was put to sleep for nothing");
    assert!(!Path::new(out).exists());
    // A description that reaches out of its sandbox is not taken unseen.
    export(&from, "reads", Path::new(out));
    let output = try_import(&to, Path::new(out), &["--no-publish"]);
    assert!(output.status.code() == Some(4) && said(&output).contains("--trust"), "{}", said(&output));
    to.ok(&["image", "import", out, "--no-publish", "--trust"]).unwrap();
    assert_eq!(python::names(folder.path()).iter().filter(|name| name.starts_with('.')).count(), 0);
}

#[test]
fn an_import_that_fails_or_dies_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (_from, archive, last) = ledger(folder.path());
    let mut to = Daemon::start().unwrap();
    for step in ["layers", "files", "image", "placed", "taken"] {
        for how in ["error", "kill"] {
            let when = format!("import-{step}:{how}");
            to.term().unwrap();
            to.set_environment("TORPOR_FAULT", Some(&when));
            to.up().unwrap();
            let output = try_import(&to, &archive, &["--no-publish"]);
            assert!(!output.status.success(), "{when}: {}", said(&output));
            if how == "kill" {
                to.kill9().unwrap();
                to.set_environment("TORPOR_FAULT", None);
                to.up().unwrap();
            }
            assert_nothing_left(&to, &when);
        }
    }
    to.term().unwrap();
    to.set_environment("TORPOR_FAULT", None);
    to.up().unwrap();
    // A client that goes in the middle, and one that stalls while the daemon ends.
    let whole = fs::read(&archive).unwrap();
    let begin = |to: &Daemon| {
        let mut client = to.command(&["image", "import", "-", "--no-publish"]);
        let mut client = client.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        client.stdin.as_mut().unwrap().write_all(&whole[..whole.len() - 9]).unwrap();
        eventually("the import has begun", PATIENCE, || !directories(to).is_empty()).unwrap();
        client
    };
    let mut client = begin(&to);
    client.kill().unwrap();
    client.wait().unwrap();
    eventually_ok("the app is taken away", PATIENCE, || {
        let apps = to.json(&["ps"]).map_err(|error| error.to_string())?;
        if apps.as_array().is_some_and(Vec::is_empty) { Ok(()) } else { Err(apps.to_string()) }
    })
    .unwrap();
    assert_nothing_left(&to, "the client was killed");
    let mut client = begin(&to);
    to.term().unwrap();
    to.up().unwrap();
    assert_nothing_left(&to, "the daemon ended");
    drop(client.stdin.take());
    assert!(!client.wait().unwrap().success());
    let at = import(&mut to, &archive, 7000, &[]);
    // It outlives a reboot that comes before its first wake.
    to.power_off().unwrap();
    to.up().unwrap();
    assert_eq!(stats(&to, "ledger").state, "warm", "{}", to.log());
    let mut session = eventually_ok("the ledger answers", PATIENCE, || LineSession::open(at)).unwrap();
    assert_eq!(session.ask().unwrap(), last, "{}", to.log());
}

#[test]
fn a_full_disk_ends_an_import() {
    let folder = tempfile::tempdir().unwrap();
    let (_from, archive, last) = ledger(folder.path());
    let mut to = Daemon::start_on_disk("").unwrap();
    let filler = to.data_dir().join("filler");
    let file = fs::File::create(&filler).unwrap();
    let (step, mut filled) = (256 << 10, 0);
    while rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), filled, step).is_ok() {
        filled += step;
    }
    // Room for the database, and not for all of the app.
    let room = fs::metadata(&archive).unwrap().len() / 2;
    file.set_len(filled - room).unwrap();
    let output = try_import(&to, &archive, &["--no-publish"]);
    assert!(!output.status.success() && said(&output).contains("No space left"), "{}", said(&output));
    assert_nothing_left(&to, "the disk was full");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    // Room for all of it, and less than an import leaves free.
    file.set_len(filled - (16 << 20)).unwrap();
    let output = try_import(&to, &archive, &["--no-publish"]);
    assert!(!output.status.success() && said(&output).contains("an import leaves 24 MiB"), "{}", said(&output));
    assert_nothing_left(&to, "the disk was nearly full");
    drop(file);
    fs::remove_file(filler).unwrap();
    let at = import(&mut to, &archive, 7000, &[]);
    assert_eq!(LineSession::open(at).unwrap().ask().unwrap(), last);
}

#[test]
fn an_export_replaces_regular_files_only() {
    let folder = tempfile::tempdir().unwrap();
    let (from, archive, _) = ledger(folder.path());
    let magic = fs::read(&archive).unwrap()[..8].to_vec();
    let export_to = |path: &Path| from.command(&["image", "export", "ledger", "-o", path.to_str().unwrap()]);
    let (file, link, fifo) = ["file", "link", "fifo"].map(|name| folder.path().join(name)).into();
    fs::write(&file, "old").unwrap();
    std::os::unix::fs::symlink("file", &link).unwrap();
    assert!(export_to(&link).status().unwrap().success());
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read(&file).unwrap()[..8], magic);

    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut child = export_to(&fifo).spawn().unwrap();
    assert_eq!(fs::read(&fifo).unwrap()[..8], magic);
    assert!(child.wait().unwrap().success());
    assert!(!fs::metadata(&fifo).unwrap().is_file());

    let output = export_to(Path::new("/dev/stdout")).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(output.stdout[..8], magic);
    assert!(!export_to(folder.path()).output().unwrap().status.success());

    // A reader that has had enough: the archive is cut off.
    let mut child = from.command(&["image", "export", "ledger"]).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0; 8]).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn an_export_ended_by_a_timer_of_the_app_names_the_timer() {
    let from = Place::new();
    from.run("ticks", "idle.py --sleep 2", &["--no-sleep", "--timers-over", "1s"]);
    from.wait_log("ticks", "up");
    let mut reader = from.daemon.command(&["image", "export", "ticks"]);
    let mut reader = reader.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = reader.stdout.take().unwrap();
    // The rest waits for us.
    out.read_exact(&mut [0; 16]).unwrap();
    eventually("its timer has woken it", PATIENCE, || stats(&from.daemon, "ticks").state != "warm").unwrap();
    out.read_to_end(&mut Vec::new()).unwrap();
    let output = reader.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{told}");
    assert!(told.contains("ticks woke while it was exported, woken by a timer of its own\n"), "{told}");
    assert!(told.contains("torpor explain ticks"), "{told}");
}

#[test]
fn a_wake_aborts_a_running_export() {
    let mut from = Place::new();
    let host = from.daemon.port().unwrap();
    from.run("server", "hello.py", &["-p", &format!("{host}:80"), "--no-sleep"]);
    let at: SocketAddr = (Ipv4Addr::LOCALHOST, host).into();
    let ask = || eventually_ok("the server answers", PATIENCE, || native::read_all(at));
    assert_eq!(ask().unwrap(), "hello");
    support::warm(&from.daemon, "server");
    let mut reader = from.daemon.command(&["image", "export", "server"]);
    let mut reader = reader.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = reader.stdout.take().unwrap();
    // The rest waits for us: the export cannot come to its end.
    out.read_exact(&mut [0; 16]).unwrap();
    assert_eq!(stats(&from.daemon, "server").state, "warm");
    assert_eq!(native::read_all(at).unwrap(), "hello", "{}", from.daemon.log());
    let mut archive = vec![0; 16];
    out.read_to_end(&mut archive).unwrap();
    let output = reader.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(4) && told.contains("woke while it was exported"), "{told}");
    // Asked to end in the middle, it leaves no file.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.torpor");
    let mut client = from.daemon.command(&["image", "export", "server", "-o", file.to_str().unwrap()]);
    let mut client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the export has begun", PATIENCE, || !python::names(folder.path()).is_empty()).unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(client.id().cast_signed()).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    let ended = client.wait().unwrap();
    let left = python::names(folder.path());
    assert!(
        ended.code() == Some(130) && left.is_empty() || ended.success() && left == ["x.torpor"],
        "{ended}: {left:?}"
    );
}
