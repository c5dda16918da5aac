//! Terminals of apps: shells over ssh and by `exec -it` sleep and go on, with their jobs and with what was typed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod python;
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use python::Place;
use support::{PATIENCE, stats, warm};
use torpor_testkit::daemon::Daemon;
use torpor_testkit::servers::{Check, Program, Transport, ssh_tarball};
use torpor_testkit::wait::{eventually, eventually_ok};

/// A client with a terminal, and what it has shown.
struct Client {
    child: Child,
    keys: Option<ChildStdin>,
    shown: Arc<Mutex<String>>,
}

impl Client {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (keys, mut output) = (child.stdin.take(), child.stdout.take().unwrap());
        let shown = Arc::new(Mutex::new(String::new()));
        let into = shown.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(bytes @ 1..) = output.read(&mut buffer) {
                into.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..bytes]));
            }
        });
        Self { child, keys, shown }
    }

    fn types(&mut self, keys: &str) {
        self.keys.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until it shows `text`, and forgets all up to there.
    fn shows(&self, text: &str) {
        eventually_ok(&format!("the terminal shows {text:?}"), PATIENCE, || {
            let mut shown = self.shown.lock().unwrap();
            let at = shown.find(text).ok_or_else(|| shown.clone())?;
            shown.drain(..at + text.len());
            Ok::<_, String>(())
        })
        .unwrap();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// An sshd as the app `ssh`, and a client with a shell there.
fn ssh(folder: &Path) -> (Daemon, Client) {
    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n", &[]).unwrap();
    let key = folder.join("key");
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status().unwrap();
    assert!(made.success());
    let public = std::fs::read_to_string(key.with_extension("pub")).unwrap();
    let serve = format!(
        "mkdir -p /run/sshd /root/.ssh && echo '{}' > /root/.ssh/authorized_keys && \
         exec /usr/sbin/sshd -D -e -p 2222 -o UsePAM=no -o StrictModes=no -o PermitRootLogin=yes",
        public.trim()
    );
    let program = Program {
        name: "sshd",
        tarball: ssh_tarball().unwrap(),
        command: ["/bin/sh", "-c", &serve].map(str::to_owned).to_vec(),
        user: None,
        ports: vec![(2222, Transport::Tcp)],
        check: Check::None,
    };
    let address = daemon.run_program(&program, "ssh", "").unwrap()[0];
    eventually("it listens", PATIENCE, || {
        let mut answer = [0; 4];
        TcpStream::connect(address).and_then(|mut there| there.read_exact(&mut answer)).is_ok()
    })
    .unwrap();
    let mut command = Command::new("ssh");
    command.args([
        "-tt",
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
        "-o",
        "BatchMode=yes",
    ]);
    command.arg("-i").arg(&key).args(["-p", &address.port().to_string(), "root@127.0.0.1"]);
    let mut client = Client::start(command);
    client.types("PS1=; bind 'set enable-bracketed-paste off'; echo log''ged in\n");
    client.shows("logged in");
    (daemon, client)
}

fn wakes(daemon: &Daemon, app: &str) -> u64 {
    stats(daemon, app).wakes
}

#[test]
fn a_shell_over_ssh_keeps_its_jobs_and_typed_input_over_sleeps() {
    let folder = tempfile::tempdir().unwrap();
    let (daemon, mut client) = ssh(folder.path());
    // A shell that waits, with a variable and a job in the background.
    client.types("kept=value; sleep 1000 & echo st''arted\n");
    client.shows("started");
    let before = wakes(&daemon, "ssh");
    warm(&daemon, "ssh");
    client.types("echo \"[$kept] $(jobs | grep -c Running)\"\n");
    client.shows("[value] 1");
    assert_eq!(wakes(&daemon, "ssh"), before + 1, "the first key wakes it");
    // A program in the foreground gets Ctrl-C.
    client.types("sed -u s/typed/read/\ntyped one\n");
    client.shows("read one");
    warm(&daemon, "ssh");
    client.types("\x03");
    client.shows("^C");
    client.types("echo ended with $?\n");
    client.shows("ended with 130");
    // And Ctrl-Z; it goes on from there.
    client.types("sed -u s/typed/read/\ntyped two\n");
    client.shows("read two");
    warm(&daemon, "ssh");
    client.types("\x1a");
    client.shows("Stopped");
    warm(&daemon, "ssh");
    client.types("fg\ntyped three\n");
    client.shows("read three");
    client.types("\x04");
    // What is typed meanwhile waits for the shell.
    client.types("sleep 4\n");
    client.shows("sleep 4");
    client.types("echo typed ah''ead\n");
    client.shows("echo typed ah''ead");
    warm(&daemon, "ssh");
    let explained = daemon.ok(&["explain", "ssh"]).unwrap();
    assert!(explained.contains("what waits unread in the terminal /dev/pts/0"), "{explained}");
    daemon.ok(&["wake", "ssh"]).unwrap();
    client.shows("typed ahead");
    client.types("kill %1; exit 7\n");
    let status = eventually_ok("the client ends", PATIENCE, || client.child.try_wait().unwrap().ok_or("it runs"));
    assert_eq!(status.unwrap().code(), Some(7), "{}", client.shown.lock().unwrap());
}

/// `torpor` with these arguments at a terminal of its own.
fn at_a_terminal(place: &Place, arguments: &str) -> Client {
    let program = place.daemon.command(&[] as &[&str]).get_program().to_str().unwrap().to_owned();
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command"]).arg(format!("exec {program} {arguments}")).arg("/dev/null");
    command.env("TORPOR_SOCKET", place.daemon.socket()).env("SHELL", "/bin/sh");
    Client::start(command)
}

/// `exec -it` of a shell in the app `app`.
fn exec_shell(place: &Place) -> Client {
    let mut client = at_a_terminal(place, "exec -it app -- /bin/sh");
    client.types("echo in s''ide\n");
    client.shows("in side");
    client
}

#[test]
fn processes_left_by_exec_do_not_keep_an_app_from_going_warm() {
    let place = Place::with("[idle]\nsleep = false\n");
    place.run("app", "idle.py", &[]);
    place.wait_log("app", "up");
    // The client ends: its shell is hung up.
    let client = exec_shell(&place);
    assert_eq!(stats(&place.daemon, "app").processes, 2);
    drop(client);
    eventually("the shell has ended", PATIENCE, || stats(&place.daemon, "app").processes == 1).unwrap();
    warm(&place.daemon, "app");
    // The shell ends, and a job of it goes on.
    let mut client = exec_shell(&place);
    client.types("trap '' HUP; sleep 1000 & exit 3\n");
    let status = eventually_ok("the client ends", PATIENCE, || client.child.try_wait().unwrap().ok_or("it runs"));
    assert_eq!(status.unwrap().code(), Some(3));
    warm(&place.daemon, "app");
    place.daemon.ok(&["wake", "app"]).unwrap();
    assert_eq!(stats(&place.daemon, "app").processes, 2, "the job is there");
}

#[test]
fn import_asks_at_a_terminal_for_the_ports_of_the_archive() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let port = place.daemon.port().unwrap();
    place.run("web", "-m http.server 80", &["-p", &format!("{port}:80")]);
    place.wait_log("web", "Serving");
    let archive = place.path("web.torpor");
    let archive = archive.to_str().unwrap();
    eventually_ok("it is exported", PATIENCE, || place.daemon.ok(&["image", "export", "web", "-o", archive])).unwrap();
    place.daemon.ok(&["rm", "-f", "web"]).unwrap();
    let import = |answer: &str| {
        let mut client = at_a_terminal(&place, &format!("image import {archive}"));
        client.shows(&format!("the archive of `web` publishes *:{port}->80/tcp"));
        client.shows("publish these ports? [y/N]");
        client.types(answer);
        let status = eventually_ok("the client ends", PATIENCE, || client.child.try_wait().unwrap().ok_or("it asks"));
        (status.unwrap().code(), client)
    };
    for answer in ["n\n", "\n"] {
        let (status, client) = import(answer);
        client.shows("nothing was imported");
        assert_eq!(status, Some(2));
        assert_eq!(place.daemon.json(&["ps"]).unwrap().as_array().map(Vec::len), Some(0));
    }
    assert_eq!(import("y\n").0, Some(0));
    eventually_ok("the imported app answers", PATIENCE, || http(port)).unwrap();
    place.daemon.ok(&["rm", "-f", "web"]).unwrap();
    // Without a terminal nobody is asked.
    let said = place.daemon.cli(&["image", "import", archive]).unwrap();
    assert_eq!(said.status.code(), Some(4));
    place.daemon.ok(&["image", "import", archive, "--yes"]).unwrap();
    eventually_ok("the imported app answers", PATIENCE, || http(port)).unwrap();
}

/// The first line of the answer to a request.
fn http(port: u16) -> std::io::Result<String> {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    BufReader::new(connection).read_line(&mut answer)?;
    if answer.contains("200") { Ok(answer) } else { Err(std::io::Error::other(answer)) }
}
