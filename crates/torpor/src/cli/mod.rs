//! The arguments, their help and their examples.

use std::path::PathBuf;

use clap::{Args, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use torpor_api::units::Span;

use crate::output::Column;

pub(crate) use self::clef::{
    CLEF_PORT, CLEF_TCP_PORT, ClefCallArgs, ClefCommand, ClefLsArgs, ClefRmArgs, ClefTargetArgs, ClefUpgradeArgs,
    DeployArgs, DevArgs,
};
pub(crate) use self::clef_one::{ClefExportArgs, ClefForkArgs, ClefImportArgs, ClefNewArgs, ClefOneArgs, ClefReplArgs};
pub(crate) use self::clef_target::Target;
pub(crate) use self::connection::{Connection, Named as NamedDaemon, definition};
pub(crate) use self::image::{ExportArgs, ImageCommand, ImportArgs};
pub(crate) use self::images::{ImagesArgs, ImagesCommand};
pub(crate) use self::run::{RestartArg, RunArgs, WakeBlockedArg, WakeOnArg};
pub(crate) use self::trees::{CheckpointArgs, RestoreArgs};

mod clef;
mod clef_one;
mod clef_target;
mod connection;
mod image;
mod images;
mod run;
mod trees;

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong command or description, 3 no such app, image or file, 4 conflict, 5 not supported on this machine, 6 not finished within --timeout, \
7 `down` could not keep an app's memory. \
`torpor exec` returns the status of the command.";

/// Hosts programs that are idle most of the time: an app that nobody uses falls asleep, and the next packet wakes it.
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
    /// Start the daemon in the foreground; Ctrl-C ends the daemon and not the apps
    #[command(after_help = "Examples:\n  torpor up\n  torpor up --config /etc/torpor/torpor.toml")]
    Up(UpArgs),
    /// Put away every app, and remove everything that Torpor set up on the machine
    #[command(
        after_help = "Apps that can go warm keep their memory for the next `torpor up`; the others are stopped, and named.\n\nExamples:\n  torpor down\n  torpor down --discard"
    )]
    Down(DownArgs),
    /// Show what this machine and its kernel offer and lack, what was left behind, and what that means
    Doctor {
        #[command(flatten)]
        json: Json,
        #[command(flatten)]
        config: UpArgs,
    },
    /// Create an app and start it
    #[command(after_help = run::RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// List the apps
    #[command(after_help = "Examples:\n  torpor ps\n  torpor ps -o name,state,addresses")]
    Ps(PsArgs),
    /// Show everything about an app
    Inspect(Named),
    /// Show the output of an app
    #[command(after_help = "Examples:\n  torpor logs web\n  torpor logs -f -n 20 web")]
    Logs(LogArgs),
    /// Run a command in an app; a sleeping app is woken first
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
    /// Show events
    #[command(after_help = "Examples:\n  torpor events -f\n  torpor events -n 20 --app web --json")]
    Events(EventArgs),
    /// Show what apps use, as the kernel measures it
    Stats(MaybeNamed),
    /// Show why an app is awake or asleep, what keeps it so, and how long its last wakes took
    #[command(after_help = "Examples:\n  torpor explain web\n  torpor explain -v web")]
    Explain(ExplainArgs),
    /// Keep an app awake
    Pin(Named),
    /// Let an app sleep again
    Unpin(Named),
    /// List, store and remove images of file systems
    #[command(args_conflicts_with_subcommands = true)]
    Images(ImagesArgs),
    /// List, inspect, move and remove images of processes
    #[command(subcommand, after_help = image::IMAGE_HELP)]
    Image(ImageCommand),
    /// Capture a process tree into an image, and end its processes
    #[command(after_help = trees::CHECKPOINT_HELP)]
    Checkpoint(CheckpointArgs),
    /// Restore a process tree from its image
    #[command(after_help = trees::RESTORE_HELP)]
    Restore(RestoreArgs),
    /// Stateful objects in Lua, which sleep until they are called
    #[command(subcommand, after_help = clef::CLEF_HELP)]
    Clef(ClefCommand),
    /// Print the completion script for a shell
    #[command(after_help = "Example:\n  torpor completion bash > /etc/bash_completion.d/torpor")]
    Completion {
        /// The shell
        shell: Shell,
    },
    /// Print the version of this command, and of the daemon if one runs
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
    /// Configuration file [default: /etc/torpor/torpor.toml if it exists, otherwise built-in defaults]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DownArgs {
    #[command(flatten)]
    pub(crate) config: UpArgs,
    /// Stop every app, and discard its memory
    #[arg(long)]
    pub(crate) discard: bool,
    /// Stop waiting after this time
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
    /// Show these columns, in full width
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
    /// Stop waiting after this time; the operation continues, and the exit code is 6
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,
}

#[derive(Debug, Args)]
pub(crate) struct MaybeNamed {
    /// Name or id of the app [default: all apps]
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
    /// Follow: print new lines as they come
    #[arg(short = 'f', long)]
    pub(crate) follow: bool,
    /// Print only this number of lines, the last ones
    #[arg(short = 'n', long = "lines", value_name = "COUNT")]
    pub(crate) tail: Option<usize>,
    /// Print the time of each line
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
    /// Pass on standard input
    #[arg(short = 'i', long)]
    pub(crate) interactive: bool,
    /// Allocate a terminal for the command
    #[arg(short = 't', long)]
    pub(crate) tty: bool,
    /// Set an environment variable; NAME alone takes the value that it has for this command
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// User to run it as: user, uid, user:group or uid:gid
    #[arg(short = 'u', long)]
    pub(crate) user: Option<String>,
    /// Working directory
    #[arg(short = 'w', long, value_name = "PATH")]
    pub(crate) workdir: Option<String>,
    /// End the command after this time, which includes waking the app; the exit code is 6
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SleepArgs {
    /// Name or id of the app
    #[arg(value_parser = name)]
    pub(crate) app: String,
    /// Level of sleep; an app that sleeps deeper already stays there
    #[arg(long, value_enum, default_value_t = LevelArg::Dozing)]
    pub(crate) level: LevelArg,
    #[command(flatten)]
    pub(crate) wait: Wait,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LevelArg {
    /// The processes stay, frozen, and their memory is in an image: small programs wake within a few milliseconds
    Dozing,
    /// The processes are ended and everything is in an image: uses the least memory
    Warm,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Name or id of the app
    #[arg(value_parser = name)]
    pub(crate) app: String,
    /// Time that the app has to end before it is killed
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
    /// Kill apps that run
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct EventArgs {
    /// Follow: print new events as they come
    #[arg(short = 'f', long)]
    pub(crate) follow: bool,
    /// Print only this number of events, the last ones
    #[arg(short = 'n', long = "lines", value_name = "COUNT")]
    pub(crate) tail: Option<u32>,
    /// Print only events after this sequence number
    #[arg(long, value_name = "SEQ")]
    pub(crate) since: Option<u64>,
    /// Print only events of this app (name or id); with --follow it may be created later
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) app: Option<String>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[cfg(test)]
mod tests;
