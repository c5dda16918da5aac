//! How an app is described by flags.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use torpor_api::spec::{Port, Tmpfs, Volume};
use torpor_api::units::{Bytes, Patience, Span};

use super::{Wait, name};

pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  torpor run --name web -p 8080:80 app.tar -- /usr/sbin/lighttpd -D -f /etc/lighttpd/lighttpd.conf
  torpor run -p 127.0.0.1:5353:53/udp --base debian dns.tar.gz -- /usr/sbin/named -g
  torpor run -p 6379:6379 --memory 256M --idle-after 2m registry.example/redis:8
  torpor run --oci-layout ./layout:v1
  torpor run -f app.toml

A source is a tarball, an OCI layout directory, a stored image, or a registry reference whose first part is a host
(registry.example/web:1, localhost:5000/web). Schemes say it outright: tar:PATH, oci:PATH[:REF],
docker-archive:PATH[:NAME:TAG], docker://REF, image:NAME.";

/// How `run` describes an app. Flags go over what the file says; lists are added to it.
#[derive(Debug, Default, Args)]
pub(crate) struct RunArgs {
    /// Where the app's files are
    pub(crate) source: Option<String>,
    /// Initial process and its arguments; without it what the image says
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
    /// Description of the app in TOML; `-` is standard input
    #[arg(short = 'f', long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Name of the app; without it from the source's name
    #[arg(long, value_parser = name)]
    pub(crate) name: Option<String>,
    /// Stored image below the tarball
    #[arg(long, value_name = "IMAGE")]
    pub(crate) base: Option<String>,
    /// The source is an OCI layout directory (PATH[:REF])
    #[arg(long)]
    pub(crate) oci_layout: bool,
    /// The source is an archive that docker save wrote (PATH[:TAG])
    #[arg(long, conflicts_with = "oci_layout")]
    pub(crate) docker_archive: bool,
    /// Publish a port: [IP:]HOST:APP[/udp]
    #[arg(short = 'p', long = "publish", value_name = "PORTS")]
    pub(crate) ports: Vec<Port>,
    /// Set NAME=VALUE in the environment, or pass on NAME
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// File of NAME=VALUE lines
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Vec<PathBuf>,
    /// user, uid, user:group or uid:gid
    #[arg(short = 'u', long)]
    pub(crate) user: Option<String>,
    /// Working directory
    #[arg(short = 'w', long, value_name = "PATH")]
    pub(crate) workdir: Option<PathBuf>,
    /// Host name inside
    #[arg(long)]
    pub(crate) hostname: Option<String>,
    /// Directory of the machine inside: HOST:APP[:ro]
    #[arg(short = 'v', long = "volume", value_name = "HOST:APP")]
    pub(crate) volumes: Vec<Volume>,
    /// Memory file system: PATH[:SIZE]
    #[arg(long, value_name = "PATH")]
    pub(crate) tmpfs: Vec<Tmpfs>,
    /// Memory limit, as 256M
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Bytes>,
    /// What the files that it writes to its root file system may take on disk
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<Bytes>,
    /// CPU limit, as 0.5
    #[arg(long, value_name = "CORES", value_parser = finite)]
    pub(crate) cpus: Option<f64>,
    /// Most processes and threads
    #[arg(long, value_name = "COUNT")]
    pub(crate) processes: Option<u32>,
    /// Most open files of each process [default: 1024, which it may raise to 524288]
    #[arg(long, value_name = "COUNT")]
    pub(crate) open_files: Option<u32>,
    /// What to do when the initial process ends
    #[arg(long)]
    pub(crate) restart: Option<RestartArg>,
    /// Sleep after this long without packets
    #[arg(long, value_name = "TIME")]
    pub(crate) idle_after: Option<Span>,
    /// Go from dozing to warm after this long asleep, or never
    #[arg(long, value_name = "TIME")]
    pub(crate) warm_after: Option<Patience>,
    /// Stay awake at least this long
    #[arg(long, value_name = "TIME")]
    pub(crate) min_awake: Option<Span>,
    /// More CPU than this share of a core keeps it awake
    #[arg(long, value_name = "PERCENT", value_parser = finite)]
    pub(crate) idle_cpu: Option<f64>,
    /// Timers further away than this wake it
    #[arg(long, value_name = "TIME")]
    pub(crate) timers_over: Option<Span>,
    /// Never sleep by itself
    #[arg(long, conflicts_with = "idle_after")]
    pub(crate) no_sleep: bool,
    /// Open connections keep it awake
    #[arg(long)]
    pub(crate) connections_keep_awake: bool,
    /// What of a new connection wakes
    #[arg(long, value_name = "WHAT")]
    pub(crate) wake_on: Option<WakeOnArg>,
    /// What to do when it cannot be woken: a mapped file of a volume has changed
    #[arg(long, value_name = "WHAT")]
    pub(crate) wake_blocked: Option<WakeBlockedArg>,
    /// Packets from this address or network neither wake nor keep awake
    #[arg(long, value_name = "NETWORK")]
    pub(crate) ignore: Vec<String>,
    /// Join a network: apps that share one reach each other
    #[arg(long, value_name = "NAME")]
    pub(crate) network: Vec<String>,
    /// No connections to the outside
    #[arg(long)]
    pub(crate) no_outgoing: bool,
    /// The root file system may not be written
    #[arg(long)]
    pub(crate) read_only: bool,
    /// No privileges by set-uid programs
    #[arg(long)]
    pub(crate) no_new_privs: bool,
    /// No user namespace
    #[arg(long)]
    pub(crate) no_userns: bool,
    /// No system-call filter
    #[arg(long)]
    pub(crate) no_seccomp: bool,
    /// Add a capability
    #[arg(long, value_name = "CAP")]
    pub(crate) cap_add: Vec<String>,
    /// Drop a capability, or ALL
    #[arg(long, value_name = "CAP")]
    pub(crate) cap_drop: Vec<String>,
    #[command(flatten)]
    pub(crate) wait: Wait,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum RestartArg {
    /// Leave it stopped
    No,
    /// Start it again unless it ended with status 0
    OnFailure,
    /// Start it again, whatever the status
    Always,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum WakeBlockedArg {
    /// Keep its memory until somebody wakes it again; close connections meanwhile
    Wait,
    /// Give up its memory and start it afresh
    Restart,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum WakeOnArg {
    /// The connection itself
    Connect,
    /// Its first data
    Data,
}

/// A number that JSON can carry: not `nan` or `inf`.
fn finite(text: &str) -> Result<f64, String> {
    let number: Result<f64, _> = text.parse();
    number.ok().filter(|number| number.is_finite()).ok_or_else(|| "expected a number, as 0.5".to_owned())
}
