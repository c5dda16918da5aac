//! Keyrings: `keyctl(2)`.

/// The serial number of our session keyring; `None` on kernels without keyrings.
pub fn session() -> Option<i32> {
    const KEYCTL_GET_KEYRING_ID: libc::c_long = 0;
    const KEY_SPEC_SESSION_KEYRING: libc::c_long = -3;
    // SAFETY: takes numbers only, and makes nothing new.
    let serial = unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0, 0, 0) };
    (serial > 0).then_some(serial as i32)
}
