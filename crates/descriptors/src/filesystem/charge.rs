//! Whose memory the contents of memory files are.
//!
//! What the restorer writes into a memory file is charged to the restorer's own cgroup for as long as the page lives. An app's
//! pages are to count against the app's limit, so a process in its cgroups asks for them first ([`MemcgCharger`]). It is started when
//! there is something to ask for, and ended with this. Where that fails the pages are ours: an app is not lost for its account.

use std::cell::{OnceCell, RefCell};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, Uid, fstatfs, openat};
use rustix::thread::set_thread_res_uid;
use torpor_linux::restorer::MemcgCharger;

use super::mounts::TMPFS_MAGIC;
use torpor_process::sandbox::SandboxHandle;

/// The process that asks.
#[derive(Debug)]
enum Started {
    NotYet,
    Running(MemcgCharger),
}

/// The groups that count a home's memory.
#[derive(Debug, Default)]
struct Counting {
    /// `tasks` of cgroups v1.
    tasks: Vec<PathBuf>,
    /// The v2 cgroup, where that counts memory.
    group: Option<PathBuf>,
}

impl Counting {
    fn of(home: &SandboxHandle) -> Self {
        let beside = |path: &Path, name: &str| path.parent().is_some_and(|group| group.join(name).exists());
        let tasks = home.tasks.iter().filter(|tasks| beside(tasks, "memory.usage_in_bytes")).cloned().collect();
        // A group without a count of its own counts for the one above it.
        let counts = home.cgroup.join("memory.current").exists() || beside(&home.cgroup, "memory.current");
        Self { tasks, group: counts.then(|| home.cgroup.clone()) }
    }

    fn start(&self) -> io::Result<MemcgCharger> {
        let open = |path: &PathBuf| File::options().write(true).open(path);
        let files = self.tasks.iter().map(open).collect::<io::Result<Vec<File>>>()?;
        let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        let Some(group) = &self.group else { return MemcgCharger::start(None, &files) };
        let directory = openat(CWD, group, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        // A group that has been killed more often than ours kills what is cloned into it (since Linux 6.14).
        MemcgCharger::start(Some(directory.as_fd()), &files).or_else(|_| {
            let procs = open(&group.join("cgroup.procs"))?;
            MemcgCharger::start(None, &[&files[..], &[procs.as_fd()]].concat())
        })
    }
}

/// The account of a home's memory. Most wakes ask for nothing: what counts there is looked for when they do.
#[derive(Debug)]
pub struct Charge<'a> {
    home: Option<&'a SandboxHandle>,
    counting: OnceCell<Counting>,
    /// `None` where it has failed.
    payer: RefCell<Option<Started>>,
}

impl<'a> Charge<'a> {
    /// The charge of the app in this sandbox.
    pub fn of(home: &'a SandboxHandle) -> Self {
        Self { home: Some(home), counting: OnceCell::new(), payer: RefCell::new(Some(Started::NotYet)) }
    }

    /// Has pages of `file` made for the app.
    pub(crate) fn pages(&self, file: BorrowedFd<'_>, start: u64, bytes: u64) {
        if !fstatfs(file).is_ok_and(|about| about.f_type == TMPFS_MAGIC) {
            return;
        }
        let counting = self.counting.get_or_init(|| self.home.map(Counting::of).unwrap_or_default());
        if counting.tasks.is_empty() && counting.group.is_none() {
            return;
        }
        let mut payer = self.payer.borrow_mut();
        let done = match payer.take() {
            None => return,
            Some(Started::NotYet) => as_ourselves(|| counting.start()).and_then(|started| started),
            Some(Started::Running(payer)) => Ok(payer),
        };
        let done = done.and_then(|started| started.allocate(file, start, bytes).map(|()| started));
        match done {
            Ok(started) => *payer = Some(Started::Running(started)),
            Err(error) => tracing::warn!(%error, "contents of memory files of an app are charged to its worker"),
        }
    }
}

/// Files are made as the app's root, who may move nobody to other groups: whose file it is written through, the kernel asks.
fn as_ourselves<T>(work: impl FnOnce() -> T) -> io::Result<T> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return Ok(work());
    }
    // Capabilities stay as they are: whoever has changed the user has seen to that.
    set_thread_res_uid(None, Uid::ROOT, None)?;
    let done = work();
    set_thread_res_uid(None, user, None)?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;

    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use torpor_testkit::skip::skipped;

    const BYTES: u64 = 8 << 20;

    /// A cgroup that counts memory, in whichever hierarchy does that here, and the file with the count.
    struct Counted {
        group: PathBuf,
        charge: Charge<'static>,
        count: PathBuf,
    }

    impl Counted {
        fn new() -> Option<Self> {
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
            let counts =
                |line: &&str| line.contains(" - cgroup2 ") || line.ends_with(",memory") || line.contains(",memory,");
            mounts.lines().filter(counts).find_map(|line| {
                let group =
                    Path::new(line.split(' ').nth(4)?).join(format!("torpor-charge-test-{}", std::process::id()));
                fs::create_dir(&group).ok()?;
                let (v1, v2) = (group.join("memory.usage_in_bytes"), group.join("memory.current"));
                let charge = |tasks, group| Charge {
                    home: None,
                    counting: OnceCell::from(Counting { tasks, group }),
                    payer: RefCell::new(Some(Started::NotYet)),
                };
                if v1.exists() {
                    return Some(Self { charge: charge(vec![group.join("tasks")], None), count: v1, group });
                }
                if v2.exists() {
                    return Some(Self { charge: charge(Vec::new(), Some(group.clone())), count: v2, group });
                }
                fs::remove_dir(&group).unwrap();
                None
            })
        }

        fn bytes(&self) -> u64 {
            fs::read_to_string(&self.count).unwrap().trim().parse().unwrap()
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.charge.payer.take();
            fs::remove_dir(&self.group).unwrap();
        }
    }

    #[test]
    fn pages_are_the_groups_and_not_ours() {
        let Some(counted) = Counted::new() else {
            return skipped(module_path!(), "no cgroup hierarchy here counts memory");
        };
        let make = || memfd_create("paid", MemfdFlags::CLOEXEC).unwrap();
        let (paid, own) = (File::from(make()), File::from(make()));
        for file in [&paid, &own] {
            ftruncate(file, BYTES).unwrap();
        }
        counted.charge.pages(paid.as_fd(), 0, BYTES);
        assert!(counted.charge.payer.borrow().is_some(), "it has failed");
        let before = counted.bytes();
        assert!(before >= BYTES, "{before} bytes are charged");
        // Filling them costs nobody more; what is not asked for is the writer's.
        paid.write_all_at(&vec![1; BYTES as usize], 0).unwrap();
        own.write_all_at(&vec![1; BYTES as usize], 0).unwrap();
        let after = counted.bytes();
        assert!(after < before + BYTES / 4, "{before} bytes were charged, and then {after}");
    }
}
