//! Huge pages of the machine's pools (hugetlb): `Documentation/admin-guide/mm/hugetlbpage.rst`, `mmap(2)`, `memfd_create(2)`.
//!
//! A mapping takes what it may need from its pool when it is made, so that it is the mapping that fails where the pool is empty,
//! and not the first access. Their files cannot be written by `write(2)`: [`Mapping`] is for that.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use libc::c_void;

/// `HUGETLBFS_MAGIC`: what `fstatfs(2)` says of their files, with the size of a page as the block size.
pub const MAGIC: i64 = 0x9584_58f6;
/// Bit of the mode of a segment as images have it, and flag of `shmget(2)`.
pub const SHM_HUGETLB: u32 = 0o4000;
/// Flag of `memfd_create(2)`.
pub const MFD_HUGETLB: u32 = 4;
/// Flag of `mmap(2)`.
pub const MAP_HUGETLB: u32 = 0x4_0000;
const SHIFT: u32 = 26;
const SIZE_BITS: u32 = 0x3f;
const POOLS: &str = "/sys/kernel/mm/hugepages";

/// The size of a page as flags of `mmap`, `memfd_create` and `shmget` have it.
pub const fn size_flags(page_bytes: u64) -> u32 {
    page_bytes.trailing_zeros() << SHIFT
}

/// The size of a page in such flags; `None` if they name none.
pub const fn size_of_flags(flags: u32) -> Option<u64> {
    match flags >> SHIFT & SIZE_BITS {
        0 => None,
        log => Some(1 << log),
    }
}

/// Sizes of pages that this machine has pools of, bytes; whether or not there are pages in them.
pub fn sizes() -> Vec<u64> {
    let names =
        fs::read_dir(POOLS).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let kilobytes = |name: String| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok();
    let mut sizes: Vec<u64> = names.filter_map(kilobytes).map(|kilobytes| kilobytes << 10).collect();
    sizes.sort_unstable();
    sizes
}

/// Pages of this size that a new mapping can have.
///
/// # Errors
/// `NotFound` where the machine has no such pool.
pub fn available(page_bytes: u64) -> io::Result<u64> {
    let number = |file: &str| {
        let text = fs::read_to_string(format!("{POOLS}/hugepages-{}kB/{file}", page_bytes >> 10))?;
        text.trim().parse::<u64>().map_err(io::Error::other)
    };
    let free = number("free_hugepages")?.saturating_sub(number("resv_hugepages")?);
    let surplus = number("nr_overcommit_hugepages")?.saturating_sub(number("surplus_hugepages")?);
    Ok(free + surplus)
}

/// A file of huge pages without a name and of no length, as a memfd.
pub fn memfd(name: &[u8], page_bytes: u64) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(name)?;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | MFD_HUGETLB | size_flags(page_bytes);
    // SAFETY: `name` ends with a zero and lives through the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us; nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Shared memory as `mmap` with `MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB` makes it, open for reading and writing. It has taken
/// its pages from the pool. Needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.
pub fn shared_anonymous(bytes: u64, page_bytes: u64) -> io::Result<OwnedFd> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | (MAP_HUGETLB | size_flags(page_bytes)).cast_signed();
    let mapping = Mapping::make(bytes, flags, -1)?;
    let start = mapping.start as usize;
    let link = format!("/proc/self/map_files/{start:x}-{:x}", start + mapping.len);
    File::options().read(true).write(true).open(link).map(OwnedFd::from)
}

/// A file of huge pages, mapped shared to write to it.
#[derive(Debug)]
pub struct Mapping {
    start: *mut c_void,
    len: usize,
}

impl Mapping {
    /// Maps so many bytes of a file that is open for reading and writing: whole pages.
    ///
    /// # Errors
    /// `ENOMEM` where the pool has too few pages.
    pub fn new(file: impl AsFd, bytes: u64) -> io::Result<Self> {
        Self::make(bytes, libc::MAP_SHARED, file.as_fd().as_raw_fd())
    }

    fn make(bytes: u64, flags: i32, fd: i32) -> io::Result<Self> {
        let len = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at a place that the kernel chooses; nothing else lies there.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
        if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self { start, len }) }
    }

    /// Writes at this byte. Not by touching it: where a limit forbids the page that would be a signal, and this is an error.
    ///
    /// # Errors
    /// `EFAULT` where there is no page for it.
    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if at.saturating_add(bytes.len() as u64) > self.len as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        crate::vm::write(std::process::id() as i32, &[(self.start as u64 + at, bytes)])
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `make`; nobody has been given an address in it.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_flags_and_back() {
        assert_eq!(size_flags(2 << 20), 21 << 26);
        assert_eq!(size_of_flags(MFD_HUGETLB | size_flags(1 << 30)), Some(1 << 30));
        assert_eq!(size_of_flags(0o644), None);
    }

    #[test]
    fn pools_have_numbers() {
        for size in sizes() {
            available(size).unwrap();
            // No page is taken for a file of no length.
            let file = memfd(b"test", size).unwrap();
            let about = rustix::fs::fstatfs(&file).unwrap();
            assert_eq!((about.f_type, about.f_bsize as u64), (MAGIC, size));
        }
        assert!(available(12345).is_err());
    }
}
