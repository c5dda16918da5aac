//! The programs that are measured.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use torpor_testkit::servers::{self, Large, Program as Servers};

use super::client::{Protocol, fill_kernel, fill_postgres, fill_redis, first_byte_since};
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
    /// What is stored in it at the start.
    data: Data,
}

/// What is stored in a program at its start.
#[derive(Clone, Copy, Debug)]
enum Data {
    Nothing,
    /// Bytes in redis.
    Redis(usize),
    /// Rows in a table of PostgreSQL.
    Table(usize),
    /// Bytes in a variable of a Jupyter kernel.
    Kernel(usize),
}

/// A program before its files are there.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its name in results.
    pub(crate) name: &'static str,
    source: Source,
    protocol: Protocol,
    data: Data,
}

/// Where the files of a program come from.
#[derive(Debug)]
enum Source {
    /// The servers of the tests, by name.
    Tests(&'static str),
    /// Those that only benchmarks use.
    Large(Large),
}

const HTTP: Protocol = Protocol::Http("/");
/// Lists the kernels.
const JUPYTER: Protocol = Protocol::Http("/api/kernels");
const KERNEL: Data = Data::Kernel(100_000_000);

const fn tests(name: &'static str, source: &'static str, protocol: Protocol, data: Data) -> Entry {
    Entry { name, source: Source::Tests(source), protocol, data }
}

const fn large(name: &'static str, source: Large, protocol: Protocol, data: Data) -> Entry {
    Entry { name, source: Source::Large(source), protocol, data }
}

const ENTRIES: [Entry; 12] = [
    tests("lighttpd", "lighttpd", HTTP, Data::Nothing),
    tests("redis", "redis", Protocol::Redis, Data::Redis(1000)),
    tests("redis-80mb", "redis", Protocol::Redis, Data::Redis(80_000_000)),
    tests("python", "python", HTTP, Data::Nothing),
    tests("go", "go", HTTP, Data::Nothing),
    tests("node", "node", HTTP, Data::Nothing),
    tests("java", "java", HTTP, Data::Nothing),
    tests("postgresql", "postgres", Protocol::Query, Data::Table(10_000)),
    large("jupyter", Large::Jupyter, JUPYTER, KERNEL),
    large("jupyter-cell", Large::Jupyter, Protocol::Cell, KERNEL),
    large("clamd", Large::Clamd, Protocol::Scan, Data::Nothing),
    tests("redis-1gb", "redis", Protocol::Redis, Data::Redis(1_000_000_000)),
];

/// Programs with more memory than this are measured with fewer requests.
const LARGE_BYTES: usize = 100_000_000;

/// Options of the JVM: without a file of performance data in /tmp and an archive of classes that is shared between processes, the
/// peers can restore it too.
const JAVA_OPTIONS: [&str; 2] = ["-XX:-UsePerfData", "-Xshare:off"];

/// PostgreSQL without huge pages, of which a machine may have too few for several servers.
const POSTGRES_OPTIONS: [&str; 2] = ["-c", "huge_pages=off"];

/// The programs with these names; all programs if `names` is empty.
pub(crate) fn entries(names: &[String]) -> Result<Vec<&'static Entry>, Error> {
    let known = || ENTRIES.each_ref().map(|entry| entry.name).join(", ");
    if let Some(name) = names.iter().find(|name| !ENTRIES.iter().any(|entry| entry.name == **name)) {
        return Err(Error::Unknown { name: name.clone(), known: known() });
    }
    let wanted = |entry: &&Entry| names.is_empty() || names.iter().any(|name| name == entry.name);
    Ok(ENTRIES.iter().filter(wanted).collect())
}

/// The program with this name.
pub(crate) fn program(name: &str) -> Result<Program, Error> {
    entries(&[name.to_owned()])?.remove(0).open()
}

/// In the root of a peer that runs PostgreSQL: the library that makes it believe not to be root.
const OWNER: &str = "/usr/lib/owner.so";

/// Compiles [`OWNER`] into the directory `root`, for `user` of the `/etc/passwd` there.
fn make_owner(root: &Path, user: &str) -> Result<(), Error> {
    let path = root.join("etc/passwd");
    let text = std::fs::read_to_string(&path).map_err(Error::file("read", &path))?;
    let id = text.lines().find_map(|line| line.strip_prefix(user)?.strip_prefix(':')?.split(':').nth(1));
    let what = || format!("user {user} in {}", path.display());
    let id = id.ok_or_else(|| Error::Missing { what: what(), hint: "the tarball should have it" })?;
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/peers/owner.c");
    let library = root.join(OWNER.trim_start_matches('/'));
    let mut command = Command::new("gcc");
    command.args(["-shared", "-fPIC", "-nostdlib", &format!("-DOWNER={id}"), source, "-o"]).arg(library);
    run(&mut command).map(drop)
}

impl Entry {
    /// The program, with its files, which are made if they are missing from the cache.
    pub(crate) fn open(&self) -> Result<Program, Error> {
        let mut servers = match self.source {
            Source::Tests(name) => servers::Servers::open()?.program(name).clone(),
            Source::Large(program) => program.open()?,
        };
        if self.name == "java" {
            servers.command.splice(1..1, JAVA_OPTIONS.map(str::to_owned));
        }
        if self.name == "postgresql" {
            servers.command.extend(POSTGRES_OPTIONS.map(str::to_owned));
        }
        Ok(Program { name: self.name, servers, protocol: self.protocol, data: self.data })
    }

    /// Whether it has so much memory that a sleep takes seconds.
    pub(crate) const fn is_large(&self) -> bool {
        let data = match self.data {
            Data::Redis(bytes) | Data::Kernel(bytes) => bytes,
            Data::Nothing | Data::Table(_) => 0,
        };
        data >= LARGE_BYTES || matches!(self.source, Source::Large(_))
    }
}

impl Program {
    /// A program that is not one of the list, without data.
    pub(crate) const fn other(name: &'static str, servers: Servers, protocol: Protocol) -> Self {
        Self { name, servers, protocol, data: Data::Nothing }
    }

    /// The port that it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.servers.ports.first().map_or(0, |port| port.0)
    }

    /// Waits until it answers at `address`, stores its data, and sends it a few requests.
    pub(crate) fn warm_up(&self, address: SocketAddr) -> Result<(), Error> {
        // The query needs the table, so storing that waits for the server itself.
        if !matches!(self.data, Data::Table(_)) {
            first_byte_since(address, self.protocol, Instant::now())?;
        }
        match self.data {
            Data::Nothing => {}
            Data::Redis(bytes) => fill_redis(address, bytes)?,
            Data::Table(rows) => fill_postgres(address, rows)?,
            Data::Kernel(bytes) => fill_kernel(address, bytes)?,
        }
        (0..10).try_for_each(|_| first_byte_since(address, self.protocol, Instant::now()).map(drop))
    }

    /// Whether it has TCP connections within itself while it is idle, which CRIU saves only on request.
    pub(crate) const fn has_connections(&self) -> bool {
        matches!(self.data, Data::Kernel(_))
    }

    /// Whether it needs the System V memory that it creates, which CRIU saves only with an IPC namespace.
    pub(crate) const fn has_system_v(&self) -> bool {
        matches!(self.protocol, Protocol::Query)
    }

    /// Its command in a root that [`Program::unpack_for_root`] has made.
    pub(crate) fn command_for_root(&self) -> Vec<String> {
        let mut command = self.servers.command.clone();
        if self.protocol == Protocol::Query {
            command.splice(0..0, ["/usr/bin/env".to_owned(), format!("LD_PRELOAD={OWNER}")]);
        }
        command
    }

    /// Unpacks its files into the directory `root`, configured so that the program stays root: CRIU reads the limits of a process,
    /// which needs CAP_SYS_RESOURCE if the process belongs to another user, and not every machine grants that.
    pub(crate) fn unpack_for_root(&self, root: &Path) -> Result<(), Error> {
        std::fs::create_dir_all(root).map_err(Error::file("make", root))?;
        run(Command::new("tar").args(["--numeric-owner", "-xpf"]).arg(&self.servers.tarball).arg("-C").arg(root))?;
        if let (Protocol::Query, Some(user)) = (self.protocol, self.servers.user) {
            make_owner(root, user)?;
        }
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
