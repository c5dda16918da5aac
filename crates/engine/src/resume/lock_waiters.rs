//! Files for whose locks somebody waits, as `/proc/locks` shows them.
//!
//! The list is the machine's: every app can make it as long as it likes, and the kernel walks it from its beginning for each part
//! that is read. It is therefore read once per wake, and only its beginning. If it is longer, it is unknown who waits. No other
//! file shows it: fdinfo lists locks that are held, not those that are waited for.

use std::collections::HashSet;
use std::io::{self, Read};
use std::time::{Duration, Instant};

/// The longest list that is read. The kernel formats one page at a time, about 60 locks.
const MOST_BYTES: usize = 1 << 16;
/// After so long no further part is read. The first part alone may wait for an RCU grace period.
const LONGEST: Duration = Duration::from_millis(50);

/// Inodes of files for whose locks somebody waits.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LockWaiters {
    Inodes(HashSet<u64>),
    /// The list is too long, takes too long or cannot be read.
    Unknown,
}

impl LockWaiters {
    /// On this machine, now.
    pub(super) fn read() -> Self {
        std::fs::File::open("/proc/locks").and_then(|file| read(file, LONGEST)).unwrap_or(Self::Unknown)
    }

    /// Somebody may wait for a lock of the file with this inode.
    pub(super) fn may_have(&self, inode: u64) -> bool {
        match self {
            Self::Inodes(inodes) => inodes.contains(&inode),
            Self::Unknown => true,
        }
    }
}

fn read(mut locks: impl Read, longest: Duration) -> io::Result<LockWaiters> {
    let begun = Instant::now();
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        match locks.read(&mut part) {
            Ok(0) => break,
            Ok(read) => bytes.extend_from_slice(&part[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if bytes.len() > MOST_BYTES || begun.elapsed() > longest {
            return Ok(LockWaiters::Unknown);
        }
    }
    Ok(LockWaiters::Inodes(String::from_utf8_lossy(&bytes).lines().filter_map(waited).collect()))
}

/// The inode in the line of somebody who waits: `1: -> FLOCK  ADVISORY  WRITE 359 00:13:11691 0 EOF`
fn waited(line: &str) -> Option<u64> {
    let mut words = line.split_ascii_whitespace().skip(1);
    words.next().filter(|word| *word == "->")?;
    words.nth(4)?.rsplit(':').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "1: FLOCK  ADVISORY  WRITE 359 00:13:11691 0 EOF\n\
                         1: -> FLOCK  ADVISORY  WRITE 360 00:13:11691 0 EOF\n\
                         2: POSIX  ADVISORY  WRITE 359 00:13:11692 0 EOF\n";

    /// Counts what is read.
    struct Counted<'a, R>(R, &'a mut usize);

    impl<R: Read> Read for Counted<'_, R> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.0.read(to).inspect(|read| *self.1 += read)
        }
    }

    #[test]
    fn who_waits_is_told_from_who_holds() {
        let found = read(LINES.as_bytes(), Duration::MAX).unwrap();
        assert_eq!(found, LockWaiters::Inodes(HashSet::from([11691])));
        assert!(found.may_have(11691) && !found.may_have(11692));
    }

    #[test]
    fn a_long_list_is_read_no_further_than_its_limit() {
        let long = LINES.repeat(100_000);
        let mut bytes = 0;
        let found = read(Counted(long.as_bytes(), &mut bytes), Duration::MAX).unwrap();
        assert_eq!(found, LockWaiters::Unknown);
        assert!(bytes <= MOST_BYTES + 4096, "{bytes}");
        assert!(found.may_have(7));
        // Nor any further when time is up.
        let mut bytes = 0;
        assert_eq!(read(Counted(long.as_bytes(), &mut bytes), Duration::ZERO).unwrap(), LockWaiters::Unknown);
        assert_eq!(bytes, 4096);
    }
}
