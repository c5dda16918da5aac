//! Open files of this process are taken, closed and made again; what is made must behave as what was.

mod files;
mod private;
mod sockets;
mod unix;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use torpor_image::HEADER_BYTES;
use torpor_image::tree::{End, FileId, Machine, Process, Tree};

use crate::context::{Network, RestoreContext};
use crate::contract::error::{DumpError, RestoreFileError};
use crate::contract::{Dumped, Given, OpenFiles, Request};
use crate::dump::describe_all;
use crate::filesystem::Root;
use crate::list::{Descriptors, List};
use crate::restore::{RestoredFiles, restore};
use torpor_pages::sink::PageSink;
use torpor_pages::source::ImageFile;

const HERE: RestoreContext<'static> = RestoreContext {
    root: Root::Own,
    same_boot: true,
    network: Network::Same,
    passed: None,
    removed: None,
    charge: None,
    piece: None,
};

/// What was taken, and where its pages are.
pub(crate) struct Taken {
    tree: Tree,
    image: std::fs::File,
    /// By the order in which they were given.
    files: Vec<FileId>,
}

fn collect_own(fds: &[OwnedFd], image: &std::fs::File) -> Result<(Dumped, Vec<FileId>), DumpError> {
    let own = std::process::id() as i32;
    let mut numbers: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    numbers.sort_unstable();
    let mut list = List::default();
    let found = list.descriptors_among(own, own, false, &numbers, &|| true)?;
    let ids = BTreeMap::from([(own, own)]);
    let request = Request {
        processes: &[own],
        ids: &ids,
        areas: &[],
        view: &torpor_process::view::View::machine(),
        open_files: OpenFiles::Described,
        lock: None,
        since: torpor_process::wait::since::now(),
        look_only: false,
        go_on: &|| true,
    };
    let file = |fd: &OwnedFd| found.iter().find(|one| one.fd == fd.as_raw_fd()).unwrap().file;
    let files = fds.iter().map(file).collect();
    let mut sink = PageSink::new(image, HEADER_BYTES);
    let collected = describe_all(&request, list, Descriptors::new(), &mut sink)?;
    sink.flush().unwrap();
    Ok((collected, files))
}

/// Describes what was listed.
pub(crate) fn described(
    list: List,
    descriptors: Descriptors,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Result<Dumped, DumpError> {
    let own = std::process::id() as i32;
    let request = Request {
        processes: &[own],
        ids: &BTreeMap::from([(own, own)]),
        areas: &[],
        view: &torpor_process::view::View::machine(),
        open_files: OpenFiles::Described,
        lock: None,
        since: torpor_process::wait::since::now(),
        look_only: false,
        go_on,
    };
    let image = tempfile::tempfile().unwrap();
    let mut sink = PageSink::new(&image, HEADER_BYTES);
    describe_all(&request, list, descriptors, &mut sink)
}

pub(crate) fn take(fds: &[OwnedFd]) -> Result<Taken, DumpError> {
    let image = tempfile::tempfile().unwrap();
    let (collected, files) = collect_own(fds, &image)?;
    let clock = |id| {
        let time = rustix::time::clock_gettime(id);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let machine = Machine {
        boot: torpor_proc::boot().unwrap(),
        realtime_ns: clock(rustix::time::ClockId::Realtime),
        monotonic_ns: clock(rustix::time::ClockId::Monotonic),
        boottime_ns: clock(rustix::time::ClockId::Boottime),
        ..Machine::default()
    };
    let Dumped { files: open, pipes, memories, .. } = collected;
    let pid = std::process::id() as i32;
    let end = End::Zombie { status: 0, name: b"test".to_vec() };
    let processes = vec![Process { pid, parent: 0, group: pid, session: pid, end }];
    let tree = Tree { machine, processes, files: open, pipes, memories, ..Tree::default() };
    // What is written must be what a reader accepts.
    let end = image.metadata().unwrap().len().next_multiple_of(4096).max(HEADER_BYTES);
    let tree = Tree::decode(&tree.encode(), HEADER_BYTES..end).unwrap();
    Ok(Taken { tree, image, files })
}

impl Taken {
    pub(crate) fn try_make(&self) -> Result<RestoredFiles, RestoreFileError> {
        restore(&self.tree, &ImageFile::through_cache(&self.image), Given::new(), HERE)
    }

    pub(crate) fn make(&self) -> RestoredFiles {
        let mut made = self.try_make().unwrap();
        made.finish(&self.tree, |id| id).unwrap();
        made.reconnect(&self.tree).unwrap();
        made
    }

    /// Duplicates of what was made, in the order of what was taken.
    fn descriptors(&self) -> Vec<OwnedFd> {
        let made = self.make();
        self.files.iter().map(|file| made.file(*file).unwrap().as_fd().try_clone_to_owned().unwrap()).collect()
    }
}

/// Takes, closes, makes again.
pub(crate) fn round(fds: Vec<OwnedFd>) -> Vec<OwnedFd> {
    let taken = take(&fds).unwrap();
    drop(fds);
    let made = taken.descriptors();
    // Taken once more, the new ones are the same.
    let again = take(&made).unwrap();
    let kinds = |taken: &Taken| {
        let file = |id: &FileId| taken.tree.files[*id as usize].clone();
        taken.files.iter().map(file).map(|file| (file.flags, file.position)).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&again), kinds(&taken));
    made
}

/// The only thing in the way.
fn refusal(fds: &[OwnedFd]) -> String {
    match take(fds) {
        Err(DumpError::Refused(obstacles)) => {
            assert_eq!(obstacles.len(), 1, "{obstacles:?}");
            obstacles[0].to_string()
        }
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was taken"),
    }
}
