//! Installing system-call filters: `seccomp(2)`. Making them is for others.

use std::io;

/// One instruction of classic BPF, as `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Instructions to skip if a comparison holds.
    pub jump_true: u8,
    /// Instructions to skip if it does not.
    pub jump_false: u8,
    /// Operand.
    pub operand: u32,
}

const _: () = assert!(size_of::<Instruction>() == size_of::<libc::sock_filter>());
const _: () = assert!(align_of::<Instruction>() == align_of::<libc::sock_filter>());

/// Filters the calling thread's system calls, and those of its future children, for good.
///
/// # Errors
/// `EACCES` without CAP_SYS_ADMIN in the user namespace and without no_new_privs; `EINVAL` for a filter that the
/// kernel's checker refuses or that is longer than 4096 instructions.
pub fn install_filter(filter: &[Instruction]) -> io::Result<()> {
    let length = u16::try_from(filter.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = libc::sock_fprog { len: length, filter: filter.as_ptr().cast_mut().cast() };
    // SAFETY: `program` points to `length` instructions of the kernel's layout (asserted above), which it only reads
    // and checks before it uses them.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
