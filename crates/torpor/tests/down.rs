//! `torpor down` where no daemon runs any more: it takes the apps over itself, rests them, and leaves nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::process::Command;

use support::{PATIENCE, doze, program};
use torpor_testkit::daemon::{Daemon, binary, leftovers};
use torpor_testkit::wait::eventually_ok;

#[test]
fn rests_apps_that_a_daemon_left_behind() {
    let lighttpd = program("lighttpd");
    let mut daemon = Daemon::start().unwrap();
    for app in ["awake", "asleep"] {
        let addresses = daemon.run_program(&lighttpd, app, "[idle]\nsleep = false\ntimers_over = '10m'").unwrap();
        eventually_ok(&format!("{app} answers"), PATIENCE, || lighttpd.connect(addresses[0])).unwrap();
    }
    doze(&daemon, "asleep");
    daemon.term().unwrap();
    let (data, run) = (daemon.data_dir(), daemon.run_dir());
    let dir = data.parent().unwrap();
    let still: Vec<String> = leftovers(&daemon.instance(), &[&run]);
    assert!(!still.is_empty(), "the apps live on without their daemon");
    let config = dir.join("torpor.toml");
    let output = Command::new(binary().unwrap()).arg("down").arg("--config").arg(&config).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    let dirs: [&Path; 1] = [dir];
    assert_eq!(leftovers(&daemon.instance(), &dirs), Vec::<String>::new(), "{said}");
}
