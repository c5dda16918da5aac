//! The mappings of a stopped process with all that `/proc/PID/smaps` tells of them.
//!
//! Source: `proc_pid_smaps(5)`, `fs/proc/task_mmu.c` (`show_smap_vma_flags`).

use std::io;

use crate as proc;
use crate::maps::{Access, Area};

/// The size of a page where nothing else is said, in bytes.
const PAGE: u64 = 4096;

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Where it is, its access and its name.
    pub area: Area,
    /// Executable.
    pub execute: bool,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// Device as `maps` shows it: major, minor.
    pub device: (u32, u32),
    /// 0: no file behind it.
    pub inode: u64,
    /// `VmFlags`.
    pub flags: String,
    /// Protection key.
    pub key: u32,
    /// Size of its pages; of a pool's huge pages theirs.
    pub page_bytes: u64,
}

impl Mapping {
    /// Whether `VmFlags` has this flag of two letters.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.split_ascii_whitespace().any(|known| known == flag)
    }

    /// `PROT_*`.
    pub fn protection(&self) -> u32 {
        let access = self.area.access;
        u32::from(access.read) | u32::from(access.write) << 1 | u32::from(self.execute) << 2
    }

    /// The kernel's own: `[vdso]`, `[vvar]`, `[vvar_vclock]`, `[vsyscall]`.
    pub fn is_kernels(&self) -> bool {
        self.area.name.starts_with("[v")
    }
}

/// The mappings of a process, by ascending address.
pub fn mappings(pid: i32) -> io::Result<Vec<Mapping>> {
    let path = format!("/proc/{pid}/smaps");
    parse(&proc::read(&path)?).ok_or_else(|| proc::unexpected(&path))
}

/// Parses an `smaps` file; `None` if it is not as `proc_pid_smaps(5)` says.
pub fn parse(text: &str) -> Option<Vec<Mapping>> {
    let mut found: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            found.last_mut()?.flags = flags.trim().to_owned();
        } else if let Some(size) = line.strip_prefix("KernelPageSize:") {
            let kilobytes: u64 = size.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
            found.last_mut()?.page_bytes = kilobytes.checked_mul(1024)?;
        } else if let Some(key) = line.strip_prefix("ProtectionKey:") {
            found.last_mut()?.key = key.trim().parse().ok()?;
        } else if line.as_bytes().first().is_some_and(|c| c.is_ascii_digit() || c.is_ascii_lowercase()) {
            found.push(header(line)?);
        }
    }
    Some(found)
}

fn header(line: &str) -> Option<Mapping> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let access = fields.next()?.as_bytes();
    let offset = hex(fields.next()?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode = fields.next()?.parse().ok()?;
    let name = fields.next().unwrap_or("").trim_start().to_owned();
    let bit = |n: usize, letter: u8| access.get(n) == Some(&letter);
    Some(Mapping {
        area: Area {
            start: hex(start)?,
            end: hex(end)?,
            access: Access { read: bit(0, b'r'), write: bit(1, b'w'), shared: bit(3, b's') },
            name,
        },
        execute: bit(2, b'x'),
        offset,
        device: (hex(major)? as u32, hex(minor)? as u32),
        inode,
        flags: String::new(),
        key: 0,
        page_bytes: PAGE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_headers_flags_and_keys() {
        let text = "7f00-7f10 rw-p 00001000 fe:01 77                         /srv/a b\nSize:  4 kB\n\
                    KernelPageSize:     2048 kB\nProtectionKey:         3\nVmFlags: rd wr mr mw me ac\n\
                    8000-9000 --xs 00000000 00:00 0 \nVmFlags: ex sh\n";
        let found = parse(text).unwrap();
        assert_eq!((found[0].offset, found[0].device, found[0].inode, found[0].key), (0x1000, (254, 1), 77, 3));
        assert_eq!((found[0].area.name.as_str(), found[0].protection()), ("/srv/a b", 3));
        assert!(found[0].has("ac") && !found[0].has("a"));
        assert_eq!((found[0].page_bytes, found[1].page_bytes), (2 << 20, 4096));
        assert_eq!((found[1].protection(), found[1].area.access.shared), (4, true));
        assert!(parse("VmFlags: rd").is_none() && parse("zz").is_none());
    }

    #[test]
    fn reads_itself() {
        let found = mappings(std::process::id() as i32).unwrap();
        assert!(found.iter().all(|mapping| !mapping.flags.is_empty()));
    }
}
