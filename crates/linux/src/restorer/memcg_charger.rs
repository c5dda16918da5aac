//! A process in another cgroup that has pages of memory files made there.
//!
//! A page of a memory file is charged to the cgroup of the address space that asks for it first, and a thread cannot leave that of
//! its process. So another process asks for the pages (`fallocate(2)`), and whoever starts it fills them.
//!
//! ```text
//!   Payer                                  the process: a copy of our memory, our descriptors themselves
//!   ─────                                  ──────────────────────────────────────────────────────────────
//!   start ── clone3(CLONE_FILES) ────────▶ enters the groups, answers
//!   allocate ── descriptor, place ───────▶ fallocate, answers
//!   drop ── SIGKILL, wait ───────────────▶
//! ```
//! If the thread that has started it ends first, it is killed.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::launch::{Blocked, CLEAR_SIGNAL_ACTIONS, Stack, leave};
use super::raw::{call, clone};
use crate::clone::{NO_ARGUMENTS, forking};
use crate::ptrace;

/// `CLONE_INTO_CGROUP`.
const INTO_CGROUP: u64 = 1 << 33;
const WORD: usize = size_of::<u64>();
/// How long an answer may take: the group may be frozen.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// The process. Dropping it ends it.
#[derive(Debug)]
pub struct MemcgCharger {
    pid: i32,
    process: OwnedFd,
    socket: OwnedFd,
    /// The process's end: descriptors are the same in both.
    _theirs: OwnedFd,
}

/// What the process needs.
struct Serving<'a> {
    parent: i32,
    socket: i32,
    files: &'a [i32],
}

impl MemcgCharger {
    /// Starts it in the v2 cgroup whose directory is `group`, if one is given, and then moves it to the groups whose `tasks` or
    /// `cgroup.procs` are `files`, in this order.
    ///
    /// # Errors
    /// Where it may not, or is killed on the way.
    pub fn start(group: Option<BorrowedFd<'_>>, files: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let files: Vec<i32> = files.iter().map(AsRawFd::as_raw_fd).collect();
        // SAFETY: getpid has no preconditions.
        let parent = unsafe { libc::getpid() };
        let mut serving = Serving { parent, socket: theirs.as_raw_fd(), files: &files };
        let mut stack = Stack::new();
        let (place, stack_size) = stack.place();
        let mut process: libc::c_int = -1;
        let arguments = libc::clone_args {
            flags: (libc::CLONE_FILES | libc::CLONE_PIDFD) as u64
                | CLEAR_SIGNAL_ACTIONS
                | group.map_or(0, |_| INTO_CGROUP),
            pidfd: &raw mut process as u64,
            stack: place,
            stack_size,
            cgroup: group.map_or(0, |group| group.as_raw_fd() as u64),
            ..NO_ARGUMENTS
        };
        let (blocked, forking) = (Blocked::all(), forking());
        // SAFETY: the child has a copy of our memory, and with it of its stack and of `serving`. `serve` never returns and makes
        // system calls only; signals are blocked.
        let pid = unsafe { clone(&arguments, serve, ptr::from_mut(&mut serving).cast()) };
        drop((forking, blocked));
        if pid < 0 {
            return Err(io::Error::from_raw_os_error(-pid as i32));
        }
        // SAFETY: CLONE_PIDFD made this descriptor, and nobody else knows it.
        let process = unsafe { OwnedFd::from_raw_fd(process) };
        let payer = Self { pid: pid as i32, process, socket: ours, _theirs: theirs };
        payer.answer()?;
        Ok(payer)
    }

    /// Has pages of a memory file made, whose length does not change: `bytes` from `start`, multiples of pages.
    ///
    /// # Errors
    /// Where there is no memory, or the process is gone.
    pub fn allocate(&self, file: BorrowedFd<'_>, start: u64, bytes: u64) -> io::Result<()> {
        let words = [file.as_raw_fd() as u64, start, bytes];
        rustix::io::write(&self.socket, &words.map(u64::to_ne_bytes).concat())?;
        self.answer()
    }

    fn answer(&self) -> io::Result<()> {
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&self.process, PollFlags::IN)];
        loop {
            match poll(&mut polled, Some(&PATIENCE)) {
                Err(Errno::INTR) => {}
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
                Ok(_) => break,
            }
        }
        if !polled[0].revents().contains(PollFlags::IN) {
            return Err(io::Error::other("it was killed on the way"));
        }
        let mut answer = [0; WORD];
        rustix::io::read(&self.socket, &mut answer)?;
        match i64::from_ne_bytes(answer) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error as i32)),
        }
    }
}

impl Drop for MemcgCharger {
    fn drop(&mut self) {
        // SAFETY: takes numbers; it is our child, and nobody has waited for it, so its number is not another's.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        let _ = ptrace::wait(self.pid);
    }
}

extern "C" fn serve(serving: *mut u8) -> ! {
    // SAFETY: `start` passes a valid `Serving`, of which this process has a copy.
    let serving = unsafe { &*serving.cast::<Serving<'_>>() };
    // SAFETY: takes numbers.
    let father = unsafe {
        call(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as u64, libc::SIGKILL as u64, 0, 0, 0, 0]);
        call(libc::SYS_getppid, [0; 6])
    };
    let entered = if father == i64::from(serving.parent) { enter(serving.files) } else { -i64::from(libc::ESRCH) };
    let mut answer = entered;
    loop {
        let mut words = [0_u64; 3];
        // SAFETY: the kernel reads the answer, and writes as many bytes as the request has; both outlive the calls. The
        // descriptor in a request is open while its sender waits for the answer.
        answer = unsafe {
            let socket = serving.socket as u64;
            let sent = call(libc::SYS_write, [socket, &raw const answer as u64, WORD as u64, 0, 0, 0]);
            let bytes = size_of_val(&words) as u64;
            let read = call(libc::SYS_read, [socket, words.as_mut_ptr() as u64, bytes, 0, 0, 0]);
            if entered < 0 || sent < 0 || read != bytes as i64 {
                leave();
            }
            let [file, start, bytes] = words;
            call(libc::SYS_fallocate, [file, libc::FALLOC_FL_KEEP_SIZE as u64, start, bytes, 0, 0])
        };
    }
}

/// Enters all of these groups; 0 or an error.
fn enter(files: &[i32]) -> i64 {
    for file in files {
        // SAFETY: the text outlives the call.
        let answer = unsafe { call(libc::SYS_write, [*file as u64, c"0".as_ptr() as u64, 1, 0, 0, 0]) };
        if answer < 0 {
            return answer;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
    use std::os::fd::AsFd;

    #[test]
    fn pages_are_there_and_the_length_stays() {
        let payer = MemcgCharger::start(None, &[]).unwrap();
        let file = memfd_create("paid", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 5000).unwrap();
        payer.allocate(file.as_fd(), 0, 8192).unwrap();
        let stat = fstat(&file).unwrap();
        assert_eq!((stat.st_size, stat.st_blocks), (5000, 16));
        let refused = payer.allocate(io::stdin().as_fd(), 0, 4096);
        assert!(refused.is_err());
        let pid = payer.pid;
        drop(payer);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_group_that_cannot_be_entered_is_an_error() {
        let file = std::fs::File::open("/proc/self/comm").unwrap();
        assert!(MemcgCharger::start(None, &[file.as_fd()]).is_err());
    }
}
