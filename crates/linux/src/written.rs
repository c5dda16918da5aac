//! Which pages of this process were written to: asynchronous write protection of userfaultfd(2), read and renewed by `PAGEMAP_SCAN`.
//!
//! Pages are write-protected; the first write to one lifts its protection within the page fault, and nobody waits. A scan reports pages that are
//! not protected, and protects them again, in one step. At first, all pages count as written, those as well that were never touched.
//!
//! Source: `Documentation/admin-guide/mm/pagemap.rst` and `userfaultfd.rst` (asynchronous mode), Linux 6.7 or newer.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use crate::pagemap::{CHECK_PROTECTION, Filter, PROTECT, PageRegion, category, scan_with};
use crate::userfault;

/// `UFFD_USER_MODE_ONLY`: needs no privilege. No fault is ever told to user space in asynchronous mode.
const USER_MODE_ONLY: libc::c_int = 1;
/// `UFFD_FEATURE_WP_ASYNC`
const ASYNCHRONOUS: u64 = 1 << 15;

/// Watches ranges of this process's memory.
#[derive(Debug)]
pub struct WrittenPages {
    context: OwnedFd,
    pagemap: File,
}

impl WrittenPages {
    /// # Errors
    /// What the kernel lacks, or does not allow: `ENOSYS`, `EPERM`, `EINVAL`.
    pub fn new() -> io::Result<Self> {
        // SAFETY: it takes flags only.
        let context =
            unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY) };
        let context = match i32::try_from(context) {
            // SAFETY: the kernel has just opened it, and nobody else knows of it.
            Ok(context) if context >= 0 => unsafe { OwnedFd::from_raw_fd(context) },
            _ => return Err(io::Error::last_os_error()),
        };
        userfault::begin(context.as_fd(), ASYNCHRONOUS)?;
        Ok(Self { context, pagemap: File::open("/proc/self/pagemap")? })
    }

    /// Watches a range from now on: page-aligned, private anonymous memory.
    ///
    /// # Errors
    /// `EINVAL` for other memory, `EBUSY` where another context has it.
    pub fn watch(&self, range: &Range<u64>) -> io::Result<()> {
        userfault::register_for_writes(self.context.as_fd(), range)
    }

    /// As [`WrittenPages::take`] for the first time, of memory that maps files privately: pages that were only read are left out, and those that
    /// were never touched.
    ///
    /// # Errors
    /// `EPERM` where it is not watched.
    pub fn take_first(&self, range: &Range<u64>, regions: &mut Vec<PageRegion>) -> io::Result<()> {
        let filter = Filter {
            all_of: category::WRITTEN | category::FILE,
            inverted: category::FILE,
            any_of: category::PRESENT | category::SWAPPED,
            report: category::WRITTEN,
        };
        scan_with(&self.pagemap, range.start, range.end, filter, CHECK_PROTECTION, regions)?;
        // All of it is protected, so that what is read later does not count.
        self.take(range, &mut Vec::new())
    }

    /// Lists the pages of `range` that were written to since they were last listed, in order, into `regions` (cleared first).
    ///
    /// # Errors
    /// `EPERM` where it is not watched.
    pub fn take(&self, range: &Range<u64>, regions: &mut Vec<PageRegion>) -> io::Result<()> {
        let filter = Filter { all_of: category::WRITTEN, report: category::WRITTEN, ..Filter::default() };
        scan_with(&self.pagemap, range.start, range.end, filter, PROTECT | CHECK_PROTECTION, regions)
    }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::*;

    const PAGE: usize = 4096;

    #[test]
    fn each_write_is_told_once() {
        let flags = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: new memory, which is unmapped below.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), 8 * PAGE, flags.0, flags.1) }.unwrap().cast::<u8>();
        let range = at.addr() as u64..(at.addr() + 8 * PAGE) as u64;
        let pages = WrittenPages::new().unwrap();
        let mut found = Vec::new();
        assert!(pages.take(&range, &mut found).is_err(), "it is not watched");
        pages.watch(&range).unwrap();
        let mut taken = || {
            pages.take(&range, &mut found).unwrap();
            let number = |address: u64| (address - range.start) as usize / PAGE;
            found.iter().map(|region| number(region.start)..number(region.end)).collect::<Vec<_>>()
        };
        // SAFETY: within the memory.
        let write = |page: usize| unsafe { at.add(page * PAGE).write_volatile(1) };
        assert_eq!(taken(), std::slice::from_ref(&(0..8)));
        [1, 2, 5].into_iter().for_each(write);
        assert_eq!(taken(), [1..3, 5..6]);
        assert_eq!(taken(), []);
        [2, 2, 3].into_iter().for_each(write);
        // SAFETY: as above. Reading is not writing.
        unsafe { at.add(PAGE).read_volatile() };
        assert_eq!(taken(), std::slice::from_ref(&(2..4)));
        // SAFETY: as above; the kernel writes, too.
        let buffer = unsafe { std::slice::from_raw_parts_mut(at.add(5 * PAGE), PAGE) };
        io::Read::read_exact(&mut File::open("/dev/zero").unwrap(), buffer).unwrap();
        assert_eq!(taken(), std::slice::from_ref(&(5..6)));
        // SAFETY: nothing refers to it any more.
        unsafe { munmap(at.cast(), 8 * PAGE) }.unwrap();
    }
}
