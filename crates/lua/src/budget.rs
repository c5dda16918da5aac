//! Processor time that steps may take.

use std::io;
use std::marker::PhantomData;
use std::time::Duration;

use crate::ffi;

/// Between two ticks of the timer, of time that its thread uses the processor: how exact limits are.
const TICK: Duration = Duration::from_millis(2);

/// Limits the steps of this thread: one that takes more time is ended by an error, and its state is [spent](crate::State::is_spent).
#[derive(Debug)]
pub struct Budget {
    timer: libc::timer_t,
    /// A timer is of its thread.
    _thread: PhantomData<*const ()>,
}

impl Budget {
    /// Limits each step of this thread to `time`, rounded up to 2 ms. A thread has at most one budget.
    ///
    /// # Errors
    /// See timer_create(2).
    pub fn of_steps(time: Duration) -> io::Result<Self> {
        let signal = libc::SIGRTMIN() + 3;
        // SAFETY: zero is valid for all of these.
        let (mut action, mut event): (libc::sigaction, libc::sigevent) = unsafe { std::mem::zeroed() };
        action.sa_sigaction = ffi::torpor_tick as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        // SAFETY: it takes nothing.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer = std::ptr::null_mut();
        // SAFETY: the handler does nothing that a handler may not do: it changes variables of its thread and of the state that runs there.
        let made = unsafe {
            libc::sigaction(signal, &raw const action, std::ptr::null_mut()) == 0
                && libc::timer_create(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut event, &raw mut timer) == 0
        };
        if !made {
            return Err(io::Error::last_os_error());
        }
        let budget = Self { timer, _thread: PhantomData };
        let tick = libc::timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
        let time_of_timer = libc::itimerspec { it_interval: tick, it_value: tick };
        // SAFETY: the timer is there.
        if unsafe { libc::timer_settime(timer, 0, &raw const time_of_timer, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        TICKS.set(time.as_nanos().div_ceil(TICK.as_nanos()).clamp(1, i64::MAX as u128) as i64);
        Ok(budget)
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        TICKS.set(0);
        // SAFETY: the timer is there, and nobody else knows of it.
        unsafe { libc::timer_delete(self.timer) };
    }
}

thread_local! {
    /// Ticks of each step; 0: any number.
    static TICKS: std::cell::Cell<i64> = const { std::cell::Cell::new(0) };
}

/// A step begins.
pub(crate) fn begin() {
    // SAFETY: it takes a number.
    unsafe { ffi::torpor_allow(TICKS.get()) };
}
