//! What an app's processes have from the machine, from their start to after their wakes from warm.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod python;

use python::Place;

/// What the app says, which wakes it.
fn tells(port: u16) -> (i32, String) {
    use std::io::Read;
    let mut text = String::new();
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap().read_to_string(&mut text).unwrap();
    let (keyring, rest) = text.trim().split_once(' ').unwrap();
    (keyring.parse().unwrap(), rest.to_owned())
}

#[test]
fn a_woken_process_inherits_nothing_from_the_daemon() {
    // The daemon shares the session keyring of this thread.
    torpor_linux::keyring::join_new_session().unwrap();
    let own = torpor_linux::keyring::session();
    let mut place = Place::with("[idle]\nsleep = false\n");
    for (app, arguments) in [("mapped", &[][..]), ("unmapped", &["--no-userns"])] {
        let port = place.daemon.port().unwrap();
        let publish = format!("{port}:80");
        let arguments = [&["--no-seccomp", "--open-files", "300", "-p", &publish], arguments].concat();
        place.run(app, "describe_process.py", &arguments);
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
