//! Apps whose memory is in huge pages of the machine's pool.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use support::{PATIENCE, connect, doze, program, step, told, warm};
use torpor_testkit::daemon::Daemon;
use torpor_testkit::pool::{LARGE, Pools};
use torpor_testkit::skip;
use torpor_testkit::wait::eventually;

/// More than the database takes.
const PAGES: u64 = 40;

#[test]
fn a_database_takes_huge_pages_gives_them_back_when_warm_and_needs_them_to_wake() {
    const APP: &str = "database";
    let pools = Pools::add(&[(LARGE, PAGES)]).unwrap();
    let before = Pools::free();
    if before < PAGES {
        skip!("this machine gives {before} huge pages");
    }
    let program = program("postgres");
    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n", &[]).unwrap();
    let address = daemon.run_program(&program, APP, "").unwrap()[0];
    eventually("it answers", PATIENCE, || program.connect(address).is_ok()).unwrap();
    let mut session = connect(&daemon, &program, APP, address);
    let taken = before - Pools::free();
    assert!(taken > 4, "it has taken {taken} huge pages by itself");

    // While it dozes they are its own: nothing can be missing when it wakes.
    doze(&daemon, APP);
    assert_eq!(before - Pools::free(), taken);
    step(&daemon, APP, &mut *session);
    for _ in 0..3 {
        warm(&daemon, APP);
        assert_eq!(Pools::free(), before, "they are the pool's again");
        step(&daemon, APP, &mut *session);
        assert_eq!(before - Pools::free(), taken);
    }

    warm(&daemon, APP);
    drop(pools);
    let refused = daemon.cli(&["wake", APP]).unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    // It cannot succeed without them. It may with those of a test that runs beside this one: the machine has one pool.
    if !refused.status.success() {
        assert!(said.contains("huge pages of 2 MiB"), "{said}");
        assert_eq!(daemon.state(APP).unwrap(), "wake-blocked", "{}", told(&daemon, APP));
    }
    let pools = Pools::add(&[(LARGE, PAGES)]).unwrap();
    daemon.ok(&["wake", APP]).unwrap();
    step(&daemon, APP, &mut *session);
    daemon.ok(&["rm", "--force", APP]).unwrap();
    drop(pools);
}
