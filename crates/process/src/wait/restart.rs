//! How each interrupted system call goes on, so that the program cannot tell.
//!
//! What the kernel leaves in the result register of a call that it interrupted (see `registers::restart`):
//! - `ERESTART*`: the kernel goes on by itself. With a restart block (`poll`, `nanosleep`, `futex`) it keeps the original
//!   deadline. `select`, `pselect6` and `ppoll` have written the remaining time to the program's memory, which does not
//!   shrink while we sleep: we subtract.
//! - `EINTR`: the program would see it. We put `ERESTARTNOHAND` in its place, which is just what is meant: go on, unless a
//!   signal handler runs. A relative time-out would begin anew, so it is shortened.
//!
//! A shortened time-out needs a place. In a register (`epoll_wait`) it is that register. A `timespec` that the program
//! owns must not change, so the shorter one goes below the red zone of the thread's stack, where a signal frame could go
//! too, and is read as soon as the call begins again. For a socket's own time-out (`SO_RCVTIMEO`) the option is changed until
//! the call has begun.
//!
//! Pure but for reading the thread's memory through [`Memory`].

use std::io;
use std::time::Duration;

use torpor_linux::registers::{Registers, restart};
use torpor_linux::uapi::futex::{FUTEX_CLOCK_REALTIME, FUTEX_LOCK_PI, FUTEX_WAIT};
use torpor_linux::uapi::syscall;
use torpor_linux::uapi::time::{CLOCK_BOOTTIME, CLOCK_MONOTONIC, TIMER_ABSTIME};

use super::limit::Limit;
pub use super::prior::{Given, PriorWait};

const EINTR: i64 = 4;

/// Reads the memory of the thread's process.
pub trait Memory {
    /// Fills `buffer` from `address`.
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// Where a call's time-out lies and how it is shortened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The kernel keeps the deadline.
    Kernel,
    /// Milliseconds in argument n.
    Millis(usize),
    /// Argument n points to a `timespec` that must not change.
    Constant(usize),
    /// Argument n points to a `timespec` that the kernel itself shortens.
    Timespec(usize),
    /// Argument n points to a `timeval` that the kernel itself shortens.
    Timeval(usize),
    /// The time-out of the socket behind descriptor argument 0, for receiving or sending.
    Socket {
        /// `SO_SNDTIMEO` instead of `SO_RCVTIMEO`.
        send: bool,
    },
}

/// A time-out in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout {
    /// When it times out, by `CLOCK_MONOTONIC`.
    pub deadline: Duration,
    pub(crate) total: Duration,
    /// Where the time-out is.
    pub place: Place,
}

/// An interrupted call, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted {
    /// Which call; the original one where the kernel was already restarting it.
    pub number: u64,
    /// The program would see an `EINTR` if nothing were done.
    pub hide_eintr: bool,
    /// Its time-out.
    pub timeout: Option<Timeout>,
}

/// Deadlines that differ by less belong to the same wait.
const SAME_DEADLINE: Duration = Duration::from_millis(20);

/// Understands the call that `registers` were interrupted in; `None`: in none that can wait.
pub(crate) fn interrupted(
    registers: &Registers,
    since: Duration,
    now: Duration,
    carried: Option<&PriorWait>,
    socket_timeout: &dyn Fn(i32, bool) -> Option<Duration>,
    memory: &dyn Memory,
) -> Option<Interrupted> {
    let number = registers.call()?;
    let carried = carried.filter(|c| c.instruction == registers.instruction() && c.stack == registers.stack());
    if number == syscall::RESTART_SYSCALL {
        // The kernel goes on with a call that was interrupted before; only we know which it was.
        let carried = carried?;
        let timeout = carried.deadline.map(|deadline| Timeout { deadline, total: carried.total, place: Place::Kernel });
        return Some(Interrupted { number: carried.number, hide_eintr: false, timeout });
    }
    let carried = carried.filter(|carried| carried.number == number);
    let interrupts = registers.result() == -EINTR && gives_eintr(number);
    if !interrupts && !kernel_restarts(registers.result()) {
        return None;
    }
    let (limit, place) = limit(number, registers, socket_timeout, memory);
    let timeout = timeout(limit, place, since, now, carried);
    Some(Interrupted { number, hide_eintr: interrupts, timeout })
}

fn timeout(limit: Limit, place: Place, since: Duration, now: Duration, carried: Option<&PriorWait>) -> Option<Timeout> {
    let (deadline, total) = match limit {
        Limit::Never => return None,
        Limit::After(total) => (since + total, total),
        Limit::Left(left) => (now + left, (now + left).saturating_sub(since)),
        Limit::At(deadline) => (deadline, deadline.saturating_sub(since)),
    };
    // The same wait as at the last sleep: its length is what it was at first, not what we shortened it to.
    let same = carried.and_then(|carried| Some((carried, carried.deadline?))).filter(|(carried, before)| {
        let unmoved = matches!(place, Place::Socket { .. }) && carried.unmoved;
        let goes_on = carried.given.is_some_and(|given| given.goes_on(limit, now));
        unmoved || goes_on || before.abs_diff(deadline) < SAME_DEADLINE
    });
    Some(match same {
        Some((carried, deadline)) => Timeout { deadline, total: carried.total, place },
        None => Timeout { deadline, total, place },
    })
}

/// The thread waits in a call that the kernel will restart, whether we know which one or not.
pub(crate) fn waits_still(registers: &Registers) -> bool {
    registers.call().is_some() && kernel_restarts(registers.result())
}

/// The kernel restarts a call that left this result.
fn kernel_restarts(result: i64) -> bool {
    use restart::{ERESTART_RESTARTBLOCK, ERESTARTNOHAND, ERESTARTNOINTR, ERESTARTSYS};
    [ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK].contains(&-result)
}

/// Calls that answer `EINTR` to a mere interruption, and can be begun again because nothing has happened yet.
fn gives_eintr(number: u64) -> bool {
    matches!(
        number,
        syscall::EPOLL_WAIT
            | syscall::EPOLL_PWAIT
            | syscall::EPOLL_PWAIT2
            | syscall::RT_SIGTIMEDWAIT
            | syscall::SEMOP
            | syscall::SEMTIMEDOP
            | syscall::IO_GETEVENTS
    ) || socket_call(number).is_some()
}

/// Whether a call may wait on a socket's own time-out, and which of the two.
fn socket_call(number: u64) -> Option<bool> {
    match number {
        syscall::READ
        | syscall::READV
        | syscall::RECVFROM
        | syscall::RECVMSG
        | syscall::RECVMMSG
        | syscall::ACCEPT
        | syscall::ACCEPT4 => Some(false),
        syscall::WRITE
        | syscall::WRITEV
        | syscall::SENDTO
        | syscall::SENDMSG
        | syscall::SENDMMSG
        | syscall::CONNECT => Some(true),
        _ => None,
    }
}

/// The time-out of a call as its arguments say.
fn limit(
    number: u64,
    registers: &Registers,
    socket_timeout: &dyn Fn(i32, bool) -> Option<Duration>,
    memory: &dyn Memory,
) -> (Limit, Place) {
    let after = |found: Option<Duration>| found.map_or(Limit::Never, Limit::After);
    let left = |found: Option<Duration>| found.map_or(Limit::Never, Limit::Left);
    let spec = |n: usize| timespec(memory, registers.argument(n));
    let millis = |n: usize| u64::try_from(registers.argument(n) as i32).ok().map(Duration::from_millis);
    match number {
        syscall::EPOLL_WAIT | syscall::EPOLL_PWAIT => (after(millis(3)), Place::Millis(3)),
        syscall::EPOLL_PWAIT2 => (after(spec(3)), Place::Constant(3)),
        syscall::RT_SIGTIMEDWAIT => (after(spec(2)), Place::Constant(2)),
        syscall::SEMTIMEDOP => (after(spec(3)), Place::Constant(3)),
        syscall::IO_GETEVENTS => (after(spec(4)), Place::Constant(4)),
        syscall::POLL => (after(millis(2)), Place::Kernel),
        syscall::NANOSLEEP => (sleeping(registers, 0, spec(0)), Place::Kernel),
        syscall::CLOCK_NANOSLEEP => (clock_nanosleep(registers, spec(2)), Place::Kernel),
        syscall::FUTEX => (futex(registers, spec(3)), Place::Kernel),
        syscall::SELECT => (left(timeval(memory, registers.argument(4))), Place::Timeval(4)),
        syscall::PSELECT6 => (left(spec(4)), Place::Timespec(4)),
        syscall::PPOLL => (left(spec(2)), Place::Timespec(2)),
        _ => match socket_call(number) {
            Some(send) => (after(socket_timeout(registers.argument(0) as i32, send)), Place::Socket { send }),
            None => (Limit::Never, Place::Kernel),
        },
    }
}

/// Whether the time-out of a call with these arguments can count from when it began, as far as its number tells; `is_socket`
/// says it of a descriptor. As [`limit`].
pub(crate) fn counts_from_its_beginning(number: u64, arguments: &[u64], is_socket: impl Fn(u64) -> bool) -> bool {
    let argument = |n: usize| arguments.get(n).copied().unwrap_or(0);
    match number {
        syscall::FUTEX => argument(3) != 0,
        syscall::RESTART_SYSCALL
        | syscall::EPOLL_WAIT
        | syscall::EPOLL_PWAIT
        | syscall::EPOLL_PWAIT2
        | syscall::RT_SIGTIMEDWAIT
        | syscall::SEMTIMEDOP
        | syscall::IO_GETEVENTS
        | syscall::POLL
        | syscall::NANOSLEEP
        | syscall::CLOCK_NANOSLEEP
        | syscall::SELECT
        | syscall::PSELECT6
        | syscall::PPOLL => true,
        _ => socket_call(number).is_some() && is_socket(argument(0)),
    }
}

/// A relative sleep of the time that argument `n` points to. The interrupted kernel writes what is left to where the next
/// argument points, which programs like to be the same place.
fn sleeping(registers: &Registers, n: usize, time: Option<Duration>) -> Limit {
    match time {
        None => Limit::Never,
        Some(left) if registers.argument(n) == registers.argument(n + 1) => Limit::Left(left),
        Some(total) => Limit::After(total),
    }
}

fn clock_nanosleep(registers: &Registers, time: Option<Duration>) -> Limit {
    match time {
        Some(_) if registers.argument(1) & TIMER_ABSTIME == 0 => sleeping(registers, 2, time),
        Some(time) if matches!(registers.argument(0), CLOCK_MONOTONIC | CLOCK_BOOTTIME) => Limit::At(time),
        Some(time) => realtime(time),
        None => Limit::Never,
    }
}

fn futex(registers: &Registers, time: Option<Duration>) -> Limit {
    let operation = registers.argument(1);
    match time {
        None => Limit::Never,
        Some(time) => match operation & 127 {
            FUTEX_WAIT => Limit::After(time),
            FUTEX_LOCK_PI => realtime(time),
            _ if operation & FUTEX_CLOCK_REALTIME != 0 => realtime(time),
            _ => Limit::At(time),
        },
    }
}

/// A time of the wall clock, by the monotonic one as they stand now.
fn realtime(time: Duration) -> Limit {
    use rustix::time::{ClockId, clock_gettime};
    let wall = clock_gettime(ClockId::Realtime);
    let wall = Duration::new(wall.tv_sec.unsigned_abs(), wall.tv_nsec.unsigned_abs() as u32);
    Limit::At(super::since::now() + time.saturating_sub(wall))
}

fn pair(memory: &dyn Memory, address: u64) -> Option<(u64, u64)> {
    let mut bytes = [0; 16];
    if address == 0 || memory.read(address, &mut bytes).is_err() {
        // The call itself would answer EFAULT, which it will when it begins again.
        return None;
    }
    let (first, second) = bytes.split_at(8);
    let number = |half: &[u8]| half.try_into().ok().map(u64::from_ne_bytes);
    Some((number(first)?, number(second)?))
}

fn timespec(memory: &dyn Memory, address: u64) -> Option<Duration> {
    let (seconds, nanos) = pair(memory, address)?;
    bounded(seconds, u32::try_from(nanos).ok()?)
}

fn timeval(memory: &dyn Memory, address: u64) -> Option<Duration> {
    let (seconds, micros) = pair(memory, address)?;
    bounded(seconds, u32::try_from(micros).ok()?.checked_mul(1000)?)
}

/// Longer than a century is as good as never, and must not overflow sums.
fn bounded(seconds: u64, nanos: u32) -> Option<Duration> {
    (seconds < 100 * 366 * 86_400 && nanos < 1_000_000_000).then(|| Duration::new(seconds, nanos))
}

/// What has to be done to a thread, at a given moment, before it may go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resume {
    pub(crate) registers: Registers,
    /// Bytes to write into the process's memory.
    pub(crate) write: Option<(u64, [u8; 16])>,
    /// A socket's time-out to set until the call has begun: descriptor, sending, time left.
    pub(crate) socket: Option<(i32, bool, Duration)>,
    /// What was put into a register or into memory as what is left.
    pub(crate) left: Option<Duration>,
}

/// Below the 128 bytes under the stack pointer that compiled code may use.
const RED_ZONE: u64 = 128;

/// How a thread with these registers goes on at `now`.
pub(crate) fn resume(registers: &Registers, interrupted: &Interrupted, now: Duration) -> Resume {
    let mut resume = Resume { registers: *registers, write: None, socket: None, left: None };
    if interrupted.hide_eintr {
        resume.registers.set_result(-restart::ERESTARTNOHAND);
    }
    let Some(timeout) = interrupted.timeout else { return resume };
    let left = timeout.deadline.saturating_sub(now);
    let pair = |first: u64, second: u64| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&first.to_ne_bytes());
        bytes[8..].copy_from_slice(&second.to_ne_bytes());
        bytes
    };
    match timeout.place {
        Place::Kernel => {}
        Place::Millis(n) => {
            // Rounded up, as the kernel never ends a wait early.
            let millis = left.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128);
            resume.registers.set_argument(n, millis as u64);
            resume.left = Some(Duration::from_millis(millis as u64));
        }
        Place::Constant(n) => {
            let place = (registers.stack() - RED_ZONE - 32) & !15;
            resume.registers.set_argument(n, place);
            resume.left = Some(left);
            resume.write = Some((place, pair(left.as_secs(), left.subsec_nanos().into())));
        }
        Place::Timespec(n) => {
            resume.left = Some(left);
            resume.write = Some((registers.argument(n), pair(left.as_secs(), left.subsec_nanos().into())));
        }
        Place::Timeval(n) => {
            let micros = u64::from(left.subsec_nanos().div_ceil(1000));
            let (seconds, micros) = (left.as_secs() + micros / 1_000_000, micros % 1_000_000);
            resume.left = Some(Duration::new(seconds, (micros * 1000) as u32));
            resume.write = Some((registers.argument(n), pair(seconds, micros)));
        }
        Place::Socket { send } => {
            resume.socket = Some((registers.argument(0) as i32, send, left));
        }
    }
    resume
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Memory that holds these bytes from an address on.
    pub(crate) struct Bytes(pub(crate) u64, pub(crate) Vec<u8>);

    impl Memory for Bytes {
        fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
            let from = address.checked_sub(self.0).ok_or(io::ErrorKind::InvalidInput)? as usize;
            let found = self.1.get(from..from + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            buffer.copy_from_slice(found);
            Ok(())
        }
    }

    pub(crate) fn in_call(number: u64, result: i64, arguments: &[u64]) -> Registers {
        let mut registers = Registers::from_words([0; 27]).calling(0x40_0000, number, arguments);
        registers.set_call(Some(number));
        registers.set_result(result);
        registers
    }

    const SINCE: Duration = Duration::from_secs(100);
    const NOW: Duration = Duration::from_secs(110);
    const AT: u64 = 0x1000;

    fn spec(seconds: u64, nanos: u64) -> Bytes {
        Bytes(AT, [seconds.to_ne_bytes(), nanos.to_ne_bytes()].concat())
    }

    fn understand(registers: &Registers, memory: &Bytes, carried: Option<&PriorWait>) -> Option<Interrupted> {
        interrupted(registers, SINCE, NOW, carried, &|_, _| Some(Duration::from_secs(90)), memory)
    }

    fn written(resume: &Resume) -> (u64, u64, u64) {
        let (place, bytes) = resume.write.expect("something is written");
        let half = |n: usize| u64::from_ne_bytes(bytes[n * 8..][..8].try_into().unwrap());
        (place, half(0), half(1))
    }

    #[test]
    fn an_epoll_wait_goes_on_with_what_is_left_and_hides_its_eintr() {
        let registers = in_call(syscall::EPOLL_WAIT, -EINTR, &[4, 0, 1, 90_000]);
        let found = understand(&registers, &spec(0, 0), None).unwrap();
        assert_eq!(found.timeout.unwrap().deadline, Duration::from_secs(190));
        let resumed = resume(&registers, &found, Duration::from_millis(150_500));
        assert_eq!(resumed.registers.argument(3), 39_500);
        assert_eq!(resumed.registers.result(), -restart::ERESTARTNOHAND);
        assert_eq!(resumed.registers.call(), Some(syscall::EPOLL_WAIT));
        let late = resume(&registers, &found, Duration::from_secs(1000));
        assert_eq!(late.registers.argument(3), 0);
    }

    #[test]
    fn an_endless_epoll_wait_stays_endless() {
        let registers = in_call(syscall::EPOLL_WAIT, -EINTR, &[4, 0, 1, u64::from(u32::MAX)]);
        let found = understand(&registers, &spec(0, 0), None).unwrap();
        assert_eq!(found.timeout, None);
        assert_eq!(resume(&registers, &found, NOW).registers.argument(3), u64::from(u32::MAX));
    }

    #[test]
    fn the_wait_of_the_last_sleep_is_recognised_with_its_full_length() {
        let carried = PriorWait {
            number: syscall::EPOLL_WAIT,
            instruction: 0x40_0000,
            stack: 0,
            deadline: Some(Duration::from_millis(120_003)),
            total: Duration::from_secs(90),
            unmoved: false,
            given: None,
        };
        let registers = in_call(syscall::EPOLL_WAIT, -EINTR, &[4, 0, 1, 20_000]);
        let timeout = understand(&registers, &spec(0, 0), Some(&carried)).unwrap().timeout.unwrap();
        assert_eq!((timeout.deadline, timeout.total), (Duration::from_millis(120_003), Duration::from_secs(90)));
        let other = in_call(syscall::EPOLL_WAIT, -EINTR, &[4, 0, 1, 25_000]);
        assert_eq!(understand(&other, &spec(0, 0), Some(&carried)).unwrap().timeout.unwrap().total.as_secs(), 25);
    }

    #[test]
    fn a_wait_stays_the_same_however_late_it_goes_on() {
        let deadline = Duration::from_millis(120_003);
        let given = |at, left| Given { at: Duration::from_secs(at), left: Duration::from_millis(left), switches: 0 };
        let carried = |number, given| PriorWait {
            number,
            instruction: 0x40_0000,
            stack: 0,
            deadline: Some(deadline),
            total: Duration::from_secs(90),
            unmoved: false,
            given: Some(given),
        };
        let timeout = |registers: &Registers, memory: &Bytes, carried: &PriorWait| {
            understand(registers, memory, Some(carried)).unwrap().timeout.unwrap()
        };
        // Begun at 100 s with what was left at 99 s: the deadline is a second off, and it is the same wait.
        let found = timeout(
            &in_call(syscall::EPOLL_WAIT, -EINTR, &[4, 0, 1, 21_003]),
            &spec(0, 0),
            &carried(syscall::EPOLL_WAIT, given(99, 21_003)),
        );
        assert_eq!((found.deadline, found.total), (deadline, Duration::from_secs(90)));
        let other = timeout(
            &in_call(syscall::EPOLL_WAIT, -EINTR, &[4, 0, 1, 21_004]),
            &spec(0, 0),
            &carried(syscall::EPOLL_WAIT, given(99, 21_003)),
        );
        assert_eq!(other.total, Duration::from_millis(21_004));
        // What the kernel wrote back is less by at most the time since.
        let registers = in_call(syscall::PSELECT6, -restart::ERESTARTNOHAND, &[1, 0, 0, 0, AT]);
        let carried = carried(syscall::PSELECT6, given(99, 21_003));
        assert_eq!(timeout(&registers, &spec(15, 0), &carried).deadline, deadline);
        for (seconds, nanos) in [(21, 4_000_000), (9, 0)] {
            assert_ne!(timeout(&registers, &spec(seconds, nanos), &carried).deadline, deadline);
        }
    }

    #[test]
    fn a_constant_timespec_is_not_written_over() {
        let mut registers = in_call(syscall::RT_SIGTIMEDWAIT, -EINTR, &[0, 0, AT]);
        let mut words = *registers.words();
        words[19] = 0x7fff_0000;
        registers = Registers::from_words(words);
        let found = understand(&registers, &spec(90, 0), None).unwrap();
        let resumed = resume(&registers, &found, Duration::from_millis(150_250));
        let (place, seconds, nanos) = written(&resumed);
        assert!(place + 16 <= 0x7fff_0000 - RED_ZONE && place % 16 == 0);
        assert_eq!(resumed.registers.argument(2), place);
        assert_eq!((seconds, nanos), (39, 750_000_000));
    }

    #[test]
    fn what_the_kernel_wrote_back_shrinks_while_asleep() {
        let registers = in_call(syscall::PSELECT6, -restart::ERESTARTNOHAND, &[1, 0, 0, 0, AT]);
        let found = understand(&registers, &spec(80, 0), None).unwrap();
        assert!(!found.hide_eintr);
        assert_eq!(found.timeout.unwrap().total, Duration::from_secs(90));
        assert_eq!(written(&resume(&registers, &found, Duration::from_secs(170))), (AT, 20, 0));
    }

    #[test]
    fn the_kernel_keeps_the_deadlines_of_its_restart_blocks() {
        for (number, arguments) in [(syscall::NANOSLEEP, [AT, 0, 0, 0]), (syscall::FUTEX, [0, 128, 0, AT])] {
            let registers = in_call(number, -restart::ERESTART_RESTARTBLOCK, &arguments);
            let found = understand(&registers, &spec(90, 0), None).unwrap();
            assert_eq!(found.timeout.unwrap().deadline, Duration::from_secs(190));
            let resumed = resume(&registers, &found, Duration::from_secs(150));
            assert_eq!((resumed.registers, resumed.write), (registers, None));
        }
    }

    #[test]
    fn what_is_left_may_lie_over_the_time_of_a_sleep() {
        for (number, arguments) in [(syscall::NANOSLEEP, [AT, AT, 0, 0]), (syscall::CLOCK_NANOSLEEP, [0, 0, AT, AT])] {
            let registers = in_call(number, -restart::ERESTART_RESTARTBLOCK, &arguments);
            let found = understand(&registers, &spec(80, 0), None).unwrap().timeout.unwrap();
            assert_eq!((found.deadline.as_secs(), found.total.as_secs()), (190, 90));
        }
    }

    #[test]
    fn a_call_that_the_kernel_is_restarting_is_known_from_before() {
        let registers = in_call(syscall::RESTART_SYSCALL, -restart::ERESTART_RESTARTBLOCK, &[AT]);
        assert_eq!(understand(&registers, &spec(90, 0), None), None);
        let carried = PriorWait {
            number: syscall::NANOSLEEP,
            instruction: 0x40_0000,
            stack: 0,
            deadline: Some(Duration::from_secs(120)),
            total: Duration::from_secs(90),
            unmoved: false,
            given: None,
        };
        let found = understand(&registers, &spec(90, 0), Some(&carried)).unwrap();
        assert_eq!((found.number, found.timeout.unwrap().deadline.as_secs()), (syscall::NANOSLEEP, 120));
    }

    #[test]
    fn a_socket_time_out_is_shortened_for_one_call() {
        let registers = in_call(syscall::RECVFROM, -EINTR, &[6, 0, 0]);
        let found = understand(&registers, &spec(0, 0), None).unwrap();
        let resumed = resume(&registers, &found, Duration::from_secs(180));
        assert_eq!(resumed.socket, Some((6, false, Duration::from_secs(10))));
        assert_eq!(resume(&registers, &found, Duration::from_secs(500)).socket.unwrap().2, Duration::ZERO);
    }

    #[test]
    fn what_did_not_wait_is_left_alone() {
        assert_eq!(understand(&in_call(syscall::READ, 5, &[3]), &spec(0, 0), None), None);
        assert_eq!(understand(&in_call(syscall::GETITIMER, -EINTR, &[3]), &spec(0, 0), None), None);
        let mut running = in_call(syscall::READ, 5, &[3]);
        running.set_call(None);
        assert_eq!(understand(&running, &spec(0, 0), None), None);
    }

    #[test]
    fn absurd_time_outs_are_never() {
        let registers = in_call(syscall::RT_SIGTIMEDWAIT, -EINTR, &[0, 0, AT]);
        assert_eq!(understand(&registers, &spec(u64::MAX, 0), None).unwrap().timeout, None);
        assert_eq!(understand(&registers, &spec(1, u64::MAX), None).unwrap().timeout, None);
        assert_eq!(understand(&registers, &Bytes(0, Vec::new()), None).unwrap().timeout, None);
    }
}
