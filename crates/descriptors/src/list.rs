//! The open files behind descriptors, each once.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{Stat, fstat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, getrlimit, pidfd_open, setrlimit};
use torpor_image::tree::{Descriptor, FileId, FileLock};
use torpor_linux::closer::AppFile;
use torpor_linux::descriptor::duplicate_of;
use torpor_linux::kcmp;

use crate::contract::error::DumpError;
use crate::contract::flags::CLOSE_ON_EXEC;
use crate::locks;
use torpor_proc as proc;
use torpor_process::blocker::{Blocker, Place};

/// Locks of a tree that are taken; one counts for each descriptor that shows it. The kernel walks all locks of a file to take another one
/// there, so that the time for taking them again grows with the square.
const MOST_LOCKS: usize = 1 << 14;

/// Where an open file was found first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) pid: i32,
    /// Descriptor; of a file that is in flight: the socket that it waits in.
    pub(crate) fd: i32,
    pub(crate) in_flight: bool,
}

/// What `/proc/PID/fdinfo/FD` tells of every file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) position: u64,
    /// With [`CLOSE_ON_EXEC`].
    pub(crate) flags: u32,
    /// All lines.
    pub(crate) text: String,
}

/// An open file of the tree.
#[derive(Debug)]
pub(crate) struct Item {
    /// A duplicate of ours.
    pub(crate) fd: AppFile,
    pub(crate) holder: Holder,
    /// What `/proc/PID/fd/FD` leads to.
    pub(crate) link: Vec<u8>,
    pub(crate) info: Info,
    pub(crate) stat: Stat,
    pub(crate) locks: Vec<FileLock>,
    /// It has a lock of a kind that is not known, or a lease that must be given up.
    pub(crate) unknown_lock: bool,
    /// It is standard input, output or error of the tree's root.
    pub(crate) standard: bool,
}

/// All open files of the tree.
#[derive(Debug, Default)]
pub(crate) struct List {
    pub(crate) items: Vec<Item>,
    /// By device and inode; in each, ordered by the kernel's order of open files.
    objects: HashMap<(u64, u64), Vec<FileId>>,
    /// Lines of locks that were read.
    locks: usize,
}

impl Info {
    pub(crate) fn parse(text: String) -> Option<Self> {
        let position = proc::field(&text, "pos")?.parse::<i64>().ok()?;
        let flags = u32::from_str_radix(proc::field(&text, "flags")?, 8).ok()?;
        Some(Self { position: u64::try_from(position).unwrap_or(0), flags, text })
    }

    pub(crate) fn read(pid: i32, fd: i32) -> io::Result<Self> {
        let path = format!("/proc/{pid}/fdinfo/{fd}");
        Self::parse(proc::read(&path)?).ok_or_else(|| proc::unexpected(&path))
    }

    /// The value behind `key:`.
    pub(crate) fn field(&self, key: &str) -> io::Result<&str> {
        proc::field(&self.text, key).ok_or_else(|| proc::unexpected(&format!("fdinfo ({key})")))
    }

    /// The decimal number behind `key:`.
    pub(crate) fn number<T: std::str::FromStr>(&self, key: &str) -> io::Result<T> {
        self.field(key)?.parse().map_err(|_| proc::unexpected(&format!("fdinfo ({key})")))
    }

    /// The hexadecimal number behind `key:`.
    pub(crate) fn hexadecimal(&self, key: &str) -> io::Result<u64> {
        u64::from_str_radix(self.field(key)?, 16).map_err(|_| proc::unexpected(&format!("fdinfo ({key})")))
    }
}

impl Item {
    /// Device and inode.
    pub(crate) fn object(&self) -> (u64, u64) {
        (self.stat.st_dev, self.stat.st_ino)
    }

    /// Its link, for people.
    pub(crate) fn name(&self) -> String {
        String::from_utf8_lossy(&self.link).into_owned()
    }

    /// What is in the way of dumping it, in the words of [`Blocker`].
    pub(crate) fn obstacle(&self, what: &str, remedy: &str) -> Blocker {
        let Holder { pid, fd, in_flight } = self.holder;
        let what = if in_flight { format!("a descriptor in flight there: {what}") } else { what.to_owned() };
        Blocker::new(pid, Place::Descriptor(fd), what, remedy)
    }
}

impl List {
    pub(crate) fn item(&self, file: FileId) -> &Item {
        &self.items[file as usize]
    }

    /// Open files of the same device and inode.
    pub(crate) fn same_object(&self, object: (u64, u64)) -> &[FileId] {
        self.objects.get(&object).map_or(&[], Vec::as_slice)
    }

    /// Takes a duplicate of an open file, which may be known already.
    pub(crate) fn add(&mut self, fd: AppFile, holder: Holder, info: Option<&Info>) -> io::Result<FileId> {
        let own = std::process::id() as i32;
        let stat = fstat(&fd)?;
        let known = self.objects.entry((stat.st_dev, stat.st_ino)).or_default();
        let items = &self.items;
        let mut failure = None;
        let place = known.binary_search_by(|other| {
            let other = items[*other as usize].fd.as_raw_fd();
            kcmp::open_files((own, other), (own, fd.as_raw_fd())).unwrap_or_else(|error| {
                failure = Some(error);
                Ordering::Equal
            })
        });
        match (failure, place) {
            (Some(error), _) => Err(error),
            (None, Ok(found)) => Ok(known[found]),
            (None, Err(place)) => {
                let id = self.items.len() as FileId;
                known.insert(place, id);
                let info = match info {
                    Some(info) => info.clone(),
                    None => Info::read(own, fd.as_raw_fd())?,
                };
                let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?.into_os_string().into_vec();
                self.items.push(Item {
                    fd,
                    holder,
                    link,
                    info,
                    stat,
                    locks: Vec::new(),
                    unknown_lock: false,
                    standard: false,
                });
                Ok(id)
            }
        }
    }

    /// The descriptors of process `pid`; `inside` is its id in the tree's pid namespace. `go_on` is asked for each.
    pub(crate) fn descriptors(
        &mut self,
        pid: i32,
        inside: i32,
        root: bool,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Vec<Descriptor>, DumpError> {
        let numbers = numbers(pid).map_err(|source| look(pid, "the descriptors", source))?;
        self.descriptors_among(pid, inside, root, &numbers, go_on)
    }

    /// As [`Self::descriptors`], of these numbers, which ascend.
    pub(crate) fn descriptors_among(
        &mut self,
        pid: i32,
        inside: i32,
        root: bool,
        numbers: &[i32],
        go_on: &dyn Fn() -> bool,
    ) -> Result<Vec<Descriptor>, DumpError> {
        let handle = Pid::from_raw(pid).ok_or(Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let handle = handle.map_err(|error| look(pid, "the descriptors", error.into()))?;
        let mut found = Vec::with_capacity(numbers.len());
        for fd in numbers {
            if !go_on() {
                return Err(DumpError::Stopped);
            }
            let failed = |source| look(pid, &format!("descriptor {fd}"), source);
            let duplicate = duplicate_of(&handle, *fd).map_err(|error| failed(error.into()))?;
            let info = Info::read(pid, *fd).map_err(failed)?;
            let holder = Holder { pid, fd: *fd, in_flight: false };
            let file = self.add(duplicate, holder, Some(&info)).map_err(failed)?;
            let item = &mut self.items[file as usize];
            item.standard |= root && *fd <= 2;
            found.push(Descriptor { fd: *fd, file, close_on_exec: info.flags & CLOSE_ON_EXEC != 0 });
            let Some(found_locks) = locks::parse(&info.text, inside) else {
                item.unknown_lock = true;
                continue;
            };
            self.locks += found_locks.len();
            if self.locks > MOST_LOCKS {
                let what = format!("it has more than {MOST_LOCKS} locks of files (fcntl, flock)");
                let remedy = "let it release locks, or lock longer ranges";
                return Err(DumpError::Refused(vec![Blocker::new(pid, Place::Descriptor(*fd), what, remedy)]));
            }
            // Another descriptor may have shown them already; one descriptor shows each once.
            let known = item.locks.len();
            for lock in found_locks {
                if !item.locks[..known].contains(&lock) {
                    item.locks.push(lock);
                }
            }
        }
        Ok(found)
    }
}

fn look(pid: i32, what: &str, source: io::Error) -> DumpError {
    DumpError::Look { pid, what: what.to_owned(), source }
}

fn numbers(pid: i32) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        found.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    found.sort_unstable();
    Ok(found)
}

/// Lets this process have as many descriptors as it may: one for every open file of the tree.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it cannot be raised, running out of descriptors is the error that tells.
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}

/// By process.
pub(crate) type Descriptors = BTreeMap<i32, Vec<Descriptor>>;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_same_open_file_is_found_once() {
        let own = std::process::id() as i32;
        let file = std::fs::File::open("/proc/self/maps").unwrap();
        let (same, other) = (file.try_clone().unwrap(), std::fs::File::open("/proc/self/maps").unwrap());
        let mut numbers: Vec<i32> = [&file, &same, &other].iter().map(|file| file.as_fd().as_raw_fd()).collect();
        numbers.sort_unstable();
        let mut list = List::default();
        let found = list.descriptors_among(own, own, false, &numbers, &|| true).unwrap();
        let id = |wanted: &std::fs::File| found.iter().find(|one| one.fd == wanted.as_raw_fd()).unwrap().file;
        assert_eq!(id(&file), id(&same));
        assert_ne!(id(&file), id(&other));
        assert!(found.iter().all(|one| one.close_on_exec));
        assert_eq!(list.items.len(), 2);
    }
    #[test]
    fn too_many_locks_are_refused() {
        let own = std::process::id() as i32;
        let file = tempfile::tempfile().unwrap();
        for byte in 0..=MOST_LOCKS as i64 / 2 {
            // With a byte between them, so that they stay apart.
            torpor_linux::fcntl::set_open_file_lock(&file, 1, 2 * byte, 1).unwrap();
        }
        let listed = |numbers: &[i32]| List::default().descriptors_among(own, own, false, numbers, &|| true);
        listed(&[file.as_raw_fd()]).unwrap();
        // A second descriptor shows them again.
        let same = file.try_clone().unwrap();
        let Err(DumpError::Refused(obstacles)) = listed(&[file.as_raw_fd(), same.as_raw_fd()]) else { panic!() };
        assert!(obstacles[0].to_string().contains("more than 16384 locks"), "{}", obstacles[0]);
    }
}
