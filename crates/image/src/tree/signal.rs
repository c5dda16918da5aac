//! Signals and timers of processes.

use serde::{Deserialize, Serialize};

use super::frugal;

/// What a process does on a signal: the kernel's `struct sigaction`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// Handler: an address, 0 (default) or 1 (ignore).
    pub handler: u64,
    /// `SA_*`.
    pub flags: u64,
    /// Where the handler returns to.
    pub restorer: u64,
    /// Signals blocked while it runs.
    pub mask: u64,
}

/// A signal that has been sent and not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingSignal {
    /// The kernel's `siginfo_t`, 128 bytes.
    #[serde(deserialize_with = "frugal::list")]
    pub info: Vec<u8>,
}

/// `sigaltstack(2)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalStack {
    /// First byte.
    pub address: u64,
    /// `SS_*`.
    pub flags: i32,
    /// Bytes.
    pub bytes: u64,
}

/// An interval timer (`setitimer(2)`), as left at the capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntervalTimer {
    /// Until it fires, nanoseconds; 0: not armed.
    pub left_ns: u64,
    /// Between two firings, nanoseconds; 0: once.
    pub interval_ns: u64,
}

/// A POSIX timer (`timer_create(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PosixTimer {
    /// Its id in its process.
    pub id: i32,
    /// Clock.
    pub clock: i32,
    /// Signal that it sends.
    pub signal: i32,
    /// `SIGEV_*`, and the thread it goes to where it is one.
    pub notify: i32,
    /// Thread that is told, with `SIGEV_THREAD_ID`.
    pub thread: i32,
    /// The `sigval` that goes with it.
    pub value: u64,
    /// What is left, and its interval.
    pub timer: IntervalTimer,
    /// Firings that were missed while its signal waited.
    pub overrun: i32,
}

/// A time-out of a thread that waits in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// What is left of it, nanoseconds.
    pub left_ns: u64,
    /// Where the time-out is: an address of a `timespec` (or `timeval`), or a register's number in `registers`.
    pub place: WaitPlace,
}

/// Where the kernel reads a time-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitPlace {
    /// `struct timespec` at this address, relative.
    Timespec(u64),
    /// `struct timeval` at this address, relative.
    Timeval(u64),
    /// Milliseconds in this register (place in `registers`).
    Milliseconds(u8),
    /// `SO_RCVTIMEO`, or `SO_SNDTIMEO`, of the socket behind a descriptor.
    Socket {
        /// The descriptor.
        fd: i32,
        /// The one for sending.
        send: bool,
    },
}
