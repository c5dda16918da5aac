//! What of a warm app is exported.

use std::fs::File;
use std::io;

use super::ProcessTree;
use super::sleep_state::SleepState;
use crate::app::workload::Exportable;

impl ProcessTree {
    pub(super) fn export(&self) -> io::Result<Option<Exportable>> {
        let Some(SleepState::Warm(app)) = &self.sleep.state else { return Ok(None) };
        let stays =
            tokio::task::block_in_place(|| torpor_engine::stays(app.warm.image.path())).map_err(io::Error::other)?;
        Ok(Some(Exportable {
            stays,
            image: File::open(app.warm.image.path())?,
            bytes: app.warm.image_bytes,
            generation: app.warm.image.generation(),
            left_out: app.warm.warnings.clone(),
        }))
    }
}
