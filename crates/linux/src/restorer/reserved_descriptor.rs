//! Low descriptor numbers, kept for gates.
//!
//! A process that we make gets a copy of our table of descriptors, and closes what it is not to have: with some ten thousand
//! open, that takes longer than everything else. `close_range(2)` with `CLOSE_RANGE_UNSHARE` copies only what is below a number;
//! so what is to be kept must have a low one. They are taken when few are in use ([`reserve`]), and stand for `/dev/null` until
//! they are needed.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::io::{DupFlags, dup3};

/// So many processes may be on their way through a gate at once; more get whole copies.
const GATES: usize = 16;

struct Pool {
    /// What free numbers stand for.
    null: Option<OwnedFd>,
    free: Vec<OwnedFd>,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { null: None, free: Vec::new() });

/// Keeps low numbers for the gates of processes that are made in other places: to be called early by who will have many
/// descriptors.
///
/// # Errors
/// What the kernel says to `open` and `fcntl`.
pub fn reserve() -> io::Result<()> {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    if pool.null.is_some() {
        return Ok(());
    }
    let null: OwnedFd = File::options().read(true).open("/dev/null")?.into();
    pool.free = (0..GATES).map(|_| null.try_clone()).collect::<io::Result<_>>()?;
    pool.null = Some(null);
    Ok(())
}

/// A descriptor, with a low number if there was one. Its number is free again when it is dropped.
#[derive(Debug)]
pub(super) struct ReservedDescriptor {
    descriptor: Option<OwnedFd>,
    reserved: bool,
}

impl ReservedDescriptor {
    /// Takes a number for it.
    pub(super) fn of(descriptor: OwnedFd) -> Self {
        let slot = POOL.lock().unwrap_or_else(PoisonError::into_inner).free.pop();
        let Some(mut slot) = slot else { return Self { descriptor: Some(descriptor), reserved: false } };
        match dup3(&descriptor, &mut slot, DupFlags::CLOEXEC) {
            Ok(()) => Self { descriptor: Some(slot), reserved: true },
            Err(_) => {
                POOL.lock().unwrap_or_else(PoisonError::into_inner).free.push(slot);
                Self { descriptor: Some(descriptor), reserved: false }
            }
        }
    }

    /// Its number.
    pub(super) fn number(&self) -> i32 {
        self.descriptor.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// It has one of the low numbers.
    pub(super) const fn is_reserved(&self) -> bool {
        self.reserved
    }
}

impl Drop for ReservedDescriptor {
    fn drop(&mut self) {
        let Some(mut slot) = self.descriptor.take().filter(|_| self.reserved) else { return };
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        // Where that fails it is closed, and its number is one like others.
        if pool.null.as_ref().is_some_and(|null| dup3(null, &mut slot, DupFlags::CLOEXEC).is_ok()) {
            pool.free.push(slot);
        }
    }
}
