//! What an app sees and may do: its own processes, files and network, and nothing of its neighbours or the machine.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod python;

use python::{PATIENCE, Place, said};
use serde_json::{Value, json};
use torpor_testkit::wait::eventually_ok;

/// Greets each connection to its TCP port 80.
const SERVER: &str = "hello.py";

/// What a program prints in an app.
fn inside(place: &Place, app: &str, program: &str) -> String {
    let command = place.program_line(program);
    let output =
        place.daemon.cli(&[&["exec".to_owned(), app.to_owned(), "--".to_owned()], &command[..]].concat()).unwrap();
    assert!(output.status.success(), "{app}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn addresses(place: &Place, app: &str) -> Vec<String> {
    let detail = place.daemon.json(&["inspect", app]).unwrap();
    let all = detail["status"]["addresses"].as_array().unwrap();
    all.iter().map(|address| address.as_str().unwrap().to_owned()).collect()
}

/// What an address answers to an app, or the error.
fn ask(place: &Place, app: &str, address: &str, port: u16) -> String {
    inside(place, app, &format!("attempt.py connect {address} {port}"))
}

#[test]
fn neighbours_do_not_see_each_other_but_through_published_ports_and_shared_networks() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let port = place.daemon.port().unwrap();
    let publish = format!("{port}:80");
    place.run("server", SERVER, &["-p", &publish, "--network", "friends"]);
    place.run("friend", SERVER, &["--network", "friends"]);
    place.run("stranger", SERVER, &[]);
    place.run("hermit", SERVER, &["--no-outgoing"]);
    for app in ["server", "friend", "stranger", "hermit"] {
        place.wait_log(app, "up");
    }
    let server = addresses(&place, "server");
    assert_eq!(server.len(), 2, "{server:?}");
    for address in &server {
        assert_eq!(ask(&place, "friend", address, 80), "ok hello", "{address}");
        let stranger = ask(&place, "stranger", address, 80);
        assert!(!stranger.starts_with("ok"), "{address}: {stranger}");
    }
    // A neighbour that sleeps is woken by its friend.
    place.sleep("server");
    assert_eq!(ask(&place, "friend", &server[0], 80), "ok hello");
    // The machine's own ports, as its published ones, from the machine and from a stranger.
    let published = || std::net::TcpStream::connect(("127.0.0.1", port));
    eventually_ok("it answers", PATIENCE, published).unwrap();
    let gateway = "169.254.1.1";
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    let _reached_or_not = ask(&place, "stranger", gateway, own);
    let hermit = ask(&place, "hermit", gateway, own);
    assert!(!hermit.starts_with("ok"), "{hermit}");
    let ports: Vec<_> = ["friend", "stranger"].iter().map(|app| addresses(&place, app)).collect();
    assert_ne!(ports[0], ports[1]);
}

#[test]
fn an_app_sees_its_own_processes_and_files_and_little_of_the_kernel() {
    let place = Place::with("[idle]\nsleep = false\n");
    place.run("app", SERVER, &["--hostname", "inner"]);
    place.run(
        "other",
        SERVER,
        &["--no-new-privs", "--cap-drop", "ALL", "--cap-add", "NET_BIND_SERVICE", "--read-only"],
    );
    for app in ["app", "other"] {
        place.wait_log(app, "up");
    }
    let look_around = |app: &str| -> Value { serde_json::from_str(&inside(&place, app, "look_around.py")).unwrap() };
    let (app, other) = (look_around("app"), look_around("other"));
    // Init, the program and the command itself.
    let processes = app["processes"].as_array().unwrap();
    assert_eq!((processes[0].as_u64(), processes.len()), (Some(1), 3), "{app}");
    assert_eq!(app["hostname"], "inner");
    // The default set (as podman has it), and none but the one.
    assert_eq!(
        (&app["capabilities"], &other["capabilities"]),
        (&"00000000800405fb".into(), &"0000000000000400".into())
    );
    assert_eq!((&app["no_new_privs"], &other["no_new_privs"]), (&"0".into(), &"1".into()));
    assert_eq!(app["seccomp"], "2");
    let devices = ["fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty"];
    assert_eq!(app["dev"], json!([&devices[..], &["urandom", "zero"]].concat()));
    let attempt = |what: &str| inside(&place, "app", &format!("attempt.py {what}"));
    assert_eq!(attempt("write /proc/sys/kernel/hostname x"), "Read-only file system");
    assert!(!attempt("mkdir /sys/fs/cgroup/mine").starts_with("ok"));
    // Masked where this kernel has them.
    for path in ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sysrq-trigger"] {
        if std::path::Path::new(path).exists() {
            let said = attempt(&format!("length {path}"));
            assert!(["ok 0", "Read-only file system", "Permission denied"].contains(&said.as_str()), "{path}: {said}");
        }
    }
    assert_eq!(attempt("mknod /tmp/disk"), "Operation not permitted");
    if std::path::Path::new("/sys/firmware").exists() {
        assert_eq!(attempt("list /sys/firmware"), "ok 0");
    }
    assert_eq!(attempt("io_uring"), "Function not implemented");
    assert_eq!(attempt("mount /tmp"), "Operation not permitted");
    assert_eq!(inside(&place, "other", "attempt.py write /srv/x x"), "Read-only file system");
    // Private files: what one writes, the other does not see, and a restart keeps.
    assert_eq!(attempt("write /srv/own mine"), "ok 4");
    assert!(!look_around("other")["srv"].to_string().contains("own"));
    place.daemon.ok(&["restart", "app"]).unwrap();
    assert_eq!(attempt("read /srv/own"), "ok mine");
}
