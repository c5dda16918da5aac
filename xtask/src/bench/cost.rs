//! The cost of the sandbox for a program that is awake (as in Picocenter's figure 5): computing, system calls and a UDP round
//! trip, in a sandbox and as a plain process, in turns.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use super::daemon::{Daemon, free_port};
use super::samples::Measured;
use crate::error::{Error, run as run_command};

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Samples of each quantity
    #[arg(long, default_value_t = 30)]
    runs: usize,
}

impl Options {
    /// For `bench all`.
    pub(super) const fn brief(quick: bool) -> Self {
        Self { runs: if quick { 3 } else { 20 } }
    }
}

const TIMEOUT: Duration = Duration::from_secs(30);
/// Round trips of one sample, which is their median.
const PINGS: usize = 200;
/// Requests to the program in `cost.c`, and the metrics of its answers.
const REQUESTS: [(u8, &str); 3] = [(b'c', "computing"), (b's', "system_call"), (b'f', "open_read_close")];
const PORT: u16 = 7007;

/// A server outside any sandbox.
struct Plain(Child);

impl Drop for Plain {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait().map(drop)) {
            eprintln!("ending the plain process: {error}");
        }
    }
}

/// Measures; `torpor` is the program that makes the sandbox.
pub(crate) fn run(options: &Options, torpor: &Path) -> Result<Measured, Error> {
    let mut daemon = Daemon::start(torpor, "")?;
    let dir = tempfile::tempdir().map_err(Error::file("make a directory in", std::env::temp_dir()))?;
    let binary = compile(dir.path())?;
    let tarball = dir.path().join("cost.tar");
    run_command(Command::new("tar").arg("-cf").arg(&tarball).arg("-C").arg(dir.path()).arg("bin"))?;
    let plain_port = free_port()?;
    let plain = Command::new(&binary).arg(plain_port.to_string()).stdin(Stdio::null()).spawn();
    let _plain = Plain(plain.map_err(Error::spawn(binary.display().to_string()))?);
    let port = free_port()?;
    daemon.load("cost", &tarball)?;
    let settings = ["--no-sleep".to_owned(), "-p".to_owned(), format!("{port}:{PORT}/udp")];
    daemon.run_app("cost", "cost", &settings, &["/bin/cost".to_owned(), PORT.to_string()])?;
    let sockets = [("torpor", connect(port)?), ("plain", connect(plain_port)?)];
    let mut measured = Measured::default();
    let samples = &mut measured.samples;
    for _ in 0..options.runs {
        for (subject, socket) in &sockets {
            for (what, metric) in REQUESTS {
                let ns = ask(socket, &[what])?.parse().unwrap_or(f64::NAN);
                samples.add("cost", subject, "running", metric, "ns", ns);
            }
            samples.add("cost", subject, "running", "udp_ping", "us", ping(socket)?);
        }
    }
    let metrics = REQUESTS.iter().map(|(_, metric)| *metric).chain(["udp_ping"]);
    let ratio = |metric| {
        let name = format!("{metric}_ratio");
        let (sandbox, plain) = (("torpor", "running", metric), ("plain", "running", metric));
        samples.compared("cost", (&name, "times"), sandbox, plain, |a, b| a / b)
    };
    measured.compared = metrics.filter_map(ratio).collect();
    Ok(measured)
}

fn compile(dir: &Path) -> Result<PathBuf, Error> {
    let source = dir.join("cost.c");
    std::fs::write(&source, include_str!("cost.c")).map_err(Error::file("write", &source))?;
    let bin = dir.join("bin");
    std::fs::create_dir(&bin).map_err(Error::file("make", &bin))?;
    let binary = bin.join("cost");
    run_command(Command::new("gcc").args(["-O2", "-static", "-D_GNU_SOURCE", "-o"]).arg(&binary).arg(&source))?;
    Ok(binary)
}

fn connect(port: u16) -> Result<UdpSocket, Error> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let open = || {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(address)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        Ok(socket)
    };
    let socket = open().map_err(Error::network(&address, "open a socket to"))?;
    // The server may not listen yet.
    let begun = Instant::now();
    while ask(&socket, b"ping").is_err() {
        if begun.elapsed() > TIMEOUT {
            let (what, seconds) = (format!("{address} answers"), TIMEOUT.as_secs());
            return Err(torpor_testkit::Error::Deadline { what, seconds, last: String::new() }.into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(socket)
}

fn ask(socket: &UdpSocket, message: &[u8]) -> Result<String, Error> {
    let mut buffer = [0; 64];
    let asked = socket.send(message).and_then(|_| socket.recv(&mut buffer));
    let got = asked.map_err(Error::network(&"the cost program", "get an answer from"))?;
    Ok(String::from_utf8_lossy(&buffer[..got]).into_owned())
}

/// Median of many round trips, in microseconds.
fn ping(socket: &UdpSocket) -> Result<f64, Error> {
    let mut times = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let begun = Instant::now();
        ask(socket, b"ping")?;
        times.push(begun.elapsed().as_nanos() as f64 / 1000.0);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[PINGS / 2])
}
