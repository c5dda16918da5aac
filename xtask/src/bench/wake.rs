//! Time to first byte of an app that is dozing, warm, warm since before a reboot, or never slept, and of the peers. Subjects
//! take turns, so that noise of the machine affects all of them.
//!
//! The machine is idle for the same time before each request, for all subjects: after a second of idleness every answer is
//! slower, also that of a server that never slept. The times per phase come from `torpor explain`. `added` is the difference
//! of the quantiles, not a quantile of differences.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::client::{Protocol, first_byte};
use super::daemon::{Daemon, IMAGES_CACHED, free_port};
use super::machine::drop_from_cache;
use super::memory_peak;
use super::peers::{CONTAINER, CRIU, CRIU_LAZY, Peer, peers};
use super::program::{Entry, Program, entries};
use super::progress;
use super::samples::{Measured, Row, Samples};
use crate::error::Error;

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Requests to each subject
    #[arg(long, default_value_t = 100)]
    runs: usize,
    /// At most this many requests to each subject of a program with much memory: jupyter, clamd, redis-1gb
    #[arg(long, default_value_t = 20)]
    large_runs: usize,
    /// Only these programs: lighttpd, redis, redis-80mb, python, go, node, java, postgresql, jupyter, jupyter-cell, clamd, redis-1gb
    #[arg(long, value_delimiter = ',')]
    programs: Vec<String>,
    /// Leave out runc + CRIU, CRIU, CRIU with lazy pages, and cold start
    #[arg(long)]
    without_peers: bool,
    /// Measure peers, reboots and images outside the page cache only in each Nth round
    #[arg(long, value_name = "N", default_value_t = 5)]
    peers_every: usize,
    /// Idle time before each request, in milliseconds
    #[arg(long, default_value_t = 1200)]
    gap_ms: u64,
}

impl Options {
    /// For `bench all`.
    pub(super) const fn brief(quick: bool) -> Self {
        let (runs, large_runs) = if quick { (1, 1) } else { (9, 3) };
        Self { runs, large_runs, programs: Vec::new(), without_peers: false, peers_every: 3, gap_ms: 1000 }
    }
}

const LEVELS: [&str; 2] = ["dozing", "warm"];
/// Warm since before a reboot of the machine: nothing is parked.
const REBOOTED: &str = "rebooted";
/// Steps of falling asleep during which the program is frozen and an event still aborts the sleep.
const FROZEN: [&str; 6] = ["frozen", "stopped", "watched", "copied", "synced", "committed"];

/// Measures; `torpor` is the program that hosts the apps.
pub(crate) fn run(options: &Options, torpor: &Path) -> Result<Measured, Error> {
    let entries = entries(&options.programs)?;
    let mut measured = Measured::default();
    for (number, entry) in entries.iter().enumerate() {
        progress(format_args!("{} ({} of {})", entry.name, number + 1, entries.len()));
        if let Err(error) = measure(torpor, entry, options, &mut measured.samples) {
            measured.samples.missing(format!("{} (all its runs, or the rest of them)", entry.name), &error);
        }
        measured.compared.extend(compare(entry.name, &measured.samples));
    }
    Ok(measured)
}

fn compare(program: &str, samples: &Samples) -> Vec<Row> {
    const PEERS: [(&str, &str); 4] =
        [(CONTAINER, "image"), (CRIU, "image"), (CRIU_LAZY, "image"), ("cold-start", "stopped")];
    let awake = ("never-slept", "running", "first_byte");
    let mut rows = Vec::new();
    for level in LEVELS.into_iter().chain([REBOOTED]) {
        // Names of the first level have no prefix.
        let name = |metric: &str| if level == LEVELS[0] { metric.to_owned() } else { format!("{level}_{metric}") };
        let asleep = ("torpor", level, "first_byte");
        let uncached = ("torpor", level, "first_byte_uncached");
        rows.extend(samples.compared(program, (&name("added"), "us"), asleep, awake, |a, b| a - b));
        rows.extend(samples.compared(program, (&name("added_uncached"), "us"), uncached, awake, |a, b| a - b));
        for (peer, at) in PEERS {
            let metric = name(&format!("faster_than_{peer}"));
            let peer = (peer, at, "first_byte");
            rows.extend(samples.compared(program, (&metric, "times"), asleep, peer, |torpor, peer| peer / torpor));
        }
    }
    rows
}

/// The two apps of one program: one sleeps, the other never does.
struct Apps {
    daemon: Daemon,
    id: String,
    asleep: SocketAddr,
    awake: SocketAddr,
    protocol: Protocol,
}

fn measure(binary: &Path, entry: &Entry, options: &Options, samples: &mut Samples) -> Result<(), Error> {
    let program = &entry.open()?;
    let runs = if entry.is_large() { options.runs.min(options.large_runs) } else { options.runs };
    let mut apps = Apps::start(binary, program)?;
    let dir = tempfile::Builder::new().prefix("torpor-bench-").tempdir_in("/var/tmp");
    let dir = dir.map_err(Error::file("make a directory in", "/var/tmp"))?;
    let mut peers = if options.without_peers { Vec::new() } else { peers(program, dir.path(), samples) };
    let gap = Duration::from_millis(options.gap_ms);
    for round in 0..runs {
        apps.never_slept(program, gap, samples)?;
        for level in LEVELS {
            apps.wake(program, level, gap, true, samples)?;
        }
        if round % options.peers_every.max(1) == 0 {
            for level in LEVELS {
                apps.wake(program, level, gap, false, samples)?;
            }
            apps.reboot(program, gap, samples)?;
            peers.retain_mut(|peer| match ask_peer(program, &mut **peer, gap, samples) {
                Ok(()) => true,
                Err(error) => {
                    samples.missing(format!("{} with {}, from round {}", peer.name(), program.name, round + 1), &error);
                    false
                }
            });
        }
    }
    apps.refused(program)
}

/// Puts a peer to rest, brings it back after `gap`, and adds the time to the first byte.
pub(super) fn ask_peer(
    program: &Program,
    peer: &mut dyn Peer,
    gap: Duration,
    samples: &mut Samples,
) -> Result<(), Error> {
    peer.rest()?;
    std::thread::sleep(gap);
    let us = peer.first_byte()?;
    samples.add(program.name, peer.name(), peer.level(), "first_byte", "us", us);
    Ok(())
}

impl Apps {
    fn start(binary: &Path, program: &Program) -> Result<Self, Error> {
        let mut daemon = Daemon::start(binary, IMAGES_CACHED)?;
        daemon.load(program.name, &program.servers.tarball)?;
        let mut start = |name: &str| {
            let port = free_port()?;
            let mut settings = vec!["-p".to_owned(), format!("{port}:{}", program.port()), "--no-sleep".to_owned()];
            settings.extend(program.servers.user.iter().flat_map(|user| ["-u".to_owned(), (*user).to_owned()]));
            daemon.run_app(name, program.name, &settings, &program.servers.command)?;
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            program.warm_up(address)?;
            Ok::<_, Error>(address)
        };
        let (asleep, awake) = (start("sleeper")?, start("awake")?);
        let inspected = daemon.json(&["inspect", "sleeper"])?;
        let id = inspected["status"]["id"].as_str().unwrap_or_default().to_owned();
        Ok(Self { daemon, id, asleep, awake, protocol: program.protocol })
    }

    fn never_slept(&self, program: &Program, gap: Duration, samples: &mut Samples) -> Result<(), Error> {
        std::thread::sleep(gap);
        let us = first_byte(self.awake, self.protocol)?;
        samples.add(program.name, "never-slept", "running", "first_byte", "us", us);
        Ok(())
    }

    /// One sleep and one wake.
    fn wake(
        &self,
        program: &Program,
        level: &'static str,
        gap: Duration,
        cached: bool,
        samples: &mut Samples,
    ) -> Result<(), Error> {
        let mut add = |metric: String, unit, value| samples.add(program.name, "torpor", level, metric, unit, value);
        let before = self.memory()?;
        self.daemon.sleep("sleeper", LEVELS[0])?;
        let mut rise = None;
        if level != LEVELS[0] {
            let app = (self.daemon.instance(), self.id.as_str());
            rise = Some(memory_peak::rise(self.daemon.pid(), app, || self.daemon.sleep("sleeper", level))?.1);
        }
        let after = self.memory()?;
        if !cached {
            for image in self.daemon.images(&self.id)? {
                drop_from_cache(&image)?;
            }
        }
        std::thread::sleep(gap);
        let us = first_byte(self.asleep, self.protocol)?;
        let explained = self.daemon.json(&["explain", "sleeper"])?;
        let woken = phases(&explained["wakes"][0]);
        if !cached {
            add("first_byte_uncached".to_owned(), "us", us);
            add("wake_uncached".to_owned(), "us", woken.values().sum());
            return Ok(());
        }
        add("first_byte".to_owned(), "us", us);
        for (name, us) in &woken {
            add(format!("wake_{name}"), "us", *us);
        }
        add("wake".to_owned(), "us", woken.values().sum());
        let slept = phases(&explained["sleeps"][0]);
        for (name, us) in &slept {
            add(format!("sleep_{name}"), "us", *us);
        }
        let dozes = level == LEVELS[0];
        let steps = slept.iter().filter(|(name, _)| !dozes || FROZEN.contains(&name.as_str())).map(|(_, us)| us);
        let total: f64 = steps.sum();
        if total == 0.0 {
            let got = explained["sleeps"][0].to_string();
            return Err(torpor_testkit::Error::answer("torpor explain", "phases of the last sleep", got).into());
        }
        add(if dozes { "capture_frozen" } else { "hibernate" }.to_owned(), "us", total);
        if let Some(rise) = rise {
            add("hibernate_memory".to_owned(), "kB", rise);
        }
        for ((metric, before), after) in ["private", "shared", "image"].into_iter().zip(before).zip(after) {
            if metric != "image" {
                add(format!("{metric}_before"), "kB", before / 1024.0);
            }
            add(format!("{metric}_asleep"), "kB", after / 1024.0);
        }
        Ok(())
    }

    /// One sleep, a reboot of the machine, and the first packet. The app that never sleeps starts from the beginning.
    fn reboot(&mut self, program: &Program, gap: Duration, samples: &mut Samples) -> Result<(), Error> {
        let mut add = |metric: String, us| samples.add(program.name, "torpor", REBOOTED, &metric, "us", us);
        self.daemon.sleep("sleeper", LEVELS[1])?;
        self.daemon.reboot()?;
        program.warm_up(self.awake)?;
        std::thread::sleep(gap);
        add("first_byte".to_owned(), first_byte(self.asleep, self.protocol)?);
        let explained = self.daemon.json(&["explain", "sleeper"])?;
        let woken = phases(&explained["wakes"][0]);
        add("wake".to_owned(), woken.values().sum());
        woken.iter().for_each(|(name, us)| add(format!("wake_{name}"), *us));
        Ok(())
    }

    /// Private, shared and image bytes.
    fn memory(&self) -> Result<[f64; 3], Error> {
        let stats = self.daemon.json(&["stats", "sleeper"])?;
        let stats = if stats.is_array() { &stats[0] } else { &stats };
        let number = |key: &str| stats[key].as_f64().unwrap_or(0.0);
        Ok([number("private_bytes"), number("shared_bytes"), number("image_bytes")])
    }

    /// Reports refusals to sleep.
    fn refused(&self, program: &Program) -> Result<(), Error> {
        let explained = self.daemon.json(&["explain", "sleeper"])?;
        if let Some(reasons) = explained["refusals"].as_array().filter(|reasons| !reasons.is_empty()) {
            eprintln!("{}: sleeping was refused: {reasons:?}", program.name);
        }
        Ok(())
    }
}

/// Microseconds of each phase of a sleep or wake, in the order of their names.
pub(super) fn phases(transition: &Value) -> BTreeMap<String, f64> {
    let phases = transition["phases"].as_array().map(Vec::as_slice).unwrap_or_default();
    phases.iter().filter_map(|phase| Some((phase["name"].as_str()?.to_owned(), phase["us"].as_f64()?))).collect()
}
