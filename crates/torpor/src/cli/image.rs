//! Images of processes.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Json, name};

pub(super) const IMAGE_HELP: &str = "\
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
        #[arg(required = true, value_parser = name)]
        apps: Vec<String>,
    },
    /// Write an app with its image and files as one archive, to be imported elsewhere
    #[command(after_help = EXPORT_HELP)]
    Export(ExportArgs),
    /// Make an app from an archive; it sleeps, and its first packet wakes it
    #[command(after_help = IMPORT_HELP)]
    Import(ImportArgs),
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

const EXPORT_HELP: &str = "\
Examples:
  torpor image export web -o web.torpor
  torpor image export web | ssh other torpor image import -

The app is put to sleep first (level warm), and stays where it is: the archive is a copy. If it wakes meanwhile, an export to a file
begins again, at most three times in all; one to standard output fails. The archive holds all that the program had in its memory, keys and passwords too; its file is
made with mode 0600.";

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Name or id of the app
    #[arg(value_parser = name)]
    pub(crate) app: String,
    /// The archive; without it standard output, unless that is a terminal
    #[arg(short = 'o', long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Fail where the app is not warm already, rather than putting it to sleep
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

Ports that the archive names are shown, and published once you agree: at a terminal you are asked, elsewhere it takes --yes. What
reaches out of a sandbox (volumes, capabilities, no confinement) takes --trust, which includes --yes.

The machine must run the same kernel release and have the processor features that the other had. Connections that the app had
are found reset; the addresses that others reach it at are this machine's. Where it fails, nothing is left behind.";

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The archive; `-` is standard input
    pub(crate) archive: PathBuf,
    /// Name of the app; without it the one that it had
    #[arg(long, value_parser = name)]
    pub(crate) name: Option<String>,
    /// Publish these ports in place of those that it had: [IP:]HOST:APP[/udp]
    #[arg(short = 'p', long = "publish", value_name = "PORTS", conflicts_with = "no_publish")]
    pub(crate) ports: Vec<String>,
    /// Publish no ports
    #[arg(long)]
    pub(crate) no_publish: bool,
    /// Publish the ports that the archive names without asking
    #[arg(short = 'y', long)]
    pub(crate) yes: bool,
    /// Import it although it asks for more than an app gets by itself: volumes, capabilities, no confinement
    #[arg(long)]
    pub(crate) trust: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}
