//! A userfaultfd context of a process that does not run, made by remote calls: of one that is parked, or of one that is being built.
//!
//! A context belongs to the address space of whoever makes it, and a sandboxed process may not make one. So it is handed the device,
//! by a socket of its own that we take the other end of, makes the context, and we take that:
//!
//! ```text
//! process                                     we
//! mmap (a record), socketpair ───────────────▶ pidfd_getfd: our end
//! recvmsg ◀─────────────────────────────────── the device (SCM_RIGHTS)
//! ioctl(device, NEW_CONTEXT) ────────────────▶ pidfd_getfd: the context
//! close ×4, munmap
//! ```
//! Nothing of this is left behind in it, whatever fails. Should we die in the middle, the page still has the numbers of the descriptors, and
//! whoever brings the parked process back closes them before its threads run ([`left_behind`]). A process that is being built dies with us.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use torpor_linux::descriptor::duplicate;
use torpor_linux::socket::{Sent, send};
use torpor_linux::uapi::memory::{MAP_ANONYMOUS, MAP_SHARED, PROT_READ, PROT_WRITE};
use torpor_linux::uapi::socket::{AF_UNIX, MSG_CMSG_CLOEXEC, SOCK_CLOEXEC, SOCK_STREAM};
use torpor_linux::uapi::syscall;
use torpor_linux::userfault::{CONTEXT_FLAGS, NEW_CONTEXT, Userfault};
use torpor_linux::vm::{self, Remote};

use crate::trace::{Process, TraceError};

const PAGE_BYTES: u64 = 4096;
// What is where in the page: two descriptors, a message with its one part, its control message, its one byte.
const SOCKETS: u64 = 0;
const MESSAGE: u64 = 64;
const PART: u64 = 128;
const CONTROL: u64 = 192;
/// A `struct cmsghdr` with one descriptor, aligned.
const CONTROL_BYTES: u64 = 24;
/// In the message: the length of the control messages that came.
const RECEIVED_BYTES: u64 = MESSAGE + 40;
/// The descriptor in it.
const RECEIVED: u64 = CONTROL + 16;
const BYTE: u64 = 256;
/// What tells the page from others, behind the record of what is open.
const MAGIC_PLACE: u64 = 512;
const MAGIC: &[u8; 16] = b"TORPOR CONTEXT\r\n";
/// A number that no descriptor has.
const NONE: u32 = u32::MAX;
/// The name of a shared anonymous area: unlike a private one it is never merged with others.
const SHARED_ANONYMOUS: &str = "/dev/zero (deleted)";

/// Makes system calls in a process.
pub trait RemoteCalls {
    /// The process.
    fn pid(&self) -> i32;
    /// Makes a call, and gives the kernel's answer, an error number as an error.
    ///
    /// # Errors
    /// If it cannot be made, or fails.
    fn call(&self, name: &'static str, number: u64, arguments: &[u64]) -> Result<u64, TraceError>;
}

/// A process that is parked and not frozen.
struct Parked<'a> {
    process: &'a Process,
    park_address: u64,
}

impl RemoteCalls for Parked<'_> {
    fn pid(&self) -> i32 {
        self.process.pid
    }

    fn call(&self, name: &'static str, number: u64, arguments: &[u64]) -> Result<u64, TraceError> {
        self.process.call(self.park_address, name, number, arguments)
    }
}

/// A context of `process`, which is parked at `park_address` and not frozen, from `device` ([`torpor_linux::userfault::DEVICE`]).
///
/// # Errors
/// As of [`context_by`]; if its seccomp filters cannot be suspended.
pub fn context(process: &Process, park_address: u64, device: BorrowedFd<'_>) -> Result<Userfault, TraceError> {
    if !process.threads.first().is_some_and(|thread| thread.tracee.is_unfiltered()) {
        // They might kill it for such a call.
        let error = io::Error::new(io::ErrorKind::PermissionDenied, "its seccomp filters cannot be suspended");
        return Err(TraceError::Call { pid: process.pid, call: "socketpair", error });
    }
    context_by(&Parked { process, park_address }, device)
}

/// A context of the process in which `calls` are made, to which no seccomp filter applies.
///
/// # Errors
/// If the process has no room for a page or for four descriptors, or if the kernel refuses.
pub fn context_by(calls: &dyn RemoteCalls, device: BorrowedFd<'_>) -> Result<Userfault, TraceError> {
    let mut making = Making { calls, opened: Vec::new(), page: None };
    let made = making.context(device);
    let ended = making.end();
    let made = made?;
    ended?;
    let pid = calls.pid();
    Userfault::set_up(made).map_err(|error| TraceError::Call { pid, call: "UFFDIO_API", error })
}

/// What the process has for it so far.
struct Making<'a> {
    calls: &'a dyn RemoteCalls,
    opened: Vec<u64>,
    page: Option<u64>,
}

impl Making<'_> {
    fn call(&self, name: &'static str, number: u64, arguments: &[u64]) -> Result<u64, TraceError> {
        self.calls.call(name, number, arguments)
    }

    fn failed(&self, call: &'static str) -> impl Fn(io::Error) -> TraceError + use<> {
        let pid = self.calls.pid();
        move |error| TraceError::Call { pid, call, error }
    }

    fn context(&mut self, device: BorrowedFd<'_>) -> Result<OwnedFd, TraceError> {
        let pid = self.calls.pid();
        let page = [0, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, u64::MAX, 0];
        let page = *self.page.insert(self.call("mmap", syscall::MMAP, &page)?);
        let none = [NONE.to_ne_bytes(), NONE.to_ne_bytes()].concat();
        vm::write(pid, &[(page + SOCKETS, &none), (page + RECEIVED, &none), (page + MAGIC_PLACE, MAGIC)])
            .map_err(self.failed("process_vm_writev"))?;

        let pair = [AF_UNIX as u64, (SOCK_STREAM | SOCK_CLOEXEC) as u64, 0, page + SOCKETS];
        self.call("socketpair", syscall::SOCKETPAIR, &pair)?;
        let [ours, theirs] = self.numbers(page + SOCKETS)?;
        self.opened.extend([ours, theirs]);
        let socket = duplicate(pid, ours as i32).map_err(self.failed("pidfd_getfd"))?;
        send(socket.as_fd(), &Sent { bytes: b"d", to: &[], files: &[device], credentials: None })
            .map_err(self.failed("sendmsg"))?;

        let part = [page + BYTE, 1];
        // Name, its length, parts, their number, control, its length, flags.
        let message = [0, 0, page + PART, 1, page + CONTROL, CONTROL_BYTES, 0];
        let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        vm::write(pid, &[(page + PART, &bytes(&part)), (page + MESSAGE, &bytes(&message))])
            .map_err(self.failed("process_vm_writev"))?;
        self.call("recvmsg", syscall::RECVMSG, &[theirs, page + MESSAGE, MSG_CMSG_CLOEXEC as u64])?;
        let [received, _] = self.numbers(page + RECEIVED_BYTES)?;
        if received < CONTROL_BYTES - 4 {
            // It may open no more files.
            return Err(self.failed("recvmsg")(io::ErrorKind::InvalidData.into()));
        }
        let [device, _] = self.numbers(page + RECEIVED)?;
        self.opened.push(device);

        let context = self.call("USERFAULTFD_IOC_NEW", syscall::IOCTL, &[device, NEW_CONTEXT, CONTEXT_FLAGS])?;
        self.opened.push(context);
        duplicate(pid, context as i32).map(OwnedFd::from).map_err(self.failed("pidfd_getfd"))
    }

    /// Two descriptors that the kernel has written at `address`.
    fn numbers(&self, address: u64) -> Result<[u64; 2], TraceError> {
        let numbers = numbers(self.calls.pid(), address).map_err(self.failed("process_vm_readv"))?;
        Ok(numbers.map(u64::from))
    }

    /// Takes back what the process has for it; all of it, also behind an error.
    fn end(self) -> Result<(), TraceError> {
        let closed = self.opened.iter().map(|fd| self.call("close", syscall::CLOSE, &[*fd])).fold(Ok(0), Result::and);
        let unmapped = self.page.map(|page| self.call("munmap", syscall::MUNMAP, &[page, PAGE_BYTES]));
        closed.and(unmapped.unwrap_or(Ok(0))).map(drop)
    }
}

fn numbers(pid: i32, address: u64) -> io::Result<[u32; 2]> {
    let mut bytes = [0; 8];
    vm::read(pid, &[Remote { address, len: bytes.len() }], &mut bytes)?;
    let [a, b, c, d, e, f, g, h] = bytes;
    Ok([[a, b, c, d], [e, f, g, h]].map(u32::from_ne_bytes))
}

/// What a process has for a context that somebody was making when he was killed.
#[derive(Debug, PartialEq, Eq)]
pub struct LeftBehind {
    page: u64,
    descriptors: Vec<u64>,
}

/// What was left behind in a process, none of whose threads has run since.
///
/// # Errors
/// If its areas, memory or descriptors cannot be read.
pub fn left_behind(pid: i32) -> io::Result<Option<LeftBehind>> {
    let is_ours = |page: u64| {
        let mut magic = [0; MAGIC.len()];
        vm::read(pid, &[Remote { address: page + MAGIC_PLACE, len: magic.len() }], &mut magic).is_ok()
            && magic == *MAGIC
    };
    let mut pages = torpor_proc::maps::areas(pid)?.into_iter().filter(|area| {
        area.access.shared
            && area.end - area.start == PAGE_BYTES
            && area.name == SHARED_ANONYMOUS
            && is_ours(area.start)
    });
    let Some(page) = pages.next().map(|area| area.start) else { return Ok(None) };
    let mut recorded: Vec<u32> = [numbers(pid, page + SOCKETS)?, numbers(pid, page + RECEIVED)?].concat();
    // The other half of the second pair is no descriptor.
    recorded.truncate(3);
    let open = torpor_proc::descriptors(pid)?;
    let is_left = |fd: i32, what: &str| match u32::try_from(fd) {
        Ok(fd) if recorded[..2].contains(&fd) => what.starts_with("socket:"),
        Ok(fd) if recorded[2] == fd => what == torpor_linux::userfault::DEVICE,
        // It is set up once the process does not have it any more.
        _ => what == "anon_inode:[userfaultfd]" && is_new_context(pid, fd),
    };
    let left = open.into_iter().filter(|(fd, what)| is_left(*fd, what)).map(|(fd, _)| fd as u64);
    Ok(Some(LeftBehind { page, descriptors: left.collect() }))
}

/// Whether a userfaultfd context has not been set up yet: its features are none (`userfaultfd_show_fdinfo`).
fn is_new_context(pid: i32, fd: i32) -> bool {
    let about = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
    let api = about.lines().find_map(|line| line.strip_prefix("API:"));
    api.and_then(|api| api.trim().split(':').nth(1)).is_some_and(|features| features == "0")
}

impl LeftBehind {
    /// Takes it away from `process`, which is parked at `park_address` and not frozen.
    ///
    /// # Errors
    /// If a call cannot be made, or fails.
    pub fn remove(self, process: &Process, park_address: u64) -> Result<(), TraceError> {
        let Self { page, descriptors } = self;
        Making { calls: &Parked { process, park_address }, opened: descriptors, page: Some(page) }.end()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::trace::{install_park_loop, stop_all};

    /// Makes calls until whoever makes them is killed.
    struct Killed<'a> {
        parked: Parked<'a>,
        left: Cell<u32>,
    }

    impl RemoteCalls for Killed<'_> {
        fn pid(&self) -> i32 {
            self.parked.pid()
        }

        fn call(&self, name: &'static str, number: u64, arguments: &[u64]) -> Result<u64, TraceError> {
            let killed = || TraceError::Call { pid: self.pid(), call: name, error: io::Error::other("killed") };
            self.left.set(self.left.get().checked_sub(1).ok_or_else(killed)?);
            self.parked.call(name, number, arguments)
        }
    }

    #[test]
    fn whatever_was_begun_in_a_process_can_be_taken_away() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        // Then it waits for more.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let pid = child.id() as i32;
        let device = torpor_linux::userfault::device().unwrap();
        let processes = stop_all(&[pid]).unwrap();
        let process = &processes[0];
        let park_address = install_park_loop(pid, &torpor_proc::maps::areas(pid).unwrap()).unwrap();
        process.park(park_address).unwrap();
        let looks = || (torpor_proc::descriptors(pid).unwrap(), torpor_proc::maps::areas(pid).unwrap());
        let before = looks();
        assert_eq!(left_behind(pid).unwrap(), None);
        let mut most = 0;
        for calls in 0.. {
            let killed = Killed { parked: Parked { process, park_address }, left: Cell::new(calls) };
            let mut making = Making { calls: &killed, opened: Vec::new(), page: None };
            let context = making.context(device.as_fd());
            let all = context.is_ok() && making.end().is_ok();
            let left = left_behind(pid).unwrap();
            assert_eq!(left.is_none(), calls == 0 || all, "{calls} calls: {left:?}");
            if let Some(left) = left {
                most = most.max(left.descriptors.len());
                left.remove(process, park_address).unwrap();
            }
            assert_eq!(looks(), before, "{calls} calls");
            if all {
                break;
            }
        }
        assert_eq!(most, 4);
        drop(processes);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
