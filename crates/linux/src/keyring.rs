//! Keyrings: `keyctl(2)`.

use std::io;

const GET_KEYRING_ID: libc::c_long = 0;
/// `KEYCTL_JOIN_SESSION_KEYRING`.
pub(crate) const JOIN_SESSION_KEYRING: libc::c_long = 1;
const SESSION_KEYRING: libc::c_long = -3;

/// The serial number of our session keyring; `None` on kernels without keyrings.
pub fn session() -> Option<i32> {
    // SAFETY: takes numbers only, and makes nothing new.
    let serial = unsafe { libc::syscall(libc::SYS_keyctl, GET_KEYRING_ID, SESSION_KEYRING, 0, 0, 0) };
    (serial > 0).then_some(serial as i32)
}

/// Gives the calling thread a new, empty session keyring, which its future children share (`keyctl_join_session_keyring(3)`).
/// It is charged to the calling user. Does nothing where there are no keyrings for this process and its children: in a kernel
/// without them, or under a filter that refuses the call.
///
/// # Errors
/// `EDQUOT` when the user has too many keys, `ENOMEM`.
pub fn join_new_session() -> io::Result<()> {
    // SAFETY: takes numbers and no name.
    let serial = unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, 0, 0, 0, 0) };
    if serial >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if is_without(error.raw_os_error().unwrap_or_default()) { Ok(()) } else { Err(error) }
}

/// Whether an error says that there are no keyrings for this process and its children.
pub(crate) const fn is_without(error: i32) -> bool {
    matches!(error, libc::ENOSYS | libc::EPERM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_session_is_the_threads_own() {
        let before = session();
        let other = std::thread::spawn(|| {
            join_new_session().unwrap();
            session()
        });
        let other = other.join().unwrap();
        assert_eq!(session(), before);
        // Where there are keyrings at all.
        assert!(other.is_none() || other != before);
    }
}
