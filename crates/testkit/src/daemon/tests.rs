//! The daemon's handling, with a script in the place of `torpor`.

use std::os::unix::fs::PermissionsExt;

use super::*;

const SCRIPT: &str = include_str!("../../programs/fake_torpor.py");

fn script() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("torpor");
    fs::write(&path, SCRIPT).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    (dir, path)
}

#[test]
fn starts_kills_restarts_asks_and_cleans_up() {
    let (_dir, path) = script();
    let mut daemon = Daemon::start_binary(path, "[idle]\nafter = '1s'", &[], false).unwrap();
    let config: toml::Table = fs::read_to_string(daemon.path("torpor.toml")).unwrap().parse().unwrap();
    assert_eq!(config["instance"].as_str().unwrap(), daemon.instance());
    assert_eq!(config["idle"]["after"].as_str(), Some("1s"));
    let first = daemon.pid().unwrap();
    daemon.kill9().unwrap();
    assert_eq!(daemon.pid(), None);
    daemon.up().unwrap();
    assert_ne!(daemon.pid().unwrap(), first);
    assert_eq!(daemon.state("web").unwrap(), "dozing");
    daemon.wait_state("web", "dozing", Duration::ZERO).unwrap();
    let error = daemon.wait_state("web", "running", Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("it is dozing"), "{error}");
    let error = daemon.ok(&["bad"]).unwrap_err();
    assert!(error.to_string().contains("no such app"), "{error}");
    assert!(!daemon.cli(&["bad"]).unwrap().status.success());
    assert!(daemon.log().contains("listening"));
    assert_eq!(daemon.down().unwrap(), Vec::<String>::new());
    assert_eq!(daemon.pid(), None);
}

#[test]
fn a_daemon_that_ends_at_once_says_why() {
    let (_dir, path) = script();
    let failed = std::panic::catch_unwind(|| Daemon::start_binary(path, "", &[("FAIL", "1")], false).map(drop));
    let error = failed.expect("dropping a daemon that never ran is quiet").unwrap_err();
    assert!(error.to_string().contains("the pool is taken"), "{error}");
}
