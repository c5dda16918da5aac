//! What of a file is in the page cache: `cachestat(2)`, since Linux 6.5.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// x86-64's and everybody's number.
const SYS_CACHESTAT: libc::c_long = 451;

/// Of these bytes of the file, how many pages are in the page cache.
pub fn cached_pages(file: &File, offset: u64, bytes: u64) -> io::Result<u64> {
    // struct cachestat_range: offset, length. struct cachestat: cached, dirty, writeback, evicted, recently evicted.
    let range = [offset, bytes];
    let mut found = [0_u64; 5];
    let none = 0_u32;
    // SAFETY: the kernel reads `range` and writes `found`, both of the sizes that it expects, and nothing else.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), none) };
    if result == 0 { Ok(found[0]) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_just_written_is_cached() {
        let path = std::env::temp_dir().join(format!("cached-pages-{}", std::process::id()));
        std::fs::write(&path, [1; 8192]).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(cached_pages(&file, 0, 8192).unwrap(), 2);
        assert_eq!(cached_pages(&file, 4096, 4096).unwrap(), 1);
        assert_eq!(cached_pages(&file, 1 << 30, 4096).unwrap(), 0);
    }
}
