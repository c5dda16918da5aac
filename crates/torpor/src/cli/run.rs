//! How an app is described by flags.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use torpor_api::spec::{Port, Tmpfs, Volume};
use torpor_api::units::{Bytes, Patience, Span};
use torpor_api::working_set::WorkingSetPolicy;

use super::{Wait, name};

pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  torpor run --name web -p 8080:80 app.tar -- /usr/sbin/lighttpd -D -f /etc/lighttpd/lighttpd.conf
  torpor run -p 127.0.0.1:5353:53/udp --base debian dns.tar.gz -- /usr/sbin/named -g
  torpor run -p 6379:6379 --memory 256M --idle-after 2m registry.example/redis:8
  torpor run --oci-layout ./layout:v1
  torpor run -f app.toml

A source is a tarball, an OCI layout directory, a docker archive, a stored image, or a registry reference whose
first part is a host (registry.example/web:1, localhost:5000/web). A scheme names the kind: tar:PATH, oci:PATH[:REF],
docker-archive:PATH[:NAME:TAG], docker://REF, image:NAME.";

/// How `run` describes an app. Flags go over what the file says; lists are added to it.
#[derive(Debug, Default, Args)]
pub(crate) struct RunArgs {
    /// Source of the app's files: a tarball, an OCI layout, a docker archive, a stored image or a registry reference
    pub(crate) source: Option<String>,
    /// Initial process and its arguments [default: what the image says]
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
    /// Description of the app in TOML; `-` is standard input
    #[arg(short = 'f', long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Name of the app [default: made from the name of the source]
    #[arg(long, value_parser = name)]
    pub(crate) name: Option<String>,
    /// Stored image to put the tarball on
    #[arg(long, value_name = "IMAGE")]
    pub(crate) base: Option<String>,
    /// The source is an OCI layout directory (PATH[:REF])
    #[arg(long)]
    pub(crate) oci_layout: bool,
    /// The source is an archive that docker save wrote (PATH[:NAME:TAG])
    #[arg(long, conflicts_with = "oci_layout")]
    pub(crate) docker_archive: bool,
    /// Publish a port: [IP:]HOST:APP[/udp]
    #[arg(short = 'p', long = "publish", value_name = "PORTS")]
    pub(crate) ports: Vec<Port>,
    /// Set an environment variable; NAME alone takes the value that it has for this command
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// File with a NAME=VALUE in each line
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Vec<PathBuf>,
    /// User to run it as: user, uid, user:group or uid:gid
    #[arg(short = 'u', long)]
    pub(crate) user: Option<String>,
    /// Working directory
    #[arg(short = 'w', long, value_name = "PATH")]
    pub(crate) workdir: Option<PathBuf>,
    /// Host name of the app
    #[arg(long)]
    pub(crate) hostname: Option<String>,
    /// Mount a directory of the machine: HOST:APP[:ro]
    #[arg(short = 'v', long = "volume", value_name = "HOST:APP")]
    pub(crate) volumes: Vec<Volume>,
    /// Mount a tmpfs: PATH[:SIZE]
    #[arg(long, value_name = "PATH")]
    pub(crate) tmpfs: Vec<Tmpfs>,
    /// Memory limit, for example 256M
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Bytes>,
    /// Limit on the disk space of files that the app writes to its root file system, for example 1G
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<Bytes>,
    /// CPU limit in cores, for example 0.5
    #[arg(long, value_name = "CORES", value_parser = finite)]
    pub(crate) cpus: Option<f64>,
    /// Limit on processes and threads
    #[arg(long, value_name = "COUNT")]
    pub(crate) processes: Option<u32>,
    /// Limit on open files of each process [default: 1024, which the app may raise to 524288]
    #[arg(long, value_name = "COUNT")]
    pub(crate) open_files: Option<u32>,
    /// What to do when the initial process ends
    #[arg(long)]
    pub(crate) restart: Option<RestartArg>,
    /// Fall asleep after this time without packets
    #[arg(long, value_name = "TIME")]
    pub(crate) idle_after: Option<Span>,
    /// Go from dozing to warm after this time, or `never`
    #[arg(long, value_name = "TIME")]
    pub(crate) warm_after: Option<Patience>,
    /// Stay awake at least for this time
    #[arg(long, value_name = "TIME")]
    pub(crate) min_awake: Option<Span>,
    /// CPU usage that keeps the app awake, as a share of a core
    #[arg(long, value_name = "PERCENT", value_parser = finite)]
    pub(crate) idle_cpu: Option<f64>,
    /// Wake the app for timers that are longer than this; shorter ones do not wake it
    #[arg(long, value_name = "TIME")]
    pub(crate) timers_over: Option<Span>,
    /// Never fall asleep automatically
    #[arg(long, conflicts_with = "idle_after")]
    pub(crate) no_sleep: bool,
    /// Let open connections keep the app awake
    #[arg(long)]
    pub(crate) connections_keep_awake: bool,
    /// What wakes the app when a client connects
    #[arg(long, value_name = "WHAT")]
    pub(crate) wake_on: Option<WakeOnArg>,
    /// What to do if the app cannot be woken because a mapped file of a volume has changed
    #[arg(long, value_name = "WHAT")]
    pub(crate) wake_blocked: Option<WakeBlockedArg>,
    /// Pages that come back before the program runs, if it has much memory: `K of N` (touched in K of the last N wakes), last, union,
    /// present, none or all
    #[arg(long, value_name = "PAGES")]
    pub(crate) working_set: Option<WorkingSetPolicy>,
    /// Ignore packets from this address or network: they neither wake the app nor keep it awake
    #[arg(long, value_name = "NETWORK")]
    pub(crate) ignore: Vec<String>,
    /// Join a network; apps in the same network reach each other
    #[arg(long, value_name = "NAME")]
    pub(crate) network: Vec<String>,
    /// Allow no connections to the outside
    #[arg(long)]
    pub(crate) no_outgoing: bool,
    /// Make the root file system read-only
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Allow no privileges through set-uid programs
    #[arg(long)]
    pub(crate) no_new_privs: bool,
    /// Use no user namespace
    #[arg(long)]
    pub(crate) no_userns: bool,
    /// Use no system-call filter
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
    /// Leave the app stopped
    No,
    /// Start the app again unless its status is 0
    OnFailure,
    /// Start the app again whatever its status is
    Always,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum WakeBlockedArg {
    /// Keep its memory until somebody wakes it; until then, reset connections
    Wait,
    /// Discard its memory and start the app from the beginning
    Restart,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum WakeOnArg {
    /// The connection
    Connect,
    /// The first data that the client sends
    Data,
}

/// A number that JSON can carry: not `nan` or `inf`.
fn finite(text: &str) -> Result<f64, String> {
    let number: Result<f64, _> = text.parse();
    number.ok().filter(|number| number.is_finite()).ok_or_else(|| "expected a number, as 0.5".to_owned())
}
