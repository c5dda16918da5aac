//! What is mounted in a mount namespace, as `/proc/PID/mountinfo` tells it (`proc_pid_mountinfo(5)`).

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{Dev, makedev};

use crate as proc;

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its number.
    pub id: u64,
    /// Device number of the file system.
    pub device: Dev,
    /// Which of its directories is mounted.
    pub root: Vec<u8>,
    /// Where.
    pub path: Vec<u8>,
    /// Type of the file system.
    pub kind: String,
    /// Options of the file system, with commas between.
    pub super_options: String,
}

impl Mount {
    /// [`path`](Self::path) as the standard library has paths.
    pub fn place(&self) -> PathBuf {
        OsStr::from_bytes(&self.path).into()
    }

    /// Options of the file system: names, with the value behind `=`.
    pub fn options(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.super_options.split(',').map(|option| match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        })
    }
}

/// The mounts in the namespace of the process behind this `/proc` directory.
pub fn read(reference: &str) -> io::Result<Vec<Mount>> {
    let path = format!("{reference}/mountinfo");
    parse_all(&proc::read(&path)?).ok_or_else(|| proc::unexpected(&path))
}

/// Parses a `mountinfo` file; `None` if it is not as `proc_pid_mountinfo(5)` says.
pub fn parse_all(text: &str) -> Option<Vec<Mount>> {
    text.lines().map(parse).collect()
}

/// `36 35 98:0 /root /place rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse(line: &str) -> Option<Mount> {
    let (front, back) = line.split_once(" - ")?;
    let mut fields = front.split(' ');
    let id = fields.next()?.parse().ok()?;
    let (major, minor) = fields.nth(1)?.split_once(':')?;
    let device = makedev(major.parse().ok()?, minor.parse().ok()?);
    let (root, path) = (unescape(fields.next()?), unescape(fields.next()?));
    let mut back = back.split(' ');
    let kind = back.next()?.to_owned();
    let super_options = back.nth(1)?.to_owned();
    Some(Mount { id, device, root, path, kind, super_options })
}

/// Undoes octal escapes.
fn unescape(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut found = Vec::with_capacity(bytes.len());
    let mut n = 0;
    while n < bytes.len() {
        let escaped = bytes.get(n + 1..n + 4).filter(|_| bytes[n] == b'\\');
        let byte = escaped.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        found.push(byte.unwrap_or(bytes[n]));
        n += if byte.is_some() { 4 } else { 1 };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_escapes_are_read() {
        let line = "36 35 98:3 /a\\040b /place rw,noatime master:1 - tmpfs none rw,size=4k";
        let mount = parse(line).unwrap();
        assert_eq!((mount.id, mount.device, mount.kind.as_str()), (36, makedev(98, 3), "tmpfs"));
        assert_eq!((mount.root.as_slice(), mount.path.as_slice()), (b"/a b".as_slice(), b"/place".as_slice()));
        assert_eq!(mount.super_options, "rw,size=4k");
        assert!(parse("36 35 98:3 /a").is_none());
        assert_eq!(unescape("/a\\040b\\"), b"/a b\\");
        assert!(read("/proc/self").unwrap().iter().any(|mount| mount.path == b"/proc"));
    }
}
