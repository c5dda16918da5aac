//! What lies in a store, and what becomes of it when an app is started, adopted or given up.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use torpor_image::{Epoch, Kind};

use crate::directory::Store;
use crate::image::{FileInfo, Image};
use crate::image_file::ImageFile;
use crate::names::ImageState;
use crate::partial::{self, Partial};
use crate::{header, steps};

/// Whose images are meant: an app in one epoch, on this boot of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The app's number, as images have it.
    pub app: u64,
    /// Since when this machine has the app.
    pub epoch: Epoch,
    /// This boot.
    pub boot: [u64; 2],
}

/// A file of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The image that it is, was, or is to become.
    pub image: Image,
    /// What it may be used for.
    pub state: ImageState,
    /// Where it is.
    pub path: PathBuf,
}

impl Entry {
    /// Number of the sleep.
    pub const fn generation(&self) -> u64 {
        self.image.generation()
    }

    /// Size and age.
    ///
    /// # Errors
    /// Of stat(2).
    pub fn info(&self) -> io::Result<FileInfo> {
        FileInfo::of(&self.path)
    }

    /// Whether it holds a whole process tree, as far as its header says; none where that cannot be read.
    pub fn is_complete(&self) -> Option<bool> {
        header::open_generation(&self.path, self.generation()).ok().map(|(_, header)| header.kind == Kind::Complete)
    }

    /// Removes it.
    ///
    /// # Errors
    /// Of unlink(2).
    pub fn remove(&self) -> io::Result<()> {
        steps::remove(&self.path)
    }

    /// It is, or was, one that an app is restored from.
    const fn is_whole(&self) -> bool {
        matches!(self.state, ImageState::Committed | ImageState::Consumed)
    }

    /// What its header says of an owner; none where that cannot be read.
    fn claim(&self, owner: Owner) -> Option<Claim> {
        let file = ImageFile::open_generation(&self.path, self.generation()).ok()?;
        let header = file.header();
        let usable = file.is_complete() || header.boot == owner.boot;
        let app = (header.app, header.epoch) == (owner.app, owner.epoch);
        Some(Claim { app, generation: header.generation, boot: header.boot, usable })
    }
}

/// What the header of an image says of an owner.
struct Claim {
    /// It is this app's, of this epoch.
    app: bool,
    generation: u64,
    /// The boot that it was written in.
    boot: [u64; 2],
    /// It can still be used: a dozing app's fits only processes of its own boot.
    usable: bool,
}

impl Store {
    /// The image of a generation, whether or not it exists.
    pub fn image(&self, generation: u64) -> Image {
        Image::new(self.clone(), generation)
    }

    /// Begins an image ([`Image::begin`]).
    ///
    /// # Errors
    /// Of open(2).
    pub fn begin(&self, generation: u64) -> io::Result<Partial> {
        self.image(generation).begin()
    }

    fn entries(&self, names: Vec<String>) -> io::Result<Vec<Entry>> {
        let mut found = Vec::new();
        for name in names {
            let Some((generation, state)) = self.parse(&name) else { continue };
            let path = self.folder().join(name);
            match fs::metadata(&path) {
                Ok(file) if file.is_file() => found.push(Entry { image: self.image(generation), state, path }),
                Ok(_) => {
                    tracing::warn!(path = %path.display(), "a directory, FIFO or the like with the name of an image is left alone")
                }
                // It is gone, or a link that leads nowhere.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {}
                Err(error) => return Err(error),
            }
        }
        found.sort_by_key(|entry| (entry.generation(), entry.state));
        Ok(found)
    }

    /// All images, by generation.
    ///
    /// # Errors
    /// Where the directory or a file in it cannot be examined.
    pub fn list(&self) -> io::Result<Vec<Entry>> {
        self.entries(self.names()?)
    }

    /// The committed or consumed image with the highest generation. Not one of another app, of another sleep than its name says, or
    /// of an app that dozed in an earlier boot. One whose header cannot be read may be the app's, and counts.
    ///
    /// # Errors
    /// As [`Store::list`].
    pub fn newest(&self, owner: Owner) -> io::Result<Option<Entry>> {
        let mut images: Vec<_> = self.list()?.into_iter().filter(Entry::is_whole).collect();
        images.sort_by_key(|entry| std::cmp::Reverse((entry.generation(), entry.state == ImageState::Committed)));
        let own = |entry: &Entry| {
            let claim = entry.claim(owner);
            claim.is_none_or(|claim| claim.app && claim.usable && claim.generation == entry.generation())
        };
        Ok(images.into_iter().find(own))
    }

    /// The image with the highest generation, if the app may be restored from it: after a wake the app has run on.
    ///
    /// # Errors
    /// As [`Store::list`].
    pub fn newest_committed(&self, owner: Owner) -> io::Result<Option<Image>> {
        let newest = self.newest(owner)?.filter(|entry| entry.state == ImageState::Committed);
        Ok(newest.map(|entry| entry.image))
    }

    /// Whether the app was about to doze and that was not committed: then its memory is complete, even if it is frozen. The partial
    /// image of one that goes warm says nothing of that.
    ///
    /// # Errors
    /// As [`Store::list`].
    pub fn doze_begun(&self) -> io::Result<bool> {
        let mut parts = self.list()?.into_iter().filter(|entry| entry.state == ImageState::Partial);
        Ok(parts.any(|entry| is_begun(&entry.path)))
    }

    /// Quarantines all images, so that none is used; returns where they are now. What can never be used, the image of an app that dozed
    /// in an earlier boot, is removed, and so is what is partial.
    ///
    /// # Errors
    /// Of rename(2) and unlink(2), and as [`Store::list`].
    pub fn quarantine_all(&self, owner: Owner) -> io::Result<Vec<PathBuf>> {
        let mut kept = Vec::new();
        for entry in self.list()? {
            // A wake has consumed it, and its processes have gone with the boot.
            let outrun = |claim: &Claim| entry.state == ImageState::Consumed && claim.boot != owner.boot;
            let useless = || entry.claim(owner).is_some_and(|claim| claim.app && (!claim.usable || outrun(&claim)));
            match entry.state {
                ImageState::Partial => entry.remove()?,
                ImageState::Quarantined => {}
                ImageState::Committed | ImageState::Consumed if useless() => entry.remove()?,
                ImageState::Committed | ImageState::Consumed => {
                    kept.push(self.quarantine(&entry.path, entry.generation())?);
                }
            }
        }
        Ok(kept)
    }

    /// Removes every image but that of `keep`, committed or consumed, and returns which generation comes next. Images that are not the app's, or
    /// that nobody can read, are quarantined.
    ///
    /// # Errors
    /// As [`Store::quarantine_all`].
    pub fn clean(&self, keep: Option<u64>, owner: Owner) -> io::Result<u64> {
        let names = self.names()?;
        let next = self.last_generation(&names) + 1;
        for entry in self.entries(names)? {
            let foreign = || entry.claim(owner).is_none_or(|claim| !claim.app);
            match entry.state {
                ImageState::Quarantined => {}
                ImageState::Committed | ImageState::Consumed if keep == Some(entry.generation()) => {}
                ImageState::Committed | ImageState::Consumed if foreign() => {
                    let kept = self.quarantine(&entry.path, entry.generation())?;
                    tracing::warn!(kept = %kept.display(), "quarantined an image that is not the app's");
                }
                ImageState::Committed | ImageState::Consumed | ImageState::Partial => entry.remove()?,
            }
        }
        Ok(next)
    }
}

/// Whether a partial image is of an app that was about to doze.
fn is_begun(path: &Path) -> bool {
    let mut magic = [0; partial::BEGUN.len()];
    let read = torpor_linux::regular::open(path).and_then(|file| file.read_exact_at(&mut magic, 0));
    let marked = read.is_ok() && magic == partial::BEGUN;
    marked || header::open(path).is_ok_and(|(_, header)| header.kind == Kind::Dozing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::HIGHEST;
    use torpor_image::Header;

    const OWNER: Owner = Owner { app: 255, epoch: Epoch::FIRST, boot: [3, 4] };

    /// An image of `app`, as far as its header goes.
    fn image(store: &Store, name: &str, app: u64, generation: u64, complete: bool, boot: [u64; 2]) {
        let kind = if complete { Kind::Complete } else { Kind::Dozing };
        let header = Header { app, generation, kind, boot, ..Header::default() };
        fs::write(store.folder().join(name), header.encode()).unwrap();
    }

    fn names(store: &Store) -> Vec<String> {
        let mut names = store.names().unwrap();
        names.retain(|name| name != crate::last_generation::NAME);
        names.sort_unstable();
        names
    }

    #[test]
    fn images_are_listed_with_their_states() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::of_app(folder.path());
        for name in ["10.image", "9.damaged", "11.image.part", "8.image.woken", "log", "x.image", "past.json"] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        fs::create_dir(folder.path().join("12.image")).unwrap();
        std::os::unix::fs::symlink("13.image", folder.path().join("13.image")).unwrap();
        let found = store.list().unwrap().into_iter().map(|entry| (entry.generation(), entry.state));
        use ImageState::{Committed, Consumed, Partial, Quarantined};
        assert!(found.eq([(8, Consumed), (9, Quarantined), (10, Committed), (11, Partial)]));
    }

    #[test]
    fn only_the_image_in_use_stays_and_what_is_not_the_apps_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::of_app(folder.path());
        assert_eq!(store.clean(None, OWNER).unwrap(), 1);
        for (name, generation) in [("3.image", 3), ("4.image", 4), ("7.image.woken", 7)] {
            image(&store, name, 255, generation, true, [0; 2]);
        }
        image(&store, "2.image", 255, 2, false, OWNER.boot);
        image(&store, "6.image", 254, 6, true, [0; 2]);
        for name in ["5.image.part", "8.damaged", "8.image", "log", "18446744073709551615.image"] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        fs::create_dir(folder.path().join("9.image")).unwrap();
        assert_eq!(store.clean(Some(3), OWNER).unwrap(), HIGHEST + 1);
        let kept = format!("{HIGHEST}.damaged");
        assert_eq!(names(&store), ["3.image", &kept, "6.damaged", "8.damaged", "9.damaged", "9.image", "log"]);
    }

    #[test]
    fn the_number_of_a_removed_image_is_not_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::of_app(folder.path());
        store.begin(4).unwrap().discard().unwrap();
        assert_eq!(store.clean(None, OWNER).unwrap(), 5);
        assert_eq!(store.list().unwrap(), []);
    }

    #[test]
    fn images_are_quarantined_unless_they_can_never_be_used() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::of_app(folder.path());
        image(&store, "1.image", 255, 1, false, [9, 9]);
        image(&store, "2.image", 255, 2, false, OWNER.boot);
        image(&store, "3.image.woken", 255, 3, true, [9, 9]);
        fs::write(folder.path().join("4.image"), "x").unwrap();
        fs::write(folder.path().join("5.image.part"), "x").unwrap();
        // One that a wake of this boot has consumed is kept, one of an earlier boot is of no use.
        image(&store, "6.image.woken", 255, 6, true, OWNER.boot);
        assert_eq!(store.quarantine_all(OWNER).unwrap().len(), 3);
        assert_eq!(names(&store), ["2.damaged", "4.damaged", "6.damaged"]);
        assert!(store.quarantine_all(OWNER).unwrap().is_empty());
    }

    #[test]
    fn the_newest_image_is_the_apps_own() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::of_app(folder.path());
        fs::create_dir(folder.path().join("9.image")).unwrap();
        assert_eq!(store.newest(OWNER).unwrap(), None);
        image(&store, "1.image", 255, 1, false, OWNER.boot);
        image(&store, "2.image", 255, 2, false, [9, 9]);
        image(&store, "3.image", 254, 3, true, OWNER.boot);
        image(&store, "4.image", 255, 1, false, OWNER.boot);
        assert_eq!(store.newest_committed(OWNER).unwrap(), Some(store.image(1)));
        image(&store, "5.image.woken", 255, 5, true, [9, 9]);
        let newest = store.newest(OWNER).unwrap().unwrap();
        assert_eq!((newest.generation(), newest.state), (5, ImageState::Consumed));
        assert_eq!(store.newest_committed(OWNER).unwrap(), None);
        fs::write(folder.path().join("6.image"), "x").unwrap();
        assert_eq!(store.newest_committed(OWNER).unwrap(), Some(store.image(6)), "it may be the app's");
    }

    #[test]
    fn an_image_of_another_epoch_is_not_the_apps() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::of_app(folder.path());
        let second = Owner { epoch: Epoch::new(2).unwrap(), ..OWNER };
        image(&store, "1.image", 255, 1, true, OWNER.boot);
        let header = Header { app: 255, epoch: second.epoch, generation: 2, kind: Kind::Complete, ..Header::default() };
        fs::write(folder.path().join("2.image"), header.encode()).unwrap();
        assert_eq!(store.newest_committed(OWNER).unwrap(), Some(store.image(1)));
        assert_eq!(store.newest_committed(second).unwrap(), Some(store.image(2)));
        store.clean(Some(1), OWNER).unwrap();
        assert_eq!(names(&store), ["1.image", "2.damaged"]);
    }

    #[test]
    fn a_doze_that_was_begun_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::of_app(folder.path());
        assert!(!store.doze_begun().unwrap());
        let warm = store.begin(1).unwrap();
        assert!(!store.doze_begun().unwrap(), "one that goes warm says nothing");
        let doze = store.begin(2).unwrap();
        doze.mark_begun().unwrap();
        assert!(store.doze_begun().unwrap());
        doze.file().write_all_at(&Header::default().encode(), 0).unwrap();
        assert!(store.doze_begun().unwrap(), "its header has replaced the mark");
        drop(doze);
        assert!(!store.doze_begun().unwrap());
        drop(warm);
        assert_eq!(names(&store), [""; 0]);
    }

    #[test]
    fn room_is_tried_and_nothing_stays() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::of_app(folder.path());
        store.image(1).has_room(1 << 20).unwrap();
        assert!(store.image(1).has_room(1 << 62).is_err());
        assert_eq!(names(&store), [""; 0]);
    }

    #[test]
    fn a_checkpoint_has_one_image() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::of_checkpoint(folder.path());
        let first = store.begin(0).unwrap().commit(crate::Durability::PowerCuts).unwrap();
        assert_eq!(first.path(), folder.path().join("image"));
        first.consume().unwrap();
        assert_eq!(names(&store), ["image.woken"]);
        first.unconsume().unwrap();
        first.quarantine().unwrap();
        store.begin(0).unwrap().commit(crate::Durability::PowerCuts).unwrap().quarantine().unwrap();
        assert_eq!(names(&store), ["image.damaged", "image.damaged.1"]);
    }
}
