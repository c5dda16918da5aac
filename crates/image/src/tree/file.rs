//! Descriptors and what is open behind them.

use serde::{Deserialize, Serialize};

use super::frugal;
use super::{Bytes, FileId, InetSocket, MemoryId, PacketSocket, PathState, PipeId, SocketOption, UnixSocket};

/// A process's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// Its number.
    pub fd: i32,
    /// What is open behind it.
    pub file: FileId,
    /// `FD_CLOEXEC`.
    pub close_on_exec: bool,
}

/// An open file description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// What it is.
    pub kind: FileKind,
    /// Status flags and access mode, as `F_GETFL` and `/proc/PID/fdinfo` have them.
    pub flags: u32,
    /// Offset; 0 where there is none.
    pub position: u64,
    /// `F_SETOWN_EX` and `F_SETSIG`.
    pub owner: Owner,
    /// `flock(2)`, OFD locks and leases of this description, POSIX locks with the process that holds them.
    #[serde(deserialize_with = "frugal::list")]
    pub locks: Vec<FileLock>,
}

/// Who gets `SIGIO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// `F_OWNER_TID`, `_PID` or `_PGRP`.
    pub kind: i32,
    /// Id; 0: nobody.
    pub id: i32,
    /// `F_SETSIG`; 0: `SIGIO`.
    pub signal: i32,
}

/// A lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLock {
    /// Kind.
    pub kind: LockKind,
    /// `F_RDLCK`, `F_WRLCK` (for `flock`: `LOCK_SH`, `LOCK_EX` in this form).
    pub mode: i32,
    /// Process that holds it, for POSIX locks; 0 for the others.
    pub pid: i32,
    /// First byte.
    pub start: u64,
    /// Bytes; 0: to the end.
    pub bytes: u64,
}

/// Kinds of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockKind {
    /// `flock(2)`.
    Flock,
    /// `fcntl(2)`, of a process.
    Posix,
    /// `F_OFD_SETLK`.
    OpenFile,
    /// `F_SETLEASE`.
    Lease,
}

/// What is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// A regular file, a directory, a device or anything opened with `O_PATH`, that still has its name.
    Path(PathState),
    /// A pipe's end.
    Pipe {
        /// Which pipe.
        pipe: PipeId,
        /// Which end.
        end: PipeEnd,
    },
    /// A FIFO's end.
    Fifo {
        /// Its name.
        path: PathState,
        /// Which pipe is behind it.
        pipe: PipeId,
        /// Which end.
        end: PipeEnd,
    },
    /// `eventfd(2)`.
    Event {
        /// Counter.
        count: u64,
        /// `EFD_SEMAPHORE`.
        semaphore: bool,
    },
    /// `epoll_create(2)`.
    Epoll {
        /// What it watches.
        #[serde(deserialize_with = "frugal::list")]
        members: Vec<EpollMember>,
    },
    /// `signalfd(2)`.
    Signal {
        /// Signals that it takes.
        mask: u64,
    },
    /// `timerfd_create(2)`.
    Timer {
        /// Clock.
        clock: i32,
        /// Flags of `timerfd_settime`.
        settime_flags: i32,
        /// Expirations that have not been read.
        ticks: u64,
        /// What is left, nanoseconds; 0: not armed.
        left_ns: u64,
        /// Interval, nanoseconds.
        interval_ns: u64,
    },
    /// `inotify_init(2)`.
    Inotify {
        /// What it watches.
        #[serde(deserialize_with = "frugal::list")]
        watches: Vec<InotifyWatch>,
    },
    /// A file that lives by being open: a memfd, a deleted file, shared memory opened through `/proc/PID/map_files`.
    Memory {
        /// Which.
        memory: MemoryId,
    },
    /// `pidfd_open(2)`.
    Process {
        /// A process of the tree.
        pid: i32,
    },
    /// A unix socket.
    #[serde(deserialize_with = "frugal::boxed")]
    Unix(Box<UnixSocket>),
    /// A TCP, UDP or raw socket.
    #[serde(deserialize_with = "frugal::boxed")]
    Inet(Box<InetSocket>),
    /// A netlink socket.
    Netlink {
        /// Type and protocol, as given to `socket(2)`.
        kind: (i32, i32),
        /// Port id; 0: not bound.
        port: u32,
        /// Multicast groups.
        #[serde(deserialize_with = "frugal::list")]
        groups: Vec<u32>,
        /// Its options.
        #[serde(deserialize_with = "frugal::list")]
        options: Vec<SocketOption>,
    },
    /// A descriptor that was handed in from outside of the tree (standard streams of a plain process): whoever restores gives it.
    Outside {
        /// What it was, for people: the link in `/proc/PID/fd`.
        name: String,
    },
    /// A file of `/proc` that belongs to a process or thread of the tree: the process that has it open opens it.
    OfProcess {
        /// Its path.
        #[serde(deserialize_with = "frugal::list")]
        path: Bytes,
    },
    /// The master of a pseudo-terminal.
    #[serde(deserialize_with = "frugal::boxed")]
    Master(Box<Terminal>),
    /// The other end of a pseudo-terminal.
    Slave {
        /// Its master.
        master: FileId,
    },
    /// A file that has lost the name it was opened by and has another one.
    Handle {
        /// What it was, by its old name.
        state: PathState,
        /// Kind and bytes of its handle: `name_to_handle_at(2)`.
        handle: (i32, Bytes),
    },
    /// A packet socket.
    #[serde(deserialize_with = "frugal::boxed")]
    Packet(Box<PacketSocket>),
    /// `pidfd_open(2)` of a process that has ended and been waited for.
    Ended {
        /// Which: descriptors of one process have the same number here.
        process: u64,
        /// What `waitpid` gave.
        status: i32,
    },
    /// `fanotify_init(2)`.
    Fanotify {
        /// Flags of the group.
        flags: u32,
        /// Flags of the files that come with its events.
        event_flags: u32,
        /// What it watches.
        #[serde(deserialize_with = "frugal::list")]
        marks: Vec<FanotifyMark>,
    },
}

/// A pseudo-terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    /// What is opened to make one: `/dev/ptmx`.
    pub path: PathState,
    /// Its number: `/dev/pts/N`.
    pub number: u32,
    /// `struct termios2`.
    #[serde(deserialize_with = "frugal::list")]
    pub settings: Bytes,
    /// Rows, columns, and both in pixels.
    pub size: [u16; 4],
    /// Packet mode.
    pub packets: bool,
    /// The slave cannot be opened.
    pub locked: bool,
    /// Nobody has opened the slave yet: the master waits for that, and is not hung up.
    pub untouched: bool,
    /// Nobody else can open it (`TIOCEXCL`): master and slave, each with a mark of its own.
    pub exclusive: (bool, bool),
    /// Permission bits of the slave.
    pub mode: u32,
    /// User and group of the slave.
    pub owner: (u32, u32),
    /// What was written to the master, and has not been read.
    #[serde(deserialize_with = "frugal::list")]
    pub typed: Bytes,
    /// What was written to the slave, and has not been read.
    #[serde(deserialize_with = "frugal::list")]
    pub shown: Bytes,
}

/// Ends of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PipeEnd {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Both (a FIFO opened with `O_RDWR`).
    Both,
}

/// A pipe's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pipe {
    /// `F_GETPIPE_SZ`, bytes.
    pub capacity: u32,
    /// What has been written and not read. With `O_DIRECT`, a string for each packet.
    #[serde(deserialize_with = "frugal::list")]
    pub contents: Vec<Bytes>,
}

/// A registration in an epoll descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpollMember {
    /// Number that it was registered under.
    pub fd: i32,
    /// What is open behind it.
    pub file: FileId,
    /// `EPOLL*`.
    pub events: u32,
    /// The program's own.
    pub data: u64,
}

/// A watch of an inotify descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InotifyWatch {
    /// Its number.
    pub watch: i32,
    /// `IN_*`.
    pub mask: u32,
    /// What is watched.
    pub path: PathState,
}

/// A mark of a fanotify group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FanotifyMark {
    /// How much is watched.
    pub extent: MarkExtent,
    /// `FAN_MARK_*` that it was made with.
    pub flags: u32,
    /// Events that are told.
    pub mask: u32,
    /// Events that are not.
    pub ignored: u32,
    /// What is watched, or the directory that the mount is at.
    pub path: PathState,
}

/// What a mark of a fanotify group is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MarkExtent {
    /// A file or directory.
    Inode,
    /// A mount.
    Mount,
    /// A whole file system.
    FileSystem,
}
