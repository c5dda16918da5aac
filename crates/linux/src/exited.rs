//! Descriptors of processes that have ended and been waited for: `pidfd_open(2)`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::clone::{NO_ARGUMENTS, forking};

/// Signals that only stop a process: `SIGSTOP` to `SIGTTOU`.
const STOPS: std::ops::RangeInclusive<i32> = 19..=22;
/// Bits of a wait status: the signal, and that there is a core file.
const SIGNAL: i32 = 0x7f;
const CORE: i32 = 0x80;

/// `struct pidfd_info` of Linux 6.15, up to the exit status.
#[repr(C)]
struct Info {
    mask: u64,
    cgroup: u64,
    /// Ids of process, parent, users and groups.
    ids: [u32; 11],
    exit_code: i32,
}
/// `PIDFD_GET_INFO`.
const GET_INFO: libc::Ioctl = 0xc000_ff0b | ((size_of::<Info>() as libc::Ioctl) << 16);
/// `PIDFD_INFO_EXIT`.
const EXIT: u64 = 1 << 3;

/// How the process behind a descriptor has ended, as `waitpid(2)` tells it; `None` where the kernel does not keep that.
pub fn status(process: impl AsFd) -> io::Result<Option<i32>> {
    let mut info = Info { mask: EXIT, cgroup: 0, ids: [0; 11], exit_code: 0 };
    // SAFETY: the request's number says how long `info` is, and the kernel writes no more than that to it.
    let answer = unsafe { libc::ioctl(process.as_fd().as_raw_fd(), GET_INFO, &raw mut info) };
    if answer == 0 {
        return Ok((info.mask & EXIT != 0).then_some(info.exit_code));
    }
    match io::Error::last_os_error() {
        // Before Linux 6.13; of a process that had ended when it was opened first.
        error if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL | libc::ESRCH)) => Ok(None),
        error => Err(error),
    }
}

/// Whether [`descriptors`] can make a process that ends so.
pub const fn can_be(status: i32) -> bool {
    let signal = status & SIGNAL;
    let stops = *STOPS.start() <= signal && signal <= *STOPS.end();
    if signal == 0 { status & !0xff00 == 0 } else { status & CORE == 0 && status == signal && !stops && signal <= 64 }
}

/// Descriptors of one process that ends with this status and has been waited for, opened with these flags each.
///
/// # Errors
/// `InvalidInput`: no process can end so.
pub fn descriptors(status: i32, flags: &[u32]) -> io::Result<Vec<OwnedFd>> {
    if !can_be(status) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // The descriptors themselves: a copy of them would keep files open that others close meanwhile.
    let mut arguments = libc::clone_args { flags: libc::CLONE_FILES as u64, ..NO_ARGUMENTS };
    let forking = forking();
    // SAFETY: without CLONE_VM this is a fork, in which `end` makes system calls only and never comes back: no lock that
    // another thread held is ever waited for. `arguments` outlives the call.
    let pid = unsafe {
        let pid = libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>());
        if pid == 0 {
            end(status);
        }
        pid
    };
    let error = io::Error::last_os_error();
    drop(forking);
    if pid < 0 {
        return Err(error);
    }
    // It is ours to wait for, so that the id is its own until then.
    let opened: io::Result<Vec<OwnedFd>> = flags.iter().map(|flags| open(pid as i32, *flags)).collect();
    let pid = rustix::process::Pid::from_raw(pid as i32).ok_or(io::ErrorKind::InvalidData)?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::from_bits_retain(libc::__WALL as u32);
    let ended = loop {
        match waitid(WaitId::Pid(pid), options) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let signal = ended.and_then(|status| status.terminating_signal());
    if signal.unwrap_or(0) != status & SIGNAL {
        return Err(io::Error::other(format!("a process of ours did not end with status {status:#x}")));
    }
    opened
}

fn open(pid: i32, flags: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers only.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us; nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Ends the calling process.
///
/// # Safety
/// To be called in a forked child only.
unsafe fn end(status: i32) -> ! {
    let signal = status & SIGNAL;
    // SAFETY: system calls on numbers and on memory of this function, which is this process's own.
    unsafe {
        if signal != 0 {
            // No core file of it; the action a default one, and nothing blocked.
            libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
            let (default, none) = ([0_u64; 4], 0_u64);
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), 0, 8);
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, 0, 8);
            libc::syscall(libc::SYS_kill, libc::syscall(libc::SYS_getpid), signal);
        }
        loop {
            libc::syscall(libc::SYS_exit_group, (status >> 8) & 0xff);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_have_ended_as_they_should() {
        for wanted in [0, 7 << 8, libc::SIGKILL, libc::SIGSEGV] {
            let made = descriptors(wanted, &[0, libc::O_NONBLOCK as u32]).unwrap();
            assert_eq!(made.len(), 2);
            for fd in &made {
                // Kernels before 6.15 do not tell.
                assert!([None, Some(wanted)].contains(&status(fd).unwrap()), "{wanted}");
                let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).unwrap();
                assert!(text.contains("Pid:\t-1"), "{text}");
            }
        }
        for wrong in [libc::SIGSTOP, libc::SIGSEGV | CORE, 65, 1 << 16, -1] {
            assert!(descriptors(wrong, &[0]).is_err(), "{wrong}");
        }
        assert!(descriptors(libc::SIGCHLD, &[0]).is_err());
    }
}
