//! Memory of many sleeping apps, all of it counted, the worker's own CPU while they sleep, and how long it takes to have them all
//! again after a reboot.
//!
//! What belongs to the apps and the worker, summed up from its parts, when the kernel has given back what it can of dentries
//! and inodes, with the page cache that holds images. `MemAvailable` tells less: it counts as available what images and slabs hold,
//! and changes with whatever else the machine caches.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;

use super::daemon::{Daemon, free_port};
use super::machine::{anonymous_kb, cpu_us, memory};
use super::program::programs;
use super::report::{Report, Samples};
use super::{client, release_binary};
use crate::error::{Error, chain, run as run_command};

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How many apps
    #[arg(long, default_value_t = 1000)]
    apps: usize,
    /// The level that they sleep at
    #[arg(long, value_enum, default_value_t = Level::Dozing)]
    level: Level,
    /// How long the worker's CPU is watched, in seconds
    #[arg(long, default_value_t = 30)]
    watch_s: u64,
    /// Apps that are woken at the end, in another order than they were made
    #[arg(long, default_value_t = 100)]
    woken: usize,
}

/// A level of sleep.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Level {
    Dozing,
    Warm,
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Self::Dozing => "dozing",
            Self::Warm => "warm",
        }
    }
}

impl Options {
    /// The name of its result.
    pub(crate) const fn name(&self) -> &'static str {
        match self.level {
            Level::Dozing => "density",
            Level::Warm => "density-warm",
        }
    }
}

/// Before memory is read, so that what the kernel frees late is free.
const SETTLE: Duration = Duration::from_secs(5);
/// Kernel memory by its parts, and memory files.
const KERNEL: [&str; 5] = ["Slab", "KernelStack", "PageTables", "Percpu", "Shmem"];
/// So often it is asked to.
const DROPS: u32 = 5;
/// So many apps are made until it is asked again.
const APPS_BETWEEN: usize = 10;
/// Gives back dentries and inodes that nothing holds (`proc_sys_vm(5)`); file contents stay.
const DROP_CACHES: (&str, &str) = ("/proc/sys/vm/drop_caches", "2");

/// Measures.
pub(crate) fn run(options: &Options) -> Result<Report, Error> {
    let program = programs(&["lighttpd".to_owned()])?.remove(0);
    let mut daemon = Daemon::start(&release_binary()?, "")?;
    daemon.load("lighttpd", &program.zoo.tarball)?;
    let mut samples = Samples::default();
    let level = options.level.name();
    let mut add = |metric: &str, unit, value: f64| samples.add("lighttpd", "torpor", level, metric, unit, value);

    // The first app brings what all share: the program's files in the page cache, tables, slabs.
    let mut ports = Vec::with_capacity(options.apps);
    make(&mut daemon, 0, &program, level, &mut ports)?;
    let (empty, begun) = (settled()?, Instant::now());
    let own_before = anonymous_kb(daemon.instance(), daemon.pid())?;
    let (descriptors_before, resident_before) = (descriptors(daemon.pid()), resident_kb(daemon.pid()));
    let mut count = 0;
    for number in 1..=options.apps {
        let started = Instant::now();
        if let Err(error) = make(&mut daemon, number, &program, level, &mut ports) {
            eprintln!("app {number} could not be made: {}", chain(&error));
            break;
        }
        add("create_and_sleep", "ms", started.elapsed().as_secs_f64() * 1000.0);
        count = number;
        // As in the hours that lie between real apps: else what only the start of an app has looked up stays between what lives
        // on, and its memory with it.
        if number % APPS_BETWEEN == 0 {
            drop_caches()?;
        }
        if number % 100 == 0 {
            eprintln!("{number} apps after {:.0} s", begun.elapsed().as_secs_f64());
        }
    }
    let full = settled()?;
    let per_app = |kilobytes: f64| kilobytes / count.max(1) as f64;
    let less = |key: &str| empty.get(key).copied().unwrap_or(0) as f64 - full.get(key).copied().unwrap_or(0) as f64;
    let cached = cached_images_kb(&daemon)?;
    add("apps", "apps", count as f64);
    add("memory_cached_images", "kB per app", per_app(cached));
    let anonymous = anonymous_kb(daemon.instance(), daemon.pid())? - own_before;
    let kernel: f64 = KERNEL.iter().map(|part| -less(part)).sum();
    add("memory", "kB per app", per_app(anonymous + kernel + cached));
    add("part_anonymous", "kB per app", per_app(anonymous));
    for part in KERNEL {
        add(&format!("part_{part}"), "kB per app", per_app(-less(part)));
    }
    add("worker_descriptors", "per app", per_app(descriptors(daemon.pid()) - descriptors_before));
    add("worker_rss", "kB per app", per_app(resident_kb(daemon.pid()) - resident_before));

    let before = cpu_us(daemon.pid())?;
    let watched = Instant::now();
    std::thread::sleep(Duration::from_secs(options.watch_s));
    let used = cpu_us(daemon.pid())? - before;
    add("worker_cpu", "% of a core", used / watched.elapsed().as_micros() as f64 * 100.0);

    // A step that is prime to any count of apps visits them all, far apart.
    for n in 0..options.woken.min(ports.len()) {
        let port = ports[n * 7919 % ports.len()];
        let address = (std::net::Ipv4Addr::LOCALHOST, port).into();
        add("first_byte", "us", client::first_byte(address, program.protocol)?);
    }
    if let Level::Warm = options.level {
        // Those that were woken start afresh.
        add("up_after_reboot", "ms", daemon.reboot()?.as_secs_f64() * 1000.0);
    }
    Report::new(&samples, Vec::new())
}

/// The machine's memory when it has come to rest.
fn settled() -> Result<BTreeMap<String, u64>, Error> {
    // What has been used since the last time is spared once; what an inode or dentry held goes after it.
    for _ in 0..DROPS {
        drop_caches()?;
    }
    std::thread::sleep(SETTLE);
    memory()
}

fn drop_caches() -> Result<(), Error> {
    let (path, what) = DROP_CACHES;
    fs::write(path, what).map_err(Error::file("write", path))
}

fn make(
    daemon: &mut Daemon,
    number: usize,
    program: &super::program::Program,
    level: &str,
    ports: &mut Vec<u16>,
) -> Result<(), Error> {
    let (name, port) = (format!("app{number}"), free_port()?);
    let settings = ["-p".to_owned(), format!("{port}:{}", program.port()), "--no-sleep".to_owned()];
    daemon.run_app(&name, "lighttpd", &settings, &program.zoo.command)?;
    let address = (std::net::Ipv4Addr::LOCALHOST, port).into();
    client::first_byte_since(address, program.protocol, Instant::now())?;
    let begun = Instant::now();
    while let Err(error) = daemon.call(&["sleep", &name, "--level", level]) {
        if begun.elapsed() > Duration::from_secs(10) {
            return Err(error);
        }
    }
    ports.push(port);
    Ok(())
}

/// Open descriptors of a process; 0 where it cannot be seen.
fn descriptors(pid: u32) -> f64 {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0.0, |entries| entries.count() as f64)
}

fn resident_kb(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0.0)
}

/// Pages of images in the page cache, kB.
fn cached_images_kb(daemon: &Daemon) -> Result<f64, Error> {
    let apps = daemon.json(&["ps"])?;
    let ids = apps.as_array().map(Vec::as_slice).unwrap_or_default().iter().filter_map(|app| app["id"].as_str());
    let mut images = BTreeMap::new();
    for id in ids {
        images.extend(daemon.images(id)?.into_iter().map(|path| (path, ())));
    }
    let paths: Vec<_> = images.into_keys().collect();
    let mut bytes = 0.0;
    for some in paths.chunks(200) {
        let output =
            run_command(Command::new("fincore").args(["--bytes", "--noheadings", "--output", "RES"]).args(some))?;
        bytes +=
            String::from_utf8_lossy(&output.stdout).lines().filter_map(|l| l.trim().parse::<f64>().ok()).sum::<f64>();
    }
    Ok(bytes / 1024.0)
}
