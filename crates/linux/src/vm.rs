//! Reading and writing another process's memory: `process_vm_readv(2)` and `process_vm_writev(2)`; shared memory without
//! a name.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr;

/// A range of another process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub len: usize,
}

/// Ranges in one call (`UIO_MAXIOV`).
pub const MAX_RANGES: usize = 1024;

fn remote(ranges: &[Remote]) -> Vec<libc::iovec> {
    ranges.iter().map(|r| libc::iovec { iov_base: r.address as *mut _, iov_len: r.len }).collect()
}

fn checked(result: isize, wanted: usize) -> io::Result<()> {
    match usize::try_from(result) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(done) if done == wanted => Ok(()),
        // A range that is not mapped ends the transfer early, without an error number.
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}

/// Reads `ranges`, one behind the other, into `buffer`, which must be just as long; at most [`MAX_RANGES`].
pub fn read(process: i32, ranges: &[Remote], buffer: &mut [u8]) -> io::Result<()> {
    assert_eq!(ranges.iter().map(|r| r.len).sum::<usize>(), buffer.len(), "ranges fill the buffer");
    let there = remote(ranges);
    let here = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: `here` covers `buffer`, which is borrowed mutably for the call; `there` are addresses in the other process,
    // which the kernel checks.
    let done = unsafe { libc::process_vm_readv(process, &raw const here, 1, there.as_ptr(), there.len() as _, 0) };
    checked(done, buffer.len())
}

/// Writes each part to its address; at most [`MAX_RANGES`] parts. The pages must be writable for the process itself.
pub fn write(process: i32, parts: &[(u64, &[u8])]) -> io::Result<()> {
    let iovec = |base: *mut libc::c_void, len| libc::iovec { iov_base: base, iov_len: len };
    let here: Vec<_> = parts.iter().map(|(_, bytes)| iovec(bytes.as_ptr().cast_mut().cast(), bytes.len())).collect();
    let there: Vec<_> = parts.iter().map(|(address, bytes)| iovec(*address as *mut _, bytes.len())).collect();
    let (here, there) = (here.as_slice(), there.as_slice());
    // SAFETY: `here` covers slices that `parts` borrows for the call and that are only read; `there` is checked by the
    // kernel.
    let done = unsafe {
        libc::process_vm_writev(process, here.as_ptr(), here.len() as _, there.as_ptr(), there.len() as _, 0)
    };
    checked(done, parts.iter().map(|(_, bytes)| bytes.len()).sum())
}
/// Shared memory as `mmap` with `MAP_SHARED | MAP_ANONYMOUS` makes it, open for reading and writing (`/dev/zero (deleted)`
/// where it is mapped). Needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.
pub fn shared_anonymous(bytes: u64) -> io::Result<OwnedFd> {
    let len = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at a place that the kernel chooses; nothing else lies there.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags | libc::MAP_NORESERVE, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let end = (start as usize).saturating_add(len.next_multiple_of(4096));
    let opened =
        File::options().read(true).write(true).open(format!("/proc/self/map_files/{:x}-{end:x}", start as usize));
    // SAFETY: the mapping made above; nobody has been given an address in it.
    unsafe { libc::munmap(start, len) };
    opened.map(OwnedFd::from)
}
