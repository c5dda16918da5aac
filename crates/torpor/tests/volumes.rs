//! Directories of the machine inside apps: what happens there wakes, who owns what, what may not be written.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod python;
mod support;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

use python::{PATIENCE, Place, said};
use torpor_testkit::programs;
use torpor_testkit::wait::eventually;

const SOCKET: &str = "count_unix_connections.py";

fn ask(path: &std::path::Path, line: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(line.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_connection_to_a_unix_socket_on_a_volume_wakes() {
    let place = Place::with("[idle]\nsleep = false\n");
    let data = place.directory("data");
    place.run("unix", SOCKET, &["-v", &format!("{}:/data", data.display())]);
    place.wait_log("unix", "listening");
    let socket = data.join("app.sock");
    for round in 1..=5 {
        place.sleep("unix");
        let before = place.wakes("unix");
        assert_eq!(ask(&socket, "hello"), format!("{round} hello"));
        assert_eq!(place.wakes("unix"), before + 1);
    }
    let explain = place.daemon.ok(&["explain", "unix"]).unwrap();
    assert!(explain.contains("unix"), "{explain}");
    // An open connection on which data comes later.
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    eventually("it has accepted", PATIENCE, || {
        place.sleep("unix");
        std::thread::sleep(std::time::Duration::from_millis(300));
        place.daemon.state("unix").unwrap() == "dozing"
    })
    .unwrap();
    stream.write_all(b"later").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(text, "6 later");
}

#[test]
fn a_file_made_in_a_watched_directory_wakes() {
    let place = Place::with("[idle]\nsleep = false\n");
    let data = place.directory("data");
    place.run("watch", "watch_directory.py", &["-v", &format!("{}:/data", data.display())]);
    place.wait_log("watch", "watching");
    for round in 0..5 {
        place.sleep("watch");
        let before = place.wakes("watch");
        fs::write(data.join(format!("file{round}")), "x").unwrap();
        place.wait_log("watch", &format!("written file{round}"));
        assert_eq!(place.wakes("watch"), before + 1);
    }
    let log = place.daemon.ok(&["logs", "watch"]).unwrap();
    assert_eq!(log.matches("made file").count(), 5, "{log}");
    // Beside the watched directory nothing happens to it.
    place.sleep("watch");
    let before = place.wakes("watch");
    fs::create_dir(place.path("other")).unwrap();
    place.write("other/file", "x");
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!((place.daemon.state("watch").unwrap().as_str(), place.wakes("watch")), ("dozing", before));
}

#[test]
fn volumes_and_tmpfs_have_the_configured_access_and_owners() {
    let place = Place::with("[idle]\nsleep = false\n");
    for (app, userns) in [("ranged", true), ("plain", false)] {
        let data = place.directory(&format!("{app}-data"));
        fs::set_permissions(&data, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let read_only = place.directory(&format!("{app}-ro"));
        place.write(&format!("{app}-ro/given"), "by the machine");
        let volumes = [format!("{}:/data", data.display()), format!("{}:/ro:ro", read_only.display())];
        let mut args = vec!["-v", &volumes[0], "-v", &volumes[1], "--tmpfs", "/scratch:1M"];
        if !userns {
            args.push("--no-userns");
        }
        place.run(app, "write_to_mounts.py", &args);
        let log = place.wait_log(app, "done");
        for line in [
            "volume written 0 0",
            "readonly Read-only file system",
            "root written 0 0",
            "tmpfs written 0 0",
            "given by the machine",
            "filled 1",
            "No space left on device",
            "other written 33 33",
        ] {
            assert!(log.contains(line), "{app}: no {line:?} in {log}");
        }
        // User N of the app is user N on a volume, either way.
        let owner = |path: &std::path::Path| fs::metadata(path).map(|data| (data.uid(), data.gid())).unwrap();
        assert_eq!(owner(&data.join("file")), (0, 0), "{app}");
        assert_eq!(owner(&data.join("other")), (33, 33), "{app}");
        assert!(!read_only.join("file").exists());
        // And in its own files and for the machine's eyes, a user of its own.
        let detail = place.daemon.json(&["inspect", app]).unwrap();
        let id = detail["status"]["id"].as_str().unwrap();
        let own = owner(&place.daemon.data_dir().join("apps").join(id).join("upper/srv/file")).0;
        let process = fs::metadata(format!("/proc/{}", detail["status"]["pid"])).unwrap().uid();
        if userns {
            assert!(own >= 1 << 20 && own % 65536 == 0, "{own}");
            assert_eq!(process, own + 33);
            assert!(!log.contains("'4294967295'"), "{log}");
        } else {
            assert_eq!((own, process), (0, 33));
            assert!(log.contains("done ['0', '0', '4294967295']"), "{log}");
        }
        // Memory file systems stay over a sleep.
        place.sleep(app);
        assert_eq!(place.daemon.ok(&["exec", app, "--", "/bin/cat", "/scratch/file"]).unwrap(), "xxxxxxxxxx");
    }
}

#[test]
fn a_volume_that_is_not_there_is_refused_and_nothing_is_left() {
    let place = Place::new();
    for (volume, words) in [
        ("/nonexistent/dir:/data".to_owned(), "/nonexistent/dir"),
        ("relative:/data".to_owned(), "relative"),
        (format!("{}:data", place.path("").display()), "absolute"),
        (format!("{}:/proc", place.path("").display()), "/proc"),
    ] {
        let output = place.try_run("none", SOCKET, &["-v", &volume]);
        let text = said(&output);
        assert!(!output.status.success() && text.contains(words), "{volume}: {text}");
        assert_eq!(place.daemon.json(&["ps"]).unwrap(), serde_json::json!([]), "{volume}");
        assert_eq!(python::names(&place.daemon.data_dir().join("apps")), [""; 0], "{volume}");
    }
    // A file, and what it holds when it is changed.
    let file = place.write("given", "one");
    let volume = format!("{}:/etc/given:ro", file.display());
    place.run("file", "idle.py --print /etc/given", &["-v", &volume]);
    place.wait_log("file", "one");
}

/// Memory is not put onto files that have changed: it keeps its image, says why, and waits for its owner.
#[test]
fn an_app_whose_files_have_changed_is_wake_blocked_and_not_retried() {
    let place = Place::with("[idle]\nsleep = false\ntimers_over = '100d'\n");
    let data = place.directory("data");
    let file = data.join("held");
    fs::write(&file, "held").unwrap();
    place.run("holder", "map_file.py --keep-descriptor", &["-v", &format!("{}:/data", data.display())]);
    place.wait_log("holder", "holding");
    let warm = || place.daemon.cli(&["sleep", "holder", "--level", "warm"]).unwrap().status.success();
    eventually("it goes warm", PATIENCE, warm).unwrap();
    fs::write(&file, "changed since then").unwrap();
    for _ in 0..2 {
        let output = place.daemon.cli(&["wake", "holder"]).unwrap();
        let text = said(&output);
        assert!(!output.status.success() && text.contains("has changed") && text.contains("torpor restart"), "{text}");
        assert_eq!(place.daemon.state("holder").unwrap(), "wake-blocked");
    }
    let explain = place.daemon.ok(&["explain", "holder"]).unwrap();
    assert!(explain.contains("has changed") && explain.contains("torpor restart"), "{explain}");
    assert_eq!(place.daemon.json(&["explain", "holder"]).unwrap()["wakes_at"], serde_json::Value::Null);
    place.daemon.ok(&["restart", "holder"]).unwrap();
    assert_eq!(place.daemon.state("holder").unwrap(), "running");
}

/// An app that maps a file of a volume, and where it answers.
struct Mapped {
    place: Place,
    file: std::path::PathBuf,
    address: String,
}

impl Mapped {
    fn new(args: &[&str]) -> Self {
        let place = Place::with("[idle]\nsleep = false\ntimers_over = '100d'\n");
        let data = place.directory("data");
        let file = data.join("held");
        fs::write(&file, vec![1; 100_000]).unwrap();
        let volume = format!("{}:/data", data.display());
        place.run("mapped", "map_file.py", &[&["-v", &volume], args].concat());
        place.wait_log("mapped", "holding");
        let status = place.daemon.json(&["ps"]).unwrap();
        let address = status[0]["addresses"][0].as_str().unwrap();
        let address = format!("{address}:80");
        Self { place, file, address }
    }

    fn warm(&self) {
        let warm = || self.place.daemon.cli(&["sleep", "mapped", "--level", "warm"]).unwrap().status.success();
        eventually("it goes warm", PATIENCE, warm).unwrap();
    }

    fn connect(&self) -> std::net::TcpStream {
        let stream = std::net::TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// All that it answers; `None` if the connection is reset or closed without a word.
    fn answer(mut stream: std::net::TcpStream) -> Option<String> {
        let mut text = String::new();
        match stream.read_to_string(&mut text) {
            Ok(_) => Some(text).filter(|text| !text.is_empty()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn event(&self, kind: &str) -> bool {
        self.place.daemon.ok(&["events", "--app", "mapped"]).unwrap().contains(kind)
    }
}

#[test]
fn a_mapped_file_that_was_touched_or_replaced_by_its_like_is_the_same() {
    let app = Mapped::new(&[]);
    app.warm();
    fs::File::open(&app.file).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(Mapped::answer(app.connect()).unwrap(), "1 7");
    app.warm();
    let copy = app.file.with_extension("copy");
    fs::copy(&app.file, &copy).unwrap();
    fs::rename(&copy, &app.file).unwrap();
    assert_eq!(Mapped::answer(app.connect()).unwrap(), "1 8", "its memory is what it was");
    assert_eq!(app.place.daemon.state("mapped").unwrap(), "running");
}

#[test]
fn clients_of_an_app_that_cannot_be_woken_are_turned_away() {
    let app = Mapped::new(&[]);
    app.warm();
    let mut other = vec![1; 100_000];
    *other.last_mut().unwrap() = 9;
    let old = fs::read(&app.file).unwrap();
    let modified = fs::metadata(&app.file).unwrap().modified().unwrap();
    fs::write(&app.file, other).unwrap();
    for _ in 0..3 {
        assert_eq!(Mapped::answer(app.connect()), None, "nobody waits");
    }
    assert_eq!(app.place.daemon.state("mapped").unwrap(), "wake-blocked");
    let explain = app.place.daemon.ok(&["explain", "mapped"]).unwrap();
    assert!(explain.contains("has been written to") && explain.contains("connections to it are closed"), "{explain}");
    assert!(app.event("wake-refused"));
    // Put right, by contents alone.
    fs::write(&app.file, old).unwrap();
    assert_ne!(fs::metadata(&app.file).unwrap().modified().unwrap(), modified);
    app.place.daemon.ok(&["wake", "mapped"]).unwrap();
    assert_eq!(Mapped::answer(app.connect()).unwrap(), "1 7", "with the memory that it had");
}

#[test]
fn an_app_that_cannot_be_woken_is_started_afresh_where_that_is_the_policy() {
    let app = Mapped::new(&["--wake-blocked", "restart"]);
    assert_eq!(Mapped::answer(app.connect()).unwrap(), "1 7");
    app.warm();
    fs::write(&app.file, vec![5; 100_000]).unwrap();
    drop(app.connect());
    app.place.wait_text(&["events", "--app", "mapped"], "given-up");
    eventually("it runs again", PATIENCE, || app.place.daemon.state("mapped").unwrap() == "running").unwrap();
    eventually("it answers afresh", PATIENCE, || {
        std::net::TcpStream::connect(&app.address)
            .is_ok_and(|stream| Mapped::answer(stream).is_some_and(|text| text == "5 7"))
    })
    .unwrap();
}

#[test]
fn nested_mounts_are_made_in_any_order_and_restored_after_a_reboot() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let [outer, inner, deep, own, back] = ["outer", "inner", "deep", "own", "back"].map(|name| place.directory(name));
    fs::create_dir(outer.join("own")).unwrap();
    let volumes =
        [(&deep, "/m/in/deep/er"), (&back, "/m/mem/back"), (&own, "/m/own"), (&inner, "/m/in"), (&outer, "/m")];
    let volumes = volumes.map(|(host, inside)| format!("{}:{inside}", host.display()));
    let mut flags: Vec<&str> = volumes.iter().flat_map(|volume| ["-v", volume]).collect();
    flags.extend(["--tmpfs", "/m/mem"]);
    let program = "make_file_in_mounts.py /m/in /m/in/deep/er /m/own /m/mem /m/mem/back";
    place.run("nested", program, &flags);
    place.wait_log("nested", "done");
    for directory in [&inner, &deep, &own, &back] {
        assert!(directory.join("made").is_file(), "{}", directory.display());
    }
    // What was missing was made as the app's root, which is the machine's in a volume.
    for made in [outer.join("in"), inner.join("deep"), inner.join("deep/er"), outer.join("mem")] {
        let metadata = fs::symlink_metadata(&made).unwrap();
        assert!(metadata.is_dir() && (metadata.uid(), metadata.gid()) == (0, 0), "{}", made.display());
        assert!(!made.join("made").exists(), "{}", made.display());
    }
    support::warm(&place.daemon, "nested");
    place.daemon.power_off().unwrap();
    place.daemon.up().unwrap();
    place.daemon.ok(&["wake", "nested"]).unwrap();
    let read = ["exec", "nested", "--", "/bin/cat", "/m/in/deep/er/made", "/m/mem/made", "/m/mem/back/made"];
    assert_eq!(place.daemon.ok(&read).unwrap(), "/m/in/deep/er/m/mem/m/mem/back");
}

/// Whoever has a lease of a file that an app maps delays its wake, and takes nothing from it.
#[test]
fn a_lease_of_a_mapped_file_delays_the_wake_and_loses_no_memory() {
    for policy in ["restart", "wait"] {
        let app = Mapped::new(&["--wake-blocked", policy]);
        assert_eq!(Mapped::answer(app.connect()).unwrap(), "1 7");
        app.warm();
        let mut lessee = programs::python("take_lease.py");
        let mut lessee = lessee.arg(&app.file).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut said = [0; 7];
        lessee.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        let client = app.connect();
        eventually("a wake fails", PATIENCE, || app.event("wake-failed")).unwrap();
        lessee.kill().unwrap();
        lessee.wait().unwrap();
        assert_eq!(Mapped::answer(client).unwrap(), "1 8", "{policy}: its memory is what it was");
    }
}

struct Locker {
    place: Place,
    file: std::path::PathBuf,
    address: String,
}

impl Locker {
    fn new() -> Self {
        let place = Place::with("[idle]\nsleep = false\ntimers_over = '100d'\n");
        let data = place.directory("data");
        fs::set_permissions(&data, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        place.run("locker", "lock_files.py", &["-v", &format!("{}:/data", data.display())]);
        place.wait_log("locker", "listening");
        let status = place.daemon.json(&["ps"]).unwrap();
        let address = format!("{}:80", status[0]["addresses"][0].as_str().unwrap());
        Self { file: data.join("file"), place, address }
    }

    fn tell(&self, order: &str) {
        let mut client = std::net::TcpStream::connect(&self.address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(order.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "done", "{order}");
    }

    fn warm(&self) -> std::process::Output {
        self.place.daemon.cli(&["sleep", "locker", "--level", "warm"]).unwrap()
    }
}

/// A POSIX lock goes with its process: others would get it while the app is warm.
#[test]
fn an_app_that_has_locked_a_file_of_a_volume_by_fcntl_stays_dozing() {
    let app = Locker::new();
    app.tell("posix own on");
    eventually("it goes warm", PATIENCE, || app.warm().status.success()).unwrap();
    app.tell("posix volume on");
    let is_refused = || said(&app.warm()).contains("/data/file is locked (fcntl)");
    eventually("going warm is refused", PATIENCE, is_refused).unwrap();
    assert_eq!(app.place.daemon.state("locker").unwrap(), "dozing");
    let explain = app.place.daemon.ok(&["explain", "locker"]).unwrap();
    assert!(explain.contains("locked (fcntl)"), "{explain}");
    app.tell("posix volume off");
    eventually("it goes warm", PATIENCE, || app.warm().status.success()).unwrap();
}

#[test]
fn no_other_process_gets_a_flock_while_its_app_wakes() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let app = Locker::new();
    app.tell("flock volume on");
    let (done, other) = (AtomicBool::new(false), fs::File::open(&app.file).unwrap());
    std::thread::scope(|scope| {
        let polling = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if rustix::fs::flock(&other, rustix::fs::FlockOperation::NonBlockingLockShared).is_ok() {
                    return true;
                }
            }
            false
        });
        for _ in 0..20 {
            eventually("it goes warm", PATIENCE, || app.warm().status.success()).unwrap();
            app.place.daemon.ok(&["wake", "locker"]).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        assert!(!polling.join().unwrap(), "another has got the lock");
    });
    app.tell("flock volume on");
}
