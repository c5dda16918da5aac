//! Directories that the daemon works in as root: nobody else can replace what lies in them.
//!
//! A path is walked from the root directory. Every directory on the way, and every symbolic link that is followed, must belong
//! to root or to the user of this process, and no other user may write in such a directory. One exception: in a directory
//! with the sticky bit (`/tmp`) others can make names, but not replace those of root. So a component that has been checked
//! cannot change while the next one is looked at, and a path does where otherwise a descriptor would be needed. What is missing is
//! made with mode 0700 once all before it is checked.
//!
//! An ACL that lets others write shows in the group's bits of the mode. File systems that ignore owners are not recognized.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use crate::error::HubError;

/// Symbolic links that are followed, as many as the kernel follows.
const LINKS: usize = 40;
const STICKY: u32 = 0o1000;
const WRITTEN_BY_OTHERS: u32 = 0o022;
const ROOT: u32 = 0;

/// Who may make names in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writers {
    /// Its owner.
    Owner,
    /// With the sticky bit, others too.
    Sticky,
}

/// Checks a directory in which only its owner may write, and makes it where it is missing.
///
/// # Errors
/// [`HubError::Unsafe`], which names the component that others can replace.
pub(crate) fn private(path: &Path) -> Result<(), HubError> {
    walk(path, Writers::Owner)
}

/// As [`private`] for the directory of a socket: it may have the sticky bit, as `/tmp`.
pub(crate) fn shared(path: &Path) -> Result<(), HubError> {
    walk(path, Writers::Sticky)
}

/// As [`private`] for the directory `name` in one that has been checked. It is not reached through a symbolic link.
pub(crate) fn private_below(parent: &Path, name: &str) -> Result<(), HubError> {
    let path = parent.join(name);
    let walk = Walk { path: &path, own: own_user(&path)? };
    let found = walk.look_or_make(&path)?;
    if found.is_symlink() {
        return Err(walk.refusal(format!(
            "it is a symbolic link; mount the other directory with `mount --bind` on {}",
            path.display()
        )));
    }
    walk.check(&path, &found, Writers::Owner)
}

fn walk(path: &Path, writers: Writers) -> Result<(), HubError> {
    let walk = Walk { path, own: own_user(path)? };
    let mut at = PathBuf::from("/");
    let mut left = components(path);
    let mut links = 0;
    walk.check(&at, &walk.look(&at)?, Writers::Sticky)?;
    while let Some(name) = left.pop_front() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        let found = walk.look_or_make(&next)?;
        if !found.is_symlink() {
            walk.check(&next, &found, Writers::Sticky)?;
            at = next;
            continue;
        }
        walk.check_owner(&next, &found)?;
        links += 1;
        if links > LINKS {
            return Err(walk.refusal("too many symbolic links lie on the way to it".to_owned()));
        }
        let target = fs::read_link(&next).map_err(|source| walk.failed(source))?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        let mut all = components(&target);
        all.append(&mut left);
        left = all;
    }
    walk.check(&at, &walk.look(&at)?, writers)
}

/// Names and `..` of a path.
fn components(path: &Path) -> VecDeque<OsString> {
    let named = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    named.map(|part| part.as_os_str().to_owned()).collect()
}

/// Whom the files of this process belong to.
fn own_user(path: &Path) -> Result<u32, HubError> {
    let failed = |source| HubError::Prepare { path: path.to_owned(), source };
    Ok(Path::new("/proc/self").metadata().map_err(failed)?.uid())
}

struct Walk<'a> {
    path: &'a Path,
    own: u32,
}

impl Walk<'_> {
    fn failed(&self, source: io::Error) -> HubError {
        HubError::Prepare { path: self.path.to_owned(), source }
    }

    fn refusal(&self, why: String) -> HubError {
        HubError::Unsafe { path: self.path.to_owned(), why }
    }

    fn look(&self, at: &Path) -> Result<Metadata, HubError> {
        at.symlink_metadata().map_err(|source| self.failed(source))
    }

    fn look_or_make(&self, at: &Path) -> Result<Metadata, HubError> {
        match at.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found.map_err(|source| self.failed(source)),
        }
        match DirBuilder::new().mode(0o700).create(at) {
            // Somebody was faster: whoever it was is looked at.
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(self.failed(error)),
            _ => self.look(at),
        }
    }

    fn check_owner(&self, at: &Path, found: &Metadata) -> Result<(), HubError> {
        if [ROOT, self.own].contains(&found.uid()) {
            return Ok(());
        }
        let (shown, user) = (at.display(), found.uid());
        Err(self.refusal(format!(
            "{shown} belongs to user {user}, who can replace what lies there; choose another directory, or run \
             chown -h {} {shown}",
            self.own
        )))
    }

    fn check(&self, at: &Path, found: &Metadata, writers: Writers) -> Result<(), HubError> {
        if !found.is_dir() {
            return Err(
                self.failed(io::Error::new(io::ErrorKind::NotADirectory, format!("{} is no directory", at.display())))
            );
        }
        self.check_owner(at, found)?;
        let sticky = found.mode() & STICKY != 0 && writers == Writers::Sticky;
        if found.mode() & WRITTEN_BY_OTHERS == 0 || sticky {
            return Ok(());
        }
        let (shown, mode) = (at.display(), found.mode() & 0o7777);
        Err(self.refusal(format!(
            "others may write in {shown} (its mode is {mode:o}); choose another directory, or run chmod go-w {shown}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn refusal(done: Result<(), HubError>) -> String {
        match done {
            Err(HubError::Unsafe { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_missing_is_made_for_the_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        private(&dir.path().join("a/b")).unwrap();
        for made in ["a", "a/b"] {
            assert_eq!(dir.path().join(made).metadata().unwrap().mode() & 0o7777, 0o700);
        }
    }

    #[test]
    fn others_may_not_write_in_it_or_in_one_above() {
        let dir = tempfile::tempdir().unwrap();
        let (above, path) = (dir.path().join("above"), dir.path().join("above/data"));
        fs::create_dir_all(&path).unwrap();
        mode(&path, 0o777);
        assert!(refusal(private(&path)).contains("above/data (its mode is 777)"));
        mode(&path, 0o1777);
        assert!(refusal(private(&path)).contains("its mode is 1777"));
        shared(&path).unwrap();
        mode(&path, 0o700);
        mode(&above, 0o770);
        assert!(refusal(private(&path)).contains("above (its mode is 770)"));
        let missing = above.join("new");
        refusal(private(&missing));
        assert!(!missing.exists());
        // What lies in it belongs to the owner, and only the owner can replace it.
        mode(&above, 0o1777);
        private(&path).unwrap();
    }

    #[test]
    fn links_are_followed_to_what_is_checked_in_turn() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("open/inner")).unwrap();
        symlink("open/inner", dir.path().join("link")).unwrap();
        private(&dir.path().join("link/x/..")).unwrap();
        mode(&dir.path().join("open"), 0o777);
        assert!(refusal(private(&dir.path().join("link"))).contains("open (its mode is 777)"));
        symlink("round", dir.path().join("round")).unwrap();
        assert!(refusal(private(&dir.path().join("round"))).contains("links"));
        assert!(refusal(private_below(dir.path(), "link")).contains("symbolic link"));
        private_below(dir.path(), "made").unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(matches!(private(&dir.path().join("file/x")), Err(HubError::Prepare { .. })));
    }
}
