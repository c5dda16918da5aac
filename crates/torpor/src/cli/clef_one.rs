//! Arguments of `clef` that are for single Clefs: looked into, copied, woken.

use std::path::PathBuf;

use clap::Args;
use torpor_clef::Key;

use super::Json;
use super::clef_target::Target;

pub(super) const INSPECT_HELP: &str = "\
Shows what is known of a Clef: its memory, what its tasks wait for, its alarms, what it has used, and the global variables of its program. Local
variables are not seen. Nothing is changed, and none is created.

Example:
  torpor clef inspect counter/ann";

pub(super) const REPL_HELP: &str = "\
Each line is run in the Clef: an expression, whose values are printed, or statements. What a line changes is forgotten, unless --write is given. A line
must not wait: sleep, call and fetch are errors. Ctrl-D ends it.

Examples:
  torpor clef repl counter/ann
  torpor clef repl counter/ann -e state.n
  torpor clef repl --write counter/ann -e 'state.n = 0'";

pub(super) const EXPORT_HELP: &str = "\
The file contains the memory of the Clef, with all keys and passwords in it; it has mode 0600. Only the class that has exported it takes it back.

Examples:
  torpor clef export counter/ann -o ann.clef
  torpor clef import counter/ann-again ann.clef";

#[derive(Debug, Args)]
pub(crate) struct ClefOneArgs {
    /// The Clef
    #[arg(value_name = "NAME/KEY")]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct ClefReplArgs {
    /// The Clef
    #[arg(value_name = "NAME/KEY")]
    pub(crate) target: Target,
    /// Keep what lines change
    #[arg(long)]
    pub(crate) write: bool,
    /// Run this line, and end; the exit code is 1 if it fails
    #[arg(short = 'e', long, value_name = "LINE", allow_hyphen_values = true)]
    pub(crate) execute: Option<String>,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct ClefForkArgs {
    /// The Clef
    #[arg(value_name = "NAME/KEY")]
    pub(crate) target: Target,
    /// The key of the copy
    #[arg(value_name = "NEWKEY")]
    pub(crate) to: Key,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct ClefExportArgs {
    /// The Clef
    #[arg(value_name = "NAME/KEY")]
    pub(crate) target: Target,
    /// File to write; `-` is standard output, if it is not a terminal
    #[arg(short = 'o', long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Overwrite the file
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct ClefImportArgs {
    /// The Clef that is made of the copy
    #[arg(value_name = "NAME/KEY")]
    pub(crate) target: Target,
    /// File to read; `-` is standard input
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct ClefNewArgs {
    /// File to write
    #[arg(value_name = "FILE.lua")]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct ClefEventArgs {
    /// Name of the class
    #[arg(value_parser = super::name)]
    pub(crate) class: String,
    /// Follow: print new events as they come
    #[arg(short = 'f', long)]
    pub(crate) follow: bool,
    /// Print only this number of events, the last ones
    #[arg(short = 'n', long = "lines", value_name = "COUNT")]
    pub(crate) tail: Option<u32>,
    #[command(flatten)]
    pub(crate) json: Json,
}
