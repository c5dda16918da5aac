//! What a thread has for itself.

use std::io;

/// Gives the calling thread a working directory, a root and a umask of its own (`CLONE_FS`), equal to those it shared.
pub fn own_directories() -> io::Result<()> {
    // SAFETY: CLONE_FS changes only where this thread's paths begin; no memory and no descriptor.
    let answer = unsafe { libc::unshare(libc::CLONE_FS) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_others_stay_where_they_are() {
        let before = std::env::current_dir().unwrap();
        std::thread::spawn(|| {
            own_directories().unwrap();
            std::env::set_current_dir("/proc").unwrap();
        })
        .join()
        .unwrap();
        assert_eq!(std::env::current_dir().unwrap(), before);
    }
}
