//! Images of processes.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Json, name};

pub(super) const IMAGE_HELP: &str = "\
An image is a file, or a directory that torpor checkpoint created. Images of sleeping apps are in the data directory.

Examples:
  torpor image inspect /srv/image
  torpor image verify /srv/image /var/lib/torpor/apps/*/*.image
  torpor image diff /srv/before /srv/after";

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// List the images of the apps' processes
    Ls(Json),
    /// Remove damaged images that were set aside; the image that a sleeping app wakes from stays
    Rm {
        /// Names or ids of apps
        #[arg(required = true, value_parser = name)]
        apps: Vec<String>,
    },
    /// Write an app, with its image and files, to an archive for another machine
    #[command(after_help = EXPORT_HELP)]
    Export(ExportArgs),
    /// Create an app from an archive; it is asleep, and the first packet wakes it
    #[command(after_help = IMPORT_HELP)]
    Import(ImportArgs),
    /// Show what an image contains: processes, threads, memory, descriptors, sizes
    Inspect {
        /// File or directory
        image: PathBuf,
        #[command(flatten)]
        json: Json,
    },
    /// Check every byte of images; the exit code is 1 if one is damaged
    Verify {
        /// Files or directories
        #[arg(required = true)]
        images: Vec<PathBuf>,
        #[command(flatten)]
        json: Json,
    },
    /// Show how the second image differs from the first
    Diff {
        /// File or directory
        first: PathBuf,
        /// File or directory
        second: PathBuf,
        #[command(flatten)]
        json: Json,
    },
}

const EXPORT_HELP: &str = "\
Examples:
  torpor image export web -o web.torpor
  torpor image export web | ssh other torpor image import - --yes

The app is first put to sleep (level warm). The archive is a copy; the app stays where it is. If the app wakes during the export, an export
to a file starts again, at most three times in all, and one to standard output fails. The archive contains the memory of the
program, with all keys and passwords in it; its file has mode 0600.";

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Name or id of the app
    #[arg(value_parser = name)]
    pub(crate) app: String,
    /// Archive to write [default: standard output, if it is not a terminal]
    #[arg(short = 'o', long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Fail if the app is not warm, instead of putting it to sleep
    #[arg(long)]
    pub(crate) no_sleep: bool,
    /// Print JSON; needs --output
    #[arg(long, requires = "output")]
    pub(crate) json: bool,
}

const IMPORT_HELP: &str = "\
Examples:
  torpor image import web.torpor
  torpor image import web.torpor --name web2 -p 8081:80
  torpor image import web.torpor --yes --json

The ports in the archive are shown, and published if you agree: at a terminal you are asked, otherwise --yes is necessary. Anything
that reaches out of the sandbox (volumes, capabilities, less confinement) needs --trust, which includes --yes.

This machine must run the same kernel release and have the same processor features as the other one. Connections that the app had
are reset, and the app gets addresses of this machine. If the import fails, it leaves nothing behind.";

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Archive to read; `-` is standard input
    pub(crate) archive: PathBuf,
    /// Name of the app [default: the name in the archive]
    #[arg(long, value_parser = name)]
    pub(crate) name: Option<String>,
    /// Publish these ports instead of those in the archive: [IP:]HOST:APP[/udp]
    #[arg(short = 'p', long = "publish", value_name = "PORTS", conflicts_with = "no_publish")]
    pub(crate) ports: Vec<String>,
    /// Publish no ports
    #[arg(long)]
    pub(crate) no_publish: bool,
    /// Publish the ports in the archive without asking
    #[arg(short = 'y', long)]
    pub(crate) yes: bool,
    /// Import the app even if it asks for more than a new app gets: volumes, capabilities, less confinement
    #[arg(long)]
    pub(crate) trust: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}
