//! Opening what the new processes inherit.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, fstat, ftruncate, memfd_create};
use torpor_image::tree::{FileContents, Namespaces, PathState, Tree};
use torpor_linux::closer::{self, Queued};
use torpor_linux::restorer::{CODE_BYTES, SPARE_NUMBERS, interpreter, seed};

use super::RestoreError;
use torpor_descriptors::{RestoreContext, RestoredFiles, Root, difference, is_made_up, is_same, opener};
use torpor_pages::source::PageSource;
use torpor_planner::compile::HOLE_OFFSET;
use torpor_planner::plan::Plan;
use torpor_planner::staged::{Access, Staged};

/// Everything that is inherited, in the order of [`Staged`].
pub struct Opened {
    /// Open files and shared memory.
    pub made: RestoredFiles,
    paths: Vec<OwnedFd>,
    home: Option<OwnedFd>,
    /// The page source's.
    pages: OwnedFd,
    blob: OwnedFd,
    /// The seed's executable.
    pub(crate) seed: OwnedFd,
}

/// Why paths cannot be opened.
#[derive(Debug)]
pub enum PathError {
    /// They are not what they were: a line for each.
    Changed(Vec<String>),
    /// One cannot be opened now, which says nothing of what it is.
    Passing(Vec<u8>, io::Error),
}

impl PathError {
    /// That a call for the path failed.
    pub fn of(path: &[u8], error: io::Error) -> Self {
        if says_what_is_there(&error) {
            return Self::Changed(vec![format!("{}: {error}", String::from_utf8_lossy(path))]);
        }
        Self::Passing(path.to_owned(), error)
    }
}

/// The error of an `open` comes from what is at the path. Others (a lease of another's, a file that is executed, too many open files,
/// no memory, a disk that cannot be read) pass.
fn says_what_is_there(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    errno.is_some_and(|errno| {
        [
            Errno::NOENT,
            Errno::NOTDIR,
            Errno::ISDIR,
            Errno::LOOP,
            Errno::NAMETOOLONG,
            Errno::ACCESS,
            Errno::PERM,
            Errno::ROFS,
            Errno::NXIO,
            Errno::NODEV,
            Errno::XDEV,
            Errno::INVAL,
        ]
        .contains(&errno)
    })
}

impl From<PathError> for RestoreError {
    fn from(error: PathError) -> Self {
        match error {
            PathError::Changed(lines) => Self::Refused(lines),
            PathError::Passing(path, error) => Self::Open(OsString::from_vec(path).into(), error),
        }
    }
}

/// Opens the paths that the tree maps or stands in.
///
/// # Errors
/// All that have changed, or else the first one that cannot be opened now.
pub fn paths(
    staged: &Staged<'_>,
    contents: &[FileContents],
    around: RestoreContext<'_>,
) -> Result<Vec<OwnedFd>, PathError> {
    let open_all = || {
        let mut opened = Vec::with_capacity(staged.paths.len());
        let (mut wrong, mut passing) = (Vec::new(), None);
        for (path, access) in &staged.paths {
            match open_path(path, *access, contents, around) {
                Ok(fd) => opened.push(fd),
                Err(PathError::Changed(lines)) => {
                    // A file that several processes map, or that one maps in several ways, is staged more than once.
                    lines.into_iter().for_each(|line| {
                        if !wrong.contains(&line) {
                            wrong.push(line);
                        }
                    });
                }
                Err(error) => passing = passing.or(Some(error)),
            }
        }
        match passing {
            _ if !wrong.is_empty() => Err(PathError::Changed(wrong)),
            Some(error) => Err(error),
            None => Ok(opened),
        }
    };
    match around.root {
        Root::Own => open_all(),
        // Once for all of them: each by itself would do it again.
        Root::At(_) => {
            opener::as_app(open_all).unwrap_or_else(|error| Err(PathError::Passing(b"/".to_vec(), error.into())))
        }
    }
}

fn open_path(
    path: &PathState,
    access: Access,
    contents: &[FileContents],
    around: RestoreContext<'_>,
) -> Result<OwnedFd, PathError> {
    let flags = match access {
        Access::Read => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
        Access::Place => OFlags::PATH | OFlags::DIRECTORY,
    };
    let place = matches!(access, Access::Place);
    let flags = if place { flags } else { flags | OFlags::NOCTTY | OFlags::NONBLOCK };
    let failed = |error: rustix::io::Errno| PathError::of(&path.path, error.into());
    let changed = |how: &str| PathError::Changed(vec![format!("{}: {how}", String::from_utf8_lossy(&path.path))]);
    if path.gone.is_some() {
        let made = around.removed.and_then(|removed| removed.open(path, flags));
        return made.unwrap_or(Err(rustix::io::Errno::NOENT)).map_err(failed);
    }
    let fd = around.root.open(&path.path, flags).map_err(failed)?;
    let stat = fstat(&fd).map_err(failed)?;
    // A directory in a file system that makes its files up has another number every time.
    let made_up = place && is_made_up(&fd).map_err(failed)?;
    if let Some(how) = around.root.forbids(&stat, flags) {
        return Err(changed(how));
    }
    let Some(how) = difference(path, &stat, made_up, around.same_boot) else { return Ok(fd) };
    match is_same(path, &fd, access == Access::ReadWrite, contents) {
        Ok(true) => Ok(fd),
        Ok(false) => Err(changed(how)),
        Err(error) => Err(PathError::Passing(path.path.clone(), error)),
    }
}

/// A memory file with these bytes. `run`: it will be executed.
fn memory(name: &str, parts: &[&[u8]], run: bool) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | if run { MemfdFlags::EXEC } else { MemfdFlags::empty() };
    let fd = match memfd_create(name, flags) {
        // Before Linux 6.3 every memory file can be executed.
        Err(rustix::io::Errno::INVAL) => memfd_create(name, MemfdFlags::CLOEXEC)?,
        other => other?,
    };
    let mut file = File::from(fd);
    for part in parts {
        file.write_all(part)?;
    }
    Ok(file.into())
}

/// The memory files that the seed begins with.
pub struct Starters {
    blob: OwnedFd,
    seed: OwnedFd,
}

impl Starters {
    /// Makes them; the plan is in the blob as it is now.
    pub fn new(staged: &Staged<'_>, plan: &Plan) -> Result<Self, RestoreError> {
        let mut code = [0; CODE_BYTES];
        code[..interpreter().len()].copy_from_slice(interpreter());
        let blob = memory("torpor-restore", &[&code, &plan.data], false);
        let blob = blob.map_err(|error| RestoreError::Own("making the blob", error))?;
        ftruncate(&blob, 2 * HOLE_OFFSET).map_err(|error| RestoreError::Own("making the blob", error.into()))?;
        let first = plan.tasks.first().map_or(0, |task| task.first);
        let bytes = seed(plan.address, staged.blob(), plan.data.len() as u64, first);
        let seed = memory("torpor-seed", &[&bytes], true);
        Ok(Self { blob, seed: seed.map_err(|error| RestoreError::Own("making the seed", error))? })
    }
}

impl Opened {
    /// Puts everything together.
    pub fn new(
        tree: &Tree,
        starters: Starters,
        made: RestoredFiles,
        paths: Vec<OwnedFd>,
        pages: &dyn PageSource,
        home: Option<BorrowedFd<'_>>,
    ) -> Result<Self, RestoreError> {
        debug_assert_eq!((made.files.len(), made.memories.len()), (tree.files.len(), tree.memories.len()));
        let own = |error| RestoreError::Own("duplicating a descriptor", error);
        let pages = pages.descriptor().try_clone_to_owned().map_err(own)?;
        let enters = tree.namespaces != Namespaces::default();
        let home = home.filter(|_| enters).map(|home| home.try_clone_to_owned()).transpose().map_err(own)?;
        Ok(Self { made, paths, home, pages, blob: starters.blob, seed: starters.seed })
    }

    /// For a child that is forked with our descriptors: none of these has a number that it will use itself.
    pub(crate) fn out_of_the_way(mut self, staged: &Staged<'_>) -> Result<Self, RestoreError> {
        let taken = staged.first..staged.first + staged.count() as i32 + SPARE_NUMBERS;
        for fd in self.own() {
            if taken.contains(&fd.as_raw_fd()) {
                let moved = rustix::io::fcntl_dupfd_cloexec(&*fd, taken.end);
                *fd = moved.map_err(|error| RestoreError::Own("moving a descriptor", error.into()))?;
            }
        }
        Ok(self)
    }

    /// What the processes have as their blob, open for reading and writing.
    pub fn blob(&self) -> BorrowedFd<'_> {
        self.blob.as_fd()
    }

    /// Closes the descriptors that the processes have inherited ([`RestoredFiles::hand_over`]). Mapped files that are open for reading only stay open until
    /// this is dropped: they hold no lock, and the program can execute them.
    pub fn hand_over(&mut self) -> Queued {
        let is_written = |file: &mut OwnedFd| fcntl_getfl(file).is_ok_and(|flags| flags.intersects(OFlags::RDWR));
        self.made.hand_over().max(closer::close_now(self.paths.extract_if(.., is_written)))
    }

    fn own(&mut self) -> impl Iterator<Item = &mut OwnedFd> {
        let made = self.made.files.iter_mut().flatten().chain(&mut self.made.memories);
        made.chain(&mut self.paths).chain(&mut self.home).chain([&mut self.pages, &mut self.blob, &mut self.seed])
    }

    /// What is inherited. In the place of a file that the processes open themselves is the page source's descriptor.
    pub(crate) fn inherited(&self) -> Vec<BorrowedFd<'_>> {
        let pages = self.pages.as_fd();
        let files = self.made.files.iter().map(|file| file.as_ref().map_or(pages, AsFd::as_fd));
        let rest = self.made.memories.iter().chain(&self.paths).chain(&self.home).map(AsFd::as_fd);
        files.chain(rest).chain([pages, self.blob.as_fd()]).collect()
    }
}
