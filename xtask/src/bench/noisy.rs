//! Time to first byte of a sleeping app beside apps that write to their output as fast as they can.
//!
//! The same app is put to sleep and woken by a request, first alone and then beside the writers. A writer is two processes:
//! `yes` on standard output, and `yes` on standard error. `dropped` is the number of lines that the first writer lost.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use clap::Args;

use super::client::first_byte;
use super::daemon::{Daemon, free_port};
use super::program::{Program, program};
use super::progress;
use super::samples::{Measured, Samples};
use crate::error::Error;

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Requests to the sleeping app at each level
    #[arg(long, default_value_t = 100)]
    runs: usize,
    /// Number of apps that write without end
    #[arg(long, default_value_t = 1)]
    writers: usize,
    /// Idle time before each request, in milliseconds
    #[arg(long, default_value_t = 200)]
    gap_ms: u64,
}

impl Options {
    /// For `bench all`.
    pub(super) const fn brief(quick: bool) -> Self {
        Self { runs: if quick { 3 } else { 20 }, writers: 1, gap_ms: 200 }
    }
}

/// The command of a writer.
const WRITE: [&str; 3] = ["/bin/sh", "-c", "yes >&2 & exec yes"];

/// Measures; `torpor` is the program that hosts the apps.
pub(crate) fn run(options: &Options, torpor: &Path) -> Result<Measured, Error> {
    let program = program("lighttpd")?;
    let mut daemon = Daemon::start(torpor, "")?;
    daemon.load("lighttpd", &program.servers.tarball)?;
    let port = free_port()?;
    let settings = ["-p".to_owned(), format!("{port}:{}", program.port()), "--no-sleep".to_owned()];
    daemon.run_app("sleeper", "lighttpd", &settings, &program.servers.command)?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    program.warm_up(address)?;
    let mut measured = Measured::default();
    let samples = &mut measured.samples;
    progress("alone");
    measure(&daemon, &program, address, "alone", options, samples)?;
    for writer in 0..options.writers {
        let command = WRITE.map(str::to_owned);
        daemon.run_app(&format!("writer{writer}"), "lighttpd", &["--no-sleep".to_owned()], &command)?;
    }
    progress("beside writers");
    measure(&daemon, &program, address, "beside-writers", options, samples)?;
    if options.writers > 0 {
        let stats = daemon.json(&["stats", "writer0"])?;
        let dropped = stats["dropped_lines"].as_f64().unwrap_or(0.0);
        samples.add("writer0", "torpor", "running", "dropped", "lines", dropped);
    }
    Ok(measured)
}

fn measure(
    daemon: &Daemon,
    program: &Program,
    address: SocketAddr,
    beside: &'static str,
    options: &Options,
    samples: &mut Samples,
) -> Result<(), Error> {
    for level in ["dozing", "warm"] {
        for _ in 0..options.runs {
            daemon.sleep("sleeper", level)?;
            std::thread::sleep(Duration::from_millis(options.gap_ms));
            let us = first_byte(address, program.protocol)?;
            samples.add(program.name, beside, level, "first_byte", "us", us);
            let explained = daemon.json(&["explain", "sleeper"])?;
            let phases = explained["wakes"][0]["phases"].as_array().map(Vec::as_slice).unwrap_or_default();
            let wake = phases.iter().filter_map(|phase| phase["us"].as_f64()).sum();
            samples.add(program.name, beside, level, "wake", "us", wake);
        }
    }
    Ok(())
}
