//! What an app sees and may do: its own processes, files and network, and nothing of its neighbours or the machine.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod python;

use python::{PATIENCE, Place, said};
use torpor_testkit::wait::eventually_ok;

/// Answers `hello` on TCP port 80 of all addresses.
const SERVER: &str = r"
import socket
server = socket.create_server(('', 80), family=socket.AF_INET6, dualstack_ipv6=True)
print('up')
while True:
    client = server.accept()[0]
    client.sendall(b'hello')
    client.close()
";

/// Gives back what a command in the app says.
fn inside(place: &Place, app: &str, script: &str) -> String {
    let output = place.daemon.cli(&["exec", app, "--", "/usr/bin/python3", "-c", script]).unwrap();
    assert!(output.status.success(), "{app}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn addresses(place: &Place, app: &str) -> Vec<String> {
    let detail = place.daemon.json(&["inspect", app]).unwrap();
    let all = detail["status"]["addresses"].as_array().unwrap();
    all.iter().map(|address| address.as_str().unwrap().to_owned()).collect()
}

fn ask(place: &Place, app: &str, address: &str, port: u16) -> String {
    let script = format!(
        "import socket\ntry: print(socket.create_connection(('{address}', {port}), 1.5).recv(9).decode())\nexcept OSError as error: print('no:', error)"
    );
    inside(place, app, &script)
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
        assert_eq!(ask(&place, "friend", address, 80), "hello", "{address}");
        let stranger = ask(&place, "stranger", address, 80);
        assert!(stranger.starts_with("no:"), "{address}: {stranger}");
    }
    // A neighbour that sleeps is woken by its friend.
    place.sleep("server");
    assert_eq!(ask(&place, "friend", &server[0], 80), "hello");
    // The machine's own ports, as its published ones, from the machine and from a stranger.
    let published = || std::net::TcpStream::connect(("127.0.0.1", port));
    eventually_ok("it answers", PATIENCE, published).unwrap();
    let gateway = "169.254.1.1";
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    let _reached_or_not = ask(&place, "stranger", gateway, own);
    let hermit = ask(&place, "hermit", gateway, own);
    assert!(hermit.starts_with("no:"), "{hermit}");
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
    // Init, the program and the command itself.
    let processes = "import os; print(sorted(int(n) for n in os.listdir('/proc') if n.isdigit())[0], len([n for n in os.listdir('/proc') if n.isdigit()]))";
    assert_eq!(inside(&place, "app", processes), "1 3");
    assert_eq!(inside(&place, "app", "import socket; print(socket.gethostname())"), "inner");
    let status = |app: &str, key: &str| {
        inside(
            &place,
            app,
            &format!("print([l.split()[1] for l in open('/proc/1/../self/status') if l.startswith('{key}:')][0])"),
        )
    };
    // The default set (as podman has it), and none but the one.
    assert_eq!(status("app", "CapEff"), "00000000800405fb");
    assert_eq!(status("other", "CapEff"), "0000000000000400");
    assert_eq!((status("app", "NoNewPrivs").as_str(), status("other", "NoNewPrivs").as_str()), ("0", "1"));
    assert_eq!(status("app", "Seccomp"), "2");
    let attempt = |what: &str| {
        inside(
            &place,
            "app",
            &format!("import os, ctypes\ntry: print('ok', {what})\nexcept OSError as error: print(error.strerror)"),
        )
    };
    assert_eq!(attempt("open('/proc/sys/kernel/hostname', 'w').write('x')"), "Read-only file system");
    assert!(!attempt("os.mkdir('/sys/fs/cgroup/mine')").contains("ok"));
    // Masked where this kernel has them.
    for path in ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sysrq-trigger"] {
        if std::path::Path::new(path).exists() {
            let said = attempt(&format!("len(open('{path}', 'rb').read())"));
            assert!(["ok 0", "Read-only file system", "Permission denied"].contains(&said.as_str()), "{path}: {said}");
        }
    }
    assert_eq!(attempt("os.mknod('/tmp/disk', 0o60600, os.makedev(8, 0))"), "Operation not permitted");
    if std::path::Path::new("/sys/firmware").exists() {
        assert_eq!(attempt("len(os.listdir('/sys/firmware'))"), "ok 0");
    }
    let io_uring =
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nprint(libc.syscall(425, 8, 0), ctypes.get_errno())";
    assert_eq!(inside(&place, "app", io_uring), "-1 38", "ENOSYS");
    let mount = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nprint(libc.mount(b'x', b'/tmp', b'tmpfs', 0, None), ctypes.get_errno())";
    assert_eq!(inside(&place, "app", mount), "-1 1", "EPERM");
    let devices = inside(&place, "app", "import os; print(' '.join(sorted(os.listdir('/dev'))))");
    assert_eq!(devices, "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero");
    let written = "import os\ntry: open('/srv/x', 'w')\nexcept OSError as error: print(error.strerror)";
    assert_eq!(inside(&place, "other", written), "Read-only file system");
    // Private files: what one writes, the other does not see, and a restart keeps.
    inside(&place, "app", "open('/srv/own', 'w').write('mine')");
    assert_eq!(inside(&place, "other", "import os; print(os.path.exists('/srv/own'))"), "False");
    place.daemon.ok(&["restart", "app"]).unwrap();
    assert_eq!(inside(&place, "app", "print(open('/srv/own').read())"), "mine");
}
