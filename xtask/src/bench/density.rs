//! Memory of many sleeping apps, CPU use of the worker while they sleep, and the time until all are back after a reboot.
//!
//! Memory is the sum of its parts: anonymous memory of the apps and the worker, kernel memory after the kernel has freed
//! unused dentries and inodes, and images in the page cache. `MemAvailable` would not do: it counts images and reclaimable
//! slabs as available, and changes with everything else that the machine caches.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;

use super::daemon::{Daemon, free_port};
use super::machine::{anonymous_kb, cpu_us, memory};
use super::program::program;
use super::samples::Measured;
use super::{client, progress};
use crate::error::{Error, run as run_command};

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Number of apps
    #[arg(long, default_value_t = 1000)]
    apps: usize,
    /// Level of sleep
    #[arg(long, value_enum, default_value_t = Level::Dozing)]
    level: Level,
    /// Seconds for which the CPU time of the worker is measured
    #[arg(long, default_value_t = 30)]
    watch_s: u64,
    /// Number of apps that are woken at the end, in another order than they were created
    #[arg(long, default_value_t = 100)]
    woken: usize,
}

/// A level of sleep.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Level {
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
    /// For `bench all`.
    pub(super) const fn brief(quick: bool, level: Level) -> Self {
        if quick {
            return Self { apps: 20, level, watch_s: 3, woken: 5 };
        }
        Self { apps: 250, level, watch_s: 15, woken: 100 }
    }

    /// The name of the result.
    pub(crate) const fn name(&self) -> &'static str {
        match self.level {
            Level::Dozing => "density",
            Level::Warm => "density-warm",
        }
    }
}

/// Pause before memory is read: the kernel frees some of it late.
const SETTLE: Duration = Duration::from_secs(5);
/// Parts of kernel memory, and shared memory.
const KERNEL: [&str; 5] = ["Slab", "KernelStack", "PageTables", "Percpu", "Shmem"];
/// Number of times that the kernel is told to free dentries and inodes.
const DROPS: u32 = 5;
/// Number of apps that are created between two such times.
const APPS_BETWEEN: usize = 10;
/// Frees unused dentries and inodes (`proc_sys_vm(5)`); file contents stay.
const DROP_CACHES: (&str, &str) = ("/proc/sys/vm/drop_caches", "2");

/// Measures; `torpor` is the program that hosts the apps.
pub(crate) fn run(options: &Options, torpor: &Path) -> Result<Measured, Error> {
    let program = program("lighttpd")?;
    let mut daemon = Daemon::start(torpor, "")?;
    daemon.load("lighttpd", &program.servers.tarball)?;
    let mut measured = Measured::default();
    let level = options.level.name();
    let mut add =
        |metric: &str, unit, value: f64| measured.samples.add("lighttpd", "torpor", level, metric, unit, value);

    // The first app brings what all apps share: the program's files in the page cache, tables, slabs.
    let mut ports = Vec::with_capacity(options.apps);
    make(&mut daemon, 0, &program, level, &mut ports)?;
    let (empty, begun) = (settled()?, Instant::now());
    let own_before = anonymous_kb(daemon.instance(), daemon.pid())?;
    let (descriptors_before, resident_before) = (descriptors(daemon.pid()), resident_kb(daemon.pid()));
    let (mut count, mut failure) = (0, None);
    for number in 1..=options.apps {
        let started = Instant::now();
        if let Err(error) = make(&mut daemon, number, &program, level, &mut ports) {
            failure = Some((number, error));
            break;
        }
        add("create_and_sleep", "ms", started.elapsed().as_secs_f64() * 1000.0);
        count = number;
        // Real apps start hours apart. Without this, dentries that only the start of an app needs would share slabs with
        // those that stay, and keep their memory in use.
        if number % APPS_BETWEEN == 0 {
            drop_caches()?;
        }
        if number % 100 == 0 {
            progress(format_args!("{number} apps after {:.0} s", begun.elapsed().as_secs_f64()));
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

    // A large prime as the step visits all apps, far apart from each other.
    for n in 0..options.woken.min(ports.len()) {
        let port = ports[n * 7919 % ports.len()];
        let address = (std::net::Ipv4Addr::LOCALHOST, port).into();
        add("first_byte", "us", client::first_byte(address, program.protocol)?);
    }
    if let Level::Warm = options.level {
        // The apps that were woken start from the beginning.
        add("up_after_reboot", "ms", daemon.reboot()?.as_secs_f64() * 1000.0);
    }
    if let Some((number, error)) = failure {
        measured.samples.missing(format!("more than {} apps", number - 1), &error);
    }
    Ok(measured)
}

/// Memory of the machine after it has settled.
fn settled() -> Result<BTreeMap<String, u64>, Error> {
    // The first time spares what was used recently; later times free what the freed inodes and dentries held.
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
    daemon.run_app(&name, "lighttpd", &settings, &program.servers.command)?;
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

/// Number of open descriptors of a process; 0 if it cannot be read.
fn descriptors(pid: u32) -> f64 {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0.0, |entries| entries.count() as f64)
}

fn resident_kb(pid: u32) -> f64 {
    let status = torpor_proc::read(&format!("/proc/{pid}/status")).unwrap_or_default();
    torpor_proc::number(&status, "VmRSS").unwrap_or(0.0)
}

/// Size of the images in the page cache, in kB.
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
