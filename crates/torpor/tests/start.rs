//! Starts that are refused: they change nothing on the machine, and nothing in directories that others have prepared.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use torpor_testkit::daemon::{Daemon, binary, leftovers};
use torpor_testkit::native;
use torpor_testkit::programs;
use torpor_testkit::wait::PATIENCE;

/// A user of the machine without root.
const USER: Option<u32> = Some(1000);

/// A place for starts with an instance of its own, on which no daemon runs any more.
struct Place {
    daemon: Daemon,
    dir: PathBuf,
}

impl Place {
    fn new() -> Self {
        let mut daemon = Daemon::start().unwrap();
        assert_eq!(daemon.down().unwrap(), Vec::<String>::new());
        let dir = daemon.data_dir().parent().unwrap().to_owned();
        Self { daemon, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A configuration as the daemon's, with other directories.
    fn config(&self, data_dir: &Path, more: &str) -> PathBuf {
        other_config(&self.dir, data_dir, &self.path("run"), more)
    }

    /// A start that must be refused with `words` and leave nothing; what it says.
    fn refused(&self, config: &Path, words: &[&str]) {
        let output = up(config);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_some_and(|code| code != 0 && code != 124), "{:?}: {said}", output.status);
        for words in words {
            assert!(said.contains(words), "without {words:?}: {said}");
        }
        let dirs: [&Path; 1] = [&self.dir];
        assert_eq!(leftovers(&self.daemon.instance(), &dirs), Vec::<String>::new(), "{said}");
    }

    fn data(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }
}

/// The configuration in `dir` with other directories, and `more` at its end.
fn other_config(dir: &Path, data_dir: &Path, run_dir: &Path, more: &str) -> PathBuf {
    let text = fs::read_to_string(dir.join("torpor.toml")).unwrap();
    let lines = text.lines().map(|line| match line.split(' ').next() {
        Some("data_dir") => format!("data_dir = '{}'\n", data_dir.display()),
        Some("run_dir") => format!("run_dir = '{}'\n", run_dir.display()),
        _ => format!("{line}\n"),
    });
    let path = dir.join("other.toml");
    fs::write(&path, lines.collect::<String>() + more).unwrap();
    path
}

/// `torpor up`, killed after a while: status 124.
fn up(config: &Path) -> Output {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "60"]).arg(binary().unwrap()).arg("up").arg("--config").arg(config);
    command.output().unwrap()
}

/// Every file below `dir` with its owner and mode.
fn tree(dir: &Path) -> Vec<(PathBuf, u32, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let metadata = path.symlink_metadata().unwrap();
        found.push((path.clone(), metadata.uid(), metadata.mode()));
        if metadata.is_dir() {
            found.extend(tree(&path));
        }
    }
    found.sort();
    found
}

#[test]
fn directories_that_others_can_replace_are_refused_before_anything_is_done() {
    let place = Place::new();
    let victim = place.path("victim");
    fs::create_dir_all(victim.join("tmp/dir")).unwrap();
    fs::write(victim.join("tmp/dir/precious"), "x").unwrap();
    fs::set_permissions(&victim, Permissions::from_mode(0o755)).unwrap();
    let before = tree(&place.path("victim"));
    let plant = |at: &Path| {
        symlink("../victim", at).unwrap();
        lchown(at, USER, USER).unwrap();
    };

    let open = place.data("open", 0o777);
    plant(&open.join("files"));
    place.refused(&place.config(&open, ""), &["others may write in", "open (its mode is 777)", "chmod go-w"]);
    let sticky = place.data("sticky", 0o1777);
    place.refused(&place.config(&sticky, ""), &["sticky (its mode is 1777)"]);
    let closed = place.data("closed", 0o700);
    plant(&closed.join("files"));
    place.refused(&place.config(&closed, ""), &["closed/files", "symbolic link"]);
    let theirs = place.data("theirs", 0o700);
    fs::DirBuilder::new().mode(0o777).create(theirs.join("apps")).unwrap();
    chown(theirs.join("apps"), USER, USER).unwrap();
    place.refused(&place.config(&theirs, ""), &["theirs/apps belongs to user 1000"]);
    let inside = place.data("inside", 0o700);
    fs::create_dir_all(inside.join("files/layers")).unwrap();
    chown(inside.join("files/layers"), USER, USER).unwrap();
    place.refused(&place.config(&inside, ""), &["inside/files/layers", "belongs to user 1000"]);

    // A link of theirs in a directory of theirs; a directory of root in one of theirs.
    let home = place.data("home", 0o755);
    plant(&home.join("data"));
    fs::create_dir(home.join("root")).unwrap();
    chown(&home, USER, USER).unwrap();
    for name in ["data", "root"] {
        place.refused(&place.config(&home.join(name), ""), &["home belongs to user 1000", "chown"]);
    }
    let run = place.data("run2", 0o777);
    place.refused(&other_config(&place.dir, &place.path("data"), &run, ""), &["run2 (its mode is 777)"]);

    assert_eq!(tree(&victim), before);
    assert_eq!(victim.metadata().unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn a_start_that_fails_takes_back_what_it_has_set_up() {
    let place = Place::new();
    // After keeper, network and store.
    let no_database = place.data("no-database", 0o700);
    fs::create_dir(no_database.join("torpor.db")).unwrap();
    place.refused(&place.config(&no_database, ""), &["torpor.db"]);
    // And after the database: nobody makes a socket there.
    let no_socket = place.data("no-socket", 0o700);
    place.refused(&place.config(&no_socket, "[api]\nsocket = '/proc/api.sock'\n"), &["/proc"]);
    assert!(no_socket.join("torpor.db").exists());
    let directory = place.data("directory", 0o700);
    fs::create_dir_all(place.path("api/api.sock/full")).unwrap();
    let socket = format!("[api]\nsocket = '{}'\n", place.path("api/api.sock").display());
    place.refused(&place.config(&directory, &socket), &["api.sock", "lies in the place of the socket", "remove it"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let token = place.path("token");
    fs::write(&token, "0123456789abcdef").unwrap();
    fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    let listen = taken.local_addr().unwrap();
    let tcp = format!("[api]\nlisten = '{listen}'\ntoken_file = '{}'\n", token.display());
    place.refused(&place.config(&place.path("no-port"), &tcp), &["cannot listen on"]);
}

#[test]
fn a_fifo_in_the_place_of_a_file_is_refused_and_not_waited_for() {
    let mut place = Place::new();
    let fifo = |path: &Path| {
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    };
    let regular = "not a regular file";
    let config = place.path("fifo.toml");
    fifo(&config);
    place.refused(&config, &["fifo.toml", regular]);
    let token = place.path("token");
    fifo(&token);
    let tcp = format!("[api]\nlisten = '127.0.0.1:0'\ntoken_file = '{}'\n", token.display());
    place.refused(&place.config(&place.path("data"), &tcp), &["token", regular]);
    let database = place.data("database", 0o700);
    fifo(&database.join("torpor.db"));
    place.refused(&place.config(&database, ""), &["torpor.db", regular]);
    fs::remove_file(database.join("torpor.db")).unwrap();
    for beside in ["torpor.db-journal", "torpor.db-wal", "torpor.db-shm"] {
        fifo(&database.join(beside));
        place.refused(&place.config(&database, ""), &[beside, regular]);
        fs::remove_file(database.join(beside)).unwrap();
    }
    let image = place.path("image");
    fifo(&image);
    let mut restore = Command::new("timeout");
    restore.args(["--signal=KILL", "60"]).arg(binary().unwrap()).arg("restore").arg("--image").arg(&place.dir);
    let output = restore.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(regular), "{:?}: {said}", output.status);

    // A daemon starts without it.
    let room = place.path("data/torpor.room");
    fs::remove_file(&room).unwrap();
    fifo(&room);
    place.daemon.up().unwrap();
    assert!(place.daemon.log().contains("torpor.room"), "{}", place.daemon.log());
    // What a daemon reads of each app.
    let tarball = native::program("ignorer", &[], &[]).unwrap().tarball;
    let tarball = tarball.to_str().unwrap();
    place.daemon.ok(&["run", "--name", "app", tarball, "--", "/bin/ignorer", "7003", "7004"]).unwrap();
    place.daemon.ok(&["stop", "app"]).unwrap();
    place.daemon.term().unwrap();
    let id = fs::read_dir(place.path("data/apps")).unwrap().next().unwrap().unwrap().file_name();
    for file in [place.path("data/apps").join(&id).join("past.json"), place.path("run/apps").join(&id).join("status")] {
        if file.exists() {
            fs::remove_file(&file).unwrap();
        }
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fifo(&file);
    }
    place.daemon.up().unwrap();
    place.daemon.wait_state("app", "stopped", PATIENCE).unwrap();
    place.daemon.ok(&["rm", "app"]).unwrap();
}

#[test]
fn a_plain_file_among_temporaries_keeps_no_daemon_from_starting() {
    let mut place = Place::new();
    let precious = place.path("data/files/tmp/precious");
    fs::write(&precious, "x").unwrap();
    place.daemon.up().unwrap();
    assert_eq!(fs::read_to_string(precious).unwrap(), "x");
}

#[test]
fn a_second_daemon_of_the_same_instance_is_refused() {
    let daemon = Daemon::start().unwrap();
    let dir = daemon.data_dir().parent().unwrap().to_owned();
    let dirs: [&Path; 1] = [&dir];
    let before = leftovers(&daemon.instance(), &dirs);
    let config = other_config(&dir, &dir.join("data2"), &dir.join("run2"), "");
    let output = up(&config);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    let (pid, data) = (daemon.pid().unwrap().to_string(), daemon.data_dir().display().to_string());
    for words in [&daemon.instance(), &pid, &data] {
        assert!(said.contains(words), "without {words:?}: {said}");
    }
    assert_eq!(leftovers(&daemon.instance(), &dirs), before);
    daemon.ok(&["ps"]).unwrap();
}

/// As [`other_config`], of another instance.
fn other_instance(dir: &Path, data_dir: &Path, run_dir: &Path, more: &str) -> (PathBuf, String) {
    let path = other_config(dir, data_dir, run_dir, more);
    let text = fs::read_to_string(&path).unwrap();
    let instance = text.split('\'').nth(1).unwrap().to_owned();
    let other = format!("{instance}x");
    fs::write(&path, text.replacen(&instance, &other, 1)).unwrap();
    (path, other)
}

#[test]
fn a_second_daemon_neither_takes_the_socket_nor_puts_the_first_down() {
    let daemon = Daemon::start().unwrap();
    let dir = daemon.data_dir().parent().unwrap().to_owned();
    let dirs: [&Path; 1] = [&dir];
    let before = leftovers(&daemon.instance(), &dirs);
    // By another path.
    symlink("run", dir.join("link")).unwrap();
    let socket = format!("[api]\nsocket = '{}'\n", dir.join("link/api.sock").display());
    let (config, other) = other_instance(&dir, &dir.join("data2"), &dir.join("run2"), &socket);
    let output = up(&config);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    let (pid, data) = (daemon.pid().unwrap().to_string(), daemon.data_dir().display().to_string());
    for words in ["link/api.sock", &pid, &data, "run_dir"] {
        assert!(said.contains(words), "without {words:?}: {said}");
    }
    let down = |config: &Path, words: &[&str]| {
        let output = daemon.cli(&["down", "--config", config.to_str().unwrap()]).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{said}");
        for words in words {
            assert!(said.contains(words), "without {words:?}: {said}");
        }
    };
    let both = [&*format!("`{}`", daemon.instance()), &*format!("`{other}`"), "nothing was done"];
    down(&config, &both);
    // With the run directory of the first.
    let (config, _) = other_instance(&dir, &dir.join("data2"), &dir.join("run"), "");
    down(&config, &both);
    daemon.ok(&["ps"]).unwrap();
    // One that does not answer is killed only by its own `down`.
    let process = rustix::process::Pid::from_raw(daemon.pid().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
    down(&config, &["does not answer", &pid, "left alone"]);
    rustix::process::kill_process(process, rustix::process::Signal::CONT).unwrap();
    daemon.ok(&["ps"]).unwrap();
    assert_eq!(leftovers(&daemon.instance(), &dirs), before);
}

#[test]
fn a_socket_of_another_user_gets_nothing() {
    let place = Place::new();
    let shared = place.data("shared", 0o1777);
    let socket = shared.join("api.sock");
    let mut python = programs::python("listen_as_nobody.py");
    let mut foreign = python.arg(&socket).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(foreign.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "up");
    fs::write(place.path("app.toml"), "name = 'x'\n[env]\nSECRET = 'hunter2'\n[source.tarball]\npath = '/x.tar'\n")
        .unwrap();
    let spec = place.path("app.toml");
    for args in [&["run", "-f", spec.to_str().unwrap()][..], &["ps"]] {
        let output = place.daemon.cli(&[&["--socket", socket.to_str().unwrap()], args].concat()).unwrap();
        let refused = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && refused.contains("user 65534 listens at"), "{refused}");
        // Each connection ends without a byte.
        assert_eq!(said.next().unwrap().unwrap(), "b''");
    }
    // Those of root go on without it, and a start replaces it.
    let config = place.config(&place.path("data"), &format!("[api]\nsocket = '{}'\n", socket.display()));
    let config = config.to_str().unwrap();
    place.daemon.ok(&["doctor", "--config", config]).unwrap();
    place.daemon.ok(&["down", "--config", config]).unwrap();
    foreign.kill().unwrap();
    foreign.wait().unwrap();
}
