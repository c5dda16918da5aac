//! What real servers are in the middle of when they go warm: a save, transactions, mails in a queue, a scan. It comes to its right
//! end when the next packet wakes them, and after a power cut whatever had been promised is there.
//!
//! Needs root and the tarballs of the servers (built at the first use).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod clamav;
mod postfix;
mod postgres;
mod redis;
#[path = "../support/mod.rs"]
mod support;

use std::net::SocketAddr;

use support::{PATIENCE, program, told, warm};
use torpor_testkit::Error;
use torpor_testkit::conformance::Between;
use torpor_testkit::daemon::Daemon;
use torpor_testkit::wait::eventually_ok;

/// Sleeps on command only.
const ON_COMMAND: &str = "[idle]\nsleep = false\ntimers_over = '10m'";

/// A real server as an app of its own daemon.
struct Server {
    daemon: Daemon,
    address: SocketAddr,
    name: &'static str,
    between: Between,
}

impl Server {
    /// Starts it; what was not synced is lost when its power is cut.
    fn start(name: &'static str, between: Between) -> Self {
        let mut daemon = match between {
            Between::Nothing => Daemon::start(),
            Between::PowerCut => Daemon::start_on_disk(""),
        }
        .unwrap();
        let address = daemon.run_program(&program(name), name, ON_COMMAND).unwrap()[0];
        Self { daemon, address, name, between }
    }

    /// A new connection, once it answers.
    fn connect<T>(&self, open: impl Fn(SocketAddr) -> Result<T, Error>) -> T {
        let opened = eventually_ok(&format!("{} answers", self.name), PATIENCE, || open(self.address));
        opened.unwrap_or_else(|error| self.fail(&error))
    }

    fn fail(&self, error: &dyn std::error::Error) -> ! {
        panic!("{}: {error}\n{}\n{}", self.name, told(&self.daemon, self.name), self.daemon.log())
    }

    /// What must succeed.
    fn well<T>(&self, outcome: Result<T, Error>) -> T {
        outcome.unwrap_or_else(|error| self.fail(&error))
    }

    /// It goes warm, and with a power cut it is warm again afterwards.
    fn sleep(&mut self) {
        warm(&self.daemon, self.name);
        if self.between == Between::PowerCut {
            self.cut();
            assert_eq!(self.daemon.state(self.name).unwrap(), "warm", "{}", self.daemon.log());
        }
    }

    /// The power is cut, and comes back.
    fn cut(&mut self) {
        self.daemon.power_off().unwrap();
        self.daemon.up().unwrap();
    }
}

/// A connection of before a power cut is found closed at once: nobody waits for what never comes.
fn assert_ended<T>(outcome: Result<T, Error>) {
    match outcome {
        Ok(_) => panic!("a connection has survived a power cut"),
        Err(Error::Network { source, .. }) if source.kind() != std::io::ErrorKind::WouldBlock => {}
        Err(error) => panic!("{error}"),
    }
}
