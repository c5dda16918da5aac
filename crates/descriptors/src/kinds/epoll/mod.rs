//! `epoll(7)`: which open files are watched.
//!
//! A registration is of a number and the open file that was behind it then; the kernel tells which of the tree's files it
//! is (`kcmp(2)`). It is made again by a process, with the number it had. What an edge-triggered registration has told
//! already, it may tell once more.
//!
//! Anonymous files (event counters, timers) share one inode, which says nothing about which of them is watched. The file that has the
//! number now is nearly always the right one, and is compared first. Where it is not, the ordered list of the files of that inode is
//! searched by halves. The kernel walks the registrations of the epoll descriptor for each comparison: how many it may visit for a tree
//! is bounded ([`MOST_VISITED`]).

use std::cmp::Ordering;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags};
use rustix::fs::FileType;
use torpor_image::tree::{EpollMember, FileId, FileKind, OpenFile};
use torpor_linux::kcmp::{self, EpollSlot};

use crate::context::DumpContext;
use crate::contract::error::RestoreFileError;
use crate::contract::reason::{Described, Reason};
use crate::list::Item;
use torpor_proc as proc;

/// Registrations that the kernel may visit for a tree; it visits one in about 10 ns.
const MOST_VISITED: usize = 1 << 28;
/// After so many it is asked whether to go on.
const VISITED_AT_ONCE: usize = 1 << 17;

/// How many registrations have been visited.
#[derive(Debug, Default)]
pub(crate) struct Visited {
    all: usize,
    /// Since it was asked whether to go on.
    lately: usize,
}

/// A line of fdinfo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    fd: i32,
    events: u32,
    data: u64,
    device: u64,
    inode: u64,
}

/// `tfd:        5 events:       19 data:                5  pos:0 ino:2d sdev:f`
pub(crate) fn line(text: &str) -> Option<Line> {
    let mut words = text.split(|c: char| c.is_ascii_whitespace() || c == ':').filter(|word| !word.is_empty());
    let mut value = |key: &str| if words.next()? == key { words.next() } else { None };
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let fd = value("tfd")?.parse().ok()?;
    let events = hex(value("events")?)? as u32;
    let data = hex(value("data")?)?;
    value("pos")?;
    let inode = hex(value("ino")?)?;
    let kernel_device = hex(value("sdev")?)?;
    // The kernel's own form of a device number: 20 bits for the minor one.
    let device = rustix::fs::makedev((kernel_device >> 20) as u32, (kernel_device & 0xf_ffff) as u32);
    Some(Line { fd, events, data, device, inode })
}

pub(crate) fn describe(context: &mut DumpContext<'_>, visited: &mut Visited, item: &Item) -> Described<FileKind> {
    let parks = context.request.parks();
    let mut members = Vec::new();
    let mut seen: HashMap<i32, u32> = HashMap::new();
    let lines = || item.info.text.lines().filter(|line| line.trim_start().starts_with("tfd:"));
    let registered = lines().count();
    for text in lines() {
        let line = line(text).ok_or_else(|| proc::unexpected("fdinfo (tfd)"))?;
        let occurrence = seen.entry(line.fd).or_default();
        let slot = EpollSlot {
            epoll: item.fd.as_raw_fd().unsigned_abs(),
            target: line.fd.unsigned_abs(),
            occurrence: *occurrence,
        };
        *occurrence += 1;
        let Some(file) = find(context, visited, item, &line, (slot, registered))? else {
            if parks {
                // The parked descriptor goes on watching it.
                let what = format!("an epoll descriptor that watches what was descriptor {}", line.fd);
                context.warnings.push(format!("{what} (process {})", item.holder.pid));
                continue;
            }
            let what =
                format!("an epoll descriptor watches what was descriptor {}, which the tree has not open", line.fd);
            return Err(Reason::refused(what, "let the program remove what it closes from its epoll descriptors"));
        };
        members.push(EpollMember { fd: line.fd, file, events: line.events, data: line.data });
    }
    if item.holder.in_flight && !members.is_empty() && !parks {
        // Members are registered by a process that has the descriptor.
        return Err(Reason::refused(
            "an epoll descriptor that no process has",
            "try again when the program has taken it",
        ));
    }
    Ok(FileKind::Epoll { members })
}

/// The file that `slot` of `item` watches, which has so many registrations.
fn find(
    context: &DumpContext<'_>,
    visited: &mut Visited,
    item: &Item,
    line: &Line,
    (slot, registered): (EpollSlot, usize),
) -> Described<Option<FileId>> {
    let own = std::process::id() as i32;
    let list = context.list;
    let candidates = list.same_object((line.device, line.inode));
    // A socket has one open file only; asking the kernel takes the longer, the more is watched.
    if let [only] = candidates
        && FileType::from_raw_mode(list.item(*only).stat.st_mode) == FileType::Socket
    {
        return Ok(Some(*only));
    }
    let go_on = context.request.go_on;
    let mut order = |file: FileId| -> Described<Ordering> {
        visited.visit(registered, go_on)?;
        Ok(kcmp::watched((own, list.item(file).fd.as_raw_fd()), own, slot)?)
    };
    // What has the number now.
    let table = context.descriptors.get(&item.holder.pid).map_or(&[][..], Vec::as_slice);
    let now = table.binary_search_by_key(&line.fd, |one| one.fd).ok().map(|place| table[place].file);
    if let Some(file) = now.filter(|file| list.item(*file).object() == (line.device, line.inode))
        && order(file)?.is_eq()
    {
        return Ok(Some(file));
    }
    let (mut from, mut to) = (0, candidates.len());
    while from < to {
        let middle = from.midpoint(to);
        match order(candidates[middle])? {
            Ordering::Equal => return Ok(Some(candidates[middle])),
            Ordering::Less => from = middle + 1,
            Ordering::Greater => to = middle,
        }
    }
    Ok(None)
}

impl Visited {
    /// Another so many are visited.
    fn visit(&mut self, registrations: usize, go_on: &dyn Fn() -> bool) -> Described<()> {
        self.all += registrations;
        self.lately += registrations;
        if self.all > MOST_VISITED {
            let what = "epoll descriptors that watch so many files that finding them would take too long";
            return Err(Reason::refused(what, "let it watch fewer files that are not sockets"));
        }
        if self.lately > VISITED_AT_ONCE {
            self.lately = 0;
            if !go_on() {
                return Err(Reason::Stopped);
            }
        }
        Ok(())
    }
}

pub(crate) fn restore(_file: &OpenFile) -> Result<OwnedFd, RestoreFileError> {
    epoll::create(CreateFlags::CLOEXEC).map_err(RestoreFileError::at("making", "an epoll descriptor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let found = line("tfd:        5 events: 80002019 data: ffff000000000005  pos:0 ino:2d sdev:800013").unwrap();
        assert_eq!((found.fd, found.events, found.data), (5, 0x8000_2019, 0xffff_0000_0000_0005));
        assert_eq!((found.inode, found.device), (0x2d, rustix::fs::makedev(8, 0x13)));
        assert!(line("tfd: 5 events: 19").is_none());
    }

    #[test]
    fn what_is_visited_is_bounded() {
        let mut visited = Visited::default();
        for _ in 0..MOST_VISITED / 4096 {
            visited.visit(4096, &|| true).unwrap();
        }
        assert!(matches!(visited.visit(1, &|| true), Err(Reason::Refused { .. })));
    }
}
