//! Memory that cannot leave as it is: the program stays awake and `explain` says what it is, or the kernel's own work on it is
//! waited for.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use support::{PATIENCE, doze, rounds, say, stats, told};
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native::{LineSession, program};
use torpor_testkit::wait::eventually_ok;

const NEVER_BY_ITSELF: &str = "[idle]\nsleep = false\ntimers_over = '10m'\n";

fn number(answer: &str, key: &str) -> u64 {
    let word = answer.split(' ').find_map(|word| word.strip_prefix(key)).unwrap_or_else(|| panic!("{key}: {answer}"));
    if key == "address=" { u64::from_str_radix(word, 16).unwrap() } else { word.parse().unwrap() }
}

fn session(daemon: &Daemon, app: &str, address: SocketAddr) -> LineSession {
    eventually_ok("it answers", PATIENCE, || LineSession::open(address))
        .unwrap_or_else(|error| panic!("{error}\n{}", told(daemon, app)))
}

/// A program that holds memory by `kind`; what `explain` has to say of it, given its process and the address.
fn stays_awake(kind: &str, expected: impl Fn(i64, u64) -> Vec<String>) {
    let mut daemon = Daemon::start_with(NEVER_BY_ITSELF, &[]).unwrap();
    let holder = program("holder", &[kind, "7000"], &[7000]).unwrap();
    let address = daemon.run_program(&holder, "held", "[security]\nseccomp = false").unwrap()[0];
    let mut session = session(&daemon, "held", address);
    let answer = session.ask().unwrap();
    assert!(answer.starts_with("ok "), "{answer}");
    let pid = daemon.json(&["inspect", "held"]).unwrap()["status"]["pid"].as_i64().unwrap();
    let expected = expected(pid, number(&answer, "address="));
    // Before it was ever tried, when it is refused, and behind that.
    for tried in [false, true] {
        if tried {
            let output = daemon.cli(&["sleep", "held"]).unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && expected.iter().all(|words| said.contains(words)), "{said}");
        }
        let explain = daemon.json(&["explain", "held"]).unwrap();
        let refusals = explain["refusals"].as_array().unwrap();
        let words = refusals.iter().map(|refusal| refusal.as_str().unwrap()).collect::<Vec<_>>().join("\n");
        assert!(words.contains("holder") && expected.iter().all(|some| words.contains(some)), "{words}: {expected:?}");
        let told = daemon.ok(&["explain", "held"]).unwrap();
        assert!(expected.iter().all(|some| told.contains(some)), "{told}: {expected:?}");
        assert_eq!(daemon.state("held").unwrap(), "running");
        assert!(session.ask().unwrap().starts_with("ok "));
    }
    assert_eq!(stats(&daemon, "held").sleeps, 0);
    // Without it there is nothing in the way.
    assert!(session.tell("release").unwrap().starts_with("ok "));
    doze(&daemon, "held");
    assert!(session.ask().unwrap().starts_with("ok "));
    assert_eq!(stats(&daemon, "held").wakes, 1);
}

#[test]
fn memory_with_a_userfaultfd_of_its_own_keeps_a_program_awake() {
    stays_awake("userfaultfd", |pid, address| {
        let area = format!("memory at {address:#x}-{:#x}", address + 16 * 4096);
        vec![area, format!("process {pid}"), "userfaultfd of the program's own".to_owned()]
    });
}

#[test]
fn an_io_uring_keeps_a_program_awake() {
    stays_awake("io_uring", |pid, _| vec!["io_uring".to_owned(), format!("process {pid}")]);
}

/// Reads from the disk under way all the time: asleep or not, never a wrong byte.
fn reads_go_on(wait: &str) {
    let mut daemon = Daemon::start_with(NEVER_BY_ITSELF, &[]).unwrap();
    let reader = program("diskreader", &["/data/file", "64", "8", "7000", wait], &[7000]).unwrap();
    let volume = daemon.data_dir().join("volume");
    std::fs::create_dir(&volume).unwrap();
    std::fs::set_permissions(&volume, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let tables = format!("[[volumes]]\nhost = '{}'\napp = '/data'", volume.display());
    let address = daemon.run_program(&reader, "reader", &tables).unwrap()[0];
    let mut session = session(&daemon, "reader", address);
    let (mut slept, mut why) = (0, BTreeMap::<String, u32>::new());
    let mut before = 0;
    for _ in 0..rounds(60, 600) {
        let output = daemon.cli(&["sleep", "reader"]).unwrap();
        if output.status.success() {
            slept += 1;
        } else {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains("abort"), "{said}\n{}", told(&daemon, "reader"));
            *why.entry(said.lines().next().unwrap_or_default().to_owned()).or_default() += 1;
        }
        // It goes on, whether it slept or not.
        let answer = eventually_ok("it reads on", PATIENCE, || {
            let answer = session.ask().unwrap_or_else(|error| panic!("{error}\n{}", told(&daemon, "reader")));
            if number(&answer, "reads=") > before { Ok(answer) } else { Err(answer) }
        });
        before = number(&answer.unwrap(), "reads=");
    }
    say(&format!("diskreader {wait}: {before} reads, slept {slept} times; {why:?}"));
    let log = daemon.ok(&["logs", "reader"]).unwrap();
    assert!(!log.contains("WRONG"), "{log}");
    match wait {
        // Nothing would tell of reads that end while it is frozen: it must never have slept on them.
        "getevents" => assert_eq!(slept, 0, "{why:?}"),
        // An eventfd that is soon ready may keep it awake; the other must have slept while reads were under way.
        "eventfd" => {}
        _ => assert!(slept > 0, "it never slept: {why:?}"),
    }
}

#[test]
fn disk_reads_that_are_waited_for_in_io_getevents() {
    reads_go_on("getevents");
}

#[test]
fn disk_reads_that_an_eventfd_tells_of() {
    reads_go_on("eventfd");
}

#[test]
fn disk_reads_that_are_looked_at_later() {
    reads_go_on("later");
}
