//! Files with a name: regular files, directories, devices, and what is open with `O_PATH` only.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{
    CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, SeekFrom, Stat, Timespec, Timestamps, UTIME_OMIT,
    fcntl_setfl, fstat, fstatfs, futimens, major, minor, mkdirat, mknodat, openat, openat2, seek,
};
use rustix::io::Errno;
use torpor_image::tree::{FileKind, OpenFile, PathState};
use torpor_linux::handle;

use super::charge::Charge;
use super::collect::{Described, Why};
use super::list::Item;
use super::pipe::reopen;
use super::removed::Removed;
use super::{EachMade, MakeError, Request, opener, private};
use crate::view::View;

/// Behind the link of a file whose name has been removed.
const GONE: &[u8] = b" (deleted)";

/// Set in the flags of files made with `O_TMPFILE`, beside `O_DIRECTORY`.
const TEMPORARY: u32 = 0o20_000_000;
const DIRECTORY: u32 = 0o200_000;
/// `O_ASYNC`: set when it is known who is to be told.
pub(super) const ASYNC: u32 = 0o20_000;

/// File systems whose files are made up when they are opened: numbers and times say nothing.
const MADE_UP: [i64; 8] = [
    PROC_SUPER_MAGIC,
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0x6165_676c, // pstore
];
const MESSAGE_QUEUES: i64 = 0x1980_0202;
/// File systems of kernel objects that are not files: what they are, and their number.
const OBJECTS: [(i64, &str); 4] = [
    (0x6e73_6673, "a namespace's descriptor"),
    (MESSAGE_QUEUES, "a POSIX message queue"),
    (0xcafe_4a11, "a pinned BPF object"),
    (0x5346_544e, "a file of NTFS"),
];
/// Devices without state: null, zero, full, random, urandom.
const PLAIN_DEVICES: [(u32, u32); 5] = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9)];
/// Devices whose state belongs to the open file alone: tun, fuse.
const KEPT_DEVICES: [(u32, u32); 2] = [(10, 200), (10, 229)];
/// `/dev/ptmx`.
const PTY_MASTER: (u32, u32) = (5, 2);
/// Terminals: virtual and serial ones, `/dev/tty` and `/dev/console`, slaves of pseudo-terminals.
const TERMINALS: [u32; 12] = [4, 5, 136, 137, 138, 139, 140, 141, 142, 143, 204, 229];

/// Where the tree's paths begin.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Root<'a> {
    /// At our own root.
    Own,
    /// At this directory, from which nothing leads out.
    At(BorrowedFd<'a>),
}

impl Root<'_> {
    /// Opens a path that holds no symbolic links; an app's without the machine's capabilities ([`opener`]).
    pub(crate) fn open(self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        let open = |directory: BorrowedFd<'_>, within| {
            openat2(directory, path_of(path), flags, Mode::empty(), ResolveFlags::NO_SYMLINKS | within)
        };
        match self {
            Self::Own => open(CWD, ResolveFlags::empty()),
            Self::At(root) => {
                let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
                if flags.contains(OFlags::PATH) { open(root, within) } else { opener::as_app(|| open(root, within))? }
            }
        }
    }

    /// Why an app could not have opened a file so, if this is an app's root.
    pub(crate) fn forbids(self, stat: &Stat, flags: OFlags) -> Option<&'static str> {
        let forbidden = matches!(self, Self::At(_)) && opener::is_forbidden(stat, flags);
        forbidden.then_some("its programs may not open it")
    }

    /// Opens a path to look at it.
    pub(super) fn look(self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        self.open(path, OFlags::PATH | OFlags::NOFOLLOW)
    }
}

/// Where and when a tree's files are opened again.
#[derive(Clone, Copy)]
pub(crate) struct Around<'a> {
    /// Where its paths begin.
    pub(crate) root: Root<'a>,
    /// The machine has not been started anew since the image was made.
    pub(crate) same_boot: bool,
    /// How much time has passed since then, where timers are to count it: an app's after a reboot.
    pub(crate) passed: Option<Duration>,
    /// Directories that had been removed, made already.
    pub(crate) removed: Option<&'a Removed>,
    /// Whose memory the contents of memory files are; `None`: the restorer's.
    pub(crate) charge: Option<&'a Charge<'a>>,
    /// Told of each piece of the contents of files that is there.
    pub(crate) piece: Option<EachMade<'a>>,
}

pub(super) fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// What is at a path, for the image.
pub(crate) fn state(path: &[u8], stat: &Stat) -> PathState {
    let device = matches!(FileType::from_raw_mode(stat.st_mode), FileType::CharacterDevice | FileType::BlockDevice);
    PathState {
        path: path.to_vec(),
        device: stat.st_dev,
        inode: stat.st_ino,
        mode: stat.st_mode,
        bytes: if device { stat.st_rdev } else { stat.st_size as u64 },
        modified_ns: stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as i64),
        gone: None,
    }
}

/// Sets the times of an open file; `None` leaves that of the last access.
pub(super) fn set_times(fd: BorrowedFd<'_>, accessed_ns: Option<i64>, modified_ns: i64) -> rustix::io::Result<()> {
    const SECOND_NS: i64 = 1_000_000_000;
    const OMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT as _ };
    let time = |ns: i64| Timespec { tv_sec: ns.div_euclid(SECOND_NS), tv_nsec: ns.rem_euclid(SECOND_NS) };
    let times = Timestamps { last_access: accessed_ns.map_or(OMIT, time), last_modification: time(modified_ns) };
    futimens(fd, &times)
}

/// It is a file, and not an object of the kernel's that looks like one.
pub(super) fn is_file(item: &Item) -> Described<()> {
    let system = fstatfs(&item.fd)?.f_type;
    match OBJECTS.iter().find(|(kind, _)| *kind == system) {
        None => Ok(()),
        Some((_, what)) => {
            let what = format!("{what} ({}) is not taken yet", item.name());
            const REMEDY: &str = "close it before the checkpoint";
            // A queue tells one process when a message comes, by its id.
            Err(if system == MESSAGE_QUEUES && notifies(item)? {
                Why::refused(format!("{what}, and its process wants to be told of messages"), REMEDY)
            } else {
                Why::kept(what, REMEDY)
            })
        }
    }
}

/// Somebody is to be told of messages in a queue (`mq_notify(3)`): `QSIZE:0 NOTIFY:0 SIGNO:0 NOTIFY_PID:0`.
fn notifies(item: &Item) -> Described<bool> {
    let file = std::fs::File::open(format!("/proc/self/fd/{}", item.fd.as_raw_fd()))?;
    let mut text = [0; 128];
    let read = std::os::unix::fs::FileExt::read_at(&file, &mut text, 0)?;
    let text = String::from_utf8_lossy(&text[..read]).into_owned();
    let whom = text.split_ascii_whitespace().find_map(|word| word.strip_prefix("NOTIFY_PID:"));
    Ok(whom != Some("0"))
}

/// A file by its name, or what is left of one that has lost it.
pub(super) fn describe(request: &Request<'_>, item: &Item) -> Described<FileKind> {
    is_file(item)?;
    let system = fstatfs(&item.fd)?.f_type;
    if let Some((process, rest)) = of_process(&item.link).filter(|_| system == PROC_SUPER_MAGIC) {
        return proc_file(request, item, process, rest);
    }
    if let Some(state) = removed(&item.link, &item.stat).filter(|_| !MADE_UP.contains(&system)) {
        return Ok(FileKind::Path(state));
    }
    match has_name(request.view, item) {
        Err(Why::Kept { .. }) if has_another(item) => match handle::of(&item.fd)? {
            Some(handle) => Ok(FileKind::Handle { state: state(without_mark(&item.link), &item.stat), handle }),
            None => has_name(request.view, item).map(|()| FileKind::Path(state(&item.link, &item.stat))),
        },
        other => other.map(|()| FileKind::Path(state(&item.link, &item.stat))),
    }
}

/// It is the master of a pseudo-terminal.
pub(super) fn is_master(item: &Item) -> bool {
    FileType::from_raw_mode(item.stat.st_mode) == FileType::CharacterDevice
        && (major(item.stat.st_rdev), minor(item.stat.st_rdev)) == PTY_MASTER
        && item.info.flags & OFlags::PATH.bits() == 0
}

/// A file of `/proc` that belongs to a process: `rest` is the path behind its id.
fn proc_file(request: &Request<'_>, item: &Item, process: i32, rest: &[u8]) -> Described<FileKind> {
    let refused = |what: &str, remedy: &str| Err(Why::refused(format!("{} {what}", item.name()), remedy));
    if !request.ids.values().any(|id| *id == process) {
        return refused("belongs to a process outside of the tree", "close it before the checkpoint");
    }
    // Threads and descriptors are made when the process's files are open.
    let mut parts = rest.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    let later = match (parts.next(), parts.next()) {
        (Some(b"task"), Some(thread)) => thread != process.to_string().as_bytes(),
        (Some(b"fdinfo"), number) => number.is_some(),
        _ => false,
    };
    if later {
        return refused("belongs to what is not there when it would be opened", "close it before the checkpoint");
    }
    // While an app's processes are built, its own files are the machine's: only those that all may read can be opened.
    const READ_BY_ALL: u32 = 0o004;
    let for_all = item.stat.st_mode & READ_BY_ALL != 0 && item.info.flags & OFlags::RWMODE.bits() == 0;
    if request.view.keeps_files() && !for_all {
        return refused("may only be opened by its process", "close it before the checkpoint");
    }
    Ok(FileKind::OfProcess { path: item.link.clone() })
}

/// A regular file that has another name than the one it was opened by.
fn has_another(item: &Item) -> bool {
    FileType::from_raw_mode(item.stat.st_mode) == FileType::RegularFile && item.stat.st_nlink > 0
}

/// A link's path without the mark of those that have lost their name.
pub(super) fn without_mark(link: &[u8]) -> &[u8] {
    link.strip_suffix(GONE).unwrap_or(link)
}

/// What is known of a directory or FIFO that has been removed: there is nothing in it, so that another will do.
pub(crate) fn removed(link: &[u8], stat: &Stat) -> Option<PathState> {
    let empty = matches!(FileType::from_raw_mode(stat.st_mode), FileType::Directory | FileType::Fifo);
    let path = link.strip_suffix(GONE).filter(|_| empty && stat.st_nlink == 0)?;
    Some(PathState { gone: Some((stat.st_uid, stat.st_gid)), ..state(path, stat) })
}

/// Makes a directory or FIFO that had been removed: by its name if that is free, in its directory or the nearest above it that
/// is there; opens and removes it.
pub(crate) fn made_and_removed(
    state: &PathState,
    owner: (u32, u32),
    flags: OFlags,
    root: Root<'_>,
) -> rustix::io::Result<OwnedFd> {
    let whole = path_of(&state.path);
    let kind = FileType::from_raw_mode(state.mode);
    for above in whole.ancestors().skip(1) {
        let above = match root.open(above.as_os_str().as_bytes(), OFlags::PATH | OFlags::DIRECTORY) {
            Err(Errno::NOENT | Errno::NOTDIR) => continue,
            other => other?,
        };
        let make = |name: &OsStr| match kind {
            FileType::Directory => mkdirat(&above, name, Mode::RWXU),
            _ => mknodat(&above, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0),
        };
        let own = whole.file_name().unwrap_or_default();
        let name = match make(own) {
            Err(Errno::EXIST) => private::with_fresh_name(private::PREFIX, |name| make(OsStr::new(name)))?.0.into(),
            made => made.map(|()| own.to_owned())?,
        };
        let made = private::just_made(&above, &name, kind)?;
        let opened = match kind {
            FileType::Directory => openat(&made, ".", flags | OFlags::CLOEXEC, Mode::empty()),
            _ => reopen(made.as_fd(), flags.bits()),
        };
        // Only when nobody reaches it by a name is it given to somebody.
        private::remove_name(&above, &name, &made)?;
        private::set_owner_and_mode(&made, Some(owner), state.mode)?;
        return opened;
    }
    Err(Errno::NOENT)
}

/// Opens a file that has lost the name it was opened by, as it was open.
pub(super) fn make_by_handle(
    was: &PathState,
    handle: &(i32, Vec<u8>),
    file: &OpenFile,
    around: Around<'_>,
) -> Result<OwnedFd, MakeError> {
    let name = text(was);
    let mut found = Err(Errno::STALE.into());
    for above in path_of(&was.path).ancestors().skip(1) {
        let Ok(above) = around.root.open(above.as_os_str().as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY) else {
            continue;
        };
        found = handle::open(&above, handle.0, &handle.1);
        if found.is_ok() {
            break;
        }
    }
    let found = found.map_err(MakeError::at("finding the other name of", &*name))?;
    let stat = fstat(&found).map_err(MakeError::at("looking at", &*name))?;
    if let Some(how) = difference(was, &stat, false, around.same_boot) {
        return Err(MakeError::Changed { path: name, how });
    }
    let flags = OFlags::from_bits_retain(reopened(file.flags));
    if flags.contains(OFlags::PATH) {
        return Ok(found);
    }
    let opened = reopen(found.as_fd(), (flags - OFlags::NOFOLLOW).bits()).map_err(MakeError::at("opening", &*name))?;
    seek(&opened, SeekFrom::Start(file.position)).map_err(MakeError::at("finding the position in", name))?;
    Ok(opened)
}

/// A device node.
pub(super) fn device(request: &Request<'_>, item: &Item) -> Described<FileKind> {
    let number = (major(item.stat.st_rdev), minor(item.stat.st_rdev));
    let character = FileType::from_raw_mode(item.stat.st_mode) == FileType::CharacterDevice;
    if character && PLAIN_DEVICES.contains(&number) {
        return describe(request, item);
    }
    const TTY: (u32, u32) = (5, 0);
    if character && number == TTY && !request.view.keeps_files() {
        return Ok(FileKind::OfProcess { path: item.link.clone() });
    }
    if character && TERMINALS.contains(&number.0) {
        let remedy =
            "only standard input, output and error may be terminals; redirect it, or start the program with setsid";
        return Err(Why::outside(format!("terminal {}", item.name()), remedy));
    }
    let (kind, name) = (if character { "character" } else { "block" }, item.name());
    let what = format!("{kind} device {}:{} ({name}) may have state that cannot be seen", number.0, number.1);
    const REMEDY: &str = "close it before the checkpoint";
    let can_be_kept = character && KEPT_DEVICES.contains(&number);
    Err(if can_be_kept { Why::kept(what, REMEDY) } else { Why::refused(what, REMEDY) })
}

/// `/proc/123/…`, `/proc/self` and `/proc/net` being links to such: the process, and what follows.
fn of_process(path: &[u8]) -> Option<(i32, &[u8])> {
    let path = path.strip_prefix(b"/proc/")?;
    let end = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
    let (process, rest) = path.split_at(end);
    Some((std::str::from_utf8(process).ok()?.parse().ok()?, rest))
}

/// The file's name leads to it.
fn has_name(view: &View, item: &Item) -> Described<()> {
    let name = item.name();
    match view.stat(&item.link) {
        Ok(found) if same(&found, &item.stat) => return Ok(()),
        Ok(_) => {
            let what = format!("{name} is another file now (replaced, or mounted over)");
            return Err(Why::kept(what, "let the program open it again"));
        }
        Err(_) => {}
    }
    let what = if FileType::from_raw_mode(item.stat.st_mode) == FileType::Directory {
        format!("directory {name}, which cannot be made again")
    } else if item.stat.st_nlink > 0 {
        format!("{name} has lost the name that it was opened by, but has another one")
    } else {
        format!("{name} cannot be found under its name")
    };
    Err(Why::kept(what, "let the program close it"))
}

fn same(a: &Stat, b: &Stat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}

/// What differs between what was at a path and what is there.
pub(crate) fn difference(was: &PathState, is: &Stat, made_up: bool, same_boot: bool) -> Option<&'static str> {
    let kind = FileType::from_raw_mode(is.st_mode);
    let now = state(&was.path, is);
    if kind != FileType::from_raw_mode(was.mode) {
        return Some("it is of another kind");
    }
    if made_up {
        return None;
    }
    match kind {
        FileType::CharacterDevice | FileType::BlockDevice => (was.bytes != now.bytes).then_some("it is another device"),
        // Numbers of devices are given anew at every boot.
        _ if !was.is_inode(now.inode) || (same_boot && was.device != now.device) => Some("it is another file"),
        FileType::RegularFile if was.bytes != now.bytes => Some("its length has changed"),
        FileType::RegularFile if was.modified_ns != now.modified_ns => Some("it has been written to"),
        _ => None,
    }
}

/// The path, for people.
pub(super) fn text(state: &PathState) -> String {
    String::from_utf8_lossy(&state.path).into_owned()
}

/// Whether a file lives on a file system that makes its files up.
pub(crate) fn is_made_up(fd: &OwnedFd) -> rustix::io::Result<bool> {
    Ok(MADE_UP.contains(&fstatfs(fd)?.f_type))
}

/// Flags to open a file with that is there: as it was open, without what made it (`O_TMPFILE`).
pub(super) fn reopened(flags: u32) -> u32 {
    let made = if flags & TEMPORARY != 0 { TEMPORARY | DIRECTORY } else { 0 };
    flags & !(ASYNC | made)
}

/// Opening it never waits, however it is opened.
fn waits_for_nobody(state: &PathState) -> bool {
    matches!(FileType::from_raw_mode(state.mode), FileType::RegularFile | FileType::Directory)
}

/// Opens a file that has a name, as it was open.
pub(super) fn make(state: &PathState, file: &OpenFile, around: Around<'_>) -> Result<OwnedFd, MakeError> {
    let flags = OFlags::from_bits_retain(reopened(file.flags));
    let flags = if flags.contains(OFlags::PATH) { flags } else { flags | OFlags::NOCTTY };
    if let Some(owner) = state.gone {
        let made = match around.removed.and_then(|removed| removed.open(state, flags)) {
            Some(opened) => opened,
            None => made_and_removed(state, owner, flags, around.root),
        };
        return made.map_err(MakeError::at("making", text(state)));
    }
    // Whatever lies there by now, a FIFO for one, does not hold us up; and nothing else is changed by being opened.
    let no_wait = !flags.intersects(OFlags::PATH | OFlags::NONBLOCK) && waits_for_nobody(state);
    let opened = around.root.open(&state.path, if no_wait { flags | OFlags::NONBLOCK } else { flags });
    let opened = opened.map_err(MakeError::at("opening", text(state)))?;
    let look = |error| MakeError::at("looking at", text(state))(error);
    let (stat, made_up) = (fstat(&opened).map_err(look)?, is_made_up(&opened).map_err(look)?);
    let forbidden = around.root.forbids(&stat, flags);
    if let Some(how) = forbidden.or_else(|| difference(state, &stat, made_up, around.same_boot)) {
        return Err(MakeError::Changed { path: text(state), how });
    }
    if no_wait {
        fcntl_setfl(&opened, flags).map_err(MakeError::at("setting flags of", text(state)))?;
    }
    if file.position != 0 && !flags.contains(OFlags::PATH) {
        seek(&opened, SeekFrom::Start(file.position)).map_err(MakeError::at("finding the position in", text(state)))?;
    }
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_processes_are_told_from_the_machines() {
        assert_eq!(of_process(b"/proc/123/maps"), Some((123, &b"/maps"[..])));
        assert_eq!(of_process(b"/proc/1"), Some((1, &b""[..])));
        assert!([&b"/proc/meminfo"[..], b"/proc", b"/proc/"].iter().all(|path| of_process(path).is_none()));
    }

    #[test]
    fn differences_are_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let stat = fstat(&file).unwrap();
        let was = state(b"/x", &stat);
        assert_eq!(difference(&was, &stat, false, true), None);
        let other = |change: fn(&mut PathState)| {
            let mut was = was.clone();
            change(&mut was);
            was
        };
        assert!(difference(&other(|was| was.inode += 1), &stat, false, true).is_some());
        assert!(difference(&other(|was| was.inode = 0), &stat, false, true).is_none());
        assert!(difference(&other(|was| was.device += 1), &stat, false, true).is_some());
        assert!(difference(&other(|was| was.device += 1), &stat, false, false).is_none());
        assert!(difference(&other(|was| was.bytes += 1), &stat, false, true).is_some());
        assert!(difference(&other(|was| was.modified_ns += 1), &stat, false, true).is_some());
        assert!(difference(&other(|was| was.modified_ns += 1), &stat, true, true).is_none());
        assert!(difference(&other(|was| was.mode = 0o40_755), &stat, true, true).is_some());
    }
}
