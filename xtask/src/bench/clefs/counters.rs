//! A counter for each user behind a socket: `torpor clef dev`, Node.js and redis, all asked by the same client on the same machine.
//!
//! Level `durable`: each answer comes when the count is on disk (`appendfsync always` of redis). Level `memory`: nothing is waited for
//! (`--durability none`; Node.js, which stores nothing). Redis speaks its own protocol, not HTTP. Level `asleep`: one Clef at most is awake, and each request
//! is for another one.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use torpor_testkit::wait::eventually_ok;

use super::load::{Connection, Load, Protocol, rates};
use super::options::Options;
use super::programs::COUNTER;
use super::{ASLEEP, DURABLE, MEMORY, TORPOR};
use crate::bench::conditions::version;
use crate::bench::daemon::free_port;
use crate::bench::progress;
use crate::bench::samples::{Measured, Samples};
use crate::error::Error;

/// Limit for a server to listen.
const LISTENS_WITHIN: Duration = Duration::from_secs(20);
/// Users, all of whose Clefs can be awake.
const USERS: u32 = 1000;
/// Users of Clefs that sleep.
const SLEEPERS: u32 = 2000;
/// Connections of the load.
const CONNECTIONS: usize = 64;
/// Requests to redis that share a sync.
const TOGETHER: u32 = 64;
const PART: Duration = Duration::from_millis(500);

pub(super) fn run(options: &Options, measured: &mut Measured) -> Result<(), Error> {
    let dir = super::disk_directory()?;
    let samples = &mut measured.samples;
    for (what, part) in [
        ("torpor asleep", asleep as fn(&Options, &Path, &mut Samples) -> Result<(), Error>),
        ("torpor durable", |options, dir, samples| clefs(options, dir, "reply", DURABLE, samples)),
        ("torpor in memory", |options, dir, samples| clefs(options, dir, "none", MEMORY, samples)),
        ("node", node),
        ("redis durable", |options, dir, samples| redis(options, dir, "always", DURABLE, samples)),
        ("redis in memory", |options, dir, samples| redis(options, dir, "no", MEMORY, samples)),
    ] {
        progress(what);
        let dir = super::new_directory(&dir.path().join(what.replace(' ', "-")))?;
        if let Err(error) = part(options, &dir, samples) {
            samples.missing(format!("{} by {what}", COUNTER.name), &error);
        }
    }
    measured.peers.extend(version("node".as_ref(), "--version", "node", None));
    measured.peers.extend(redis_version());
    Ok(())
}

/// The word behind `v=`.
fn redis_version() -> Option<String> {
    let output = Command::new("redis-server").arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(format!("redis {}", text.split_whitespace().find_map(|word| word.strip_prefix("v="))?))
}

/// Each request wakes a Clef, and puts another one to sleep.
fn asleep(options: &Options, dir: &Path, samples: &mut Samples) -> Result<(), Error> {
    let server = Server::clef_dev(options, dir, &["--awake", "1"])?;
    let users = options.runs(SLEEPERS as usize, 50) as u32;
    let mut client = server.client(Protocol::Http)?;
    let mut all = || (0..users).map(|user| client.ask(user)).collect::<Result<Vec<f64>, _>>();
    // The first time, they are created.
    let asked = all().and_then(|_| all());
    let times = asked.map_err(Error::network(&server.address, "get an answer"))?;
    samples.add_all((COUNTER.name, TORPOR, ASLEEP, "http_asleep", "us"), &times);
    Ok(())
}

fn clefs(
    options: &Options,
    dir: &Path,
    durability: &str,
    level: &'static str,
    samples: &mut Samples,
) -> Result<(), Error> {
    let server = Server::clef_dev(options, dir, &["--durability", durability])?;
    server.measure(options, Protocol::Http, TORPOR, level, samples)
}

fn node(options: &Options, dir: &Path, samples: &mut Samples) -> Result<(), Error> {
    let program = dir.join("counter.js");
    fs::write(&program, include_str!("counter.js")).map_err(Error::file("write", &program))?;
    let port = free_port()?;
    let server = Server::start(Command::new("node").arg(&program).arg(port.to_string()), port, dir)?;
    server.measure(options, Protocol::Http, "node", MEMORY, samples)
}

fn redis(options: &Options, dir: &Path, sync: &str, level: &'static str, samples: &mut Samples) -> Result<(), Error> {
    let port = free_port()?;
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", sync, "--port"]);
    let server = Server::start(command.arg(port.to_string()).arg("--dir").arg(dir), port, dir)?;
    server.measure(options, Protocol::Redis, "redis", level, samples)?;
    if level == DURABLE {
        let mut client = server.client(Protocol::Redis)?;
        let mut ask = |count: u32| -> Result<Vec<f64>, Error> {
            let times =
                (0..options.runs(500, 20)).map(|_| client.ask_together(0..count).map(|us| us / f64::from(count)));
            times.collect::<Result<_, _>>().map_err(Error::network(&server.address, "get an answer"))
        };
        samples.add_all((COUNTER.name, "redis", DURABLE, "durable_reply", "us"), &ask(1)?);
        samples.add_all((COUNTER.name, "redis", DURABLE, "durable_reply_64", "us"), &ask(TOGETHER)?);
    }
    Ok(())
}

/// A server. Dropping it ends it.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts a server that will listen on this port, and waits until it does. Its log is in `dir`.
    fn start(command: &mut Command, port: u16, dir: &Path) -> Result<Self, Error> {
        let log = dir.join("log");
        let file = File::create(&log).map_err(Error::file("make", &log))?;
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn();
        let child = spawned.map_err(Error::spawn(command.get_program().to_string_lossy()))?;
        let server = Self { child, address: (Ipv4Addr::LOCALHOST, port).into() };
        let listens = eventually_ok("the server listens", LISTENS_WITHIN, || TcpStream::connect(server.address));
        listens.inspect_err(|_| eprintln!("{}", fs::read_to_string(&log).unwrap_or_default()))?;
        Ok(server)
    }

    fn clef_dev(options: &Options, dir: &Path, more: &[&str]) -> Result<Self, Error> {
        let program = dir.join("counter.lua");
        fs::write(&program, COUNTER.text).map_err(Error::file("write", &program))?;
        let port = free_port()?;
        let mut command = Command::new(&options.torpor);
        command.args(["clef", "dev"]).arg(&program).args(["--key", "path:/{key}", "-p", &port.to_string(), "--data"]);
        Self::start(command.arg(dir.join("data")).args(more), port, dir)
    }

    fn client(&self, protocol: Protocol) -> Result<Connection, Error> {
        Connection::open(self.address, protocol).map_err(Error::network(&self.address, "connect"))
    }

    /// Requests of one client, and then of many at the same time.
    fn measure(
        &self,
        options: &Options,
        protocol: Protocol,
        subject: &'static str,
        level: &'static str,
        samples: &mut Samples,
    ) -> Result<(), Error> {
        let wrong = || Error::network(&self.address, "get an answer");
        let mut client = self.client(protocol)?;
        // All users are known, and awake.
        let times = (0..USERS).chain(0..USERS).map(|user| client.ask(user)).collect::<Result<Vec<f64>, _>>();
        samples.add_all((COUNTER.name, subject, level, "http_awake", "us"), &times.map_err(wrong())?[USERS as usize..]);
        let load = Load { protocol, connections: CONNECTIONS, keys: USERS, parts: options.runs(10, 2), part: PART };
        let rates = rates(self.address, load).map_err(wrong())?;
        samples.add_all((COUNTER.name, subject, level, "http_awake_rate", "1/s"), &rates);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
