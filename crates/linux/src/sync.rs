//! Having a file's pages written to the disk in good time: `sync_file_range(2)`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Begins to write what of these bytes is only in the page cache, and does not wait for it. Nothing is durable by this: only
/// a sync of the file says so, and has less to wait for.
pub fn start_writing(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let number = |n: u64| i64::try_from(n).map_err(|_| io::ErrorKind::InvalidInput);
    let (offset, bytes) = (number(offset)?, number(bytes)?);
    // SAFETY: numbers and a descriptor that is borrowed for the call; no memory is passed.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, bytes, libc::SYNC_FILE_RANGE_WRITE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_started_and_a_pipe_cannot() {
        let path = std::env::temp_dir().join(format!("start-writing-{}", std::process::id()));
        std::fs::write(&path, [1; 8192]).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        start_writing(&file, 0, 8192).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (_, pipe) = io::pipe().unwrap();
        assert!(start_writing(&File::from(std::os::fd::OwnedFd::from(pipe)), 0, 1).is_err());
    }
}
