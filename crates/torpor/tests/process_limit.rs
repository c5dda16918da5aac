//! Apps that have as many processes as they may: they go warm and come back, and the limit holds afterwards.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod python;

use python::Place;

/// Starts so many children, says so, and tries to make one more at each SIGHUP.
const FULL: &str = r"
import os, signal, sys, time
def more(*_):
    try:
        child = os.fork()
    except BlockingIOError:
        print('refused', flush=True)
        return
    if child == 0: os._exit(0)
    os.waitpid(child, 0)
    print('one more', flush=True)
signal.signal(signal.SIGHUP, more)
for n in range(int(os.environ['CHILDREN'])):
    if os.fork() == 0:
        while True: time.sleep(1000)
print('full', flush=True)
while True: time.sleep(1000)
";

/// In an exec session, which the limit does not keep out.
const ASK: &str = "import os, signal; os.kill(2, signal.SIGHUP)";

fn comes_back(children: u32) {
    let place = Place::with("[idle]\nsleep = false\n");
    let limit = (children + 1).to_string();
    place.run("full", FULL, &["--processes", &limit, "-e", &format!("CHILDREN={children}")]);
    place.wait_log("full", "full\n");
    for round in 1..=3 {
        place.daemon.ok(&["sleep", "--level", "warm", "full"]).unwrap();
        place.daemon.ok(&["wake", "full"]).unwrap_or_else(|error| panic!("{error}\n{}", place.daemon.log()));
        assert_eq!(place.daemon.state("full").unwrap(), "running");
        let stats = place.daemon.json(&["stats", "full"]).unwrap();
        assert_eq!(stats["processes"].as_u64(), Some(u64::from(children) + 1), "{stats}");
        place.daemon.ok(&["exec", "full", "--", "/usr/bin/python3", "-c", ASK]).unwrap();
        place.wait_log("full", &"refused\n".repeat(round));
    }
    assert!(!place.wait_log("full", "full").contains("one more"));
}

#[test]
fn a_single_process_under_a_limit_of_one_comes_back() {
    comes_back(0);
}

#[test]
fn several_processes_at_their_limit_come_back() {
    comes_back(3);
}
