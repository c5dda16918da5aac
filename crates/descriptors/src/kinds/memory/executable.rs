//! Executables that have been deleted, made again: `/proc/PID/exe` says where they were, so they must have had that name.
//!
//! Another file may have the name by now. So the file is made in a directory of ours beside it, below which is the whole path, and
//! through a mount of that directory that is attached nowhere: paths end at a mount's root, and the kernel shows the
//! file's as if it had been at the old place. File, directory and mount are gone again at once; a crash in between leaves
//! a directory `.torpor-PID-X`.
//!
//! What is in another mount namespace (an app's) cannot be mounted. There the file has its name back for a moment.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use torpor_image::tree::PathState;
use torpor_linux::fcntl;

use crate::filesystem;
use crate::filesystem::private::Private;
use crate::filesystem::{Root, private};

/// How long others may have it open for writing.
const WRITERS_PATIENCE: Duration = Duration::from_secs(1);

/// A new file that is open for reading and writing, has had this name, and has none any more.
pub(crate) fn restore(state: &PathState, root: Root<'_>) -> io::Result<OwnedFd> {
    let whole = filesystem::path_of(&state.path);
    match root {
        Root::At(_) => in_place(whole, root),
        Root::Own => match aside(whole) {
            // A place that may not be mounted elsewhere.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => in_place(whole, root),
            made => made,
        },
    }
}

/// Waits until a file is open for reading only. A process that another thread has just made, for another app, has a copy of
/// the descriptor that the contents were written through until it closes what is not its own; there is no event for that.
pub(crate) fn until_nobody_writes(fd: &OwnedFd) {
    let begun = Instant::now();
    while fcntl::has_writer(fd) && begun.elapsed() < WRITERS_PATIENCE {
        std::thread::yield_now();
    }
}

const NEW: OFlags =
    OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn in_place(whole: &Path, root: Root<'_>) -> io::Result<OwnedFd> {
    let (Some(directory), Some(name)) = (whole.parent(), whole.file_name()) else { return Err(Errno::INVAL.into()) };
    let directory = root.open(directory.as_os_str().as_bytes(), OFlags::PATH | OFlags::DIRECTORY)?;
    let made = openat(&directory, name, NEW, Mode::RUSR | Mode::WUSR)?;
    private::remove_name(&directory, name, &made)?;
    Ok(made)
}

/// In the directory where it was, or the nearest above it that is there.
fn aside(whole: &Path) -> io::Result<OwnedFd> {
    let is_plain = |part: &Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if !whole.components().all(|part| is_plain(&part)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for above in whole.ancestors().skip(1) {
        let above = match Root::Own.open(above.as_os_str().as_bytes(), OFlags::PATH | OFlags::DIRECTORY) {
            Err(Errno::NOENT | Errno::NOTDIR) => continue,
            other => other?,
        };
        let mut place = Private::new(above)?;
        let made = below(&mut place, whole)?;
        place.remove()?;
        return Ok(made);
    }
    Err(Errno::NOENT.into())
}

/// Makes and removes the file through a mount of `place`, which is empty.
fn below(place: &mut Private, whole: &Path) -> io::Result<OwnedFd> {
    let relative = place.make_above(whole)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let mount = open_tree(place.directory(), "", flags)?;
    let made = openat(&mount, &relative, NEW, Mode::RUSR | Mode::WUSR)?;
    private::remove_name(&mount, &relative, &made)?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn it_shows_the_name_that_another_has() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        fs::write(&path, "another").unwrap();
        for path in [path.clone(), folder.path().join("no/such/program")] {
            let state = PathState { path: path.as_os_str().as_bytes().to_vec(), ..PathState::default() };
            let made = restore(&state, Root::Own).unwrap();
            let link = fs::read_link(format!("/proc/self/fd/{}", made.as_raw_fd())).unwrap();
            assert_eq!(link.to_str().unwrap(), format!("{} (deleted)", path.display()));
        }
        assert_eq!(fs::read(&path).unwrap(), b"another");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let state = PathState { path: b"/tmp/../etc/program".to_vec(), ..PathState::default() };
        assert!(restore(&state, Root::Own).is_err());
    }
}
