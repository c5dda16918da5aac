//! Time to first byte of a sleeping app beside apps that write to their output as fast as they can.
//!
//! The same app is put to sleep and asked, first alone and then beside the writers, which are two processes each: `yes` on
//! standard output and on standard error. `dropped` is what the log says of one of them.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use clap::Args;

use super::client::first_byte;
use super::daemon::{Daemon, free_port};
use super::program::{Program, programs};
use super::release_binary;
use super::report::{Report, Samples};
use crate::error::Error;

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Requests, each to an app that sleeps
    #[arg(long, default_value_t = 100)]
    runs: usize,
    /// Apps that write without end
    #[arg(long, default_value_t = 1)]
    writers: usize,
    /// Idle time before each request, in milliseconds
    #[arg(long, default_value_t = 200)]
    gap_ms: u64,
}

const SLEEP_TIMEOUT: Duration = Duration::from_secs(60);
/// What a writer does.
const WRITE: [&str; 3] = ["/bin/sh", "-c", "yes >&2 & exec yes"];

/// Measures.
pub(crate) fn run(options: &Options) -> Result<Report, Error> {
    let program = programs(&["lighttpd".to_owned()])?.remove(0);
    let mut daemon = Daemon::start(&release_binary()?, "")?;
    daemon.load("lighttpd", &program.zoo.tarball)?;
    let port = free_port()?;
    let settings = ["-p".to_owned(), format!("{port}:{}", program.port()), "--no-sleep".to_owned()];
    daemon.run_app("sleeper", "lighttpd", &settings, &program.zoo.command)?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    program.warm_up(address)?;
    let mut samples = Samples::default();
    measure(&daemon, &program, address, "alone", options, &mut samples)?;
    for writer in 0..options.writers {
        let command = WRITE.map(str::to_owned);
        daemon.run_app(&format!("writer{writer}"), "lighttpd", &["--no-sleep".to_owned()], &command)?;
    }
    measure(&daemon, &program, address, "beside-writers", options, &mut samples)?;
    if options.writers > 0 {
        let stats = daemon.json(&["stats", "writer0"])?;
        let dropped = stats["dropped_lines"].as_f64().unwrap_or(0.0);
        samples.add("writer0", "torpor", "running", "dropped", "lines", dropped);
    }
    Report::new(&samples, Vec::new())
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
            sleep(daemon, level)?;
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

/// Puts it to sleep; an attempt that traffic of our own last request disturbed is repeated.
fn sleep(daemon: &Daemon, level: &str) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        match daemon.call(&["sleep", "sleeper", "--level", level]) {
            Ok(_) => return Ok(()),
            Err(error) if begun.elapsed() > SLEEP_TIMEOUT => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
