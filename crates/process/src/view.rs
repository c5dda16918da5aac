//! Where a tree is looked at from: the machine itself (a tree of plain processes, which shares our namespaces), or an app's
//! home.
//!
//! An image says what the program itself sees: its ids, users and paths. For an app the kernel shows us the machine's; a
//! [`View`] translates. Paths need no translation, as `/proc` shows those of the app's mount namespace, but they are looked up
//! below the root of the app's init. What depends on the network or on System V objects is asked by a thread that has
//! entered those namespaces ([`View::within`]); all other calls of such a thread mean what they always do.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Stat, fstat, openat2};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use torpor_linux::ptrace_probe::PtraceProbe;
use torpor_linux::restorer::enter_for_children;

use crate::sandbox::SandboxHandle;
use torpor_proc as proc;

/// The user that the kernel shows where an id has no name in a user namespace.
const OVERFLOW: u32 = 65534;

/// Ranges of ids of a user namespace: first id inside, first id of the machine, how many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMap(Vec<(u32, u32, u32)>);

impl IdMap {
    pub(crate) fn read(path: &str) -> io::Result<Self> {
        Self::parse(&proc::read(path)?).ok_or_else(|| proc::unexpected(path))
    }

    /// Parses a `uid_map` or `gid_map` file.
    pub fn parse(text: &str) -> Option<Self> {
        let range = |line: &str| {
            let mut numbers = line.split_ascii_whitespace().map(str::parse);
            Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
        };
        text.lines().map(range).collect::<Option<_>>().map(Self)
    }

    /// The id inside.
    pub fn inside(&self, machine: u32) -> Option<u32> {
        self.0.iter().find_map(|(inside, outside, count)| {
            machine.checked_sub(*outside).filter(|n| n < count).and_then(|n| inside.checked_add(n))
        })
    }
}

/// What an app's tree sees.
#[derive(Debug)]
struct Inside {
    init: OwnedFd,
    init_pid: i32,
    root: OwnedFd,
    users: IdMap,
    groups: IdMap,
    /// Ids inside by the machine's: processes, threads, process groups, sessions.
    ids: BTreeMap<i32, i32>,
}

/// Where a tree is looked at from.
#[derive(Debug, Default)]
pub struct View(Option<Inside>);

impl View {
    /// A plain tree's.
    pub const fn machine() -> Self {
        Self(None)
    }

    /// That of an app in its home. `processes` are those of its tree, by the machine's ids, those that have ended too.
    pub fn of(home: &SandboxHandle, processes: &[i32]) -> io::Result<Self> {
        let root = rustix::fs::open(
            format!("/proc/{}/root", home.init_pid),
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        // All of them are in the same user namespace, which is looked at elsewhere.
        let some = processes.first().copied().unwrap_or(home.init_pid);
        let mut ids = BTreeMap::new();
        for pid in processes {
            let tids = if is_zombie(*pid)? { Vec::new() } else { proc::processes::threads(*pid)? };
            for tid in tids {
                pairs(&format!("/proc/{pid}/task/{tid}/status"), &["NSpid"], &mut ids)?;
            }
            pairs(&format!("/proc/{pid}/status"), &["NSpid", "NSpgid", "NSsid"], &mut ids)?;
        }
        Ok(Self(Some(Inside {
            init: home.init.try_clone()?,
            init_pid: home.init_pid,
            root,
            users: IdMap::read(&format!("/proc/{some}/uid_map"))?,
            groups: IdMap::read(&format!("/proc/{some}/gid_map"))?,
            ids,
        })))
    }

    /// The tree is an app's: in namespaces of its own, with ids, users and a root of its own.
    pub const fn in_sandbox(&self) -> bool {
        self.0.is_some()
    }

    /// The `/proc` directory of a process whose namespaces and root are the ones expected.
    pub fn reference(&self) -> String {
        self.0.as_ref().map_or_else(|| "/proc/self".to_owned(), |inside| format!("/proc/{}", inside.init_pid))
    }

    /// An id of a process, thread, group or session, as the tree sees it; `None` if that is not the tree's.
    pub fn id(&self, machine: i32) -> Option<i32> {
        match &self.0 {
            None => Some(machine),
            Some(inside) => inside.ids.get(&machine).copied(),
        }
    }

    /// A user as the tree sees it.
    pub fn user(&self, machine: u32) -> u32 {
        self.0.as_ref().map_or(machine, |inside| inside.users.inside(machine).unwrap_or(OVERFLOW))
    }

    /// A user as the tree sees it, if it does.
    pub fn has_user(&self, machine: u32) -> Option<u32> {
        self.0.as_ref().map_or(Some(machine), |inside| inside.users.inside(machine))
    }

    /// A group of users as the tree sees it.
    pub fn group(&self, machine: u32) -> u32 {
        self.0.as_ref().map_or(machine, |inside| inside.groups.inside(machine).unwrap_or(OVERFLOW))
    }

    /// Opens what is at a path of the tree's, without following links, to look at it.
    pub fn open(&self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        self.open_as(path, OFlags::PATH | OFlags::NOFOLLOW)
    }

    /// As [`Self::open`], with these flags.
    pub fn open_as(&self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let (below, resolve) = match &self.0 {
            None => (CWD, ResolveFlags::NO_SYMLINKS),
            Some(inside) => (inside.root.as_fd(), ResolveFlags::NO_SYMLINKS | ResolveFlags::IN_ROOT),
        };
        openat2(below, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    /// What is at a path.
    pub fn stat(&self, path: &[u8]) -> rustix::io::Result<Stat> {
        self.open(path).and_then(fstat)
    }

    /// Starts a process of this user and group of the machine's in the tree's pid and user namespaces, without being one of its
    /// processes; gives its id as the tree sees it, too.
    pub fn bystander(&self, user: u32, group: u32) -> io::Result<(PtraceProbe, i32)> {
        let Some(inside) = &self.0 else {
            return PtraceProbe::start(None, user, group).map(|found| {
                let pid = found.pid();
                (found, pid)
            });
        };
        let other = identity("/proc/self/ns/user")? != identity(&format!("/proc/{}/ns/user", inside.init_pid))?;
        let namespace = other.then(|| inside.init.as_fd());
        let (user, group) = (self.user(user), self.group(group));
        let found = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter_for_children(inside.init.as_fd())?;
                PtraceProbe::start(namespace, user, group)
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let mut ids = BTreeMap::new();
        pairs(&format!("/proc/{}/status", found.pid()), &["NSpid"], &mut ids)?;
        let id = ids.values().copied().next().unwrap_or_default();
        Ok((found, id))
    }

    /// Does something in the tree's network, IPC and UTS namespaces.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let Some(inside) = &self.0 else { return Ok(work()) };
        enter(&inside.init, work)
    }
}

/// Namespaces in which a tree's objects are looked at and made.
pub const ENTERED: ThreadNameSpaceType = ThreadNameSpaceType::NETWORK
    .union(ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION)
    .union(ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME);

/// Does something in the network, IPC and UTS namespaces of an init, on a thread of its own.
pub fn enter<T: Send>(init: &OwnedFd, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_thread_name_spaces(init.as_fd(), ENTERED)?;
            Ok(work())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn is_zombie(pid: i32) -> io::Result<bool> {
    Ok(proc::stat::read(&format!("/proc/{pid}/stat"))?.state == 'Z')
}

/// Adds ids of these kinds: the machine's and the innermost namespace's.
fn pairs(path: &str, keys: &[&str], found: &mut BTreeMap<i32, i32>) -> io::Result<()> {
    let text = proc::read(path)?;
    for key in keys {
        let (machine, inside) = pair(&text, key).ok_or_else(|| proc::unexpected(path))?;
        found.insert(machine, inside);
    }
    Ok(())
}

/// The first and the last of the ids behind `key:`.
pub fn pair(status: &str, key: &str) -> Option<(i32, i32)> {
    let mut ids = proc::field(status, key)?.split_ascii_whitespace().map(str::parse);
    Some((ids.next()?.ok()?, ids.next_back()?.ok()?))
}

/// The parent of a process, by the machine's ids.
pub fn parent(pid: i32) -> io::Result<i32> {
    let path = format!("/proc/{pid}/status");
    let text = proc::read(&path)?;
    let parent = proc::field(&text, "PPid").and_then(|parent| parent.parse().ok());
    parent.ok_or_else(|| proc::unexpected(&path))
}

/// Device and inode of a directory.
pub fn identity(path: &str) -> io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_translated() {
        let map = IdMap::parse("         0     100000      65536\n     70000          5          1\n").unwrap();
        assert_eq!((map.inside(100_000), map.inside(165_535), map.inside(165_536)), (Some(0), Some(65535), None));
        assert_eq!((map.inside(5), map.inside(6)), (Some(70_000), None));
        assert!(IdMap::parse("0 x 1").is_none());
    }

    #[test]
    fn the_machines_view_changes_nothing() {
        let view = View::machine();
        assert_eq!((view.id(77), view.user(5), view.group(6)), (Some(77), 5, 6));
        assert!(view.stat(b"/proc/self/status").is_err() && view.stat(b"/dev/null").is_ok());
        assert!(!view.in_sandbox());
    }
}
