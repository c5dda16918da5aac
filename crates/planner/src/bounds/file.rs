//! Open files by their kind.

use rustix::fs::{FileType, major, minor};
use torpor_image::tree::{
    EpollMember, FileKind, FileLock, InotifyWatch, LockKind, OpenFile, Owner, PathState, Pipe, PipeEnd, Terminal,
};

use super::process::ALARM_CLOCKS;
use super::{USERS, Vetting, capability};

/// Flags that an open file can have; those that make or shorten files when they are opened again are not among them.
const FLAGS: u32 = 0o3 // access
    | 0o200 // PIDFD_THREAD
    | 0o400 // O_NOCTTY
    | 0o2000 // O_APPEND
    | 0o4000 // O_NONBLOCK
    | 0o4_010_000 // O_SYNC
    | 0o20_000 // O_ASYNC
    | 0o40_000 // O_DIRECT
    | 0o100_000 // O_LARGEFILE
    | 0o200_000 // O_DIRECTORY
    | 0o400_000 // O_NOFOLLOW
    | 0o1_000_000 // O_NOATIME
    | 0o2_000_000 // O_CLOEXEC
    | PATH_ONLY
    | 0o20_000_000; // O_TMPFILE
const PATH_ONLY: u32 = 0o10_000_000;
/// `F_OWNER_TID`, `F_OWNER_PID`, `F_OWNER_PGRP`.
const OWNERS: [i32; 3] = [0, 1, 2];
/// Devices without state: null, zero, full, random, urandom, tty.
const DEVICES: [(u32, u32); 6] = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0)];
/// Clocks of `timerfd_create(2)`: real, monotonic, boot.
const CLOCKS: [i32; 3] = [0, 1, 7];
/// Each number below is made on the way (`descriptors/src/kinds/inotify`).
const HIGHEST_WATCH: i32 = 1 << 16;
/// Terminals with lower numbers are made on the way; the machine has few for all apps.
const MOST_TERMINALS: u32 = 64;
const MULTIPLEXERS: [&[u8]; 2] = [b"/dev/ptmx", b"/dev/pts/ptmx"];
/// `struct termios2`, and where it has the line discipline.
const SETTINGS_BYTES: usize = 44;
const DISCIPLINE: usize = 16;
/// What a terminal holds back at most, in each direction.
const TERMINAL_BYTES: usize = 64 << 10;
/// Files of a process in `/proc` that show the same whoever opens them, and directories of such.
const OF_PROCESS: [&str; 34] = [
    "",
    "arch_status",
    "autogroup",
    "cgroup",
    "cmdline",
    "comm",
    "coredump_filter",
    "cpuset",
    "gid_map",
    "limits",
    "loginuid",
    "maps",
    "mountinfo",
    "mounts",
    "net",
    "numa_maps",
    "oom_adj",
    "oom_score",
    "oom_score_adj",
    "projid_map",
    "sched",
    "schedstat",
    "sessionid",
    "setgroups",
    "smaps",
    "smaps_rollup",
    "stat",
    "statm",
    "status",
    "task",
    "timens_offsets",
    "timers",
    "uid_map",
    "wchan",
];

/// A path that leads where the app's own paths do not: out of its root, or into a process, which the app's processes only reach with
/// what they may do themselves.
pub(super) fn is_outside(path: &[u8]) -> bool {
    let Some(inner) = path.strip_prefix(b"/") else { return true };
    let mut names = inner.split(|byte| *byte == b'/');
    let is_name = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && !name.contains(&0);
    let of_process = path.strip_prefix(b"/proc/").is_some_and(|rest| rest.first().is_some_and(u8::is_ascii_digit));
    of_process || !(inner.is_empty() || names.all(is_name))
}

/// `PID/name…` or `PID/task/PID/name…`, where name is of [`OF_PROCESS`]: gives the process.
fn of_process(path: &[u8]) -> Option<i32> {
    let path = std::str::from_utf8(path).ok()?.strip_prefix("/proc/")?;
    let (pid, rest) = path.split_once('/').unwrap_or((path, ""));
    let rest = match rest.strip_prefix("task/") {
        Some(thread) => thread.strip_prefix(pid)?.trim_start_matches('/'),
        None => rest,
    };
    let (name, below) = rest.split_once('/').unwrap_or((rest, ""));
    let plain = OF_PROCESS.contains(&name) && (below.is_empty() || name == "net") && !below.contains("..");
    plain.then(|| pid.parse().ok())?
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

impl Vetting<'_> {
    /// What is at a path is opened as the app could open it (`descriptors/src/filesystem/root.rs`), so here it only must be one of the app's own.
    pub(super) fn path(&mut self, state: &mut PathState) {
        let PathState { path, device: _, inode: _, mode, bytes: _, modified_ns: _, gone } = state;
        self.sure(!is_outside(path), || format!("{}, which no app has", shown(path)));
        if let Some((user, group)) = gone {
            let empty = matches!(FileType::from_raw_mode(*mode), FileType::Directory | FileType::Fifo);
            self.sure(empty, || format!("{} is gone, and was no empty directory", shown(path)));
            self.owners(user, group);
        }
    }

    /// Ids of the machine that it was captured on, which has others for each app: they become those of the app's root here.
    fn owners(&self, user: &mut u32, group: &mut u32) {
        for id in [user, group] {
            if *id >= USERS || !self.bounds.user_namespace {
                *id = self.bounds.first_id;
            }
        }
    }

    pub(super) fn open_file(&mut self, file: &mut OpenFile) {
        let OpenFile { kind, flags, position: _, owner, locks } = file;
        self.sure(*flags & !FLAGS == 0, || format!("an open file with flags {flags:#o}"));
        let Owner { kind: owner_kind, id, signal } = owner;
        // Signals to it are sent with the rights of who sets it: the restorer's.
        let own = *id == 0 || (self.ids.contains(id) && OWNERS.contains(owner_kind));
        self.sure(own && (0..=64).contains(signal), || format!("a file whose events are told to process {id}"));
        for lock in locks {
            self.lock(lock);
        }
        self.kind(kind, *flags);
    }

    fn lock(&mut self, lock: &FileLock) {
        let FileLock { kind, mode, pid, start: _, bytes: _ } = lock;
        match kind {
            LockKind::Flock => self.sure(*pid == 0 || self.ids.contains(pid), || format!("a lock of process {pid}")),
            LockKind::OpenFile => {}
            LockKind::Posix => self.sure(self.ids.contains(pid), || format!("a lock of process {pid}")),
            LockKind::Lease => {
                // Of a file of its own; its owner needs no capability, and others' files are not in reach.
                let own = self.bounds.user_namespace || self.bounds.has(capability::LEASE);
                self.sure(own, || "a lease without CAP_LEASE".to_owned());
            }
        }
        self.sure((0..=2).contains(mode), || format!("a lock of mode {mode}"));
    }

    fn kind(&mut self, kind: &mut FileKind, flags: u32) {
        match kind {
            FileKind::Path(state) => {
                self.path(state);
                self.device(state, flags);
            }
            FileKind::Pipe { pipe: _, end } => self.end(*end),
            FileKind::Fifo { path, pipe: _, end } => {
                self.path(path);
                self.end(*end);
            }
            FileKind::Event { count, semaphore: _ } => {
                self.sure(*count < u64::MAX, || "an eventfd with a count that cannot be".to_owned());
            }
            FileKind::Epoll { members } => {
                // What is behind them is vetted by itself.
                for EpollMember { fd: _, file: _, events: _, data: _ } in members {}
            }
            FileKind::Signal { mask: _ } => {}
            FileKind::Timer { clock, settime_flags: _, ticks: _, left_ns: _, interval_ns: _ } => {
                let alarm = ALARM_CLOCKS.contains(clock) && self.bounds.has_on_machine(capability::WAKE_ALARM);
                self.sure(CLOCKS.contains(clock) || alarm, || format!("a timer with clock {clock}"));
            }
            FileKind::Inotify { watches } => {
                for InotifyWatch { watch, mask: _, path } in watches {
                    self.sure((1..=HIGHEST_WATCH).contains(watch), || format!("inotify watch number {watch}"));
                    self.path(path);
                }
            }
            // Vetted where they are listed, or named in the tree.
            FileKind::Memory { memory: _ } | FileKind::Process { pid: _ } => {}
            FileKind::Unix(socket) => self.unix(socket),
            FileKind::Inet(socket) => self.inet(socket),
            FileKind::Netlink { kind, port: _, groups, options } => self.netlink(*kind, groups, options),
            FileKind::Packet(socket) => self.packet(socket),
            // Nobody makes it again: the program finds it closed.
            FileKind::Outside { name: _ } => {}
            FileKind::OfProcess { path } => {
                // It is opened by its process before that has given up what the restorer may do.
                let own = of_process(path).is_some_and(|pid| self.ids.contains(&pid)) && flags & 3 == 0;
                self.sure(own, || format!("{}, which no app has", shown(path)));
            }
            FileKind::Master(terminal) => self.terminal(terminal),
            FileKind::Slave { master: _ } => {}
            FileKind::Ended { process: _, status: _ } => {}
            // Handles are those of the other machine, and one that an enemy wrote opens any file of a disk.
            FileKind::Handle { state, handle: _ } => {
                self.refuse(format!("{}, found by its handle", shown(&state.path)));
            }
            // An app's groups are kept by their descriptors alone: who makes one has the machine's right to it.
            FileKind::Fanotify { flags: _, event_flags: _, marks: _ } => self.refuse("a fanotify group"),
        }
    }

    fn end(&mut self, end: PipeEnd) {
        match end {
            PipeEnd::Read | PipeEnd::Write | PipeEnd::Both => {}
        }
    }

    /// Devices are open only where they have no state, or as a name.
    fn device(&mut self, state: &PathState, flags: u32) {
        let plain = match FileType::from_raw_mode(state.mode) {
            FileType::RegularFile | FileType::Directory => true,
            FileType::CharacterDevice => DEVICES.contains(&(major(state.bytes), minor(state.bytes))),
            FileType::BlockDevice | FileType::Fifo | FileType::Socket | FileType::Symlink | FileType::Unknown => false,
        };
        self.sure(plain || flags & PATH_ONLY != 0, || {
            format!("{}, which is no file or device that an app may open", shown(&state.path))
        });
    }

    fn terminal(&mut self, terminal: &mut Terminal) {
        let Terminal {
            path,
            number,
            settings,
            size: _,
            packets: _,
            locked: _,
            untouched: _,
            exclusive: _,
            mode,
            owner,
            typed,
            shown: output,
        } = terminal;
        let multiplexer = MULTIPLEXERS.contains(&&path.path[..]);
        self.sure(multiplexer, || format!("a terminal that is made by opening {}", shown(&path.path)));
        self.path(path);
        self.sure(*number < MOST_TERMINALS, || format!("terminal number {number}"));
        let sane = settings.len() == SETTINGS_BYTES && settings.get(DISCIPLINE) == Some(&0) && *mode & !0o777 == 0;
        self.sure(sane && typed.len().max(output.len()) <= TERMINAL_BYTES, || format!("terminal {number}"));
        self.owners(&mut owner.0, &mut owner.1);
    }

    pub(super) fn pipe(&mut self, pipe: &mut Pipe) {
        let Pipe { capacity, contents } = pipe;
        let most = self.bounds.machine.pipe_bytes;
        if *capacity > most {
            *capacity = most;
            self.lowered(format!("a pipe holds {most} bytes"));
        }
        let waiting: usize = contents.iter().map(Vec::len).sum();
        self.sure(waiting <= *capacity as usize, || format!("{waiting} bytes in a pipe"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_out_are_told_from_others() {
        for path in ["etc/passwd", "/../etc", "/a/../../b", "/a//b", "/a/./b", "/a\0", "", "/proc/1/mem", "/proc/7"] {
            assert!(is_outside(path.as_bytes()), "{path}");
        }
        for path in ["/", "/etc/passwd", "/proc", "/proc/meminfo", "/dev/shm/.x", "/proc2/1"] {
            assert!(!is_outside(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn files_of_processes_show_the_same_to_all() {
        let cases = ["7", "7/status", "7/task/7/stat", "7/net/tcp", "7/task", "7/maps"];
        for path in cases {
            assert_eq!(of_process(format!("/proc/{path}").as_bytes()), Some(7), "{path}");
        }
        for path in ["7/mem", "7/root/etc", "7/fd/3", "7/task/8/stat", "7/net/../mem", "self/stat", "7/exe", "7/ns/net"]
        {
            assert_eq!(of_process(format!("/proc/{path}").as_bytes()), None, "{path}");
        }
    }
}
