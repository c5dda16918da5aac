//! The way of a process, entered elsewhere, to the seed: it waits at its gate, a socket, for its descriptors.
//!
//! It waits with nothing open but the socket. Its descriptors come as messages, in their order, the seed last; the kernel
//! gives them the lowest numbers that are free. When all are there it puts them where they belong and executes the seed. If
//! whoever holds the other end dies before, it reads the end, and ends.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::CpuSet;

use super::launch::{Failed, close_all_but, execute, forget_ours, leave, step};
use super::raw::call;
use crate::keyring;
use crate::socket::message::{MAX_FILES, Sent, send};

/// What it needs, and where it says what failed. It shares our memory.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Its end of the socket.
    pub(super) gate: i32,
    /// Where it may run, if it has been kept on one processor.
    pub(super) processors: Option<CpuSet>,
    /// If it shares our table of descriptors: the exposed address of an `AtomicU32` that is not 0 as long as it does.
    pub(super) shares: usize,
    pub(super) failed: Failed,
}

/// With each message: the number that the first one is to have, and how many there are in all.
type Words = [i32; 2];

/// Room for the descriptors of a message, in words: a header of two, and theirs.
const CONTROL_WORDS: usize = 2 + (MAX_FILES * size_of::<i32>()).div_ceil(size_of::<u64>());
const CONTROL_HEADER_BYTES: u64 = 16;

/// Lets it pass: with `files` at `first` and the numbers behind, and the seed.
pub(super) fn open(gate: impl AsFd, first: i32, files: &[BorrowedFd<'_>], seed: BorrowedFd<'_>) -> io::Result<()> {
    let all: Vec<BorrowedFd<'_>> = files.iter().copied().chain([seed]).collect();
    let words: Words = [first, all.len() as i32];
    let bytes = words.map(i32::to_ne_bytes).concat();
    for files in all.chunks(MAX_FILES) {
        send(&gate, &Sent { bytes: &bytes, files, ..Sent::default() })?;
    }
    Ok(())
}

/// It: system calls only, no allocation, no panic.
pub(super) extern "C" fn run(waiting: *mut u8) -> ! {
    // SAFETY: `enter` passes a valid `Waiting` that nobody else touches before this process has left our memory.
    let waiting = unsafe { &mut *waiting.cast::<Waiting>() };
    if let Some(processors) = &waiting.processors {
        let (bytes, place) = (size_of_val(processors) as u64, ptr::from_ref(processors) as u64);
        // SAFETY: the kernel reads the set, which is as long as said. Where its cgroup has none of these, it may run on those of
        // the cgroup already; and its list says where it runs in the end.
        unsafe { call(libc::SYS_sched_setaffinity, [0, bytes, place, 0, 0, 0]) };
    }
    // SAFETY: as `waiting`: null, or a word that nobody takes away before this process has left our memory.
    let shares = unsafe { ptr::with_exposed_provenance::<AtomicU32>(waiting.shares).as_ref() };
    let gate = waiting.gate as u64;
    waiting.failed = match shares.map_or(Ok(()), |shares| part(gate, shares)).and_then(|()| pass(gate)) {
        Ok(never) => match never {},
        Err(failed) => failed,
    };
    leave()
}

/// Gets a table of its own, with what is below the gate's number, and the gate.
fn part(gate: u64, shares: &AtomicU32) -> Result<(), Failed> {
    const CLOSE_RANGE_UNSHARE: u64 = 1 << 1;
    const FUTEX_WAKE: u64 = 1;
    // SAFETY: takes numbers; closes nothing in the table that is shared.
    unsafe {
        step("close_range", libc::SYS_close_range, [gate + 1, u64::from(u32::MAX), CLOSE_RANGE_UNSHARE, 0, 0, 0])?;
    }
    shares.store(0, Ordering::Release);
    // SAFETY: wakes who waits at this address, and writes nothing.
    unsafe { call(libc::SYS_futex, [shares.as_ptr() as u64, FUTEX_WAKE, 1, 0, 0, 0]) };
    Ok(())
}

fn pass(gate: u64) -> Result<Infallible, Failed> {
    close_all_but(gate, gate)?;
    if gate != 0 {
        // SAFETY: these take numbers; the table of descriptors is not shared.
        unsafe {
            step("dup3", libc::SYS_dup3, [gate, 0, 0, 0, 0, 0])?;
            step("close", libc::SYS_close, [gate, 0, 0, 0, 0, 0])?;
        }
    }
    forget_ours()?;
    leave_session_keyring()?;
    let [first, count] = receive()?;
    let (first, count) = (first as u64, count as u64);
    // They have the numbers from 1 on, and `first` is no less: each place is free, or what was there has moved already.
    for n in (0..count).rev() {
        let closed = if n + 1 == count { libc::O_CLOEXEC as u64 } else { 0 };
        if 1 + n != first + n {
            // SAFETY: takes numbers; the table of descriptors is not shared.
            unsafe { step("dup3", libc::SYS_dup3, [1 + n, first + n, closed, 0, 0, 0])? };
        }
    }
    let seed = first + count - 1;
    close_all_but(first, seed)?;
    execute(seed)
}

/// Gets a session keyring of its own, empty, which all that comes from it share: what it has is ours.
fn leave_session_keyring() -> Result<(), Failed> {
    // SAFETY: takes numbers and no name; changes this process's credentials only, which it shares with nobody.
    let answer = unsafe { call(libc::SYS_keyctl, [keyring::JOIN_SESSION_KEYRING as u64, 0, 0, 0, 0, 0]) };
    if answer >= 0 || keyring::is_without(-answer as i32) {
        return Ok(());
    }
    Err(Failed { step: "keyctl(KEYCTL_JOIN_SESSION_KEYRING)", error: -answer as i32 })
}

/// Takes messages until all descriptors are there.
fn receive() -> Result<Words, Failed> {
    let mut there = 0;
    loop {
        let mut words: Words = [0; 2];
        let mut control = [0_u64; CONTROL_WORDS];
        let mut part = libc::iovec { iov_base: (&raw mut words).cast(), iov_len: size_of::<Words>() };
        // SAFETY: all zero is a valid msghdr: null pointers with lengths of zero.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut control).cast();
        header.msg_controllen = size_of_val(&control) as _;
        // SAFETY: every pointer in `header` leads to a buffer of the length beside it, and all of them live through the call.
        let bytes = unsafe { step("recvmsg", libc::SYS_recvmsg, [0, &raw mut header as u64, 0, 0, 0, 0])? };
        if bytes != size_of::<Words>() as i64 {
            // Whoever was to trace us has gone.
            return Err(Failed { step: "recvmsg", error: libc::ESRCH });
        }
        if header.msg_flags & libc::MSG_CTRUNC != 0 {
            return Err(Failed { step: "recvmsg", error: libc::EMFILE });
        }
        // One control message, whose length comes first.
        there += control[0].saturating_sub(CONTROL_HEADER_BYTES) / size_of::<i32>() as u64;
        if there >= words[1] as u64 {
            return Ok(words);
        }
    }
}
