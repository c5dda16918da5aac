//! What an app's processes have from the machine, from their start to after their wakes from warm.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod python;

use python::Place;

/// Says, each time that its standard input or port is asked: the number of its session keyring, whose null device its
/// standard input is, and how many files it may open.
const TELLS: &str = r"
import ctypes, os, resource, socket
server = socket.create_server(('', 80))
libc = ctypes.CDLL(None)
print('up')
while True:
    client = server.accept()[0]
    keyring = libc.syscall(250, 0, -3, 0)
    own = os.path.sameopenfile(0, os.open('/dev/null', os.O_RDONLY))
    client.sendall(f'{keyring} {own} {resource.getrlimit(resource.RLIMIT_NOFILE)}\n'.encode())
    client.close()
";

/// What the app says, which wakes it.
fn tells(port: u16) -> (i32, String) {
    use std::io::Read;
    let mut text = String::new();
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap().read_to_string(&mut text).unwrap();
    let (keyring, rest) = text.trim().split_once(' ').unwrap();
    (keyring.parse().unwrap(), rest.to_owned())
}

#[test]
fn nothing_of_the_daemons_comes_with_a_wake() {
    // The daemon shares the session keyring of this thread.
    torpor_linux::keyring::join_new_session().unwrap();
    let own = torpor_linux::keyring::session();
    let mut place = Place::with("[idle]\nsleep = false\n");
    for (app, arguments) in [("mapped", &[][..]), ("unmapped", &["--no-userns"])] {
        let port = place.daemon.port().unwrap();
        let publish = format!("{port}:80");
        let arguments = [&["--no-seccomp", "--open-files", "300", "-p", &publish], arguments].concat();
        place.run(app, TELLS, &arguments);
        place.wait_log(app, "up");
        let before = tells(port);
        assert_eq!(before.1, "True (300, 300)", "{app}");
        for _ in 0..2 {
            place.daemon.ok(&["sleep", app, "--level", "warm"]).unwrap();
            assert_eq!(place.daemon.state(app).unwrap(), "warm");
            let woken = tells(port);
            assert_eq!(woken.1, before.1, "{app}");
            for (keyring, _) in [&before, &woken] {
                assert!(*keyring != own.unwrap_or_default(), "{app}: the session keyring is the daemon's");
            }
        }
    }
}
