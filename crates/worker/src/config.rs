//! What a worker is told when it starts: typed, complete, never changed.

use std::path::PathBuf;
use std::time::Duration;

use torpor_api::units::Amount;
use torpor_network::NetworkConfig;
use torpor_sandbox::Labels;

/// Settings of a worker. The binary makes it from its configuration file, where every default is.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Names cgroups, the nftables table and interfaces, so that two workers can live on one machine.
    pub instance: String,
    /// Files of apps, layers and images; survives a reboot.
    pub data_dir: PathBuf,
    /// Sockets, records of running apps; gone after a reboot.
    pub run_dir: PathBuf,
    /// Addresses of apps.
    pub network: NetworkConfig,
    /// This program, started again for sandboxes and the keeper.
    pub program: PathBuf,
    /// Output kept per app.
    pub logs: LogConfig,
    /// Most bytes of dozing apps' images that may stay in the page cache; 0 keeps none there.
    pub cached_image_bytes: u64,
    /// Wakes by packets and timers at the same time; not zero.
    pub wakes_at_once: usize,
    /// Dozing apps with much memory wake before all of it is back.
    pub lazy_wakes: bool,
    /// Their other memory comes back while they run, whether or not they touch it.
    pub backfill: bool,
    /// When dozing apps go warm for want of memory.
    pub memory: MemoryConfig,
    /// Apps are only to be put away: none is started, and images of those that have no sandbox are left alone.
    pub for_teardown: bool,
    /// How long operations may take.
    pub deadlines: Deadlines,
    /// Most that images of sleeping apps may take on disk together; none: a tenth of the file system of the data
    /// directory, and 1 GiB at least.
    pub image_limit: Option<Amount>,
    /// What the own files of an app that says nothing may take on disk, in bytes; none: there is no limit.
    pub disk_limit_bytes: Option<u64>,
    /// What a Linux security module calls the programs of apps.
    pub labels: Labels,
}

/// When dozing apps go warm for want of memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryConfig {
    /// More of the machine's memory in use than this …
    pub high: Amount,
    /// … until it is no more than this.
    pub low: Amount,
    /// Most memory of all apps together, in bytes.
    pub limit_bytes: Option<u64>,
    /// An app dozes at least this long before.
    pub min_dozing: Duration,
}

/// How long an operation of an app may take before it is given up. What moves an image gets a second more for each 16 MiB of it.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// From warm to running.
    pub wake: Duration,
    /// To the program's first instruction.
    pub start: Duration,
    /// Falling asleep, and going from dozing to warm.
    pub sleep: Duration,
}

/// How much of an app's output is kept.
#[derive(Clone, Copy, Debug)]
pub struct LogConfig {
    /// A file is rotated beyond this many bytes.
    pub file_bytes: u64,
    /// Files kept per app, the current one included; at least 1.
    pub files: u32,
    /// Most bytes that are kept of one app's output per second, averaged over ten; 0: no limit. Lines beyond it are dropped.
    pub bytes_per_second: u64,
}
