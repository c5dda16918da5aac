//! The arguments, their help and their examples.

use std::path::PathBuf;

use clap::{Args, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use torpor_api::units::Span;

use crate::output::Column;

pub(crate) use self::connection::{Connection, Named as NamedDaemon, definition};
pub(crate) use self::image::{ExportArgs, ImageCommand, ImportArgs};
pub(crate) use self::images::{ImagesArgs, ImagesCommand};
pub(crate) use self::run::{RestartArg, RunArgs, WakeBlockedArg, WakeOnArg};
pub(crate) use self::trees::{CheckpointArgs, RestoreArgs};

mod connection;
mod image;
mod images;
mod run;
mod trees;

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong command or description, 3 no such app, image or file, 4 conflict, 5 unsupported by the machine, 6 not within --timeout, \
7 `down` could not keep an app's memory. \
`torpor exec` gives back the command's own status.";

/// Hosts programs that are idle most of the time: they sleep when nobody uses them, and the next packet wakes them.
#[derive(Debug, Parser)]
#[command(name = "torpor", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) connection: Connection,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the daemon in the foreground; Ctrl-C leaves the apps alone
    #[command(after_help = "Examples:\n  torpor up\n  torpor up --config /etc/torpor/torpor.toml")]
    Up(UpArgs),
    /// Put every app away and remove everything that Torpor set up on the machine
    #[command(
        after_help = "Apps that can go warm keep their memory for the next `torpor up`; the others are stopped, and named.\n\nExamples:\n  torpor down\n  torpor down --discard"
    )]
    Down(DownArgs),
    /// Say what this machine and kernel offer or lack, what is left over, and what that means
    Doctor {
        #[command(flatten)]
        json: Json,
        #[command(flatten)]
        config: UpArgs,
    },
    /// Make an app and start it
    #[command(after_help = run::RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// List the apps
    #[command(after_help = "Examples:\n  torpor ps\n  torpor ps -o name,state,addresses")]
    Ps(PsArgs),
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
    Wake(WaitArgs),
    /// Start a stopped app
    Start(WaitArgs),
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
    /// Show why an app is awake or asleep, what keeps it so, and what its last wakes took
    #[command(after_help = "Examples:\n  torpor explain web\n  torpor explain -v web")]
    Explain(ExplainArgs),
    /// Keep an app awake
    Pin(Named),
    /// Let an app sleep again
    Unpin(Named),
    /// List stored images, or store and remove them
    #[command(args_conflicts_with_subcommands = true)]
    Images(ImagesArgs),
    /// List, look into, move and remove images of processes
    #[command(subcommand, after_help = image::IMAGE_HELP)]
    Image(ImageCommand),
    /// Capture a tree of plain processes into an image, and end it
    #[command(after_help = trees::CHECKPOINT_HELP)]
    Checkpoint(CheckpointArgs),
    /// Bring a tree of plain processes back from its image
    #[command(after_help = trees::RESTORE_HELP)]
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

/// A name or id; which there are, the daemon knows.
fn name(text: &str) -> Result<String, &'static str> {
    if text.is_empty() { Err("a name is not empty") } else { Ok(text.to_owned()) }
}

impl Cli {
    /// Reads the arguments of the process; ends it with the right words where they are wrong, or only ask for help.
    pub(crate) fn from_process() -> Self {
        let mut definition = definition();
        let matches = definition.get_matches_mut();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut definition).exit())
    }
}

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Configuration; without it /etc/torpor/torpor.toml if it is there, else defaults
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DownArgs {
    #[command(flatten)]
    pub(crate) config: UpArgs,
    /// Stop every app and keep no memory of any
    #[arg(long)]
    pub(crate) discard: bool,
    /// Wait no longer than this
    #[arg(long, value_name = "TIME", default_value = "10m")]
    pub(crate) timeout: Span,
    #[command(flatten)]
    pub(crate) json: Json,
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
    #[arg(value_parser = name)]
    pub(crate) app: String,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Show these columns, and all of what they hold, however wide the terminal is
    #[arg(short = 'o', long, value_name = "COLUMNS", value_enum, value_delimiter = ',')]
    pub(crate) output: Vec<Column>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) app: Named,
    /// Show the phases of the last sleeps and wakes
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    pub(crate) named: Named,
    #[command(flatten)]
    pub(crate) wait: Wait,
}

/// How long to wait.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Wait {
    /// Wait no longer than this for the end of it; it goes on then, and the exit code is 6
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,
}

#[derive(Debug, Args)]
pub(crate) struct MaybeNamed {
    /// Name or id of the app; without it all of them
    #[arg(value_parser = name)]
    pub(crate) app: Option<String>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// Name or id of the app
    #[arg(value_parser = name)]
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
    #[arg(value_parser = name)]
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
    /// End the command when it has not ended within this time, waking the app included; the exit code is 6
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,
    /// Program and arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SleepArgs {
    /// Name or id of the app
    #[arg(value_parser = name)]
    pub(crate) app: String,
    /// Sleep level; an app that already sleeps deeper stays there
    #[arg(long, value_enum, default_value_t = LevelArg::Dozing)]
    pub(crate) level: LevelArg,
    #[command(flatten)]
    pub(crate) wait: Wait,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LevelArg {
    /// Frozen in place, its memory in an image: small programs wake within a millisecond or two
    Dozing,
    /// Its processes ended, all of them in an image: takes the least memory
    Warm,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Name or id of the app
    #[arg(value_parser = name)]
    pub(crate) app: String,
    /// How long it may take before it is killed
    #[arg(short = 't', long, value_name = "TIME")]
    pub(crate) grace: Option<Span>,
    #[command(flatten)]
    pub(crate) wait: Wait,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Names or ids of the apps
    #[arg(required = true, value_parser = name)]
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
    /// Only of this app, by its name or id; with --follow it may be made later
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) app: Option<String>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[cfg(test)]
mod tests;
