//! Files by their kernel handle: `open_by_handle_at(2)`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Bytes that a handle has at most (`MAX_HANDLE_SZ`).
pub const MAX_BYTES: usize = 128;

#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; MAX_BYTES],
}

/// `AT_HANDLE_FID` (Linux 6.5).
const ONLY_TO_COMPARE: libc::c_int = 0x200;

/// The handle of an open file: its kind and its bytes; `None` where the file system has none.
///
/// # Errors
/// What the kernel says.
pub fn of(file: impl AsFd) -> io::Result<Option<(i32, Vec<u8>)>> {
    encoded(file, 0)
}

/// As [`of`], also where the file system opens nothing by handle: what `inotify(7)` shows in `/proc/PID/fdinfo`.
///
/// # Errors
/// What the kernel says.
pub fn identity(file: impl AsFd) -> io::Result<Option<(i32, Vec<u8>)>> {
    encoded(file, ONLY_TO_COMPARE)
}

fn encoded(file: impl AsFd, flags: libc::c_int) -> io::Result<Option<(i32, Vec<u8>)>> {
    let mut whole = FileHandle { bytes: MAX_BYTES as u32, kind: 0, handle: [0; MAX_BYTES] };
    let mut mount: libc::c_int = 0;
    // SAFETY: the path is an empty string; the kernel writes a `struct file_handle` with at most `bytes` bytes, as many as
    // there are, to `whole`, and an int to `mount`; both live through the call.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            file.as_fd().as_raw_fd(),
            c"".as_ptr(),
            &raw mut whole,
            &raw mut mount,
            libc::AT_EMPTY_PATH | flags,
        )
    };
    if answer < 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::EOPNOTSUPP) { Ok(None) } else { Err(error) };
    }
    Ok(Some((whole.kind, whole.handle[..(whole.bytes as usize).min(MAX_BYTES)].to_vec())))
}

/// Opens the file with this handle on the file system that `mount` lies on, with `O_PATH`.
///
/// # Errors
/// `ESTALE` if there is no such file any more; `EINVAL` for a handle that is too long.
pub fn open(mount: impl AsFd, kind: i32, handle: &[u8]) -> io::Result<OwnedFd> {
    let mut whole = FileHandle { bytes: handle.len() as u32, kind, handle: [0; MAX_BYTES] };
    let place = whole.handle.get_mut(..handle.len()).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    place.copy_from_slice(handle);
    // SAFETY: the kernel reads a `struct file_handle` (two numbers and `bytes` bytes, at most the 128 that are there) from
    // `whole`, which lives through the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_fd().as_raw_fd(),
            &raw mut whole,
            libc::O_PATH | libc::O_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us; nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_by_its_handle_whatever_its_name() {
        let folder = std::env::temp_dir();
        let path = folder.join(format!("torpor-handle-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        let (kind, handle) = of(&file).unwrap().expect("a temporary directory whose file system has handles");
        let found = open(std::fs::File::open(&folder).unwrap(), kind, &handle).unwrap();
        let number = |fd: &dyn AsFd| rustix::fs::fstat(fd).unwrap().st_ino;
        assert_eq!(number(&found), number(&file));
        assert_eq!(identity(&file).unwrap(), Some((kind, handle)));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn handles_that_are_not_handles_are_refused() {
        let root = std::fs::File::open("/").unwrap();
        assert!(open(&root, 1, &[0; MAX_BYTES + 1]).is_err());
        assert!(open(&root, 1, &[0xff; 8]).is_err());
    }
}
