//! Apps whose row in the database cannot be read, or is lost: their processes, files and layers stay as they are, and the other apps sleep
//! and wake.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use support::{PATIENCE, memcheck, say, told, warm};
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native::{self, LineSession};
use torpor_testkit::wait::eventually_ok;

/// Changes the database while the daemon is down.
fn change(daemon: &mut Daemon, statement: &'static str) {
    daemon.term().unwrap();
    let options = SqliteConnectOptions::new().filename(daemon.data_dir().join("torpor.db"));
    let changed = async {
        let database = SqlitePool::connect_with(options).await.unwrap();
        assert_eq!(sqlx::raw_sql(statement).execute(&database).await.unwrap().rows_affected(), 1);
        database.close().await;
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(changed);
    daemon.up().unwrap();
}

/// A daemon with the warm app `check` and the dozing app `ledger`, and a session with each.
fn warm_and_dozing() -> (Daemon, LineSession, LineSession) {
    let (mut daemon, _, check) = memcheck("4");
    let ledger = native::program("ledger", &["7000"], &[7000]).unwrap();
    let address = daemon.run_program(&ledger, "ledger", "[idle]\nsleep = false\n").unwrap()[0];
    let mut session = eventually_ok("the ledger answers", PATIENCE, || LineSession::open(address)).unwrap();
    session.tell("add").unwrap();
    warm(&daemon, "check");
    daemon.ok(&["sleep", "ledger"]).unwrap();
    (daemon, check, session)
}

#[test]
fn an_app_whose_row_cannot_be_read_loses_nothing() {
    let (mut daemon, mut check, mut session) = warm_and_dozing();
    change(&mut daemon, "UPDATE apps SET spec = '{' || spec WHERE name = 'ledger'");

    check.ask().unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(&daemon, "check"), daemon.log()));
    let ps = daemon.ok(&["ps"]).unwrap();
    assert!(ps.contains("unreadable"), "{ps}");
    say(&daemon.ok(&["ps"]).unwrap());
    let doctor = daemon.cli(&["doctor"]).unwrap();
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("app `ledger` cannot be read"), "{doctor:?}");
    // Neither the removal of an app, which removes layers that nobody uses, nor `down` takes anything from it.
    daemon.ok(&["rm", "-f", "check"]).unwrap();
    let down = daemon.cli(&["down"]).unwrap();
    assert!(!down.status.success() && String::from_utf8_lossy(&down.stderr).contains("ledger"), "{down:?}");

    change(&mut daemon, "UPDATE apps SET spec = substr(spec, 2) WHERE name = 'ledger'");
    // The connection of before, to the same instance.
    let answer = session.tell("add");
    answer.unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(&daemon, "ledger"), daemon.log()));
    daemon.ok(&["restart", "ledger"]).unwrap();
}

/// Ids that `ps` shows.
fn ids(daemon: &Daemon) -> Vec<String> {
    let ps = daemon.json(&["ps"]).unwrap();
    ps.as_array().unwrap().iter().map(|app| app["id"].as_str().unwrap().to_owned()).collect()
}

/// The app's address on the bridge.
fn own_address(daemon: &Daemon, app: &str) -> String {
    daemon.json(&["inspect", app]).unwrap()["status"]["addresses"][0].as_str().unwrap().to_owned()
}

#[test]
fn a_lost_database_loses_no_app() {
    let (mut daemon, mut check, mut session) = warm_and_dozing();
    let (ids_before, taken) = (ids(&daemon), own_address(&daemon, "check"));

    daemon.term().unwrap();
    let (database, backup) = (daemon.data_dir().join("torpor.db"), daemon.data_dir().join("backup"));
    std::fs::rename(&database, &backup).unwrap();
    daemon.up().unwrap();
    let ps = daemon.ok(&["ps"]).unwrap();
    assert_eq!(ps.matches("unreadable").count(), 2, "{ps}");
    say(&ps);
    let doctor = daemon.cli(&["doctor"]).unwrap();
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("has no row"), "{doctor:?}");
    // A new app takes neither an address nor a layer from them, and `down` ends neither of them.
    let hello = native::program("ledger", &["7001"], &[7001]).unwrap();
    let new = daemon.run_program(&hello, "new", "").unwrap()[0];
    assert_ne!(own_address(&daemon, "new"), taken);
    let mut other = eventually_ok("the new app answers", PATIENCE, || LineSession::open(new)).unwrap();
    other.tell("add").unwrap();
    daemon.ok(&["rm", "-f", "new"]).unwrap();
    let down = daemon.cli(&["down"]).unwrap();
    assert!(!down.status.success() && String::from_utf8_lossy(&down.stderr).contains(&ids_before[0]), "{down:?}");

    daemon.term().unwrap();
    std::fs::rename(&backup, &database).unwrap();
    daemon.up().unwrap();
    assert_eq!(ids(&daemon), ids_before);
    let answer = session.tell("add");
    answer.unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(&daemon, "ledger"), daemon.log()));
    check.ask().unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(&daemon, "check"), daemon.log()));

    daemon.ok(&["sleep", "ledger"]).unwrap();
    daemon.term().unwrap();
    std::fs::remove_file(&database).unwrap();
    daemon.up().unwrap();
    for id in &ids_before {
        let refused = daemon.cli(&["rm", id]).unwrap();
        assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("rm -f"), "{refused:?}");
        daemon.ok(&["rm", "-f", id]).unwrap();
    }
    assert!(ids(&daemon).is_empty());
    let left = daemon.down().unwrap();
    assert!(left.is_empty(), "{left:?}");
}
