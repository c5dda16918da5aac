//! The dump: a file under its name, by its handle, or of a process in `/proc`.

use std::os::fd::AsRawFd;

use rustix::fs::{FileType, OFlags, PROC_SUPER_MAGIC, Stat, fstatfs, major, minor};
use torpor_image::tree::FileKind;
use torpor_linux::handle;
use torpor_process::view::View;

use crate::contract::Request;
use crate::contract::reason::{Described, Reason};
use crate::filesystem::{MADE_UP, removed, state, without_mark};
use crate::list::Item;

const MESSAGE_QUEUES: i64 = 0x1980_0202;

/// File systems of kernel objects that are not files: what they are, and their number.
const OBJECTS: [(i64, &str); 4] = [
    (0x6e73_6673, "a namespace's descriptor"),
    (MESSAGE_QUEUES, "a POSIX message queue"),
    (0xcafe_4a11, "a pinned BPF object"),
    (0x5346_544e, "a file of NTFS"),
];

/// It is a file, and not an object of the kernel's that looks like one.
pub(crate) fn is_file(item: &Item) -> Described<()> {
    let system = fstatfs(&item.fd)?.f_type;
    match OBJECTS.iter().find(|(kind, _)| *kind == system) {
        None => Ok(()),
        Some((_, what)) => {
            let what = format!("{what} ({}) is not taken yet", item.name());
            const REMEDY: &str = "close it before the checkpoint";
            // A queue tells one process when a message comes, by its id.
            Err(if system == MESSAGE_QUEUES && notifies(item)? {
                Reason::refused(format!("{what}, and its process wants to be told of messages"), REMEDY)
            } else {
                Reason::parkable(what, REMEDY)
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

/// Devices without state: null, zero, full, random, urandom.
const PLAIN_DEVICES: [(u32, u32); 5] = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9)];

/// Devices whose state belongs to the open file alone: tun, fuse.
const KEPT_DEVICES: [(u32, u32); 2] = [(10, 200), (10, 229)];

/// Terminals: virtual and serial ones, `/dev/tty` and `/dev/console`, slaves of pseudo-terminals.
const TERMINALS: [u32; 12] = [4, 5, 136, 137, 138, 139, 140, 141, 142, 143, 204, 229];

/// A file by its name, or what is left of one that has lost it.
pub(crate) fn describe(request: &Request<'_>, item: &Item) -> Described<FileKind> {
    is_file(item)?;
    let system = fstatfs(&item.fd)?.f_type;
    if let Some((process, rest)) = of_process(&item.link).filter(|_| system == PROC_SUPER_MAGIC) {
        return proc_file(request, item, process, rest);
    }
    if let Some(state) = removed(&item.link, &item.stat).filter(|_| !MADE_UP.contains(&system)) {
        return Ok(FileKind::Path(state));
    }
    match has_name(request.view, item) {
        Err(Reason::Parkable { .. }) if has_another(item) => match handle::of(&item.fd)? {
            Some(handle) => Ok(FileKind::Handle { state: state(without_mark(&item.link), &item.stat), handle }),
            None => has_name(request.view, item).map(|()| FileKind::Path(state(&item.link, &item.stat))),
        },
        other => other.map(|()| FileKind::Path(state(&item.link, &item.stat))),
    }
}

/// A file of `/proc` that belongs to a process: `rest` is the path behind its id.
fn proc_file(request: &Request<'_>, item: &Item, process: i32, rest: &[u8]) -> Described<FileKind> {
    let refused = |what: &str, remedy: &str| Err(Reason::refused(format!("{} {what}", item.name()), remedy));
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
    if request.view.in_sandbox() && !for_all {
        return refused("may only be opened by its process", "close it before the checkpoint");
    }
    Ok(FileKind::OfProcess { path: item.link.clone() })
}

/// A regular file that has another name than the one it was opened by.
fn has_another(item: &Item) -> bool {
    FileType::from_raw_mode(item.stat.st_mode) == FileType::RegularFile && item.stat.st_nlink > 0
}

/// A device node.
pub(crate) fn device(request: &Request<'_>, item: &Item) -> Described<FileKind> {
    let number = (major(item.stat.st_rdev), minor(item.stat.st_rdev));
    let character = FileType::from_raw_mode(item.stat.st_mode) == FileType::CharacterDevice;
    if character && PLAIN_DEVICES.contains(&number) {
        return describe(request, item);
    }
    const TTY: (u32, u32) = (5, 0);
    if character && number == TTY && !request.view.in_sandbox() {
        return Ok(FileKind::OfProcess { path: item.link.clone() });
    }
    if character && TERMINALS.contains(&number.0) {
        let remedy =
            "only standard input, output and error may be terminals; redirect it, or start the program with setsid";
        return Err(Reason::outside(format!("terminal {}", item.name()), remedy));
    }
    let (kind, name) = (if character { "character" } else { "block" }, item.name());
    let what = format!("{kind} device {}:{} ({name}) may have state that cannot be seen", number.0, number.1);
    const REMEDY: &str = "close it before the checkpoint";
    let can_be_kept = character && KEPT_DEVICES.contains(&number);
    Err(if can_be_kept { Reason::parkable(what, REMEDY) } else { Reason::refused(what, REMEDY) })
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
            return Err(Reason::parkable(what, "let the program open it again"));
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
    Err(Reason::parkable(what, "let the program close it"))
}

fn same(a: &Stat, b: &Stat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
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
}
