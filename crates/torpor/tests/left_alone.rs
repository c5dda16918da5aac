//! An app whose row in the database cannot be read: its processes, files and layers stay as they are, and the other apps sleep and wake.
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

#[test]
fn an_app_whose_row_cannot_be_read_loses_nothing() {
    let (mut daemon, _, mut check) = memcheck("4");
    let ledger = native::program("ledger", &["7000"], &[7000]).unwrap();
    let address = daemon.run_program(&ledger, "ledger", "[idle]\nsleep = false\n").unwrap()[0];
    let mut session = eventually_ok("the ledger answers", PATIENCE, || LineSession::open(address)).unwrap();
    session.tell("add").unwrap();
    warm(&daemon, "check");
    daemon.ok(&["sleep", "ledger"]).unwrap();
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
