//! The phase of an app whose phase file is lost or damaged, inferred from its newest image and its processes.
//!
//! The order of steps rules out what is not listed. An image has its final name from the commit of a sleep until after the thaw of the
//! wake that uses it. A wake from warm renames the complete image to `.woken` before the app is thawed. Whoever dozes is frozen. A sleep
//! begins its image before it freezes the app, and a begun image is gone, or has its final name, when the app dozes.
//!
//! | newest image | processes | phase |
//! |---|---|---|
//! | none | not frozen | `Awake`: nothing has been committed since the last wake |
//! | none, but a sleep has begun one | frozen | `Awake`: the sleep was not committed |
//! | none | frozen | unknown: it dozes, and its image is lost |
//! | none | none | unknown: it was warm, and its image is lost |
//! | for dozing | frozen | `Dozing`: also if a wake was under way, since the program has not run since and the image equals its memory |
//! | any | not frozen, and init holds contexts with a ledger that has begun | `Lazy`: it runs, and the ledger says what it misses |
//! | the one that it misses pages of | frozen, and the ledger says that it has run | `Lazy`: it was about to sleep again |
//! | for dozing | not frozen | unknown: memory may be missing, or newer than the image |
//! | complete | frozen, or none | `Warm`: the program has not run since |
//! | complete | not frozen | `Awake`: the program has run, or never stopped |
//!
//! Images that are not the app's are not looked at ([`Store::newest`](torpor_store::Store::newest)).

use std::io;

use torpor_engine::{Freezer, Phase};
use torpor_store::{ImageError, ImageFile, Owner};

use super::adopt_error::{AdoptError, is_ours};
use super::contexts::FoundLazy;
use crate::app_files::AppFiles;

/// What can be known of an app without a phase file; `lazy`: as far as its init knows.
///
/// # Errors
/// `Lost` where nothing is known: then its memory must not be used. `Unknown` where it cannot be examined now.
pub(super) fn infer(
    files: &AppFiles,
    owner: Owner,
    freezer: &dyn Freezer,
    lazy: Option<FoundLazy>,
) -> Result<Phase, AdoptError> {
    let looked = |error: io::Error| {
        AdoptError::Unknown(format!("its phase is lost, and what is left of it cannot be examined: {error}").into())
    };
    let lost = |why: &str| AdoptError::Lost(format!("its phase is lost, and so {why}").into());
    let newest = files.images.newest(owner).map_err(looked)?;
    let frozen = freezer.is_freezing().map_err(looked)?;
    let processes = !freezer.processes().map_err(looked)?.is_empty();
    if let Some(FoundLazy { generation, has_run }) = lazy.filter(|_| processes) {
        let is_newest = newest.as_ref().is_none_or(|newest| newest.generation() <= generation);
        if !frozen || (has_run && is_newest) {
            return Ok(Phase::Lazy { generation });
        }
    }
    let Some(newest) = newest else {
        return match (processes, frozen) {
            (true, false) => Ok(Phase::Awake),
            (true, true) if files.images.doze_begun().map_err(looked)? => Ok(Phase::Awake),
            _ => Err(lost("is its image")),
        };
    };
    let image = ImageFile::open_generation(&newest.path, newest.generation()).map_err(|error| match &error {
        ImageError::Read(_, read) if is_ours(read) => {
            AdoptError::Unknown(format!("its image cannot be read: {}", torpor_api::error::chain(&error)).into())
        }
        _ => lost(&format!("its image would be needed, which cannot be read: {}", torpor_api::error::chain(&error))),
    })?;
    let (generation, wake_at) = (newest.generation(), None);
    match (image.is_complete(), processes, frozen) {
        (true, true, false) => Ok(Phase::Awake),
        (true, ..) => Ok(Phase::Warm { generation, wake_at }),
        (false, true, true) => Ok(Phase::Dozing { generation, wake_at }),
        (false, ..) => Err(lost("it is unknown whether its image or its memory is the newer one")),
    }
}
