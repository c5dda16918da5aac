//! What an app does to its open files does not stop the keeper, and a keeper that does not answer is replaced.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod python;
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use python::Place;
use rustix::process::{Pid, Signal, kill_process};
use support::{PATIENCE, keeper, memcheck, warm};
use torpor_testkit::daemon::{Daemon, leftovers};
use torpor_testkit::native::LineSession;
use torpor_testkit::wait::eventually_ok;

fn run(place: &mut Place, name: &str, program: &str) -> SocketAddr {
    let port = place.daemon.port().unwrap();
    place.run(name, program, &["-p", &format!("{port}:80")]);
    place.wait_log(name, "up");
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// The first bytes that it says to a visitor.
fn visit(address: SocketAddr) -> (String, TcpStream) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"?").unwrap();
    let mut said = [0; 16];
    let count = stream.read(&mut said).unwrap();
    (String::from_utf8_lossy(&said[..count]).into_owned(), stream)
}

/// No request has waited for the keeper in vain.
fn answered(daemon: &Daemon) {
    let log = daemon.log();
    assert!(!log.contains("did not answer") && !log.contains("does not answer"), "{log}");
}

#[test]
fn an_app_with_lingering_sockets_does_not_block_the_keeper() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    run(&mut place, "lingering", "lingering_sockets.py");
    // More open files than the worker keeps at hand.
    let many = run(&mut place, "many", "hello.py --open-files 40");
    warm(&place.daemon, "many");
    warm(&place.daemon, "lingering");
    let before = keeper(&place.daemon).unwrap();
    // Its processes are gone, so that the keeper's are the last.
    place.daemon.ok(&["rm", "-f", "lingering"]).unwrap();
    assert_eq!(visit(many).0, "hello", "a warm app whose files only the keeper has");
    warm(&place.daemon, "many");
    assert_eq!(keeper(&place.daemon), Some(before));
    answered(&place.daemon);
    place.daemon.kill9().unwrap();
    place.daemon.up().unwrap();
    assert_eq!(keeper(&place.daemon), Some(before));
    assert_eq!(visit(many).0, "hello");
    answered(&place.daemon);
}

fn stop(daemon: &Daemon) -> u32 {
    let pid = keeper(daemon).unwrap();
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::STOP).unwrap();
    pid
}

/// There is another one than this.
fn replaced(daemon: &Daemon, old: u32) {
    eventually_ok("there is another keeper", PATIENCE, || match keeper(daemon) {
        Some(pid) if pid != old => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", daemon.log()));
}

#[test]
fn a_keeper_whose_socket_is_removed_is_found_again() {
    let (mut daemon, address, mut session) = memcheck("8");
    let socket = daemon.run_dir().join("keeper.sock");
    let old = keeper(&daemon).unwrap();
    warm(&daemon, "check");
    daemon.kill9().unwrap();
    std::fs::remove_file(&socket).unwrap();
    daemon.up().unwrap();
    assert_eq!(keeper(&daemon), Some(old), "{}", daemon.log());
    assert_eq!(daemon.state("check").unwrap(), "warm", "{}", daemon.log());
    session.ask().unwrap();
    // Nor does one that cannot make it again keep a daemon from starting.
    warm(&daemon, "check");
    daemon.kill9().unwrap();
    stop(&daemon);
    std::fs::remove_file(&socket).unwrap();
    daemon.up().unwrap();
    replaced(&daemon, old);
    eventually_ok("it is still there", PATIENCE, || session.again(address)).unwrap();
}

#[test]
fn a_keeper_that_is_stopped_is_replaced() {
    let (mut daemon, address, session) = memcheck("8");
    warm(&daemon, "check");
    // At the start of a daemon.
    daemon.kill9().unwrap();
    let old = stop(&daemon);
    daemon.up().unwrap();
    replaced(&daemon, old);
    eventually_ok("it is still there", PATIENCE, || session.again(address)).unwrap();
    // Under a daemon, as soon as something is asked of it.
    let old = stop(&daemon);
    daemon.cli(&["sleep", "check", "--level", "warm"]).unwrap();
    replaced(&daemon, old);
    warm(&daemon, "check");
    let session: LineSession = eventually_ok("it is still there", PATIENCE, || session.again(address)).unwrap();
    // At its end. What is warm by then stays.
    warm(&daemon, "check");
    stop(&daemon);
    let config = daemon.data_dir().with_file_name("torpor.toml");
    let said = daemon.ok(&["down", "--json", "--config", config.to_str().unwrap()]);
    let said = said.unwrap_or_else(|error| panic!("{error}\n{}", daemon.log()));
    assert!(said.contains("true"), "{said}");
    let data = daemon.data_dir();
    assert_eq!(leftovers(&daemon.instance(), &[data.parent().unwrap()]), Vec::<String>::new());
    daemon.up().unwrap();
    assert_eq!(daemon.state("check").unwrap(), "warm", "{}", daemon.log());
    eventually_ok("it is still there", PATIENCE, || session.again(address)).unwrap();
}
