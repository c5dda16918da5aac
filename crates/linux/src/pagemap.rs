//! Which pages a process has: the `PAGEMAP_SCAN` ioctl and the entries of `/proc/PID/pagemap`.
//!
//! Source: `Documentation/admin-guide/mm/pagemap.rst`, `include/uapi/linux/fs.h`. Linux 6.7 or newer.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Bytes in a page.
pub const PAGE: u64 = 4096;

/// Categories of pages (`PAGE_IS_*`).
pub mod category {
    /// Not write-protected by userfaultfd, in memory that is ([`crate::written`]).
    pub const WRITTEN: u64 = 1 << 1;
    /// Mapped from a file, or shared memory.
    pub const FILE: u64 = 1 << 2;
    /// In memory.
    pub const PRESENT: u64 = 1 << 3;
    /// In swap.
    pub const SWAPPED: u64 = 1 << 4;
    /// The zero page.
    pub const PFNZERO: u64 = 1 << 5;
    /// A guard (`MADV_GUARD_INSTALL`); Linux 6.15 or newer.
    pub const GUARD: u64 = 1 << 8;
}

/// `struct page_region`: a run of pages with the same categories.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageRegion {
    /// First byte.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
    /// Categories, of those asked for.
    pub categories: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const fn iowr(kind: u8, number: u8, size: usize) -> libc::c_ulong {
    (3 << 30) | ((size as libc::c_ulong) << 16) | ((kind as libc::c_ulong) << 8) | number as libc::c_ulong
}

const PAGEMAP_SCAN: libc::c_ulong = iowr(b'f', 16, size_of::<ScanArgument>());
const _: () = assert!(PAGEMAP_SCAN == 0xc060_6610);
const _: () = assert!(size_of::<PageRegion>() == 24);

/// `PM_SCAN_WP_MATCHING`: what is reported is write-protected.
pub(crate) const PROTECT: u64 = 1;
/// `PM_SCAN_CHECK_WPASYNC`: an error where that cannot be.
pub(crate) const CHECK_PROTECTION: u64 = 2;

/// What to look for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter {
    /// Categories that every page must have, after inversion.
    pub all_of: u64,
    /// Of these at least one, after inversion; 0: no such demand.
    pub any_of: u64,
    /// Categories whose bit is inverted before the two masks are applied.
    pub inverted: u64,
    /// Categories to report.
    pub report: u64,
}

/// Lists the pages of `start..end` that pass `filter`, as runs, into `regions` (cleared first).
///
/// `pagemap` is the opened `/proc/PID/pagemap`; `start` and `end` are page-aligned.
pub fn scan(pagemap: &File, start: u64, end: u64, filter: Filter, regions: &mut Vec<PageRegion>) -> io::Result<()> {
    scan_with(pagemap, start, end, filter, 0, regions)
}

/// Does the same with flags of `PAGEMAP_SCAN`.
pub(crate) fn scan_with(
    pagemap: &File,
    start: u64,
    end: u64,
    filter: Filter,
    flags: u64,
    regions: &mut Vec<PageRegion>,
) -> io::Result<()> {
    const BATCH: usize = 512;
    regions.clear();
    let mut position = start;
    while position < end {
        let used = regions.len();
        regions.resize(used + BATCH, PageRegion::default());
        let batch = &mut regions[used..];
        let mut argument = ScanArgument {
            size: size_of::<ScanArgument>() as u64,
            flags,
            start: position,
            end,
            vec: batch.as_mut_ptr() as u64,
            vec_len: BATCH as u64,
            category_inverted: filter.inverted,
            category_mask: filter.all_of,
            category_anyof_mask: filter.any_of,
            return_mask: filter.report,
            ..ScanArgument::default()
        };
        // SAFETY: `argument` has the layout that the request number encodes, and `vec` points to `vec_len` regions that
        // `batch` borrows mutably for the call.
        let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut argument) };
        if found < 0 {
            regions.truncate(used);
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        }
        regions.truncate(used + found as usize);
        if argument.walk_end <= position {
            return Err(io::Error::other("PAGEMAP_SCAN made no progress"));
        }
        position = argument.walk_end;
    }
    Ok(())
}

/// One entry of `/proc/PID/pagemap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(u64);

impl Entry {
    /// Mapped by this process alone (bit 56): not shared copy-on-write with another.
    pub const fn exclusive(self) -> bool {
        self.0 & (1 << 56) != 0
    }

    /// Number of the page's frame, if it is in memory and the caller may know it (CAP_SYS_ADMIN).
    pub const fn frame(self) -> Option<u64> {
        const SWAPPED: u64 = 1 << 62;
        let frame = self.0 & ((1 << 55) - 1);
        if self.present() && self.0 & SWAPPED == 0 && frame != 0 { Some(frame) } else { None }
    }

    /// In memory (bit 63).
    pub const fn present(self) -> bool {
        self.0 & (1 << 63) != 0
    }
}

/// The entries of `count` pages from `start` on, appended to `entries`.
pub fn entries(pagemap: &File, start: u64, count: usize, entries: &mut Vec<Entry>) -> io::Result<()> {
    let mut bytes = vec![0_u8; count * 8];
    pagemap.read_exact_at(&mut bytes, start / PAGE * 8)?;
    entries.extend(
        bytes
            .chunks_exact(8)
            .map(|entry| Entry(u64::from_ne_bytes(entry.try_into().expect("chunks_exact(8) gives 8 bytes")))),
    );
    Ok(())
}
