//! What a user asks for: the description of an app, as TOML (`torpor run -f`) and as JSON.
//!
//! Every default is in this file. Unknown keys are errors.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Patience, Span};
use crate::working_set::WorkingSetPolicy;

/// An app: what to run, on which files, with which ports, limits and policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AppSpec {
    /// Unique name: 1 to 63 of `a-z`, `0-9` and `-`, beginning and ending with a letter or digit (a DNS label).
    pub name: String,
    /// Where the app's files come from.
    pub source: Source,
    /// The initial process and its arguments; empty: what the image says.
    #[serde(default)]
    pub command: Vec<String>,
    /// Environment, added to the image's.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// `user`, `uid`, `user:group` or `uid:gid` in the app's own files; absent: what the image says, or root.
    #[serde(default)]
    pub user: Option<String>,
    /// Working directory; absent: what the image says, or `/`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub workdir: Option<PathBuf>,
    /// Host name inside; absent: the app's name.
    #[serde(default)]
    pub hostname: Option<String>,
    /// Published ports.
    #[serde(default)]
    pub ports: Vec<Port>,
    /// Directories of the machine inside the app.
    #[serde(default)]
    pub volumes: Vec<Volume>,
    /// Memory file systems inside the app.
    #[serde(default)]
    pub tmpfs: Vec<Tmpfs>,
    /// Limits.
    #[serde(default)]
    pub limits: Limits,
    /// What to do when the initial process ends.
    #[serde(default)]
    pub restart: Restart,
    /// When to sleep and what wakes.
    #[serde(default)]
    pub idle: Idle,
    /// What the app may do to the kernel.
    #[serde(default)]
    pub security: Security,
    /// Whom it may talk to.
    #[serde(default)]
    pub network: Network,
}

/// Where an app's files come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Source {
    /// A tarball (plain, gzip or zstd), on top of a named base image where one is given.
    Tarball {
        /// The tarball, on the worker's machine.
        #[schema(value_type = String)]
        path: PathBuf,
        /// A base image that `torpor images pull` or `torpor images load` has stored.
        #[serde(default)]
        base: Option<String>,
    },
    /// An OCI image layout directory.
    OciLayout {
        /// The directory that holds `oci-layout` and `index.json`.
        #[schema(value_type = String)]
        path: PathBuf,
        /// `org.opencontainers.image.ref.name` of the manifest, needed where there are several.
        #[serde(default)]
        reference: Option<String>,
    },
    /// An archive that `docker save` wrote.
    DockerArchive {
        /// The archive.
        #[schema(value_type = String)]
        path: PathBuf,
        /// `RepoTags` entry, needed where there are several.
        #[serde(default)]
        reference: Option<String>,
    },
    /// A reference to a registry, as `registry.example/repository:tag` or `…@sha256:…`.
    Registry {
        /// The reference.
        reference: String,
    },
    /// An image that is already stored here under this name.
    Stored {
        /// Its name.
        name: String,
    },
}

/// TCP or UDP.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

/// A port of the machine that leads to a port of the app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, expecting = "a port as a table: { host = 8080, app = 80 }")]
pub struct Port {
    /// The machine's address; absent: all of them, 127.0.0.1 too.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub host_ip: Option<IpAddr>,
    /// The machine's port, 1 to 65535.
    pub host: u16,
    /// The app's port, 1 to 65535.
    pub app: u16,
    /// TCP or UDP.
    #[serde(default)]
    pub protocol: Protocol,
}

/// A directory (or file) of the machine, seen inside the app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// Absolute path on the machine; it must exist.
    #[schema(value_type = String)]
    pub host: PathBuf,
    /// Absolute path inside the app.
    #[schema(value_type = String)]
    pub app: PathBuf,
    /// May not be written.
    #[serde(default)]
    pub read_only: bool,
}

/// A memory file system inside the app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Tmpfs {
    /// Absolute path inside the app.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// Upper bound.
    #[serde(default = "default_tmpfs_size")]
    pub size: Bytes,
}

impl Tmpfs {
    /// The upper bound where none is given.
    pub const DEFAULT_SIZE: Bytes = Bytes(64 << 20);
}

fn default_tmpfs_size() -> Bytes {
    Tmpfs::DEFAULT_SIZE
}

/// Limits of an app; absent means no limit of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Memory of all its processes, page cache included.
    pub memory: Option<Bytes>,
    /// CPUs, as a fraction: `0.5` is half of one.
    pub cpus: Option<f64>,
    /// Processes and threads; 0 is not allowed.
    pub processes: Option<u32>,
    /// Files that each of its processes may have open: soft and hard limit (`RLIMIT_NOFILE`). Absent: 1,024, which a process may
    /// raise to 524,288 by itself.
    pub open_files: Option<u32>,
    /// What its own files may take on disk; absent: what the daemon's configuration says.
    pub disk: Option<Bytes>,
}

/// What to do when the initial process ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// Leave it stopped.
    No,
    /// Start it again unless it ended with status 0.
    #[default]
    OnFailure,
    /// Start it again, whatever the status.
    Always,
}

/// When an app sleeps and what wakes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Idle {
    /// Sleep by itself when idle; otherwise only on command.
    pub sleep: bool,
    /// No packets for this long makes the app idle.
    pub after: Span,
    /// Go from dozing to warm after this long asleep, or `never` (then only on command, or when memory is short).
    pub warm_after: Patience,
    /// Stay awake at least this long after start or wake.
    pub min_awake: Span,
    /// More CPU than this share of one core, over `after`, keeps it awake (percent, 0 to 100).
    pub cpu_percent: f64,
    /// Established connections do not keep it awake (they stay open while it sleeps).
    pub with_connections: bool,
    /// What of a new connection wakes.
    pub wake_on: WakeOn,
    /// What to do when a wake is refused because files of its volumes have changed.
    pub wake_blocked: WakeBlocked,
    /// Packets from these addresses neither wake nor keep awake.
    #[schema(value_type = Vec<String>)]
    pub ignore: Vec<IpNet>,
    /// Timers and time-outs longer than this wake the app in time; shorter ones are housekeeping. Absent: `after`.
    pub timers_over: Option<Span>,
    /// Pages that a lazy wake brings back before the program runs.
    pub working_set: WorkingSetPolicy,
}

impl Default for Idle {
    fn default() -> Self {
        Self {
            sleep: true,
            after: Span::from_secs(30),
            warm_after: Patience::After(Span::from_secs(600)),
            min_awake: Span::from_secs(2),
            cpu_percent: 5.0,
            with_connections: true,
            wake_on: WakeOn::Connect,
            wake_blocked: WakeBlocked::Wait,
            ignore: Vec::new(),
            timers_over: None,
            working_set: WorkingSetPolicy::default(),
        }
    }
}

/// What of a new TCP connection wakes a sleeping app.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WakeOn {
    /// The connection itself: right for protocols in which the server speaks first.
    #[default]
    Connect,
    /// Its first data: probes that only connect do not wake.
    Data,
}

/// What to do with an app whose image cannot be used as things are: a file that it has mapped has changed, say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WakeBlocked {
    /// Keep its memory and wait until somebody puts that right and wakes it; connections to it are closed meanwhile.
    #[default]
    Wait,
    /// Give up its memory and start it afresh on its files.
    Restart,
}

/// What an app may do to the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Security {
    /// Give it a user namespace with a range of user ids of its own.
    pub user_namespace: bool,
    /// Forbid gaining privileges by set-uid programs.
    pub no_new_privs: bool,
    /// Capabilities beyond the default set, as `CAP_NET_RAW` or `NET_RAW`.
    pub cap_add: Vec<String>,
    /// Capabilities to take from the default set; `ALL` takes every one.
    pub cap_drop: Vec<String>,
    /// Use the default system-call filter.
    pub seccomp: bool,
    /// Its root file system may not be written.
    pub read_only: bool,
}

impl Default for Security {
    fn default() -> Self {
        Self {
            user_namespace: true,
            no_new_privs: false,
            cap_add: Vec::new(),
            cap_drop: Vec::new(),
            seccomp: true,
            read_only: false,
        }
    }
}

/// Whom an app may talk to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// May open connections to the outside (by NAT).
    pub outgoing: bool,
    /// Names of networks: apps that share one reach each other.
    pub join: Vec<String>,
}

impl Default for Network {
    fn default() -> Self {
        Self { outgoing: true, join: Vec::new() }
    }
}
