//! The arguments, their help and their examples.

mod trees;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use torpor_api::spec::{Port, Tmpfs, Volume};
use torpor_api::units::{Bytes, Patience, Span};

use self::trees::{CHECKPOINT_HELP, RESTORE_HELP};
pub(crate) use self::trees::{CheckpointArgs, RestoreArgs};

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong command or description, 3 not found, 4 conflict, 5 unsupported by the machine. \
`torpor exec` gives back the command's own status.";

/// Hosts programs that are idle most of the time: they sleep when nobody uses them, and the next packet wakes them.
#[derive(Debug, Parser)]
#[command(name = "torpor", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) daemon: Daemon,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which daemon to talk to.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Daemon {
    /// Unix socket of the daemon
    #[arg(long, global = true, env = "TORPOR_SOCKET", value_name = "PATH", conflicts_with = "address")]
    pub(crate) socket: Option<PathBuf>,
    /// TCP address of the daemon; needs --token-file
    #[arg(long, global = true, env = "TORPOR_ADDRESS", value_name = "HOST:PORT", requires = "token_file")]
    pub(crate) address: Option<String>,
    /// File of mode 0600 with the token for --address
    #[arg(long, global = true, env = "TORPOR_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the daemon in the foreground; Ctrl-C leaves the apps alone
    #[command(after_help = "Examples:\n  torpor up\n  torpor up --config /etc/torpor/torpor.toml")]
    Up(UpArgs),
    /// Rest every app and remove everything that Torpor set up on the machine
    Down(UpArgs),
    /// Say what this machine and kernel offer or lack, and what that means
    Doctor {
        #[command(flatten)]
        json: Json,
        #[command(flatten)]
        config: UpArgs,
    },
    /// Make an app and start it
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// List the apps
    Ps(Json),
    /// Show all about an app
    Inspect(Named),
    /// Show what an app wrote
    #[command(after_help = "Examples:\n  torpor logs web\n  torpor logs -f -n 20 web")]
    Logs(LogArgs),
    /// Run a command in an app, waking it first
    #[command(after_help = "Examples:\n  torpor exec web -- ls -l /srv\n  torpor exec -it web -- /bin/sh")]
    Exec(ExecArgs),
    /// Put an app to sleep now
    #[command(after_help = "Examples:\n  torpor sleep web\n  torpor sleep --level warm web")]
    Sleep(SleepArgs),
    /// Wake an app
    Wake(Named),
    /// Start a stopped app
    Start(Named),
    /// Stop an app
    Stop(StopArgs),
    /// Stop an app and start it again
    Restart(StopArgs),
    /// Remove apps and all their files
    Rm(RmArgs),
    /// Show what happened
    #[command(after_help = "Examples:\n  torpor events -f\n  torpor events -n 20 --app web --json")]
    Events(EventArgs),
    /// Show what apps cost, measured from the kernel
    Stats(MaybeNamed),
    /// Say why an app is awake or asleep, what keeps it so, and what its last wakes took
    Explain(Named),
    /// Keep an app awake
    Pin(Named),
    /// Let an app sleep again
    Unpin(Named),
    /// List stored images, or store and remove them
    #[command(args_conflicts_with_subcommands = true)]
    Images(ImagesArgs),
    /// List, look into and remove images of processes
    #[command(subcommand, after_help = IMAGE_HELP)]
    Image(ImageCommand),
    /// Capture a tree of plain processes into an image, and end it
    #[command(after_help = CHECKPOINT_HELP)]
    Checkpoint(CheckpointArgs),
    /// Bring a tree of plain processes back from its image
    #[command(after_help = RESTORE_HELP)]
    Restore(RestoreArgs),
    /// Print completion for a shell
    #[command(after_help = "Example:\n  torpor completion bash > /etc/bash_completion.d/torpor")]
    Completion {
        /// Which shell
        shell: Shell,
    },
    /// Print the version of the command, and of the daemon if it runs
    Version(Json),
}

const IMAGE_HELP: &str = "\
An image is a file, or the directory that torpor checkpoint has made; those of sleeping apps are in the data directory.

Examples:
  torpor image inspect /srv/image
  torpor image verify /srv/image /var/lib/torpor/apps/*/*.image
  torpor image diff /srv/before /srv/after";

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// List the images of the apps' processes
    Ls(Json),
    /// Remove those images of apps that were set aside; the image that a sleeping app wakes from stays
    Rm {
        /// Names or ids of apps
        #[arg(required = true)]
        apps: Vec<String>,
    },
    /// Tell what an image holds: processes, threads, memory, descriptors, sizes
    Inspect {
        /// File or directory
        image: PathBuf,
        #[command(flatten)]
        json: Json,
    },
    /// Check every byte of images; exit code 1 at the first damage
    Verify {
        /// Files or directories
        #[arg(required = true)]
        images: Vec<PathBuf>,
        #[command(flatten)]
        json: Json,
    },
    /// Tell how the second image differs from the first
    Diff {
        /// File or directory
        first: PathBuf,
        /// File or directory
        second: PathBuf,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Configuration; without it /etc/torpor/torpor.toml if it is there, else defaults
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Json {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    /// Name or id of the app
    pub(crate) app: String,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct MaybeNamed {
    /// Name or id of the app; without it all of them
    pub(crate) app: Option<String>,
    #[command(flatten)]
    pub(crate) json: Json,
}

const RUN_EXAMPLES: &str = "\
Examples:
  torpor run --name web -p 8080:80 app.tar -- /usr/sbin/lighttpd -D -f /etc/lighttpd/lighttpd.conf
  torpor run -p 127.0.0.1:5353:53/udp --base debian dns.tar.gz -- /usr/sbin/named -g
  torpor run -p 6379:6379 --memory 256M --idle-after 2m registry.example/redis:8
  torpor run --oci-layout ./layout:v1
  torpor run -f app.toml

A source is a tarball, an OCI layout directory, a stored image, or a registry reference whose first part is a host
(registry.example/web:1, localhost:5000/web). Schemes say it outright: tar:PATH, oci:PATH[:REF],
docker-archive:PATH[:REF], docker://REF, image:NAME.";

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
    #[arg(long)]
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
    /// CPU limit, as 0.5
    #[arg(long, value_name = "CORES")]
    pub(crate) cpus: Option<f64>,
    /// Most processes and threads
    #[arg(long, value_name = "COUNT")]
    pub(crate) processes: Option<u32>,
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
    #[arg(long, value_name = "PERCENT")]
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
pub(crate) enum WakeOnArg {
    /// The connection itself
    Connect,
    /// Its first data
    Data,
}

#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// Name or id of the app
    pub(crate) app: String,
    /// Go on with new lines
    #[arg(short = 'f', long)]
    pub(crate) follow: bool,
    /// Only the last so many lines
    #[arg(short = 'n', long = "lines", value_name = "COUNT")]
    pub(crate) tail: Option<usize>,
    /// Show when each line was read
    #[arg(short = 't', long)]
    pub(crate) timestamps: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Name or id of the app
    pub(crate) app: String,
    /// Pass standard input on
    #[arg(short = 'i', long)]
    pub(crate) interactive: bool,
    /// Give the command a terminal
    #[arg(short = 't', long)]
    pub(crate) tty: bool,
    /// Set NAME=VALUE in the environment, or pass on NAME
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// As another user
    #[arg(short = 'u', long)]
    pub(crate) user: Option<String>,
    /// Working directory
    #[arg(short = 'w', long, value_name = "PATH")]
    pub(crate) workdir: Option<String>,
    /// Program and arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SleepArgs {
    /// Name or id of the app
    pub(crate) app: String,
    /// How deep; one that sleeps deeper already stays so
    #[arg(long, value_enum, default_value_t = LevelArg::Dozing)]
    pub(crate) level: LevelArg,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LevelArg {
    /// Frozen in place, its memory in an image: awake again in half a millisecond
    Dozing,
    /// Its processes ended, all of them in an image: takes the least memory
    Warm,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Name or id of the app
    pub(crate) app: String,
    /// How long it may take before it is killed
    #[arg(short = 't', long, value_name = "TIME")]
    pub(crate) grace: Option<Span>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Names or ids of the apps
    #[arg(required = true)]
    pub(crate) apps: Vec<String>,
    /// Kill those that run
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct EventArgs {
    /// Go on with new events
    #[arg(short = 'f', long)]
    pub(crate) follow: bool,
    /// Only the last so many
    #[arg(short = 'n', long = "lines", value_name = "COUNT")]
    pub(crate) tail: Option<u32>,
    /// Only after this sequence number
    #[arg(long, value_name = "SEQ")]
    pub(crate) since: Option<u64>,
    /// Only of this app
    #[arg(long, value_name = "NAME")]
    pub(crate) app: Option<String>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct ImagesArgs {
    #[command(flatten)]
    pub(crate) json: Json,
    #[command(subcommand)]
    pub(crate) command: Option<ImagesCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImagesCommand {
    /// List stored images
    Ls(Json),
    /// Store a tarball, layout directory or archive under a name
    #[command(
        after_help = "Examples:\n  torpor images load debian debian.tar\n  torpor images load web oci:./layout:v1"
    )]
    Load {
        /// Name
        name: String,
        /// Where the files are
        source: String,
        /// The source is an OCI layout directory (PATH[:REF])
        #[arg(long)]
        oci_layout: bool,
        /// The source is an archive that docker save wrote (PATH[:TAG])
        #[arg(long, conflicts_with = "oci_layout")]
        docker_archive: bool,
    },
    /// Fetch an image from a registry
    #[command(after_help = "Example:\n  torpor images pull registry.example/debian:13 --name debian")]
    Pull {
        /// Reference, as registry.example/repository:tag
        reference: String,
        /// Name; without it the reference
        #[arg(long)]
        name: Option<String>,
    },
    /// Remove stored images
    Rm {
        /// Their names
        #[arg(required = true)]
        names: Vec<String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn reads_the_lines_of_the_manual() {
        for line in [
            "torpor up --config /etc/torpor.toml",
            "torpor down",
            "torpor doctor --json",
            "torpor run --name web -p 8080:80 app.tar -- /usr/sbin/lighttpd -D -f /etc/lighttpd/lighttpd.conf",
            "torpor run -f app.toml",
            "torpor run --oci-layout dir --memory 64M --cpus 0.5 --restart always --idle-after 30s --wake-on data",
            "torpor run app.tar -v /a:/b:ro --tmpfs /run:1M -p [::1]:53:53/udp --ignore 10.0.0.0/8 --cap-drop ALL",
            "torpor ps --json",
            "torpor logs -f -n 3 web",
            "torpor exec -it web -- /bin/sh -c true",
            "torpor sleep web",
            "torpor sleep --level warm web --json",
            "torpor run app.tar --warm-after 5m",
            "torpor run app.tar --warm-after never --no-sleep",
            "torpor exec web ls -l",
            "torpor stop -t 3s web",
            "torpor rm -f web db",
            "torpor events -f --json",
            "torpor stats",
            "torpor stats web",
            "torpor images",
            "torpor images --json",
            "torpor images ls --json",
            "torpor images load debian d.tar",
            "torpor images pull localhost:5000/d:1 --name d",
            "torpor images rm d",
            "torpor completion bash",
            "torpor --socket /tmp/s ps",
            "torpor ps --socket /tmp/s",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn keeps_the_flags_of_the_command_apart() {
        let Command::Exec(exec) = parse("torpor exec web ls -i -t").unwrap().command else { panic!("not exec") };
        assert_eq!(exec.command, ["ls", "-i", "-t"]);
        assert!(!exec.interactive && !exec.tty);
        let Command::Run(run) = parse("torpor run a.tar -- prog -p x").unwrap().command else { panic!("not run") };
        assert_eq!(run.command, ["prog", "-p", "x"]);
        assert!(run.ports.is_empty());
    }

    #[test]
    fn refuses_what_makes_no_sense() {
        for line in [
            "torpor",
            "torpor frobnicate",
            "torpor run app.tar -p 80",
            "torpor run app.tar --memory lots",
            "torpor run app.tar --restart maybe",
            "torpor run app.tar --warm-after later",
            "torpor sleep web --level cold",
            "torpor run --oci-layout --docker-archive x",
            "torpor exec web",
            "torpor rm",
            "torpor ps --address 127.0.0.1:1",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
