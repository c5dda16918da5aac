//! Real servers as tarballs that stand alone, each with state that lives in memory only.
//!
//! [`Servers::open`] makes what is missing (minutes the first time, milliseconds afterwards): one tree of the distribution's
//! packages with mmdebstrap, and from it a tarball per program, with its settings and a counter program where it is a
//! language. Everything is kept in [`cache_dir`], named by a hash of its recipe. [`Large`] programs are for benchmarks: each is made
//! when it is opened, not by [`Servers::open`].
//!
//! What proves that a program woke where it stopped: [`Program::connect`] opens a connection whose every
//! [`Session::step`] checks state that a restart would lose.

mod cache;
mod debian;
mod large;
mod lighttpd;
mod recipes;
mod ssh;
pub(crate) mod tarball;

use std::net::SocketAddr;
use std::path::PathBuf;

pub use cache::{cache_dir, target_dir};
pub(crate) use cache::{cached, key};
pub use large::Large;
pub use lighttpd::make_lighttpd_tarball;
pub(crate) use recipes::static_tarball;
pub use ssh::ssh_tarball;

use crate::client::{Session, clamav, counter, dns, mariadb, postgres, redis, smtp, status};
use crate::error::Error;

/// TCP or UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// How a program's state is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// HTTP: a nonce and a counter.
    Counter,
    /// HTTP: lighttpd's `mod_status`, total accesses and uptime.
    LighttpdStatus,
    /// HTTP: nginx's `stub_status`, requests so far.
    NginxStatus,
    /// UDP: a server cookie, valid only with the secret in the server's memory.
    DnsCookie,
    /// SMTP: an open session with its envelope begun.
    SmtpSession,
    /// clamd: a session of numbered scans, one of a stream with the signature.
    ClamSession,
    /// RESP: the run's id, and a key that was never saved.
    RedisKey,
    /// MariaDB: connection id, user variable and a MEMORY table.
    MariaDbSession,
    /// PostgreSQL: backend's pid and a temporary table.
    PostgresSession,
    /// No protocol of ours.
    None,
}

/// A program with its files.
#[derive(Clone, Debug)]
pub struct Program {
    /// Name, also good as an app's name.
    pub name: &'static str,
    /// Its whole file system.
    pub tarball: PathBuf,
    /// Initial process and arguments.
    pub command: Vec<String>,
    /// User of the initial process; absent: root.
    pub user: Option<&'static str>,
    /// Ports inside; the first is the one that [`Program::connect`] wants.
    pub ports: Vec<(u16, Transport)>,
    /// How its state is asked for.
    pub check: Check,
}

impl Program {
    /// A connection to the program at `address` that checks its state. The first check has already been made.
    ///
    /// # Errors
    /// Where it does not answer, or not as it should.
    pub fn connect(&self, address: SocketAddr) -> Result<Box<dyn Session>, Error> {
        Ok(match self.check {
            Check::Counter => Box::new(counter::Counter::open(address)?),
            Check::LighttpdStatus => Box::new(status::Status::lighttpd(address)?),
            Check::NginxStatus => Box::new(status::Status::nginx(address)?),
            Check::DnsCookie => Box::new(dns::CookieSession::open(address)?),
            Check::SmtpSession => Box::new(smtp::Smtp::open(address)?),
            Check::ClamSession => Box::new(clamav::Clam::open(address)?),
            Check::RedisKey => Box::new(redis::RedisSession::open(address)?),
            Check::MariaDbSession => Box::new(mariadb::MariaDb::open(address)?),
            Check::PostgresSession => Box::new(postgres::Postgres::open(address)?),
            Check::None => return Err(Error::Missing { what: format!("check for the program {}", self.name) }),
        })
    }

    /// The app's description for `torpor run -f`: `name`, and for each of the program's ports one of the machine.
    ///
    /// # Panics
    /// Where `host_ports` are not as many as the program's ports.
    pub fn app_toml(&self, name: &str, host_ports: &[u16]) -> String {
        assert_eq!(host_ports.len(), self.ports.len(), "one port of the machine for each of {}", self.name);
        let ports: Vec<serde_json::Value> = self
            .ports
            .iter()
            .zip(host_ports)
            .map(|(&(app, transport), host)| {
                let protocol = if transport == Transport::Tcp { "tcp" } else { "udp" };
                serde_json::json!({ "host": host, "app": app, "protocol": protocol })
            })
            .collect();
        let mut app = serde_json::json!({
            "name": name,
            "command": self.command,
            "source": { "tarball": { "path": self.tarball } },
            "ports": ports,
        });
        if let Some(user) = self.user {
            app["user"] = user.into();
        }
        toml::to_string(&app).expect("an app's description has no nulls and is a table")
    }
}

/// All programs.
#[derive(Clone, Debug)]
pub struct Servers {
    programs: Vec<Program>,
}

impl Servers {
    /// All programs, built where they are missing from the cache.
    ///
    /// # Errors
    /// Where a tool or a package is missing; the error says which.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { programs: recipes::build()? })
    }

    /// All programs, in a fixed order.
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// The program of this name.
    ///
    /// # Panics
    /// Where there is none: a mistake in the test.
    pub fn program(&self, name: &str) -> &Program {
        let names: Vec<&str> = self.programs.iter().map(|program| program.name).collect();
        let found = self.programs.iter().find(|program| program.name == name);
        found.unwrap_or_else(|| panic!("there is no test program `{name}`, only {names:?}"))
    }
}

/// All programs, built where they are missing.
///
/// # Errors
/// As [`Servers::open`].
pub fn programs() -> Result<Vec<Program>, Error> {
    Ok(Servers::open()?.programs)
}
