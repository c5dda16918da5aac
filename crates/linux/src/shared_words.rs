//! The first page of a memory file as words: what is stored there outlives the process that stored it. `memfd_create(2)`, `mmap(2)`,
//! `F_ADD_SEALS` in `fcntl(2)`.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

/// Bytes of the page.
pub const BYTES: usize = 4096;
/// Words in it.
pub const WORDS: usize = BYTES / 8;

/// A mapped page of words.
#[derive(Debug)]
pub struct SharedWords(NonNull<[AtomicU64; WORDS]>);

// SAFETY: it owns its mapping, which any thread may unmap; the words are atomic.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps the first page of a memory file that cannot shrink (`F_SEAL_SHRINK`).
    ///
    /// # Errors
    /// `InvalidInput` for any other file, and for one of less than a page. Those of mmap(2).
    pub fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(file)?;
        let bytes = rustix::fs::fstat(file)?.st_size;
        if !seals.contains(rustix::fs::SealFlags::SHRINK) || bytes < BYTES as i64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at a place that the kernel chooses. The page stays there: the file has it and cannot shrink.
        let start = unsafe { libc::mmap(ptr::null_mut(), BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(start.cast()).map(Self).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64; WORDS] {
        // SAFETY: the mapping is as long, is page-aligned and lives as long as `self`. Others may write to it too, which atomic words allow.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping is its own, and no reference to it is left. It cannot fail for a whole mapping.
        unsafe { libc::munmap(self.0.as_ptr().cast::<c_void>(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn what_one_mapping_stores_is_in_the_file_and_in_the_other() {
        let file = memfd_create("words", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, BYTES as u64).unwrap();
        assert!(SharedWords::map(file.as_fd()).is_err(), "it could shrink");
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        let (one, other) = (SharedWords::map(file.as_fd()).unwrap(), SharedWords::map(file.as_fd()).unwrap());
        one.words()[WORDS - 1].store(7, Ordering::Relaxed);
        drop(one);
        assert_eq!(other.words()[WORDS - 1].load(Ordering::Relaxed), 7);
        let mut stored = [0; 8];
        rustix::io::pread(&file, &mut stored, BYTES as u64 - 8).unwrap();
        assert_eq!(u64::from_ne_bytes(stored), 7);
    }

    #[test]
    fn a_file_of_less_than_a_page_is_refused() {
        let file = memfd_create("words", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 8).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        assert_eq!(SharedWords::map(file.as_fd()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
