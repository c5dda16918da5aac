//! Stored images of files.

use clap::{Args, Subcommand};

use super::{Json, name};

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
        /// Name of the stored image
        #[arg(value_parser = name)]
        name: String,
        /// Path of the source
        source: String,
        /// The source is an OCI layout directory (PATH[:REF])
        #[arg(long)]
        oci_layout: bool,
        /// The source is an archive that docker save wrote (PATH[:TAG])
        #[arg(long, conflicts_with = "oci_layout")]
        docker_archive: bool,
    },
    /// Pull an image from a registry
    #[command(after_help = "Example:\n  torpor images pull registry.example/debian:13 --name debian")]
    Pull {
        /// Reference, for example registry.example/repository:tag
        #[arg(value_parser = name)]
        reference: String,
        /// Name of the stored image [default: the reference]
        #[arg(long, value_parser = name)]
        name: Option<String>,
    },
    /// Remove stored images
    Rm {
        /// Names of stored images
        #[arg(required = true, value_parser = name)]
        names: Vec<String>,
    },
}
