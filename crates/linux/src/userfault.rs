//! Page faults of one address space that are answered from outside: `userfaultfd(2)`, `ioctl_userfaultfd(2)`.
//!
//! A context belongs to the address space of whoever made it ([`DEVICE`], [`NEW_CONTEXT`]) and can be used by any process that has the
//! descriptor. Pages are placed only where nothing is: what the program has there is never replaced.
//!
//! Source: `Documentation/admin-guide/mm/userfaultfd.rst`, `include/uapi/linux/userfaultfd.h`.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Gives contexts whose faults the kernel raises as well, without a capability; Linux 6.1 or newer.
pub const DEVICE: &str = "/dev/userfaultfd";
/// Request of [`DEVICE`]: makes a context of the calling process; its argument are the flags of `userfaultfd(2)`.
pub const NEW_CONTEXT: u64 = request(0, 0x00, 0);
/// Flags of a context that is closed on `execve(2)` and never waits to be read.
pub const CONTEXT_FLAGS: u64 = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;

const fn request(direction: u64, number: u64, size: usize) -> u64 {
    (direction << 30) | ((size as u64) << 16) | (0xaa << 8) | number
}
const WRITES: u64 = 2;
const BOTH: u64 = 3;
const API: u64 = request(BOTH, 0x3f, size_of::<ApiArgument>());
const REGISTER: u64 = request(BOTH, 0x00, size_of::<RegisterArgument>());
const UNREGISTER: u64 = request(WRITES, 0x01, size_of::<RangeArgument>());
const WAKE: u64 = request(WRITES, 0x02, size_of::<RangeArgument>());
const COPY: u64 = request(BOTH, 0x03, size_of::<CopyArgument>());
const ZERO: u64 = request(BOTH, 0x04, size_of::<ZeroArgument>());
const _: () = assert!(API == 0xc018_aa3f && REGISTER == 0xc020_aa00 && UNREGISTER == 0x8010_aa01);
const _: () = assert!(WAKE == 0x8010_aa02 && COPY == 0xc028_aa03 && ZERO == 0xc020_aa04 && NEW_CONTEXT == 0xaa00);

/// `UFFD_API`
const VERSION: u64 = 0xaa;
/// `UFFDIO_REGISTER_MODE_MISSING`
const MISSING: u64 = 1;
/// `UFFDIO_REGISTER_MODE_WP`
const WRITES_TO: u64 = 2;

/// `UFFD_FEATURE_EVENT_FORK`, `_REMAP`, `_REMOVE`, `_UNMAP`
const EVENTS: u64 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;
/// `UFFD_EVENT_*`
const FAULT: u8 = 0x12;
const FORK: u8 = 0x13;
const REMAP: u8 = 0x14;
const REMOVE: u8 = 0x15;
const UNMAP: u8 = 0x16;

/// Words of a `struct uffd_msg`.
pub const MESSAGE_WORDS: usize = 4;
const MESSAGE_BYTES: usize = MESSAGE_WORDS * 8;

/// `struct uffdio_api`
#[repr(C)]
struct ApiArgument {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`
#[repr(C)]
#[derive(Clone, Copy)]
struct RangeArgument {
    start: u64,
    len: u64,
}

/// `struct uffdio_register`
#[repr(C)]
struct RegisterArgument {
    range: RangeArgument,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_copy`
#[repr(C)]
struct CopyArgument {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    done: i64,
}

/// `struct uffdio_zeropage`
#[repr(C)]
struct ZeroArgument {
    range: RangeArgument,
    mode: u64,
    done: i64,
}

impl From<&Range<u64>> for RangeArgument {
    fn from(range: &Range<u64>) -> Self {
        Self { start: range.start, len: range.end - range.start }
    }
}

/// Opens [`DEVICE`].
///
/// # Errors
/// If the kernel has no userfaultfd, or the device is not there or not ours.
pub fn device() -> io::Result<OwnedFd> {
    std::fs::File::options().read(true).write(true).open(DEVICE).map(OwnedFd::from)
}

/// A context, through which pages are placed.
#[derive(Debug)]
pub struct Userfault(OwnedFd);

/// What a context tells: `struct uffd_msg`.
#[derive(Debug)]
pub enum Message {
    /// A thread waits for the page at this address.
    Fault(u64),
    /// The process has forked: the context of the child's address space, which misses what the parent's missed.
    Forked(Userfault),
    /// Memory was moved by `mremap(2)`; what was missing there is missing here.
    Moved {
        /// First byte before.
        from: u64,
        /// First byte now.
        to: u64,
        /// Bytes.
        len: u64,
    },
    /// The contents of memory were given up (`MADV_DONTNEED`): it reads as zeros.
    Removed(Range<u64>),
    /// Memory was unmapped.
    Unmapped(Range<u64>),
}

/// What a slot holds of a [`Message`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// [`Message::Fault`]
    Fault(u64),
    /// [`Message::Forked`]; the context is, or was, with whoever has received it.
    Forked,
    /// [`Message::Moved`]
    Moved {
        /// First byte before.
        from: u64,
        /// First byte now.
        to: u64,
        /// Bytes.
        len: u64,
    },
    /// [`Message::Removed`]
    Removed(Range<u64>),
    /// [`Message::Unmapped`]
    Unmapped(Range<u64>),
}

impl Received {
    /// What was received in a slot last; none where nothing was.
    ///
    /// # Errors
    /// `InvalidData` for what is no message.
    pub fn in_slot(slot: &[AtomicU64; MESSAGE_WORDS]) -> io::Result<Option<Self>> {
        let [head, first, second, third] = slot.each_ref().map(|word| word.load(Ordering::SeqCst));
        // `event` is the first byte, and addresses of a fault come behind its flags (x86-64).
        let received = match head as u8 {
            0 if head == 0 => return Ok(None),
            FAULT => Self::Fault(second & !0xfff),
            FORK => Self::Forked,
            REMAP => Self::Moved { from: first, to: second, len: third },
            REMOVE => Self::Removed(first..second),
            UNMAP => Self::Unmapped(first..second),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        Ok(Some(received))
    }
}

/// The last page of user memory (x86-64), where programs have nothing.
pub const UNUSED_PAGE: u64 = 0x7fff_ffff_e000;

/// Why no page was placed at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotPlaced {
    /// There is one already (`EEXIST`).
    Present,
    /// The address space is being changed: [`Userfault::receive`] tells how (`EAGAIN`).
    Changing,
    /// Nothing of this context is mapped there (`ENOENT`), or no longer as it was (`EFAULT`, `EINVAL`).
    Unmapped,
    /// The address space is gone (`ESRCH`).
    Ended,
    /// There is no memory for it: the limit of its control group, or of the machine (`ENOMEM`).
    NoMemory,
    /// Anything else; the error number.
    Other(i32),
}

impl NotPlaced {
    const fn of(number: i32) -> Self {
        match number {
            libc::EEXIST => Self::Present,
            libc::EAGAIN => Self::Changing,
            libc::ENOENT | libc::EFAULT | libc::EINVAL => Self::Unmapped,
            libc::ESRCH => Self::Ended,
            libc::ENOMEM => Self::NoMemory,
            other => Self::Other(other),
        }
    }
}

impl Userfault {
    /// A context of this process itself: to see whether that works here.
    ///
    /// # Errors
    /// As of [`device`]; whatever the kernel lacks.
    pub fn of_this_process() -> io::Result<Self> {
        let device = device()?;
        // SAFETY: the argument of this request is a number.
        let context = unsafe { libc::ioctl(device.as_raw_fd(), NEW_CONTEXT, CONTEXT_FLAGS) };
        if context < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just opened it, and nobody else knows of it.
        Self::set_up(unsafe { OwnedFd::from_raw_fd(context) })
    }

    /// One that was just made ([`NEW_CONTEXT`]): it tells of faults and of everything that changes which pages are missing.
    ///
    /// # Errors
    /// If the descriptor is none, or was set up before. `EPERM` without CAP_SYS_PTRACE.
    pub fn set_up(context: OwnedFd) -> io::Result<Self> {
        begin(context.as_fd(), EVENTS)?;
        Ok(Self(context))
    }

    /// Missing pages of `range` can be placed, and raise faults, from now on. Page-aligned; private anonymous memory.
    ///
    /// # Errors
    /// `EINVAL` for other memory, `EBUSY` where another context has it, `ENOMEM`.
    pub fn register(&self, range: &Range<u64>) -> io::Result<()> {
        register(self.as_fd(), range, MISSING)
    }

    /// Takes [`Userfault::register`] back: missing pages of `range` read as zeros, and whoever waits for one goes on.
    ///
    /// # Errors
    /// `EINVAL` where nothing is mapped, `ENOMEM`.
    pub fn unregister(&self, range: &Range<u64>) -> io::Result<()> {
        let mut argument = RangeArgument::from(range);
        call(self.as_fd(), UNREGISTER, (&raw mut argument).cast())
    }

    /// Places `bytes`, whole pages, at `address`, page by page. Whoever waits for one of those goes on.
    ///
    /// # Errors
    /// How many bytes were placed before the page that could not be, and why not.
    pub fn copy(&self, address: u64, bytes: &[u8]) -> Result<(), (u64, NotPlaced)> {
        let (from, len) = (bytes.as_ptr().addr() as u64, bytes.len() as u64);
        let mut argument = CopyArgument { to: address, from, len, mode: 0, done: 0 };
        let called = call(self.as_fd(), COPY, (&raw mut argument).cast());
        outcome(called, argument.done, len)
    }

    /// Places pages of zeros in `range`; otherwise as [`Userfault::copy`].
    ///
    /// # Errors
    /// As there.
    pub fn zero(&self, range: &Range<u64>) -> Result<(), (u64, NotPlaced)> {
        let mut argument = ZeroArgument { range: range.into(), mode: 0, done: 0 };
        let called = call(self.as_fd(), ZERO, (&raw mut argument).cast());
        outcome(called, argument.done, range.end - range.start)
    }

    /// Whether its process is gone, or runs another program, as far as can be seen now. A missing page at [`UNUSED_PAGE`] gets zeros.
    pub fn has_ended(&self) -> bool {
        matches!(self.zero(&(UNUSED_PAGE..UNUSED_PAGE + 4096)), Err((_, NotPlaced::Ended)))
    }

    /// Lets those go on who wait for pages of `range`: a page that is still missing is told again.
    ///
    /// # Errors
    /// `EINVAL` for a range that is not page-aligned or empty.
    pub fn wake(&self, range: &Range<u64>) -> io::Result<()> {
        let mut argument = RangeArgument::from(range);
        call(self.as_fd(), WAKE, (&raw mut argument).cast())
    }

    /// Receives the next message in `slot`; none where nothing has happened. Faults come before everything else. Whoever has changed the
    /// address space goes on as soon as its message is received. The slot holds it from then on ([`Received::in_slot`]), also for
    /// whoever finds the slot after this process was killed.
    ///
    /// # Errors
    /// `EMFILE` where there is no descriptor for a child's context: the message stays.
    pub fn receive(&self, slot: &[AtomicU64; MESSAGE_WORDS]) -> io::Result<Option<Message>> {
        slot[0].store(0, Ordering::SeqCst);
        // SAFETY: the slot is as long as said, and any bytes are valid words, which may change at any time.
        let read = unsafe { libc::read(self.0.as_raw_fd(), slot.as_ptr().cast_mut().cast(), MESSAGE_BYTES) };
        if read < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        if read as usize != MESSAGE_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let message = match Received::in_slot(slot)? {
            None => return Err(io::ErrorKind::InvalidData.into()),
            Some(Received::Fault(page)) => Message::Fault(page),
            Some(Received::Forked) => {
                let number = slot[1].load(Ordering::Relaxed) as u32 as i32;
                // SAFETY: the kernel has just opened this descriptor for us, and tells its number once.
                Message::Forked(Self(unsafe { OwnedFd::from_raw_fd(number) }))
            }
            Some(Received::Moved { from, to, len }) => Message::Moved { from, to, len },
            Some(Received::Removed(range)) => Message::Removed(range),
            Some(Received::Unmapped(range)) => Message::Unmapped(range),
        };
        Ok(Some(message))
    }

    /// Another descriptor of the same context.
    ///
    /// # Errors
    /// Of dup(2).
    pub fn duplicate(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// One that was parked elsewhere.
    pub const fn from_parked(context: OwnedFd) -> Self {
        Self(context)
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The kernel answers 0 where all was done; else `EAGAIN` with the bytes that were, or an error before the first page.
fn outcome(called: io::Result<()>, done: i64, wanted: u64) -> Result<(), (u64, NotPlaced)> {
    match called {
        Ok(()) => Ok(()),
        Err(error) => match u64::try_from(done) {
            // Cut off: the page behind has its own answer when it is asked for.
            Ok(done) if done > 0 && done < wanted => Err((done, NotPlaced::Changing)),
            _ => Err((0, NotPlaced::of(error.raw_os_error().unwrap_or_default()))),
        },
    }
}

/// Begins to use a context that was just made.
pub(crate) fn begin(context: BorrowedFd<'_>, features: u64) -> io::Result<()> {
    let mut argument = ApiArgument { api: VERSION, features, ioctls: 0 };
    call(context, API, (&raw mut argument).cast())
}

fn register(context: BorrowedFd<'_>, range: &Range<u64>, mode: u64) -> io::Result<()> {
    let mut argument = RegisterArgument { range: range.into(), mode, ioctls: 0 };
    call(context, REGISTER, (&raw mut argument).cast())
}

/// Pages of `range` can be write-protected from now on.
pub(crate) fn register_for_writes(context: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<()> {
    register(context, range, WRITES_TO)
}

fn call(context: BorrowedFd<'_>, request: u64, argument: *mut c_void) -> io::Result<()> {
    // SAFETY: every caller passes an argument of the type whose size `request` encodes, which it owns for the call. What the argument
    // itself points to is only read (`UFFDIO_COPY`) and borrowed for the call by its caller.
    let answer = unsafe { libc::ioctl(context.as_raw_fd(), request, argument) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;
    const PAGES: usize = 4;

    #[test]
    fn pages_are_placed_where_nothing_is() {
        let context = Userfault::of_this_process().unwrap();
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), PAGES * PAGE, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let memory = start.addr() as u64..(start.addr() + PAGES * PAGE) as u64;
        // SAFETY: the mapping made above is as long; nobody else writes to it while the slice is used.
        let bytes = || unsafe { std::slice::from_raw_parts(start.cast::<u8>(), PAGES * PAGE) };
        // SAFETY: as above; the page comes into being.
        unsafe { start.cast::<u8>().add(2 * PAGE).write(9) };

        context.register(&memory).unwrap();
        let pages = [7; 3 * PAGE];
        assert_eq!(context.copy(memory.start, &pages), Err((2 * PAGE as u64, NotPlaced::Changing)));
        assert_eq!(context.copy(memory.start + 2 * PAGE as u64, &pages[..PAGE]), Err((0, NotPlaced::Present)));
        assert_eq!(context.copy(memory.end, &pages[..PAGE]), Err((0, NotPlaced::Unmapped)));
        context.unregister(&memory).unwrap();
        assert_eq!(context.copy(memory.start, &pages[..PAGE]), Err((0, NotPlaced::Unmapped)));
        let first: Vec<u8> = bytes().iter().step_by(PAGE).copied().collect();
        assert_eq!(first, [7, 7, 9, 0]);
        // SAFETY: the mapping made above; nothing uses it any more.
        unsafe { libc::munmap(start, PAGES * PAGE) };
        let gone = context.register(&memory).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::EINVAL));
    }
}
