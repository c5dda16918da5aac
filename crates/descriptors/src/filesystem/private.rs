//! Making things in directories that others can write.
//!
//! Root makes files under names that somebody else may rename, replace or turn into symbolic links at any moment. So no name is
//! resolved twice: the directory is opened without following links, what was made is opened once below it, neither through a
//! link nor into another mount, and owner, mode and content go through that descriptor. What must appear under a name is
//! made in a directory that only we can enter, and renamed from there when it is finished.

use std::ffi::OsStr;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Uid, chmod, chownat, fstat, mkdirat, openat2,
    renameat, renameat_with, unlinkat,
};
use rustix::io::Errno;

/// What a name of ours begins with; the process's id follows.
pub(crate) const PREFIX: &str = ".torpor-";
/// Names that are tried.
const ATTEMPTS: u32 = 100;
/// Rights of the owner's group and of others.
const FOR_OTHERS: u32 = 0o077;

/// A name that nobody can foresee, and so take before us.
pub(crate) fn fresh_name(prefix: &str) -> String {
    format!("{prefix}{}-{:016x}", std::process::id(), RandomState::new().build_hasher().finish())
}

/// Calls `make` with fresh names until one is free.
pub(crate) fn with_fresh_name<T>(
    prefix: &str,
    mut make: impl FnMut(&str) -> rustix::io::Result<T>,
) -> rustix::io::Result<(String, T)> {
    for _ in 0..ATTEMPTS {
        let name = fresh_name(prefix);
        match make(&name) {
            Err(Errno::EXIST) => {}
            made => return made.map(|made| (name, made)),
        }
    }
    Err(Errno::EXIST)
}

/// Opens what has this name in a directory, to look at it: no link, and nothing that is mounted there.
pub(crate) fn at(directory: impl AsFd, name: impl AsRef<Path>) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(directory, name.as_ref(), flags, Mode::empty(), resolve)
}

/// The name in `/proc` of what a descriptor leads to, whatever it was opened for.
pub(crate) fn by_descriptor(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Opens what was just made under this name. `ESTALE`: somebody has put something of another kind there.
pub(crate) fn just_made(directory: impl AsFd, name: impl AsRef<Path>, kind: FileType) -> rustix::io::Result<OwnedFd> {
    moment();
    let opened = match at(directory, name) {
        Err(Errno::LOOP | Errno::NOENT | Errno::XDEV) => return Err(Errno::STALE),
        other => other?,
    };
    if FileType::from_raw_mode(fstat(&opened)?.st_mode) == kind { Ok(opened) } else { Err(Errno::STALE) }
}

/// Removes the name of what was just made. `ESTALE`: it still has a name, so it was not that one.
pub(crate) fn remove_name(directory: impl AsFd, name: impl AsRef<Path>, made: &OwnedFd) -> rustix::io::Result<()> {
    let kind = FileType::from_raw_mode(fstat(made)?.st_mode);
    let flags = if kind == FileType::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    unlinkat(directory, name.as_ref(), flags)?;
    if fstat(made)?.st_nlink == 0 { Ok(()) } else { Err(Errno::STALE) }
}

/// Gives what a descriptor leads to an owner, then a mode.
pub(crate) fn set_owner_and_mode(fd: &OwnedFd, owner: Option<(u32, u32)>, mode: u32) -> rustix::io::Result<()> {
    moment();
    if let Some((user, group)) = owner {
        let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
        chownat(fd, "", Some(Uid::from_raw(user)), Some(Gid::from_raw(group)), flags)?;
    }
    moment();
    chmod(by_descriptor(fd.as_fd()), Mode::from_raw_mode(mode & 0o7777))
}

/// A directory that only we can enter, in one that others may write. It is removed with what it is told to hold.
#[derive(Debug)]
pub(crate) struct Private {
    above: OwnedFd,
    name: String,
    directory: OwnedFd,
    /// What was made in it, by its path from there: directories before what lies in them.
    made: Vec<(PathBuf, AtFlags)>,
}

impl Private {
    /// Makes one in `above`. `ESTALE`: somebody has replaced it.
    pub(crate) fn new(above: OwnedFd) -> rustix::io::Result<Self> {
        Self::with_prefix(above, PREFIX)
    }

    /// The same with a name that begins so.
    pub(crate) fn with_prefix(above: OwnedFd, prefix: &str) -> rustix::io::Result<Self> {
        let (name, ()) = with_fresh_name(prefix, |name| mkdirat(&above, name, Mode::RWXU))?;
        let directory = just_made(&above, &name, FileType::Directory)?;
        let stat = fstat(&directory)?;
        // Another one that lay there: only if nobody but us can enter it does it not matter which.
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & FOR_OTHERS != 0 {
            return Err(Errno::STALE);
        }
        Ok(Self { above, name, directory, made: Vec::new() })
    }

    pub(crate) fn directory(&self) -> &OwnedFd {
        &self.directory
    }

    /// Makes the directories above `path`, whose plain components are taken; gives the path from here.
    pub(crate) fn make_above(&mut self, path: &Path) -> rustix::io::Result<PathBuf> {
        let parts: Vec<&OsStr> = path.components().filter_map(plain).collect();
        let Some((_, parents)) = parts.split_last() else { return Err(Errno::INVAL) };
        let mut place = PathBuf::new();
        for part in parents {
            place.push(part);
            match mkdirat(&self.directory, &place, Mode::RWXU) {
                Ok(()) => self.made.push((place.clone(), AtFlags::REMOVEDIR)),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(parts.iter().collect())
    }

    /// A file at `place` goes with the directory, if it is still there.
    pub(crate) fn holds(&mut self, place: &Path) {
        if !self.made.iter().any(|(known, _)| known == place) {
            self.made.push((place.to_owned(), AtFlags::empty()));
        }
    }

    /// Gives what lies at `place` a name in the directory above; in the place of what has it, if it may be replaced.
    pub(crate) fn hand_over(&self, place: &Path, name: &OsStr, replace: bool) -> rustix::io::Result<()> {
        moment();
        if replace {
            return renameat(&self.directory, place, &self.above, name);
        }
        match renameat_with(&self.directory, place, &self.above, name, RenameFlags::NOREPLACE) {
            // Not on every network file system.
            Err(Errno::INVAL) => renameat(&self.directory, place, &self.above, name),
            done => done,
        }
    }

    /// Removes it.
    pub(crate) fn remove(mut self) -> rustix::io::Result<()> {
        self.clear()
    }

    fn clear(&mut self) -> rustix::io::Result<()> {
        while let Some((place, flags)) = self.made.pop() {
            match unlinkat(&self.directory, &place, flags) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        let name = std::mem::take(&mut self.name);
        if name.is_empty() { Ok(()) } else { unlinkat(&self.above, &name, AtFlags::REMOVEDIR) }
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // After an error, which is what is reported.
        let _ = self.clear();
    }
}

fn plain(part: Component<'_>) -> Option<&OsStr> {
    match part {
        Component::Normal(name) => Some(name),
        _ => None,
    }
}

#[cfg(not(test))]
const fn moment() {}

#[cfg(test)]
thread_local! {
    /// What somebody does at the next moment between two steps.
    pub(crate) static MEANWHILE: std::cell::Cell<Option<Box<dyn FnOnce()>>> = const { std::cell::Cell::new(None) };
}

/// Where somebody else may do something in between, a test does.
#[cfg(test)]
fn moment() {
    let meanwhile = MEANWHILE.with(|meanwhile| meanwhile.take());
    if let Some(meanwhile) = meanwhile {
        meanwhile();
    }
}
