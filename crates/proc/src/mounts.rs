//! What is mounted in a mount namespace, as `/proc/PID/mountinfo` tells it (`proc_pid_mountinfo(5)`).

use std::io;

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
    Some(Mount { id, device, root, path, kind: back.split(' ').next()?.to_owned() })
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
        assert!(parse("36 35 98:3 /a").is_none());
        assert_eq!(unescape("/a\\040b\\"), b"/a b\\");
        assert!(read("/proc/self").unwrap().iter().any(|mount| mount.path == b"/proc"));
    }
}
