//! An app on its way from one machine to another: what of it is exported, and how an imported one becomes warm.

use std::fs::File;
use std::io;

use torpor_lifecycle::{Event, Found, Phase};

use super::process_tree::sleep_state::SleepState;
use super::task::Task;

/// The image of a warm app. It stays readable when the app wakes meanwhile, but then no longer fits its files.
#[derive(Debug)]
pub(crate) struct Exportable {
    /// Open for reading.
    pub(crate) image: File,
    /// Its length.
    pub(crate) bytes: u64,
    /// The sleep that it was made in: another one shows that the app was awake in between.
    pub(crate) generation: u64,
    /// Files that keep it on this machine.
    pub(crate) stays: Vec<String>,
    /// What is not in it, in words.
    pub(crate) left_out: Vec<String>,
}

impl Task {
    pub(super) fn exportable(&self) -> io::Result<Option<Exportable>> {
        let (Phase::Warm(_), Some(SleepState::Warm(app))) = (self.app.phase(), &self.asleep) else { return Ok(None) };
        let stays = tokio::task::block_in_place(|| torpor_engine::stays(&app.warm.image)).map_err(io::Error::other)?;
        Ok(Some(Exportable {
            stays,
            image: File::open(&app.warm.image)?,
            bytes: app.warm.image_bytes,
            generation: app.warm.generation,
            left_out: app.warm.warnings.clone(),
        }))
    }

    /// Becomes warm from the image that lies in its directory, as after a reboot. After an error nothing of it is running or
    /// set up, and its files are as they were.
    pub(super) async fn adopt_import(&mut self) -> Result<(), String> {
        match self.try_restore_sandbox().await {
            Ok(Some(next_timer)) => {
                self.tell(Event::Adopted(Found::Stored { next_timer })).await;
                Ok(())
            }
            Ok(None) => Err("it has no image".to_owned()),
            Err(error) => Err(error.reason().to_string()),
        }
    }
}
