//! What the kernel counts for users, over the sleep of apps: an app that takes all that it may have keeps no other from its wake.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod python;

use std::io::Read;
use std::net::TcpStream;

use python::Place;

/// What the app says, which wakes it.
fn ask(port: u16) -> String {
    let mut text = String::new();
    TcpStream::connect(("127.0.0.1", port)).unwrap().read_to_string(&mut text).unwrap();
    text
}

#[test]
fn an_app_that_uses_up_kernel_objects_blocks_no_other_wake() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let run = |place: &mut Place, app: &str, most: &str| {
        let port = place.daemon.port().unwrap();
        place.run(app, &format!("take_kernel_objects.py {most}"), &["-p", &format!("{port}:80")]);
        place.wait_log(app, "taken");
        port
    };
    let modest = run(&mut place, "modest", "1 1");
    let hoarder = run(&mut place, "hoarder", "all 0");
    let (had, full) = ("True True 0", format!("True False {}", rustix::io::Errno::MFILE.raw_os_error()));
    assert_eq!((ask(modest), ask(hoarder)), (had.to_owned(), full.clone()));
    for app in ["modest", "hoarder"] {
        place.daemon.ok(&["sleep", app, "--level", "warm"]).unwrap();
        assert_eq!(place.daemon.state(app).unwrap(), "warm");
    }
    // More than one app has all that there is.
    let greedy = run(&mut place, "greedy", "all all");
    assert_eq!(ask(greedy), full);
    assert_eq!(ask(modest), had);
    // What it had is its own again, and charged to it, not to whoever made it.
    assert_eq!(ask(hoarder), full);
}
