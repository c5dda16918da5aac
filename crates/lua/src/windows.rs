//! Where arenas lie: windows of a fixed size at fixed addresses, the same in every process.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, munmap};
use torpor_linux::pagemap::PageRegion;
use torpor_linux::written::WrittenPages;

/// Bytes of a window: what a state can grow to.
pub const WINDOW_BYTES: usize = 64 << 20;
/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
/// Where window 0 begins: far from where the kernel puts programs, libraries and stacks of x86-64.
const BASE: usize = 0x1000_0000_0000;
/// Windows below the addresses that the kernel gives out.
pub const MOST_WINDOWS: u32 = 1 << 20;

/// Windows that have mappings of files at the same time: each has up to nine with what is between them, most have three, and a process has 65,530 (`vm.max_map_count`).
const MOST_MAPPED: usize = 4096;

/// A range of windows that this process has reserved.
#[derive(Debug)]
pub struct Windows {
    first: u32,
    count: u32,
    /// By number behind the first: it is used.
    used: Mutex<Vec<bool>>,
    /// Windows with mappings of files.
    mapped: AtomicUsize,
    /// Tells what was written to; none where the kernel cannot: then all is taken for written.
    written: Option<WrittenPages>,
}

impl Windows {
    /// As [`Windows::reserve`], as if the kernel did not tell what was written to.
    ///
    /// # Errors
    /// See [`Windows::reserve`].
    pub fn reserve_untold(first: u32, count: u32) -> io::Result<Self> {
        let mut windows = Self::reserve(first, count)?;
        windows.written = None;
        Ok(windows)
    }

    /// Reserves windows; they take no memory until they are used.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] beyond [`MOST_WINDOWS`]; else what mmap(2) says: something else may lie there.
    pub fn reserve(first: u32, count: u32) -> io::Result<Self> {
        if count == 0 || first.checked_add(count).is_none_or(|end| end > MOST_WINDOWS) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (at, len) = (BASE + first as usize * WINDOW_BYTES, count as usize * WINDOW_BYTES);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: nothing that is mapped is replaced, and the memory is this value's until it is dropped.
        let mapped = unsafe { rustix::mm::mmap_anonymous(at as *mut _, len, access, flags) }?;
        let mut windows = Self {
            first,
            count,
            used: Mutex::new(vec![false; count as usize]),
            mapped: AtomicUsize::new(0),
            written: None,
        };
        if mapped as usize != at {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        // SAFETY: as above. A huge page would be 2 MB for a state of 24 kB; where there are none, it cannot be refused.
        let _ = unsafe { madvise(mapped, len, Advice::LinuxNoHugepage) };
        let watched = WrittenPages::new().and_then(|written| {
            written.watch(&(at as u64..(at + len) as u64))?;
            Ok(written)
        });
        windows.written = watched.ok();
        Ok(windows)
    }

    fn used(&self) -> MutexGuard<'_, Vec<bool>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a window; its memory is zero.
    pub(crate) fn take(&self, window: u32) -> Option<NonNull<u8>> {
        let place = window.checked_sub(self.first).filter(|place| *place < self.count)?;
        let mut used = self.used();
        if std::mem::replace(&mut used[place as usize], true) {
            return None;
        }
        NonNull::new(at(window))
    }

    /// Whether it is known what was written to.
    pub fn tells_writes(&self) -> bool {
        self.written.is_some()
    }

    /// Runs of pages among the first `pages` of a window that were written to since this was last asked: first and number. None where
    /// that is not known. `is_first_of_mapped`: it is the first time, and pages of files are mapped there.
    pub(crate) fn written(&self, window: u32, pages: usize, is_first_of_mapped: bool) -> Option<Vec<(usize, usize)>> {
        thread_local! {
            static REGIONS: RefCell<Vec<PageRegion>> = const { RefCell::new(Vec::new()) };
        }
        let start = at(window).addr() as u64;
        let range = start..start + (pages * PAGE) as u64;
        let written = self.written.as_ref()?;
        let run = |region: &PageRegion| {
            let (from, to) = (region.start - start, region.end - start);
            (from as usize / PAGE, (to - from) as usize / PAGE)
        };
        REGIONS.with_borrow_mut(|regions| {
            let taken =
                if is_first_of_mapped { written.take_first(&range, regions) } else { written.take(&range, regions) };
            taken.ok()?;
            Some(regions.iter().map(run).collect())
        })
    }

    /// Maps pages of a file into a window that is taken: `count` pages from `first` on. Later writes do not reach the file.
    pub(crate) fn map(&self, window: u32, (first, count): (usize, usize), file: &File, offset: u64) -> io::Result<()> {
        let (at, len) = (at(window).wrapping_add(first * PAGE), count * PAGE);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the memory is of a window whose contents nobody needs.
        unsafe { rustix::mm::mmap(at.cast(), len, access, MapFlags::PRIVATE | MapFlags::FIXED, file, offset) }?;
        if let Some(written) = &self.written {
            written.watch(&(at.addr() as u64..(at.addr() + len) as u64))?;
        }
        Ok(())
    }

    /// Begins to map pages of files into a window; false where so many windows have mappings that others would fail for want of them.
    pub(crate) fn may_map(&self) -> bool {
        // Without being told, all pages would be read to see which have changed.
        let most = if self.tells_writes() { MOST_MAPPED } else { 0 };
        let begins = |mapped: usize| (mapped < most).then_some(mapped + 1);
        self.mapped.fetch_update(Ordering::Relaxed, Ordering::Relaxed, begins).is_ok()
    }

    /// Gives a window back that has mappings of files.
    pub(crate) fn give_mapped(&self, window: u32) {
        self.mapped.fetch_sub(1, Ordering::Relaxed);
        let (at, bytes) = (at(window), WINDOW_BYTES);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: nothing refers to a window that is given back.
        let mapped = unsafe { rustix::mm::mmap_anonymous(at.cast(), bytes, access, flags) };
        // SAFETY: as above. Where there are no huge pages, they cannot be refused.
        let _ = unsafe { madvise(at.cast(), bytes, Advice::LinuxNoHugepage) };
        let range = at.addr() as u64..(at.addr() + bytes) as u64;
        let watched = self.written.as_ref().map_or(Ok(()), |written| written.watch(&range));
        // Where that fails, what is written there would not be known: no state may be there any more.
        if mapped.is_ok() && watched.is_ok() {
            self.free(window);
        }
    }

    fn free(&self, window: u32) {
        if let Some(used) = self.used().get_mut((window - self.first) as usize) {
            *used = false;
        }
    }

    /// Gives a window back, whose first `bytes` were used.
    pub(crate) fn give(&self, window: u32, bytes: usize) {
        give_back(at(window), bytes);
        self.free(window);
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        let (at, len) = (BASE + self.first as usize * WINDOW_BYTES, self.count as usize * WINDOW_BYTES);
        // SAFETY: states hold the windows that they use, so nothing refers to them any more.
        let _ = unsafe { munmap(at as *mut _, len) };
    }
}

/// Where a window begins. Its memory is no object of Rust's.
fn at(window: u32) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(BASE + window as usize * WINDOW_BYTES)
}

/// Gives the memory of whole pages back to the machine: they are zero then.
pub(crate) fn give_back(at: *mut u8, bytes: usize) {
    // SAFETY: callers give pages of a window whose contents nobody needs.
    let given = unsafe { madvise(at.cast(), bytes, Advice::LinuxDontNeed) };
    if given.is_err() {
        // SAFETY: as above. Locked memory (mlockall(2)) cannot be given back.
        unsafe { std::ptr::write_bytes(at, 0, bytes) };
    }
}
