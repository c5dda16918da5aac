//! Closing descriptors of apps without waiting: `close(2)` of a file that a program has made can take as long as the program
//! likes.
//!
//! A TCP socket with `SO_LINGER` waits in its last `close(2)` until what it has sent is acknowledged or the linger time is
//! over, which the program chooses (up to years). A file on a network file system or on FUSE waits for its server in every
//! `close(2)`, a serial line until it has sent its output. Whether ours is the last reference to a socket cannot be known. So
//! no thread that others need closes such a descriptor: threads of this module do.
//!
//! # How a wait ends
//! The kernel's waits for a lingering socket and for a terminal end when a signal is pending for the thread that closes
//! (`sk_stream_wait_close`, `tty_wait_until_sent`); the socket then sends the rest without a descriptor, as it does without
//! `SO_LINGER`. Each thread has a POSIX timer that sends it [`SIGNAL`] each [`TICK`] while it closes: no socket holds it up for
//! longer. Waits that a signal does not end (`flush` on FUSE or NFS) cost a thread each: a thread that has been in one
//! `close(2)` for [`STUCK`] is not counted any more, and another goes on, up to [`THREADS`].
//!
//! # Invariants
//! - A descriptor is in the queue or in the hand of one thread, which has nothing else to close until it is closed.
//! - While the queue is not empty there is a thread that is not in `close(2)`, or [`ACTIVE`] of them have been for less than
//!   [`STUCK`], unless [`THREADS`] is reached or a thread cannot be made. Then the queue waits for the next call.
//! - [`close`] waits for nothing but the queue's mutex, which nobody holds during a system call that waits.

use std::collections::VecDeque;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

/// Ends waits of `close(2)`. Ignored by default, so that one that goes astray harms nobody.
const SIGNAL: libc::c_int = libc::SIGURG;
/// A wait that a signal can end is ended after at most this long.
const TICK: Duration = Duration::from_millis(1);
/// A thread that closes one descriptor for longer waits for something that a signal does not end.
const STUCK: Duration = Duration::from_millis(50);
/// So many threads close at once, beside those that are stuck.
const ACTIVE: usize = 2;
/// All threads, stuck ones among them.
const THREADS: usize = 64;
/// Bytes; what a thread needs here is far less.
const STACK_BYTES: usize = 64 << 10;

/// File systems without `flush`: ext4, XFS, Btrfs, tmpfs, proc, the inodes of event counters and the like (`statfs(2)`).
const LOCAL: [u32; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x9fa0, 0x0904_1934];

struct State {
    /// With numbers, which ascend.
    queue: VecDeque<(u64, OwnedFd)>,
    /// Number of what each thread closes that closes something, and since when.
    closing: Vec<(u64, Instant)>,
    threads: usize,
    /// A thread waits for work; at most one does.
    waiting: bool,
    next: u64,
}

static STATE: Mutex<State> =
    Mutex::new(State { queue: VecDeque::new(), closing: Vec::new(), threads: 0, waiting: false, next: 0 });
static MORE: Condvar = Condvar::new();
/// Told of each descriptor that has been closed.
static CLOSED: Condvar = Condvar::new();

impl State {
    fn active(&self) -> usize {
        self.closing.iter().filter(|(_, since)| since.elapsed() < STUCK).count()
    }

    /// Whether one of the descriptors before this number is still open, but for those whose thread is stuck.
    fn has_before(&self, end: u64) -> bool {
        self.queue.front().is_some_and(|(number, _)| *number < end)
            || self.closing.iter().any(|(number, since)| *number < end && since.elapsed() < STUCK)
    }
}

fn lock() -> MutexGuard<'static, State> {
    // Every change to it is a single step.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes the descriptors soon, in other threads, or at once where that never waits.
pub fn close(fds: impl IntoIterator<Item = OwnedFd>) {
    queue(fds.into_iter().filter(may_wait));
}

/// Gives the descriptors to the threads. The number behind the last one.
fn queue(fds: impl IntoIterator<Item = OwnedFd>) -> u64 {
    // Before the lock is taken: the iterator may close what does not wait.
    let fds: Vec<OwnedFd> = fds.into_iter().collect();
    let mut state = lock();
    for fd in fds {
        let number = state.next;
        state.next += 1;
        state.queue.push_back((number, fd));
    }
    if !state.queue.is_empty() {
        provide(&mut state);
    }
    state.next
}

/// What [`close_now`] has left to other threads.
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Queued(Option<u64>);

impl Queued {
    /// Waits until that is closed, for at most `limit`; not for what a thread is stuck with.
    pub fn settle(self, limit: Duration) {
        if let Some(end) = self.0 {
            settle_before(end, limit);
        }
    }
}

/// Closes the descriptors before it returns where that does not wait, and the others as [`close`] does. A socket that somebody sets to linger just then
/// takes a [`TICK`]. Unblocks [`SIGNAL`] in the calling thread.
pub fn close_now(fds: impl IntoIterator<Item = OwnedFd>) -> Queued {
    let (here, later): (Vec<OwnedFd>, Vec<OwnedFd>) = fds.into_iter().partition(closes_at_once);
    let queued = Queued((!later.is_empty()).then(|| queue(later)));
    if !here.is_empty() {
        close_here(here);
    }
    queued
}

fn close_here(fds: Vec<OwnedFd>) {
    let ticker = Ticker::new();
    ticker.set(TICK);
    drop(fds);
}

/// Whether `close(2)` of this descriptor returns at once: its file system has no `flush` operation that waits for a server, and a socket does not linger.
fn closes_at_once(fd: &OwnedFd) -> bool {
    use rustix::fs::FileType;
    let Ok(stat) = rustix::fs::fstat(fd) else { return false };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => matches!(rustix::net::sockopt::socket_linger(fd), Ok(None)),
        FileType::RegularFile | FileType::Directory => rustix::fs::fstatfs(fd)
            .is_ok_and(|system| u32::try_from(system.f_type).is_ok_and(|magic| LOCAL.contains(&magic))),
        FileType::CharacterDevice | FileType::BlockDevice => false,
        // Pipes, and what has no type: event counters, timers, epoll.
        _ => true,
    }
}

/// Whether `close(2)` of this descriptor can block. Pipes are excluded: programs rely on the other end seeing their close at once.
fn may_wait(fd: &OwnedFd) -> bool {
    !rustix::fs::fstat(fd).is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_fifo())
}

/// Waits until what has been given to [`close`] is closed, so that its addresses are free, for at most `limit`; not for what
/// a thread is stuck with.
pub fn settle(limit: Duration) {
    let end = lock().next;
    settle_before(end, limit);
}

fn settle_before(end: u64, limit: Duration) {
    let deadline = Instant::now() + limit;
    let mut state = lock();
    while state.has_before(end) {
        let left = deadline.saturating_duration_since(Instant::now()).min(STUCK);
        if left.is_zero() {
            return;
        }
        state = CLOSED.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// How many descriptors have been given to [`close`] and are still open.
pub fn pending() -> usize {
    let state = lock();
    state.queue.len() + state.closing.len()
}

/// Makes sure that somebody looks at the queue.
fn provide(state: &mut State) {
    if state.waiting {
        MORE.notify_one();
    } else if state.threads < THREADS {
        let thread = std::thread::Builder::new().name("closer".into()).stack_size(STACK_BYTES);
        // Without it the queue waits for the next call, or for a thread that is there.
        if thread.spawn(work).is_ok() {
            state.threads += 1;
        }
    }
}

fn work() {
    let ticker = Ticker::new();
    let mut state = lock();
    loop {
        while state.queue.is_empty() || state.active() >= ACTIVE {
            if state.waiting {
                state.threads -= 1;
                return;
            }
            state.waiting = true;
            state = if state.queue.is_empty() {
                ticker.set(Duration::ZERO);
                MORE.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                MORE.wait_timeout(state, STUCK).unwrap_or_else(PoisonError::into_inner).0
            };
            state.waiting = false;
        }
        let Some((number, fd)) = state.queue.pop_front() else { continue };
        state.closing.push((number, Instant::now()));
        if !state.queue.is_empty() && !state.waiting {
            provide(&mut state);
        }
        drop(state);
        ticker.set(TICK);
        drop(fd);
        state = lock();
        state.closing.retain(|(other, _)| *other != number);
        CLOSED.notify_all();
    }
}

/// A timer that sends its thread [`SIGNAL`]; nothing where the kernel gives none: then a wait that it would end costs a thread.
struct Ticker(Option<libc::timer_t>);

impl Ticker {
    /// For the calling thread.
    fn new() -> Self {
        static HANDLER: Once = Once::new();
        extern "C" fn nothing(_: libc::c_int) {}
        HANDLER.call_once(|| {
            // A handler, since a signal that is ignored ends no wait.
            // SAFETY: all zeros are a valid sigaction: no flags, an empty mask.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            // SAFETY: `action` is initialised, and its handler does nothing, which is safe at any moment.
            unsafe { libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut()) };
        });
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: `set` and `event` are plain data, zeroed and then filled in as their calls want them, and outlive the calls;
        // the mask changed is the calling thread's. The timer is deleted by this value only.
        let made = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, SIGNAL);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = SIGNAL;
            event.sigev_notify_thread_id = libc::gettid();
            libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) == 0
        };
        Self(made.then_some(timer))
    }

    /// Begins to tick each `period`, or stops where it is zero.
    fn set(&self, period: Duration) {
        let Some(timer) = self.0 else { return };
        let period = libc::timespec {
            tv_sec: period.as_secs().cast_signed(),
            tv_nsec: libc::c_long::from(period.subsec_nanos().cast_signed()),
        };
        let times = libc::itimerspec { it_interval: period, it_value: period };
        // SAFETY: the timer is alive as long as `self`; `times` outlives the call. It fails only for values that are not these.
        unsafe { libc::timer_settime(timer, 0, &raw const times, std::ptr::null_mut()) };
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        if let Some(timer) = self.0 {
            // SAFETY: made by `new`, used by this thread only, and not after this.
            unsafe { libc::timer_delete(timer) };
        }
    }
}

/// A descriptor of an app's file, which is closed by [`close`].
#[derive(Debug)]
pub struct AppFile(Option<OwnedFd>);

impl AppFile {
    /// Another descriptor of the same file.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        Ok(self.as_fd().try_clone_to_owned()?.into())
    }
}

impl From<OwnedFd> for AppFile {
    fn from(fd: OwnedFd) -> Self {
        Self(Some(fd))
    }
}

impl From<AppFile> for OwnedFd {
    fn from(mut file: AppFile) -> Self {
        file.0.take().unwrap_or_else(|| unreachable!("only its end takes it"))
    }
}

impl Deref for AppFile {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        self.0.as_ref().unwrap_or_else(|| unreachable!("only its end takes it"))
    }
}

impl AsFd for AppFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl AsRawFd for AppFile {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for AppFile {
    fn drop(&mut self) {
        close(self.0.take());
    }
}

#[cfg(test)]
mod tests;
