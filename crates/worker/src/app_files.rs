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

use torpor_api::worker::AppRecord;

use crate::journal::Owner;

/// Ends of the names of images, behind the generation and a dot.
const IMAGE: &str = "image";
const PART: &str = "image.part";
const WOKEN: &str = "image.woken";
/// One that is kept for inspection.
const ASIDE: &str = "damaged";
/// Generations beyond this are nobody's.
const HIGHEST: u64 = 1 << 62;

/// An app's number in images.
pub(crate) fn app_number(id: &str) -> u64 {
    u64::from_str_radix(id, 16).unwrap_or_default()
}

impl Owner {
    /// That of an app's phases and images on this boot.
    pub(crate) fn of(record: &AppRecord, boot: [u64; 2]) -> Self {
        Self { app: app_number(&record.id), epoch: record.epoch.get().into(), boot }
    }
}

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
        if image.exists() {
            return Ok(());
        }
        match fs::rename(torpor_engine::woken(&image), &image) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// What was removed or renamed is so after a power cut, too.
    pub(crate) fn sync_names(&self) -> io::Result<()> {
        fs::File::open(&self.data)?.sync_all()
    }

    /// Names here that begin with a number: the path, the number, and the rest of the name behind the dot.
    fn numbered_names(&self) -> io::Result<Vec<(PathBuf, u64, String)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.data)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let split = name.split_once('.').and_then(|(number, kind)| Some((number.parse().ok()?, kind.to_owned())));
            found.extend(split.map(|(number, kind)| (path, number, kind)));
        }
        Ok(found)
    }

    /// Those of regular files; a directory, say, is nothing of ours.
    fn numbered(&self) -> io::Result<Vec<(PathBuf, u64, String)>> {
        let mut found = Vec::new();
        for named in self.numbered_names()? {
            match fs::metadata(&named.0) {
                Ok(file) if file.is_file() => found.push(named),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Images that a wake may be made from, and those that were set aside (`true`), by generation.
    pub(crate) fn listed_images(&self) -> io::Result<Vec<(PathBuf, u64, bool)>> {
        let listed = self.numbered()?.into_iter().filter_map(|(path, generation, kind)| match kind.as_str() {
            IMAGE => Some((path, generation, false)),
            ASIDE => Some((path, generation, true)),
            _ => None,
        });
        let mut found: Vec<_> = listed.collect();
        found.sort_by_key(|(_, generation, _)| *generation);
        Ok(found)
    }

    /// The image with the highest generation; also one that a wake has set aside. Not one of another app, of another sleep than its
    /// name says, or for a dozing app of an earlier boot. One whose header cannot be read may be the app's, and counts.
    pub(crate) fn newest(&self, owner: Owner) -> io::Result<Option<NewestImage>> {
        let images = self.numbered()?.into_iter().filter(|(_, _, kind)| kind == IMAGE || kind == WOKEN);
        let mut images: Vec<_> = images.collect();
        images.sort_by_key(|(_, generation, kind)| std::cmp::Reverse((*generation, kind == IMAGE)));
        let found = images.into_iter().find(|(path, generation, _)| {
            whose(path, owner).is_none_or(|whose| whose.app && whose.usable && whose.generation == *generation)
        });
        Ok(found.map(|(path, generation, kind)| NewestImage { path, generation, woken: kind == WOKEN }))
    }

    /// The image with the highest generation, if no wake from it has begun.
    pub(crate) fn newest_image(&self, owner: Owner) -> io::Result<Option<(PathBuf, u64)>> {
        // After such a wake the app has run on.
        let newest = self.newest(owner)?.filter(|image| !image.woken);
        Ok(newest.map(|image| (image.path, image.generation)))
    }

    /// Whether the last sleep of a frozen app had begun and not been committed, so that its memory is complete.
    pub(crate) fn sleep_begun(&self) -> io::Result<bool> {
        let mut parts = self.numbered()?.into_iter().filter(|(_, _, kind)| kind == PART);
        Ok(parts.any(|(path, ..)| torpor_engine::is_begun_sleep(&path)))
    }

    /// Keeps all images for inspection, so that they are never used; gives their new names. What can never be used, the image of a
    /// dozing app from an earlier boot, is removed.
    pub(crate) fn set_aside(&self, owner: Owner) -> io::Result<Vec<PathBuf>> {
        let mut kept = Vec::new();
        for (path, generation, kind) in self.numbered()? {
            match kind.as_str() {
                PART => fs::remove_file(path)?,
                IMAGE | WOKEN if whose(&path, owner).is_some_and(|whose| whose.app && !whose.usable) => {
                    fs::remove_file(path)?;
                }
                IMAGE | WOKEN => kept.push(self.rename_aside(&path, generation)?),
                _ => {}
            }
        }
        Ok(kept)
    }

    /// What is kept for inspection is never written over.
    fn rename_aside(&self, path: &Path, generation: u64) -> io::Result<PathBuf> {
        let names = (generation.min(HIGHEST)..).map(|number| self.data.join(format!("{number}.{ASIDE}")));
        let aside = names.into_iter().find(|name| !name.exists()).ok_or(io::ErrorKind::AlreadyExists)?;
        fs::rename(path, &aside)?;
        Ok(aside)
    }

    /// Removes every image but that of `keep`, and says which generation comes next. Images that are not the app's, or that nobody can
    /// read, are kept for inspection.
    pub(crate) fn clean_images(&self, keep: Option<u64>, owner: Owner) -> io::Result<u64> {
        // No name is used again, whatever has it.
        let names = self.numbered_names()?;
        let next = names.iter().map(|(_, number, _)| (*number).min(HIGHEST) + 1).max().unwrap_or(1);
        for (path, generation, kind) in self.numbered()? {
            match kind.as_str() {
                IMAGE if keep == Some(generation) => {}
                IMAGE | WOKEN if whose(&path, owner).is_none_or(|whose| !whose.app) => {
                    let aside = self.rename_aside(&path, generation)?;
                    tracing::warn!(kept = %aside.display(), "an image that is not the app's is set aside");
                }
                IMAGE | WOKEN | PART => fs::remove_file(path)?,
                _ => {}
            }
        }
        Ok(next)
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

/// What the header of an image says of an owner.
struct Whose {
    /// It is this app's, of this epoch.
    app: bool,
    generation: u64,
    /// It can still be used: a dozing app's fits only processes of its own boot.
    usable: bool,
}

/// Whose image it is; none where that cannot be read.
fn whose(path: &Path, owner: Owner) -> Option<Whose> {
    let image = torpor_engine::ImageFile::open(path).ok()?;
    let header = image.header();
    let usable = image.is_complete() || header.boot == owner.boot;
    let app = (header.app, header.epoch) == (owner.app, owner.epoch);
    Some(Whose { app, generation: header.generation, usable })
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

    const OWNER: Owner = Owner { app: 255, epoch: torpor_image::Epoch::FIRST, boot: [3, 4] };

    /// An image of `app`, as far as its header goes.
    fn image(files: &AppFiles, name: &str, app: u64, generation: u64, complete: bool, boot: [u64; 2]) -> PathBuf {
        let kind = if complete { torpor_image::Kind::Complete } else { torpor_image::Kind::Dozing };
        let header = torpor_image::Header { app, generation, kind, boot, ..torpor_image::Header::default() };
        let path = files.data.join(name);
        fs::write(&path, header.encode()).unwrap();
        assert!(whose(&path, OWNER).is_some(), "the header is sound");
        path
    }

    fn names(files: &AppFiles) -> Vec<String> {
        let entries = fs::read_dir(&files.data).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = entries.collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn only_the_image_in_use_stays_and_what_is_not_the_apps_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let files = AppFiles::new(folder.path(), &folder.path().join("run"), "00ff");
        files.create().unwrap();
        assert_eq!(files.clean_images(None, OWNER).unwrap(), 1);
        for (name, generation) in [("3.image", 3), ("4.image", 4), ("7.image.woken", 7)] {
            image(&files, name, 255, generation, true, [0; 2]);
        }
        image(&files, "2.image", 255, 2, false, OWNER.boot);
        image(&files, "6.image", 254, 6, true, [0; 2]);
        for name in ["5.image.part", "8.damaged", "8.image", "log", "18446744073709551615.image"] {
            fs::write(files.data.join(name), "x").unwrap();
        }
        fs::create_dir(files.data.join("9.image")).unwrap();
        assert_eq!(files.clean_images(Some(3), OWNER).unwrap(), HIGHEST + 1);
        let kept = format!("{HIGHEST}.damaged");
        assert_eq!(names(&files), ["3.image", &kept, "6.damaged", "8.damaged", "9.damaged", "9.image", "log"]);
        files.remove().unwrap();
        files.remove().unwrap();
    }

    #[test]
    fn images_are_set_aside_unless_they_can_never_be_used() {
        let folder = tempfile::tempdir().unwrap();
        let files = AppFiles::new(folder.path(), &folder.path().join("run"), "00ff");
        files.create().unwrap();
        image(&files, "1.image", 255, 1, false, [9, 9]);
        image(&files, "2.image", 255, 2, false, OWNER.boot);
        image(&files, "3.image.woken", 255, 3, true, [9, 9]);
        fs::write(files.data.join("4.image"), "x").unwrap();
        fs::write(files.data.join("5.image.part"), "x").unwrap();
        assert_eq!(files.set_aside(OWNER).unwrap().len(), 3);
        assert_eq!(names(&files), ["2.damaged", "3.damaged", "4.damaged"]);
        assert!(files.set_aside(OWNER).unwrap().is_empty());
    }

    #[test]
    fn the_newest_image_is_the_apps_own() {
        let folder = tempfile::tempdir().unwrap();
        let files = AppFiles::new(folder.path(), &folder.path().join("run"), "00ff");
        files.create().unwrap();
        fs::create_dir(files.data.join("9.image")).unwrap();
        assert_eq!(files.newest(OWNER).unwrap(), None);
        let path = image(&files, "1.image", 255, 1, false, OWNER.boot);
        image(&files, "2.image", 255, 2, false, [9, 9]);
        image(&files, "3.image", 254, 3, true, OWNER.boot);
        image(&files, "4.image", 255, 1, false, OWNER.boot);
        let newest = Some(NewestImage { path, generation: 1, woken: false });
        assert_eq!(files.newest(OWNER).unwrap(), newest);
        let path = image(&files, "5.image.woken", 255, 5, true, [9, 9]);
        assert_eq!(files.newest(OWNER).unwrap(), Some(NewestImage { path, generation: 5, woken: true }));
        assert_eq!(files.newest_image(OWNER).unwrap(), None);
        let path = files.data.join("6.image");
        fs::write(&path, "x").unwrap();
        assert_eq!(files.newest_image(OWNER).unwrap(), Some((path, 6)), "it may be the app's");
    }
}
