//! Apps that have as many processes as they may: they go warm and come back, and the limit holds afterwards.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod python;

use python::Place;

fn comes_back(children: u32) {
    let place = Place::with("[idle]\nsleep = false\n");
    let limit = (children + 1).to_string();
    place.run("full", &format!("fork_children.py {children}"), &["--processes", &limit]);
    place.wait_log("full", "full\n");
    for round in 1..=3 {
        place.daemon.ok(&["sleep", "--level", "warm", "full"]).unwrap();
        place.daemon.ok(&["wake", "full"]).unwrap_or_else(|error| panic!("{error}\n{}", place.daemon.log()));
        assert_eq!(place.daemon.state("full").unwrap(), "running");
        let stats = place.daemon.json(&["stats", "full"]).unwrap();
        assert_eq!(stats["processes"].as_u64(), Some(u64::from(children) + 1), "{stats}");
        // In an exec session, which the limit does not keep out.
        place.daemon.ok(&["exec", "full", "--", "/bin/sh", "-c", "kill -HUP 2"]).unwrap();
        place.wait_log("full", &"refused\n".repeat(round));
    }
    assert!(!place.wait_log("full", "full").contains("one more"));
}

#[test]
fn an_app_with_a_process_limit_of_one_wakes_from_warm() {
    comes_back(0);
}

#[test]
fn an_app_at_its_process_limit_wakes_from_warm() {
    comes_back(3);
}
