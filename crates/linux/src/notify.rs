//! Descriptors that tell of signals and timers: what rustix lacks of `signalfd(2)` and `timerfd_create(2)`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// `TFD_IOC_SET_TICKS`, `_IOW('T', 0, u64)`.
const SET_TICKS: libc::Ioctl = 0x4008_5400;

/// A descriptor that gives the signals in `mask` (bit 0 is signal 1); `flags` as `signalfd4` takes them.
pub fn signal_descriptor(mask: u64, flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads eight bytes of `mask`, which lives through the call; the length says so.
    let fd = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const mask, size_of::<u64>(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us; nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Lets a timer descriptor have `ticks` expirations that were not read; not 0.
///
/// # Errors
/// `ENOTTY` where the kernel has no CONFIG_CHECKPOINT_RESTORE.
pub fn set_timer_ticks(timer: impl AsFd, ticks: u64) -> io::Result<()> {
    // SAFETY: TFD_IOC_SET_TICKS reads eight bytes of `ticks`, which lives through the call.
    let answer = unsafe { libc::ioctl(timer.as_fd().as_raw_fd(), SET_TICKS, &raw const ticks) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

    #[test]
    fn ticks_are_read_as_set() {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).unwrap();
        set_timer_ticks(&timer, 5).unwrap();
        let mut read = [0; 8];
        rustix::io::read(&timer, &mut read).unwrap();
        assert_eq!(u64::from_ne_bytes(read), 5);
    }

    #[test]
    fn a_signal_descriptor_shows_its_mask() {
        let signals = signal_descriptor(1 << 9, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK).unwrap();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", signals.as_raw_fd())).unwrap();
        assert!(info.contains("sigmask:\t0000000000000200"), "{info}");
    }
}
