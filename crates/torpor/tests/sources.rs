//! Where an app's files come from, end to end: tarballs over base images, layouts, archives, a registry; and hostile ones.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod layout;
mod python;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use layout::Layout;
use python::{PATIENCE, append, names, said};
use serde_json::{Value, json};
use tempfile::TempDir;
use torpor_testkit::client::Session as _;
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native::{self, LineSession};
use torpor_testkit::programs;
use torpor_testkit::skip;
use torpor_testkit::wait::eventually_ok;

/// The image's own settings; user 33 is `web`, and `SIGUSR1` ends the program.
fn settings() -> Value {
    json!({
        "Entrypoint": ["/bin/ignorer"], "Cmd": ["7003", "7004"], "Env": ["FROM=image", "BOTH=image"],
        "User": "web", "WorkingDir": "/srv", "StopSignal": "SIGUSR1",
    })
}

/// The program in one layer, users and a directory in the next, which also takes a file away.
fn layers() -> [Vec<u8>; 2] {
    let mut lower = tar::Builder::new(Vec::new());
    append(&mut lower, "bin/ignorer", &fs::read(native::executable("ignorer").unwrap()).unwrap());
    append(&mut lower, "etc/taken", b"away");
    let mut upper = tar::Builder::new(Vec::new());
    append(&mut upper, "etc/passwd", b"root:x:0:0::/:\nweb:x:33:34::/srv:\n");
    append(&mut upper, "srv/file", b"by the image");
    append(&mut upper, "etc/.wh.taken", b"");
    [lower.into_inner().unwrap(), upper.into_inner().unwrap()]
}

fn skopeo(args: &[&str]) {
    let output = Command::new("skopeo").args(["--insecure-policy", "copy", "--quiet"]).args(args).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

/// `skopeo` and `docker-registry`, installed where that is possible; what is wrong where it is not.
fn ready() -> Result<(), String> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one = INSTALLING.lock().unwrap();
    let installed =
        |program: &str| Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let missing = || ["docker-registry", "skopeo"].into_iter().filter(|program| installed(program).is_err());
    if missing().next().is_none() {
        return Ok(());
    }
    // Run level 1: the package must not start its service.
    let mut install = Command::new("apt-get");
    install.args(["install", "-y", "--no-install-recommends"]).args(missing());
    let output = install.env("RUNLEVEL", "1").env("DEBIAN_FRONTEND", "noninteractive").output();
    missing().next().map_or(Ok(()), |program| Err(format!("{program} cannot be installed: {output:?}")))
}

/// A real registry on a free port of loopback.
struct Registry {
    process: Child,
    address: String,
}

impl Registry {
    fn start(place: &Path) -> Self {
        let config = json!({
            "version": "0.1", "log": {"level": "info", "formatter": "text"},
            "storage": {"filesystem": {"rootdirectory": place.join("registry")}}, "http": {"addr": "127.0.0.1:0"},
        });
        let path = place.join("registry.yml");
        // JSON is YAML.
        fs::write(&path, config.to_string()).unwrap();
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(path).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.contains("listening on")).expect("the registry starts");
        let address = line.split("listening on ").nth(1).unwrap().split('"').next().unwrap().to_owned();
        // It must not block on its log.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, address }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.process.kill().expect("it was not waited for yet");
        self.process.wait().unwrap();
    }
}

/// The app's process as the machine sees it.
struct Process {
    command: Vec<String>,
    env: Vec<String>,
    ids: [u32; 2],
    directory: String,
}

fn process(daemon: &Daemon, app: &str) -> Process {
    let detail = daemon.json(&["inspect", app]).unwrap();
    let pid = &detail["status"]["pid"];
    let words = |file: &str| -> Vec<String> {
        let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_else(|error| panic!("{error}: {detail}"));
        let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    };
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let id = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.split_ascii_whitespace().next().unwrap().parse::<u32>().unwrap() % 65536
    };
    let link = fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
    Process {
        command: words("cmdline"),
        env: words("environ"),
        ids: [id("Uid:"), id("Gid:")],
        directory: link.to_string_lossy().into_owned(),
    }
}

/// Checks that an app runs as the image says, answers, sleeps and wakes.
fn check_defaults(daemon: &mut Daemon, app: &str, source: &[&str]) {
    let port = daemon.port().unwrap();
    let publish = format!("{port}:7004");
    let mut line = vec!["run", "--name", app, "-p", &publish, "-e", "BOTH=user"];
    line.extend(source);
    daemon.ok(&line).unwrap();
    let address = ([127, 0, 0, 1], port).into();
    let mut session = eventually_ok("it answers", PATIENCE, || LineSession::open(address)).unwrap();
    let process = process(daemon, app);
    assert_eq!(process.command, ["/bin/ignorer", "7003", "7004"], "{source:?}");
    assert_eq!((process.ids, process.directory.as_str()), ([33, 34], "/srv"), "{source:?}");
    for setting in ["FROM=image", "BOTH=user"] {
        assert!(process.env.iter().any(|found| found == setting), "{source:?}: {:?}", process.env);
    }
    assert!(!process.env.iter().any(|found| found == "BOTH=image"), "{:?}", process.env);
    eventually_ok("it sleeps", PATIENCE, || daemon.ok(&["sleep", app])).unwrap();
    session.step().unwrap();
    daemon.ok(&["stop", app]).unwrap();
    let exit = daemon.json(&["inspect", app]).unwrap()["status"]["last_exit"].clone();
    assert_eq!(exit["signal"], 10, "{source:?} is not stopped by SIGUSR1: {exit}");
}

fn unpacked(daemon: &Daemon) -> Vec<String> {
    ["layers", "images", "tmp"].iter().flat_map(|name| names(&daemon.data_dir().join("files").join(name))).collect()
}

#[test]
fn layouts_archives_and_registries_run_with_the_images_defaults() {
    if let Err(why) = ready() {
        skip!("{why}");
    }
    let place = TempDir::new().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    Layout::write(&place.path().join("layout"), "v1", &layers(), &settings());
    skopeo(&[&format!("oci:{}:v1", path("layout")), &format!("docker-archive:{}:demo:v1", path("saved.tar"))]);
    let registry = Registry::start(place.path());
    let reference = format!("{}/team/demo:1", registry.address);
    skopeo(&["--dest-tls-verify=false", &format!("oci:{}:v1", path("layout")), &format!("docker://{reference}")]);

    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n", &[]).unwrap();
    check_defaults(&mut daemon, "detected", &[&path("layout")]);
    check_defaults(&mut daemon, "layout", &["--oci-layout", &format!("{}:v1", path("layout"))]);
    check_defaults(&mut daemon, "archive", &["--docker-archive", &path("saved.tar")]);
    check_defaults(&mut daemon, "tagged", &[&format!("docker-archive:{}:demo:v1", path("saved.tar"))]);
    check_defaults(&mut daemon, "registry", &[&reference]);
    daemon.ok(&["images", "pull", &reference, "--name", "pulled"]).unwrap();
    check_defaults(&mut daemon, "stored", &["pulled"]);

    // All of them share their layers.
    let layers = |app: &str| daemon.json(&["inspect", app]).unwrap()["layers"].clone();
    assert_eq!(layers("detected").as_array().unwrap().len(), 2);
    for app in ["layout", "archive", "tagged", "registry", "stored"] {
        assert_eq!(layers(app), layers("detected"), "{app}");
    }
    assert_eq!(names(&daemon.data_dir().join("files/layers")).len(), 2);

    // What the user says goes before what the image says.
    let words = ["run", "--name", "own", "--user", "5:6", "-w", "/", "--restart", "no", "pulled", "--"];
    daemon.ok(&[words.as_slice(), &["/bin/ignorer", "1", "2"]].concat()).unwrap();
    let own = process(&daemon, "own");
    assert_eq!((own.command.join(" ").as_str(), own.ids, own.directory.as_str()), ("/bin/ignorer 1 2", [5, 6], "/"));

    // A name that an app uses stays; layers go with their last user.
    let refused = daemon.cli(&["images", "rm", "pulled"]).unwrap();
    assert_eq!(refused.status.code(), Some(4), "{}", said(&refused));
    assert!(said(&refused).contains("used by") && said(&refused).contains("own, stored"), "{}", said(&refused));
    let listed = daemon.json(&["images"]).unwrap();
    let pulled = listed.as_array().unwrap().iter().find(|image| image["name"] == "pulled").unwrap();
    assert_eq!(pulled["layers"], 2, "{listed}");
    assert!(daemon.ok(&["images", "ls"]).unwrap().contains("pulled"));
    daemon.ok(&["rm", "-f", "own", "stored", "registry", "tagged", "archive", "layout", "detected"]).unwrap();
    assert_eq!(names(&daemon.data_dir().join("files/layers")).len(), 2, "the name keeps its layers");
    daemon.ok(&["images", "rm", "pulled"]).unwrap();
    assert_eq!(daemon.json(&["images"]).unwrap(), json!([]));
    assert_eq!(unpacked(&daemon), [""; 0]);
    assert_eq!(names(&daemon.data_dir().join("apps")), [""; 0]);
    let gone = daemon.cli(&["images", "rm", "pulled"]).unwrap();
    assert_eq!(gone.status.code(), Some(3), "{}", said(&gone));

    let missing = daemon.cli(&["run", "--name", "none", &format!("{}/team/none:1", registry.address)]).unwrap();
    assert!(!missing.status.success() && said(&missing).contains("team/none:1"), "{}", said(&missing));
    drop(registry);
    let away = daemon.cli(&["run", "--name", "none", &reference]).unwrap();
    assert!(!away.status.success() && said(&away).contains(&reference), "{}", said(&away));
    assert_eq!(daemon.json(&["ps"]).unwrap(), json!([]));
}

#[test]
fn a_tarball_lies_on_top_of_a_named_base_image() {
    let place = python::Place::with("[idle]\nsleep = false\n");
    // One file of the base, and one of the tarball.
    place.run("over", "list_directory.py /srv /programs/list_directory.py", &[]);
    let log = place.wait_log("over", "[");
    assert!(log.contains("'counter.py'") && log.contains("True"), "{log}");
    let layers = place.daemon.json(&["inspect", "over"]).unwrap()["layers"].clone();
    assert_eq!(layers.as_array().unwrap().len(), 2, "{layers}");
    let images = place.daemon.json(&["images"]).unwrap();
    let base = images.as_array().unwrap().iter().find(|image| image["name"] == "python").unwrap().clone();
    assert_eq!(base["used_by"], json!(["over"]), "{images}");
    // Compressed ones, and a base that is not there.
    let tarball = place.path("zipped.tar");
    fs::copy(programs::tarball().unwrap(), &tarball).unwrap();
    let zipped = Command::new("gzip").arg(&tarball).status().unwrap();
    assert!(zipped.success());
    let zipped = format!("{}.gz", tarball.display());
    place
        .daemon
        .ok(&["run", "--base", "python", &zipped, "--", "/usr/bin/python3", "-u", "/programs/idle.py"])
        .unwrap();
    place.wait_log("zipped", "up");
    let text = place.refused(&["run", "--name", "baseless", "--base", "nothing", &zipped, "--", "/bin/x"], 3);
    assert!(text.contains("nothing") && text.contains("baseless"), "{text}");
    place.daemon.ok(&["rm", "-f", "over", "zipped"]).unwrap();
    assert_eq!(names(&place.daemon.data_dir().join("files/layers")).len(), 1, "only the base stays");
}

/// A tarball with one member of a kind and a link.
fn member(path: &[u8], kind: u8, link: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    let gnu = header.as_gnu_mut().unwrap();
    gnu.name[..path.len()].copy_from_slice(path);
    gnu.linkname[..link.len()].copy_from_slice(link);
    gnu.typeflag = [kind];
    header.set_mode(0o644);
    header.set_size(0);
    header.set_cksum();
    header.as_bytes().to_vec()
}

fn ended(mut members: Vec<u8>) -> Vec<u8> {
    members.extend([0; 1024]);
    members
}

#[test]
fn broken_and_hostile_files_are_refused_and_leave_nothing() {
    let daemon = Daemon::start().unwrap();
    let place = TempDir::new().unwrap();
    let mut cut = fs::read(native::program("ignorer", &[], &[]).unwrap().tarball).unwrap();
    cut.truncate(cut.len() / 2);
    let mut checksum = ended(member(b"file", b'0', b""));
    checksum[0] ^= 1;
    let through = [member(b"out", b'2', b"/tmp"), member(b"out/../../x", b'0', b"")].concat();
    let target = place.path().join("target");
    fs::create_dir(&target).unwrap();
    let escape = [member(b"out", b'2', target.to_str().unwrap().as_bytes()), member(b"out/made", b'0', b"")].concat();
    let hostile: [(&str, Vec<u8>, &str); 8] = [
        ("empty", Vec::new(), ""),
        ("noise", vec![7; 5000], ""),
        ("cut", cut, ""),
        ("checksum", checksum, ""),
        ("dots", ended(member(b"../../dots", b'0', b"")), "../../dots"),
        ("through", ended(through), "out/../../x"),
        ("hard", ended(member(b"hard", b'1', b"../../../etc/passwd")), "hard"),
        ("device", ended(member(b"srv/disk", b'4', b"")), "srv/disk"),
    ];
    for (name, data, words) in hostile {
        let path = place.path().join(format!("{name}.tar"));
        fs::write(&path, data).unwrap();
        let output = daemon.cli(&["run", "--name", name, path.to_str().unwrap(), "--", "/bin/true"]).unwrap();
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{name}: {text}");
        assert!(text.contains(&format!("app `{name}` was not made")) && text.contains(words), "{name}: {text}");
        let stored = daemon.cli(&["images", "load", name, path.to_str().unwrap()]).unwrap();
        assert_eq!(stored.status.code(), Some(2), "{name}: {}", said(&stored));
        nothing_left(&daemon, name);
    }
    // A link out of the tree leads nowhere outside: what is unpacked through it stays inside, or is refused.
    let path = place.path().join("escape.tar");
    fs::write(&path, ended(escape)).unwrap();
    let _either = daemon.cli(&["run", "--name", "escape", path.to_str().unwrap(), "--", "/bin/true"]).unwrap();
    assert_eq!(names(&target), [""; 0]);
    let _gone = daemon.cli(&["rm", "-f", "escape"]).unwrap();
    nothing_left(&daemon, "escape");

    for (source, words) in [
        ("tar:/nonexistent.tar", "/nonexistent.tar"),
        ("oci:/nonexistent", "/nonexistent"),
        ("image:nothing", "nothing"),
        ("docker-archive:/dev/null", "/dev/null"),
    ] {
        let output = daemon.cli(&["run", "--name", "none", source, "--", "/bin/true"]).unwrap();
        assert!(!output.status.success() && said(&output).contains(words), "{source}: {}", said(&output));
        nothing_left(&daemon, source);
    }
    // The files are right, but the program is not there, or there is none.
    let tarball = native::program("ignorer", &[], &[]).unwrap().tarball;
    for command in [&["--", "/bin/none"][..], &["--", "/etc/passwd"], &[]] {
        let mut line = vec!["run", "--name", "none", tarball.to_str().unwrap()];
        line.extend(command);
        let output = daemon.cli(&line).unwrap();
        assert!(!output.status.success() && said(&output).contains("app `none` was not made"), "{}", said(&output));
        nothing_left(&daemon, "a program that is not there");
    }
}

#[test]
fn a_layout_with_a_wrong_digest_is_refused() {
    let daemon = Daemon::start().unwrap();
    let place = TempDir::new().unwrap();
    let root = place.path().join("layout");
    let blobs = Layout::write(&root, "v1", &layers(), &settings());
    let mut flipped = fs::read(&blobs[1]).unwrap();
    flipped[300] ^= 1;
    fs::write(&blobs[1], flipped).unwrap();
    let output = daemon.cli(&["run", "--name", "bad", "--oci-layout", root.to_str().unwrap()]).unwrap();
    let text = said(&output);
    assert!(output.status.code() == Some(2) && text.contains("sha256:") && text.contains("`bad`"), "{text}");
    let wrong = daemon.cli(&["run", "--name", "bad", "--oci-layout", &format!("{}:v2", root.display())]).unwrap();
    assert!(said(&wrong).contains("v2"), "{}", said(&wrong));
    assert_eq!(daemon.json(&["ps"]).unwrap(), json!([]));
    assert_eq!(names(&daemon.data_dir().join("files/images")), [""; 0]);
}

fn nothing_left(daemon: &Daemon, what: &str) {
    assert_eq!(daemon.json(&["ps"]).unwrap(), json!([]), "{what}");
    assert_eq!(names(&daemon.data_dir().join("apps")), [""; 0], "{what}");
    assert_eq!(unpacked(daemon), [""; 0], "{what}");
}
