//! A keeper stays reachable when the file of its socket is removed; one that does not come back is replaced.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use torpor_keeper::{Client, Error, StartOptions};

/// Ended with the value.
struct Keeper {
    dir: tempfile::TempDir,
}

impl Keeper {
    fn path(&self) -> PathBuf {
        self.dir.path().join("k")
    }

    /// Starts it where none runs.
    fn try_connect(&self) -> Result<Client, Error> {
        let program = Path::new(env!("CARGO_BIN_EXE_torpor-keeper"));
        Client::connect_or_spawn(&self.path(), program, &[], &StartOptions::default())
    }

    fn connect(&self) -> Client {
        self.try_connect().unwrap()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        Client::end(&self.path()).unwrap();
    }
}

fn keeper() -> Keeper {
    Keeper { dir: tempfile::tempdir().unwrap() }
}

#[test]
fn a_socket_that_is_removed_is_made_again() {
    let keeper = keeper();
    let first = keeper.connect();
    let pid = first.ping().unwrap().pid;
    first.put("kept", b"blob", &[]).unwrap();
    let found = |what: &str| {
        let client = keeper.try_connect().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(client.ping().unwrap().pid, pid, "{what}");
        assert_eq!(client.get("kept").unwrap().unwrap().blob, b"blob", "{what}");
        assert_eq!(keeper.path().metadata().unwrap().permissions().mode() & 0o777, 0o600, "{what}");
    };
    std::fs::remove_file(keeper.path()).unwrap();
    found("removed");
    std::fs::rename(keeper.path(), keeper.dir.path().join("away")).unwrap();
    found("moved away");
    let other = keeper.dir.path().join("other");
    drop(std::os::unix::net::UnixListener::bind(&other).unwrap());
    std::fs::rename(&other, keeper.path()).unwrap();
    found("replaced");
    for file in ["k.lock", "k.start", "k"] {
        std::fs::remove_file(keeper.dir.path().join(file)).unwrap();
    }
    // Until it has its lock again, a new keeper could take it.
    let begun = std::time::Instant::now();
    while !keeper.path().exists() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not come back");
        std::thread::yield_now();
    }
    found("removed with its locks");
    first.ping().unwrap();
}

#[test]
fn a_keeper_that_lives_and_does_not_listen_is_replaced() {
    let keeper = keeper();
    let first = keeper.connect();
    let pid = first.ping().unwrap().pid;
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::STOP).unwrap();
    std::fs::remove_file(keeper.path()).unwrap();
    let client = keeper.try_connect().unwrap();
    assert_ne!(client.ping().unwrap().pid, pid);
    // One that has not written who it is: nobody is killed.
    let second = client.ping().unwrap().pid;
    kill_process(Pid::from_raw(second as i32).unwrap(), Signal::STOP).unwrap();
    std::fs::remove_file(keeper.path()).unwrap();
    let lock = keeper.dir.path().join("k.lock");
    std::fs::write(&lock, "").unwrap();
    let refused = keeper.try_connect().unwrap_err().to_string();
    assert!(refused.contains("k.lock") && refused.contains("end its process"), "{refused}");
    std::fs::write(&lock, format!("{second}\n")).unwrap();
    keeper.try_connect().unwrap();
}

#[test]
fn a_fifo_in_the_place_of_a_lock_is_not_waited_for() {
    let keeper = keeper();
    let fifo = keeper.dir.path().join("k.start");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let refused = keeper.try_connect().unwrap_err();
    assert!(matches!(refused, Error::File { step: "open the lock", .. }), "{refused}");
}
