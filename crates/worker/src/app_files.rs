//! Where an app's files lie.
//!
//! ```text
//! data_dir/apps/ID/upper  work       its private files            survive a reboot
//!                 /log …             its output
//!                 /N.image …         the images of its sleeps, in a store
//!                 /working-set.json  which pages it needs first as it wakes
//!                 /past.json         how often it slept, how it last ended
//! run_dir/apps/ID/phase              journal of its level          gone after a reboot
//!                /sandbox.json       how to find its processes again
//! ```

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use torpor_api::worker::AppRecord;
use torpor_store::{Owner, Store};

/// An app's number in images.
pub(crate) fn app_number(id: &str) -> u64 {
    u64::from_str_radix(id, 16).unwrap_or_default()
}

/// Whose phases and images are an app's on this boot.
pub(crate) fn owner(record: &AppRecord, boot: [u64; 2]) -> Owner {
    Owner { app: app_number(&record.id), epoch: record.epoch.get().into(), boot }
}

/// Paths of one app.
#[derive(Clone, Debug)]
pub(crate) struct AppFiles {
    pub(crate) data: PathBuf,
    pub(crate) run: PathBuf,
    /// Its images, in `data`.
    pub(crate) images: Store,
}

impl AppFiles {
    pub(crate) fn new(data_dir: &Path, run_dir: &Path, id: &str) -> Self {
        let data = data_dir.join("apps").join(id);
        Self { images: Store::of_app(&data), data, run: run_dir.join("apps").join(id) }
    }

    /// Makes the directories, for root only.
    pub(crate) fn create(&self) -> io::Result<()> {
        for folder in [&self.data, &self.run] {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        Ok(())
    }

    pub(crate) fn upper(&self) -> PathBuf {
        self.data.join("upper")
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.data.join("work")
    }

    pub(crate) fn phase(&self) -> PathBuf {
        self.run.join("phase")
    }

    pub(crate) fn sandbox_record(&self) -> PathBuf {
        self.run.join("sandbox.json")
    }

    pub(crate) fn past(&self) -> PathBuf {
        self.data.join("past.json")
    }

    pub(crate) fn working_set(&self) -> PathBuf {
        self.data.join("working-set.json")
    }

    /// Removes everything of the app. Where somebody has put a symbolic link in the place of a directory, only the link goes.
    pub(crate) fn remove(&self) -> io::Result<()> {
        for folder in [&self.run, &self.data] {
            if folder.is_symlink() {
                let target = fs::read_link(folder)?;
                tracing::warn!(target = %target.display(), "the app's directory was a link; what it led to is left there");
                fs::remove_file(folder)?;
                continue;
            }
            match torpor_rootfs::remove_tree(folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}
