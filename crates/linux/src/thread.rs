//! What a thread has for itself.

use std::io;

/// Gives the calling thread a working directory, a root and a umask of its own (`CLONE_FS`), equal to those it shared.
pub fn own_directories() -> io::Result<()> {
    // SAFETY: CLONE_FS changes only where this thread's paths begin; no memory and no descriptor.
    let answer = unsafe { libc::unshare(libc::CLONE_FS) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes `user` the one as whom the calling thread uses files, whatever its effective user is (`setfsuid(2)`). Setting the
/// effective user later sets this one, too.
///
/// # Errors
/// `EPERM` when the thread may not, or the user namespace does not have the user.
pub fn set_file_user(user: u32) -> io::Result<()> {
    set_file_id(libc::SYS_setfsuid, user)
}

/// The same for the group (`setfsgid(2)`).
///
/// # Errors
/// As [`set_file_user`].
pub fn set_file_group(group: u32) -> io::Result<()> {
    set_file_id(libc::SYS_setfsgid, group)
}

fn set_file_id(call: libc::c_long, id: u32) -> io::Result<()> {
    // SAFETY: both calls take a number, and change one of this thread's; the kernel answers with the former one in every case.
    let set = |id: u32| unsafe { libc::syscall(call, id) };
    set(id);
    // Nobody has this id, so it only asks.
    let now = set(u32::MAX);
    if now == libc::c_long::from(id) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_used_as_another_user() {
        let file_user = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
            line.rsplit('\t').next().unwrap().parse::<u32>().unwrap()
        };
        let before = file_user();
        let changed = std::thread::spawn(move || {
            set_file_user(12).unwrap();
            let changed = file_user();
            // The other users of the thread are as they were.
            set_file_user(before).unwrap();
            (changed, file_user())
        });
        assert_eq!((changed.join().unwrap(), file_user()), ((12, before), before));
    }

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
