//! Where arenas lie: windows of a fixed size at fixed addresses, the same in every process.

use std::io;
use std::ptr::NonNull;
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

/// A range of windows that this process has reserved.
#[derive(Debug)]
pub struct Windows {
    first: u32,
    count: u32,
    /// By number behind the first: it is used.
    used: Mutex<Vec<bool>>,
    /// Tells what was written to; none where the kernel cannot: then all is taken for written.
    written: Option<WrittenPages>,
}

impl Windows {
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
        let mut windows = Self { first, count, used: Mutex::new(vec![false; count as usize]), written: None };
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
    /// that is not known.
    pub(crate) fn written(
        &self,
        window: u32,
        pages: usize,
        regions: &mut Vec<PageRegion>,
    ) -> Option<Vec<(usize, usize)>> {
        let start = at(window).addr() as u64;
        self.written.as_ref()?.take(&(start..start + (pages * PAGE) as u64), regions).ok()?;
        let run = |region: &PageRegion| {
            let (from, to) = (region.start - start, region.end - start);
            (from as usize / PAGE, (to - from) as usize / PAGE)
        };
        Some(regions.iter().map(run).collect())
    }

    /// Gives a window back, whose first `bytes` were used.
    pub(crate) fn give(&self, window: u32, bytes: usize) {
        give_back(at(window), bytes);
        if let Some(used) = self.used().get_mut((window - self.first) as usize) {
            *used = false;
        }
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
