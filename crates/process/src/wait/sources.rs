//! Which descriptors a stopped thread waits for, and for which events.
//!
//! A thread in `epoll_wait` is watched through its epoll descriptor itself, which is readable exactly when the call would
//! return: the kernel applies the program's own interest list. Only where a timer is in that list (a housekeeping tick must
//! not wake) or where policy looks at single sockets are its members watched one by one.

use rustix::event::epoll::EventFlags;
use torpor_linux::registers::Registers;
use torpor_linux::uapi::syscall;

use super::restart::Memory;

/// Descriptors that one `poll` or `select` may name; more are not looked at and every socket is watched instead.
const MAX_DESCRIPTORS: usize = 16_384;

/// A descriptor and the events awaited on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// Its number in the process.
    pub fd: i32,
    /// Events that end the wait.
    pub events: EventFlags,
    /// It is an epoll descriptor, awaited by `epoll_wait`.
    pub epoll: bool,
}

/// What a thread waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Events of these descriptors.
    On(Vec<Awaited>),
    /// No descriptor: time, a lock, a child, a signal.
    Otherwise,
    /// It was running, or cannot be understood.
    Unknown,
}

const READ: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

/// What a thread in call `number` waits for; `None` as number: it was in no call.
pub fn waits(number: Option<u64>, registers: &Registers, memory: &dyn Memory) -> Waits {
    let Some(number) = number else { return Waits::Unknown };
    let fd = registers.argument(0) as i32;
    let one = |events| Waits::On(vec![Awaited { fd, events, epoll: false }]);
    match number {
        syscall::EPOLL_WAIT | syscall::EPOLL_PWAIT | syscall::EPOLL_PWAIT2 => {
            Waits::On(vec![Awaited { fd, events: EventFlags::IN, epoll: true }])
        }
        syscall::POLL | syscall::PPOLL => poll(registers, memory),
        syscall::SELECT | syscall::PSELECT6 => select(registers, memory),
        syscall::READ
        | syscall::READV
        | syscall::RECVFROM
        | syscall::RECVMSG
        | syscall::RECVMMSG
        | syscall::ACCEPT
        | syscall::ACCEPT4 => one(READ),
        syscall::WRITE
        | syscall::WRITEV
        | syscall::SENDTO
        | syscall::SENDMSG
        | syscall::SENDMMSG
        | syscall::CONNECT => one(EventFlags::OUT),
        syscall::RESTART_SYSCALL => Waits::Unknown,
        _ => Waits::Otherwise,
    }
}

fn poll(registers: &Registers, memory: &dyn Memory) -> Waits {
    let count = registers.argument(1) as usize;
    if count > MAX_DESCRIPTORS {
        return Waits::Unknown;
    }
    let mut entries = vec![0; count * 8];
    if count > 0 && memory.read(registers.argument(0), &mut entries).is_err() {
        return Waits::Unknown;
    }
    let mut awaited = Vec::with_capacity(count);
    for entry in entries.chunks_exact(8) {
        let fd = i32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]);
        let events = u16::from_ne_bytes([entry[4], entry[5]]);
        if fd >= 0 {
            // poll's and epoll's event bits are the same.
            awaited.push(Awaited { fd, events: EventFlags::from_bits_truncate(events.into()), epoll: false });
        }
    }
    if awaited.is_empty() { Waits::Otherwise } else { Waits::On(awaited) }
}

fn select(registers: &Registers, memory: &dyn Memory) -> Waits {
    let count = registers.argument(0) as usize;
    if count > MAX_DESCRIPTORS {
        return Waits::Unknown;
    }
    let words = count.div_ceil(64);
    let mut awaited: Vec<Awaited> = Vec::new();
    // Where each descriptor is in the list. Sets may be full, in each of thousands of threads.
    let mut places = vec![None; count];
    for (n, events) in [(1, READ), (2, EventFlags::OUT), (3, EventFlags::PRI)] {
        let mut set = vec![0; words * 8];
        let address = registers.argument(n);
        if address == 0 {
            continue;
        }
        if memory.read(address, &mut set).is_err() {
            return Waits::Unknown;
        }
        for fd in 0..count {
            if set[fd / 8] & (1 << (fd % 8)) == 0 {
                continue;
            }
            match places[fd] {
                Some(place) => awaited[place as usize].events |= events,
                None => {
                    places[fd] = Some(awaited.len() as u32);
                    awaited.push(Awaited { fd: fd as i32, events, epoll: false });
                }
            }
        }
    }
    if awaited.is_empty() { Waits::Otherwise } else { Waits::On(awaited) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::restart::tests::{Bytes, in_call};

    #[test]
    fn poll_and_select_name_their_descriptors() {
        let mut bytes = Vec::new();
        for (fd, events) in [(5_i32, 1_u16), (-1, 1), (7, 4)] {
            bytes.extend(fd.to_ne_bytes());
            bytes.extend(events.to_ne_bytes());
            bytes.extend([0, 0]);
        }
        let registers = in_call(syscall::POLL, -516, &[0x1000, 3, 1000]);
        let expected = Waits::On(vec![
            Awaited { fd: 5, events: EventFlags::IN, epoll: false },
            Awaited { fd: 7, events: EventFlags::OUT, epoll: false },
        ]);
        assert_eq!(waits(Some(syscall::POLL), &registers, &Bytes(0x1000, bytes)), expected);

        let mut sets = vec![0_u8; 16];
        sets[0] = 0b0100;
        sets[8] = 0b0110;
        let registers = in_call(syscall::SELECT, -514, &[3, 0x1000, 0x1008, 0, 0]);
        let expected = Waits::On(vec![
            Awaited { fd: 2, events: READ | EventFlags::OUT, epoll: false },
            Awaited { fd: 1, events: EventFlags::OUT, epoll: false },
        ]);
        assert_eq!(waits(Some(syscall::SELECT), &registers, &Bytes(0x1000, sets)), expected);
    }

    #[test]
    fn hostile_counts_are_not_followed() {
        let nothing = Bytes(0, Vec::new());
        let registers = in_call(syscall::POLL, -516, &[0x1000, u64::MAX, 1000]);
        assert_eq!(waits(Some(syscall::POLL), &registers, &nothing), Waits::Unknown);
        let registers = in_call(syscall::SELECT, -514, &[u64::MAX, 0x1000]);
        assert_eq!(waits(Some(syscall::SELECT), &registers, &nothing), Waits::Unknown);
        assert_eq!(waits(None, &registers, &nothing), Waits::Unknown);
    }
}
