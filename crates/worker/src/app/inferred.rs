//! The phase of an app whose phase file is lost or damaged, inferred from its newest image and its processes.
//!
//! The order of steps rules out what is not listed. An image has its final name from the commit of a sleep until after the thaw of the
//! wake that uses it. A wake from warm renames the complete image to `.woken` before the app is thawed. Whoever dozes is frozen.
//!
//! | newest image | processes | phase |
//! |---|---|---|
//! | none | any | `Awake`: nothing has been committed since the last wake |
//! | for dozing | frozen | `Dozing`: also if a wake was under way, since the program has not run since and the image equals its memory |
//! | for dozing | not frozen | unknown: memory may be missing, or newer than the image |
//! | complete | frozen, or none | `Warm`: the program has not run since |
//! | complete | not frozen | `Awake`: the program has run, or never stopped |

use std::io;

use torpor_engine::{Freezer, ImageFile, Phase};

use super::files::AppFiles;

/// What can be known of an app without a phase file.
///
/// # Errors
/// Why nothing is known: then its memory must not be used.
pub(super) fn infer(files: &AppFiles, freezer: &dyn Freezer) -> Result<Phase, String> {
    let looked = |error: io::Error| format!("its phase is lost, and what is left of it cannot be examined: {error}");
    let Some(newest) = files.newest().map_err(looked)? else { return Ok(Phase::Awake) };
    let image = ImageFile::open(&newest.path).map_err(|error| {
        let error = torpor_api::error::chain(&error);
        format!("its phase is lost, and its image cannot be read: {error}")
    })?;
    let frozen = freezer.is_freezing().map_err(looked)?;
    let processes = !freezer.processes().map_err(looked)?.is_empty();
    let (generation, wake_at) = (newest.generation, None);
    match (image.is_complete(), processes, frozen) {
        (true, true, false) => Ok(Phase::Awake),
        (true, ..) => Ok(Phase::Warm { generation, wake_at }),
        (false, true, true) => Ok(Phase::Dozing { generation, wake_at }),
        (false, ..) => {
            Err("its phase is lost, and so it is unknown whether its image or its memory is the newer one".to_owned())
        }
    }
}
