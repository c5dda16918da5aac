//! Where an app's files lie.
//!
//! ```text
//! data_dir/apps/ID/upper  work       its private files            survive a reboot
//!                 /log …             its output
//!                 /N.image           the image of sleep N
//!                 /N.image.woken     the same, while the app that it belonged to runs again
//!                 /past.json         how often it slept, how it last ended
//! run_dir/apps/ID/phase              journal of its level          gone after a reboot
//!                /sandbox.json       how to find its processes again
//! ```

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Paths of one app.
#[derive(Clone, Debug)]
pub(crate) struct AppFiles {
    pub(crate) data: PathBuf,
    pub(crate) run: PathBuf,
}

impl AppFiles {
    pub(crate) fn new(data_dir: &Path, run_dir: &Path, id: &str) -> Self {
        Self { data: data_dir.join("apps").join(id), run: run_dir.join("apps").join(id) }
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

    pub(crate) fn image(&self, generation: u64) -> PathBuf {
        self.data.join(format!("{generation}.image"))
    }

    /// Gives an image its name back that a wake has put aside and that did not come to its end.
    pub(crate) fn take_back(&self, generation: u64) -> io::Result<()> {
        let image = self.image(generation);
        match fs::rename(torpor_engine::woken(&image), &image) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// What was removed or renamed is so after a power cut, too.
    pub(crate) fn sync_names(&self) -> io::Result<()> {
        fs::File::open(&self.data)?.sync_all()
    }

    /// Generations of the images that lie here, and leftovers of unfinished ones.
    fn images(&self) -> io::Result<Vec<(PathBuf, Option<u64>)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.data)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if let Some(generation) = name.strip_suffix(".image") {
                let generation = generation.parse().ok();
                found.push((path, generation));
            } else if name.ends_with(".image.part") || name.ends_with(".image.woken") {
                found.push((path, None));
            }
        }
        Ok(found)
    }

    /// Images that a wake may be made from, and those that were set aside (`true`), by generation.
    pub(crate) fn listed_images(&self) -> io::Result<Vec<(PathBuf, u64, bool)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.data)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let split = name.split_once('.').and_then(|(number, kind)| Some((number.parse().ok()?, kind)));
            match split {
                Some((generation, "image")) => found.push((path, generation, false)),
                Some((generation, "damaged")) => found.push((path, generation, true)),
                _ => {}
            }
        }
        found.sort_by_key(|(_, generation, _)| *generation);
        Ok(found)
    }

    /// The image with the highest generation; also one that a wake has set aside.
    pub(crate) fn newest(&self) -> io::Result<Option<NewestImage>> {
        let mut found: Vec<NewestImage> = Vec::new();
        for (path, generation) in self.images()? {
            let woken = path.to_string_lossy().strip_suffix(".woken").map(PathBuf::from);
            let generation_of = |path: &Path| path.file_stem()?.to_str()?.parse::<u64>().ok();
            match (generation, woken) {
                (Some(generation), _) => found.push(NewestImage { path, generation, woken: false }),
                (None, Some(image)) => {
                    found.extend(generation_of(&image).map(|generation| NewestImage { path, generation, woken: true }))
                }
                (None, None) => {}
            }
        }
        Ok(found.into_iter().max_by_key(|image| image.generation))
    }

    /// The image with the highest generation, if no wake from it has begun.
    pub(crate) fn newest_image(&self) -> io::Result<Option<(PathBuf, u64)>> {
        // After such a wake the app has run on.
        let newest = self.newest()?.filter(|image| !image.woken);
        Ok(newest.map(|image| (image.path, image.generation)))
    }

    /// Keeps the newest image for inspection, so that it is never used; gives its new name.
    pub(crate) fn set_newest_aside(&self) -> io::Result<Option<PathBuf>> {
        let Some((path, _)) = self.newest_image()? else { return Ok(None) };
        let aside = path.with_extension("damaged");
        fs::rename(path, &aside)?;
        Ok(Some(aside))
    }

    /// Removes every image but that of `keep`, and says which generation comes next.
    pub(crate) fn clean_images(&self, keep: Option<u64>) -> io::Result<u64> {
        let number = |path: &Path| path.file_name()?.to_str()?.split_once('.')?.0.parse::<u64>().ok();
        let mut next = 1;
        for entry in fs::read_dir(&self.data)? {
            // Those that were set aside, too: what is kept for inspection is never written over.
            next = next.max(number(&entry?.path()).map_or(0, |generation| generation.saturating_add(1)));
        }
        for (path, generation) in self.images()? {
            if generation.is_none() || generation != keep {
                fs::remove_file(path)?;
            }
        }
        Ok(next)
    }

    /// Removes everything of the app.
    pub(crate) fn remove(&self) -> io::Result<()> {
        for folder in [&self.run, &self.data] {
            match torpor_rootfs::remove_tree(folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The image of an app with the highest generation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NewestImage {
    pub(crate) path: PathBuf,
    pub(crate) generation: u64,
    /// A wake has set it aside, and may or may not have reached its end.
    pub(crate) woken: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_listed_by_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let files = AppFiles::new(folder.path(), &folder.path().join("run"), "00ff");
        files.create().unwrap();
        for name in ["10.image", "9.damaged", "11.image.part", "8.image.woken", "log", "x.image", "past.json"] {
            fs::write(files.data.join(name), "x").unwrap();
        }
        let found = files.listed_images().unwrap();
        assert_eq!(found, [(files.data.join("9.damaged"), 9, true), (files.image(10), 10, false)]);
    }

    #[test]
    fn only_the_image_in_use_stays() {
        let folder = tempfile::tempdir().unwrap();
        let files = AppFiles::new(folder.path(), &folder.path().join("run"), "00ff");
        files.create().unwrap();
        assert_eq!(files.clean_images(None).unwrap(), 1);
        for name in ["3.image", "4.image", "5.image.part", "7.image.woken", "8.damaged", "log"] {
            fs::write(files.data.join(name), "x").unwrap();
        }
        assert_eq!(files.clean_images(Some(3)).unwrap(), 9);
        assert!(files.image(3).exists() && files.data.join("log").exists());
        assert_eq!(fs::read_dir(&files.data).unwrap().count(), 3);
        files.remove().unwrap();
        files.remove().unwrap();
    }
}
