//! Apps on their way to and from other machines, as [`torpor_api::archive`] describes.
//!
//! Only a warm app travels: nothing of it runs, its files are at rest, its image says all. What it has on this machine beside
//! them (parked connections) stays behind, as after a reboot, and an imported app is taken up as one after a reboot is.
//!
//! An export holds nothing up. Where the app wakes meanwhile, its files are no longer those of its image: that is found before
//! the archive is completed, and the archive is given up. An import writes into the directory of an app whose row says that it
//! is being made; whatever fails or crashes before it is warm, that row and the directory go.

mod export;
mod import;

use std::io;

use torpor_api::spec::AppSpec;
use torpor_api::{ApiError, ErrorKind};

pub(crate) use export::{export, not_warm, woke};
pub(crate) use import::import;

/// An app whose files are partly in directories of this machine that it may write stays here.
pub(crate) fn check_volumes(spec: &AppSpec) -> Result<(), ApiError> {
    let Some(volume) = spec.volumes.iter().find(|volume| !volume.read_only) else { return Ok(()) };
    let (name, host) = (&spec.name, volume.host.display());
    let message = format!("{name}: it writes to {host}, a directory of this machine, which does not come along");
    Err(ApiError::new(ErrorKind::Conflict, message)
        .with_hint("run the app without that volume, or with the volume read-only and its contents on both machines"))
}

fn failed(what: &str, error: &(dyn std::error::Error + 'static)) -> ApiError {
    ApiError::new(ErrorKind::Internal, format!("{what}: {}", torpor_api::error::chain(error)))
}

fn broken(what: &str) -> impl Fn(io::Error) -> ApiError {
    move |error| failed(what, &error)
}
