//! A process that does nothing but be there, as some user: whom another process of that user may look at, unless something
//! else than users keeps it from that.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::clone::fork;

/// Without any capability, and ended when this is dropped; or by itself, when the calling process has ended.
#[derive(Debug)]
pub struct PtraceProbe {
    pid: i32,
    process: OwnedFd,
    /// It ends with this.
    _lead: UnixStream,
}

/// Whether programs can restrict themselves with Landlock here.
pub fn landlock_is_on() -> bool {
    const LANDLOCK_CREATE_RULESET_VERSION: libc::c_long = 1;
    // SAFETY: asked for the version, the call makes nothing and reads no memory.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, 0 as libc::c_long, 0, LANDLOCK_CREATE_RULESET_VERSION)
    };
    version > 0
}

impl PtraceProbe {
    /// Starts it as `user` and `group`, as the user namespace of the process `namespace` knows them, or else ours; in the pid
    /// namespace that the calling thread's children are made in.
    ///
    /// # Errors
    /// What the kernel says to `clone3`, `setns` or changing users.
    pub fn start(namespace: Option<BorrowedFd<'_>>, user: u32, group: u32) -> io::Result<Self> {
        let (mut lead, its) = UnixStream::pair()?;
        let namespace = namespace.map_or(-1, |namespace| namespace.as_raw_fd());
        // SAFETY: `be` makes system calls only.
        let (pid, process) = unsafe { fork(|| be(namespace, user, group, its.as_raw_fd())) }?;
        drop(its);
        let mut answer = [0; 4];
        let told = lead.read_exact(&mut answer);
        let bystander = Self { pid, process, _lead: lead };
        told?;
        match i32::from_ne_bytes(answer) {
            0 => Ok(bystander),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Its id in our pid namespace.
    pub const fn pid(&self) -> i32 {
        self.pid
    }
}

impl Drop for PtraceProbe {
    fn drop(&mut self) {
        // It may have ended; either way it is waited for.
        let _ = pidfd_send_signal(self.process.as_fd(), Signal::KILL);
        let options = WaitIdOptions::EXITED | WaitIdOptions::from_bits_retain(libc::__WALL as u32);
        while matches!(waitid(WaitId::PidFd(self.process.as_fd()), options), Err(rustix::io::Errno::INTR)) {}
    }
}

/// What it does.
///
/// # Safety
/// To be called in a forked child only, with `lead` and `namespace` (or -1) open.
unsafe fn be(namespace: libc::c_int, user: u32, group: u32, lead: libc::c_int) -> ! {
    const VERSION_3: u32 = 0x2008_0522;
    let (header, none) = ([VERSION_3, 0], [0_u32; 6]);
    let mut error = 0;
    let mut check = |answer: libc::c_long| {
        if answer < 0 && error == 0 {
            // SAFETY: errno is this thread's own.
            error = unsafe { *libc::__errno_location() };
        }
    };
    // SAFETY: system calls on numbers and on memory of this function, which is this process's own.
    unsafe {
        if namespace >= 0 {
            check(libc::syscall(libc::SYS_setns, namespace, libc::CLONE_NEWUSER));
        }
        check(libc::syscall(libc::SYS_setgroups, 0, 0));
        check(libc::syscall(libc::SYS_setresgid, group, group, group));
        check(libc::syscall(libc::SYS_setresuid, user, user, user));
        check(libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()));
        check(libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0));
        // Nothing of ours is kept open by it.
        check(libc::syscall(libc::SYS_dup3, lead, if lead == 0 { 1 } else { 0 }, 0));
        let lead = libc::c_int::from(lead == 0);
        check(libc::syscall(libc::SYS_close_range, lead + 1, u32::MAX, 0));
        let answer = error.to_ne_bytes();
        libc::syscall(libc::SYS_write, lead, answer.as_ptr(), answer.len());
        let mut end = 0_u8;
        libc::syscall(libc::SYS_read, lead, &raw mut end, 1);
        loop {
            libc::syscall(libc::SYS_exit_group, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_whom_it_is_to_be_and_ends() {
        let bystander = PtraceProbe::start(None, 12, 34).unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/status", bystander.pid())).unwrap();
        assert!(status.contains("Uid:\t12\t12\t12\t12") && status.contains("Gid:\t34\t34\t34\t34"), "{status}");
        assert!(status.contains("CapPrm:\t0000000000000000"), "{status}");
        let pid = bystander.pid();
        drop(bystander);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
