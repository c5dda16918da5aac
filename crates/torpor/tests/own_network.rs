//! An app that may change its network makes an interface of its own and sockets that use it. A reboot takes the interface, as `explain`
//! says before; the app wakes all the same, and its sockets are as if the interface had been removed, connections over it reset.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod python;
mod support;

use std::net::{Ipv4Addr, SocketAddr};

use python::Place;
use support::{PATIENCE, told, warm};
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native;
use torpor_testkit::wait::eventually_ok;

const APP: &str = "own";

fn ask(daemon: &Daemon, at: SocketAddr) -> String {
    let answer = eventually_ok("it answers", PATIENCE, || match native::read_all(at) {
        Ok(answer) if !answer.is_empty() => Ok(answer),
        other => Err(format!("{other:?}")),
    });
    answer.unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(daemon, APP), daemon.log()))
}

#[test]
fn an_app_whose_own_interface_is_lost_wakes() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let host = place.daemon.port().unwrap();
    let arguments = ["-p", &format!("{host}:80"), "--no-sleep", "--cap-add", "NET_ADMIN", "--cap-add", "NET_RAW"];
    place.run(APP, "own_interface.py", &arguments);
    let at: SocketAddr = (Ipv4Addr::LOCALHOST, host).into();
    let daemon = &mut place.daemon;
    let before = ask(daemon, at);
    assert!(before.contains("['mine0']"), "{before}");

    warm(daemon, APP);
    let lost = told(daemon, APP);
    assert!(lost.contains("interfaces, addresses, routes"), "{lost}");
    assert_eq!(ask(daemon, at), before, "its network stays while it is warm");

    warm(daemon, APP);
    daemon.power_off().unwrap();
    daemon.up().unwrap();
    let after = before.replace("['mine0']", "[]").replace("'mine0'", "''");
    assert_eq!(ask(daemon, at), after.replace("b'x'", "'reset'"));
    // And as any other sleep.
    warm(daemon, APP);
    assert_eq!(ask(daemon, at), after.replace("b'x'", "b''"));
}
