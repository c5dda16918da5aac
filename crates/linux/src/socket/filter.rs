//! Filters of what a socket receives (classic BPF): `SO_ATTACH_FILTER`.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::check;

/// Instructions of a filter at most (`BPF_MAXINSNS`).
const MAX_INSTRUCTIONS: usize = 4096;
const INSTRUCTION_BYTES: usize = size_of::<libc::sock_filter>();

/// The filter of a socket, as instructions in the kernel's layout; `None` if it has none.
///
/// # Errors
/// `EACCES` for a filter in eBPF, which cannot be read.
pub fn attached_filter(socket: impl AsFd) -> io::Result<Option<Vec<u8>>> {
    // The kernel's `SO_GET_FILTER` has the same number; the length is counted in instructions.
    let fd = socket.as_fd().as_raw_fd();
    let mut code = vec![0; MAX_INSTRUCTIONS * INSTRUCTION_BYTES];
    let mut count = MAX_INSTRUCTIONS as libc::socklen_t;
    // SAFETY: the kernel writes at most `count` instructions to `code`, which has room for as many.
    check(unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, code.as_mut_ptr().cast(), &raw mut count)
    })?;
    code.truncate(count as usize * INSTRUCTION_BYTES);
    Ok((!code.is_empty()).then_some(code))
}

/// Gives a socket this filter, which the kernel checks.
pub fn attach_filter(socket: impl AsFd, code: &[u8]) -> io::Result<()> {
    let count = u16::try_from(code.len() / INSTRUCTION_BYTES).map_err(|_| io::ErrorKind::InvalidInput)?;
    // Aligned as the kernel's structure is.
    let words: Vec<u64> = code
        .chunks_exact(INSTRUCTION_BYTES)
        .filter_map(|bytes| bytes.try_into().ok().map(u64::from_ne_bytes))
        .collect();
    let program = libc::sock_fprog { len: count, filter: words.as_ptr().cast_mut().cast() };
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of::<libc::sock_fprog>() as libc::socklen_t);
    // SAFETY: `program` names `count` instructions (eight bytes each) in `words`; the kernel only reads both.
    check(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, (&raw const program).cast(), len) })
        .map(drop)
}

/// Takes a socket's filter away.
pub fn detach_filter(socket: impl AsFd) -> io::Result<()> {
    let (fd, none, len) = (socket.as_fd().as_raw_fd(), 0_i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the kernel reads a number of `len` bytes, which means nothing to it.
    check(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, (&raw const none).cast(), len) })
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_read_as_set() {
        let (a, b) = std::os::unix::net::UnixDatagram::pair().unwrap();
        assert_eq!(attached_filter(&a).unwrap(), None);
        // ret #5
        let code = [6, 0, 0, 0, 5, 0, 0, 0];
        attach_filter(&a, &code).unwrap();
        assert_eq!(attached_filter(&a).unwrap(), Some(code.to_vec()));
        b.send(b"longer than five").unwrap();
        let mut read = [0; 32];
        assert_eq!(a.recv(&mut read).unwrap(), 5);
        assert!(attach_filter(&a, &[0xff; 8]).is_err());
        detach_filter(&a).unwrap();
        assert_eq!(attached_filter(&a).unwrap(), None);
    }
}
