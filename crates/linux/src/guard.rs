//! A process that puts right what its parent is in the middle of, should that be killed there.
//!
//! Some things take many calls, and are good only before the first and behind the last of them. A guard is forked before the
//! first and dismissed behind the last; where its parent ends without having dismissed it, whatever ended it, it does what
//! [`CleanUp`] says, at once, and ends. To be forked and to be dismissed are single calls: there is nothing in between.
//!
//! It is a copy, so that it outlives what ends all that share memory (the kernel, where that is short); no signal
//! but `SIGKILL` ends it. Its parent's children waited for as usual do not have it among them.

use std::ffi::CStr;
use std::io::{self, PipeWriter, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;

use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::clone::fork;
use crate::shm;

/// What is done when the parent ends.
#[derive(Clone, Copy, Debug)]
pub enum CleanUp<'a> {
    /// These sockets leave TCP's repair mode without a packet; with `SO_REUSEADDR` as given, which that loses.
    LeaveRepair(&'a [(BorrowedFd<'a>, bool)]),
    /// These processes are killed, these connections are none any more, of which nobody is told, and these segments are removed.
    /// Until that is done, all descriptors that are open when the guard starts stay open.
    End {
        /// Descriptors of processes.
        processes: &'a [BorrowedFd<'a>],
        /// TCP sockets.
        connections: &'a [BorrowedFd<'a>],
        /// Ids of System V segments that are not there yet; those that somebody else than the parent has made by then stay.
        segments: &'a [i32],
    },
}

/// While this is there, the guard is; dropped, it does its work, unless it has been dismissed.
#[derive(Debug)]
pub struct CrashGuard {
    process: OwnedFd,
    lead: Option<PipeWriter>,
}

impl CrashGuard {
    /// Starts it.
    ///
    /// # Errors
    /// What the kernel says to `pipe2` or `clone3`.
    pub fn start(rescue: CleanUp<'_>) -> io::Result<Self> {
        let (own, lead) = io::pipe()?;
        // What the child uses is put together here: it must not ask for memory.
        let mut kept = vec![own.as_raw_fd()];
        if let CleanUp::LeaveRepair(sockets) = rescue {
            kept.extend(sockets.iter().map(|(socket, _)| socket.as_raw_fd()));
        }
        kept.sort_unstable();
        let parent = std::process::id() as i32;
        // SAFETY: `keep_watch` makes system calls only, on descriptors that are open.
        let forked = unsafe { fork(|| keep_watch(own.as_raw_fd(), lead.as_raw_fd(), parent, rescue, &kept)) };
        let (_, process) = forked?;
        Ok(Self { process, lead: Some(lead) })
    }

    /// Starts one that does [`CleanUp::End`], unless there is nothing to do but to end one process, which takes a single call.
    ///
    /// # Errors
    /// As [`CrashGuard::start`].
    pub fn of_end(processes: &[OwnedFd], connections: &[BorrowedFd<'_>], segments: &[i32]) -> io::Result<Option<Self>> {
        if processes.len() < 2 && connections.is_empty() && segments.is_empty() {
            return Ok(None);
        }
        let processes: Vec<_> = processes.iter().map(AsFd::as_fd).collect();
        Self::start(CleanUp::End { processes: &processes, connections, segments }).map(Some)
    }

    /// It ends without having done anything: what it was to put right is complete.
    ///
    /// # Errors
    /// It had been ended by somebody; there is nothing to be done about that.
    pub fn dismiss(mut self) -> io::Result<()> {
        self.lead.as_mut().map_or(Ok(()), |lead| lead.write_all(&[0]))
    }
}

impl Drop for CrashGuard {
    fn drop(&mut self) {
        drop(self.lead.take());
        let options = WaitIdOptions::EXITED | WaitIdOptions::from_bits_retain(libc::__WALL as u32);
        while matches!(waitid(WaitId::PidFd(self.process.as_fd()), options), Err(rustix::io::Errno::INTR)) {}
    }
}

/// What it does.
///
/// # Safety
/// To be called in a forked child only, with these descriptors open.
unsafe fn keep_watch(own: RawFd, lead: RawFd, parent: i32, rescue: CleanUp<'_>, kept: &[RawFd]) -> ! {
    const NAME: &CStr = c"torpor-guard";
    let none = ptr::null::<libc::siginfo_t>();
    let all = u64::MAX;
    // SAFETY: system calls on numbers and on memory of this process, which is a copy.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const all,
            ptr::null_mut::<u64>(),
            size_of::<u64>(),
        );
        libc::syscall(libc::SYS_prctl, libc::PR_SET_NAME, NAME.as_ptr(), 0, 0, 0);
        libc::syscall(libc::SYS_close, lead);
        if matches!(rescue, CleanUp::LeaveRepair(_)) {
            // Nothing else of ours is kept open by it.
            let mut from = 0;
            for fd in kept {
                if *fd > from {
                    libc::syscall(libc::SYS_close_range, from, *fd - 1, 0);
                }
                from = *fd + 1;
            }
            libc::syscall(libc::SYS_close_range, from, u32::MAX, 0);
        }
        let mut word = 0_u8;
        // All signals are blocked: it is not interrupted.
        if libc::syscall(libc::SYS_read, own, &raw mut word, 1) == 0 {
            match rescue {
                CleanUp::LeaveRepair(sockets) => {
                    for (socket, reuse) in sockets {
                        set(*socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, crate::tcp::repair::OFF_WITHOUT_PROBE);
                        set(*socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, libc::c_int::from(*reuse));
                    }
                }
                CleanUp::End { processes, connections, segments } => {
                    for process in processes {
                        libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), libc::SIGKILL, none, 0);
                    }
                    for socket in connections {
                        set(*socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, 1);
                        disconnect(*socket);
                    }
                    for id in segments {
                        shm::remove_made_by(*id, parent);
                    }
                }
            }
        }
        loop {
            libc::syscall(libc::SYS_exit_group, 0);
        }
    }
}

fn set(socket: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int, value: libc::c_int) {
    let len = size_of::<libc::c_int>();
    // SAFETY: the kernel reads an int from `value`.
    unsafe { libc::syscall(libc::SYS_setsockopt, socket.as_raw_fd(), level, option, &raw const value, len) };
}

/// In repair mode the kernel tells nobody.
fn disconnect(socket: BorrowedFd<'_>) {
    let none = [libc::AF_UNSPEC as u16; 8];
    // SAFETY: the kernel reads an address from `none`, of which only the family counts.
    unsafe { libc::syscall(libc::SYS_connect, socket.as_raw_fd(), none.as_ptr(), size_of_val(&none)) };
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::process::{Child, Command};

    use rustix::net::sockopt::{set_socket_reuseaddr, socket_reuseaddr};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;
    use crate::socket::tcp_state;
    use crate::tcp::repair::{Mode, repair};

    const ESTABLISHED: u8 = 1;
    const CLOSED: u8 = 7;

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn program() -> (Child, OwnedFd) {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        (child, process)
    }

    #[test]
    fn dismissed_it_does_nothing() {
        let (_client, served) = connection();
        let (mut child, process) = program();
        let segment = shm::get(libc::IPC_PRIVATE, 1, 0).unwrap();
        let rescue =
            CleanUp::End { processes: &[process.as_fd()], connections: &[served.as_fd()], segments: &[segment] };
        CrashGuard::start(rescue).unwrap().dismiss().unwrap();
        shm::remove(segment).unwrap();
        assert_eq!((child.try_wait().unwrap(), tcp_state(&served).unwrap().0), (None, ESTABLISHED));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn an_end_is_silent() {
        let (mut client, served) = connection();
        let (mut child, process) = program();
        let rescue = CleanUp::End { processes: &[process.as_fd()], connections: &[served.as_fd()], segments: &[] };
        drop(CrashGuard::start(rescue).unwrap());
        assert_eq!(tcp_state(&served).unwrap().0, CLOSED);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(libc::SIGKILL));
        client.set_nonblocking(true).unwrap();
        let nothing = client.read(&mut [0]).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock, "no end and no reset");
        assert_eq!(tcp_state(&client).unwrap().0, ESTABLISHED);
    }

    #[test]
    fn segments_that_the_parent_has_made_are_removed() {
        let own = shm::get(libc::IPC_PRIVATE, 1, 0).unwrap();
        let other = Command::new("ipcmk").args(["-M", "1"]).output().unwrap().stdout;
        let other = String::from_utf8(other).unwrap().split_ascii_whitespace().last().unwrap().parse().unwrap();
        drop(CrashGuard::start(CleanUp::End { processes: &[], connections: &[], segments: &[own, other] }).unwrap());
        assert_eq!(shm::look(own).unwrap(), None);
        shm::remove(other).unwrap();
    }

    #[test]
    fn repair_mode_is_left() {
        let (mut client, mut served) = connection();
        let other = connection();
        set_socket_reuseaddr(&served, true).unwrap();
        set_socket_reuseaddr(&other.0, false).unwrap();
        let sockets = [(served.as_fd(), true), (other.0.as_fd(), false)];
        let guard = CrashGuard::start(CleanUp::LeaveRepair(&sockets)).unwrap();
        repair(&served, Mode::On).unwrap();
        assert!(served.write(b"x").is_err());
        drop(guard);
        served.write_all(b"y").unwrap();
        let mut got = [0];
        client.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"y");
        assert!(socket_reuseaddr(&served).unwrap() && !socket_reuseaddr(&other.0).unwrap());
    }
}
