//! The single steps that change a directory of images. Each happens as a whole or not at all when this process is killed; tests
//! stop between any two of them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Creates a file that is not there yet, for reading and writing.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    tests::step()?;
    File::options().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Renames; what has the new name already is replaced.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    tests::step()?;
    fs::rename(from, to)?;
    tests::renamed(from, to);
    Ok(())
}

/// Gives a file a second name, which nothing has yet.
pub(crate) fn link(from: &Path, to: &Path) -> io::Result<()> {
    tests::step()?;
    fs::hard_link(from, to)
}

/// Cuts off what is behind so many bytes of a file.
pub(crate) fn truncate(file: &File, bytes: u64) -> io::Result<()> {
    tests::step()?;
    file.set_len(bytes)
}

/// Removes a file.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    tests::step()?;
    fs::remove_file(path)
}

/// Removes a file, if it is there.
pub(crate) fn remove_if_there(path: &Path) -> io::Result<()> {
    match remove(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The names in a directory survive a power cut.
pub(crate) fn sync(folder: &Path) -> io::Result<()> {
    tests::step()?;
    File::open(folder)?.sync_all()?;
    tests::synced();
    Ok(())
}

#[cfg(not(test))]
mod tests {
    use super::{Path, io};

    pub(super) const fn step() -> io::Result<()> {
        Ok(())
    }

    pub(super) const fn renamed(_: &Path, _: &Path) {}

    pub(super) const fn synced() {}
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::{Cell, RefCell};
    use std::path::PathBuf;

    use super::{Path, fs, io};

    thread_local! {
        /// How many more steps are done before this process counts as killed.
        static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
        static DONE: Cell<u64> = const { Cell::new(0) };
        /// Renames that a power cut may undo.
        static UNSYNCED: RefCell<Vec<(PathBuf, PathBuf)>> = const { RefCell::new(Vec::new()) };
    }

    /// From now on only this many steps are done; every later one fails without an effect, as if the process were dead.
    pub(crate) fn die_after(steps: u64) {
        LEFT.set(steps);
        DONE.set(0);
        UNSYNCED.take();
    }

    /// A new process: every step is done again. Returns how many the old one did.
    pub(crate) fn restart() -> u64 {
        LEFT.set(u64::MAX);
        DONE.get()
    }

    /// The last `renames` that were not synced are lost.
    pub(crate) fn cut_power(renames: usize) -> usize {
        let mut unsynced = UNSYNCED.take();
        let lost = renames.min(unsynced.len());
        for (from, to) in unsynced.drain(unsynced.len() - lost..).rev() {
            // What was removed afterwards stays so.
            let _ = fs::rename(to, from);
        }
        lost
    }

    pub(super) fn step() -> io::Result<()> {
        let left = LEFT.get().checked_sub(1).ok_or_else(|| io::Error::other("killed"))?;
        LEFT.set(left);
        DONE.set(DONE.get() + 1);
        Ok(())
    }

    pub(super) fn renamed(from: &Path, to: &Path) {
        UNSYNCED.with_borrow_mut(|unsynced| unsynced.push((from.to_owned(), to.to_owned())));
    }

    pub(super) fn synced() {
        UNSYNCED.take();
    }
}
