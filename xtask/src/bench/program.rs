//! The programs that are measured.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use torpor_testkit::servers::{self, Program as Servers};

use super::client::{Protocol, fill_redis, first_byte_since};
use crate::error::{Error, run};

/// A program of the servers, and the data that it holds.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Its name in results.
    pub(crate) name: &'static str,
    /// Its files and command.
    pub(crate) servers: Servers,
    /// Requests to it.
    pub(crate) protocol: Protocol,
    /// Amount of data that is stored in it at the start.
    pub(crate) data_bytes: usize,
}

/// Name in results, name in the servers, data.
const PROGRAMS: [(&str, &str, usize); 6] = [
    ("lighttpd", "lighttpd", 0),
    ("redis", "redis", 1000),
    ("redis-80mb", "redis", 80_000_000),
    ("python", "python", 0),
    ("go", "go", 0),
    ("node", "node", 0),
];

/// The programs with these names; all programs if `names` is empty.
pub(crate) fn programs(names: &[String]) -> Result<Vec<Program>, Error> {
    let known = || PROGRAMS.map(|(name, ..)| name).join(", ");
    if let Some(name) = names.iter().find(|name| !PROGRAMS.iter().any(|(known, ..)| known == name)) {
        return Err(Error::Unknown { name: name.clone(), known: known() });
    }
    let servers = servers::Servers::open()?;
    let wanted = PROGRAMS.iter().filter(|(name, ..)| names.is_empty() || names.iter().any(|wanted| wanted == name));
    let program = |(name, source, data_bytes): &(&'static str, &str, usize)| Program {
        name,
        servers: servers.program(source).clone(),
        protocol: if *source == "redis" { Protocol::Redis } else { Protocol::Http },
        data_bytes: *data_bytes,
    };
    Ok(wanted.map(program).collect())
}

impl Program {
    /// The port that it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.servers.ports.first().map_or(0, |port| port.0)
    }

    /// Waits until it answers at `address`, stores its data, and sends it a few requests.
    pub(crate) fn warm_up(&self, address: SocketAddr) -> Result<(), Error> {
        first_byte_since(address, self.protocol, std::time::Instant::now())?;
        if self.data_bytes > 0 {
            fill_redis(address, self.data_bytes)?;
        }
        (0..10).try_for_each(|_| first_byte_since(address, self.protocol, std::time::Instant::now()).map(drop))
    }

    /// Unpacks its files into the directory `root`, configured so that the program stays root: CRIU reads the limits of a process,
    /// which needs CAP_SYS_RESOURCE if the process belongs to another user, and not every machine grants that.
    pub(crate) fn unpack_for_root(&self, root: &Path) -> Result<(), Error> {
        std::fs::create_dir_all(root).map_err(Error::file("make", root))?;
        run(Command::new("tar").args(["--numeric-owner", "-xpf"]).arg(&self.servers.tarball).arg("-C").arg(root))?;
        let settings = root.join("etc/servers/lighttpd.conf");
        if settings.exists() {
            let text = std::fs::read_to_string(&settings).map_err(Error::file("read", &settings))?;
            let stays = |line: &&str| !line.starts_with("server.username") && !line.starts_with("server.groupname");
            let text: String = text.lines().filter(stays).map(|line| format!("{line}\n")).collect();
            std::fs::write(&settings, text).map_err(Error::file("write", &settings))?;
        }
        Ok(())
    }
}
