//! Whether two processes share a kernel object: `kcmp(2)`.

use std::cmp::Ordering;
use std::io;

const KCMP_FILE: libc::c_int = 0;
const KCMP_EPOLL_TFD: libc::c_int = 7;

/// `struct kcmp_epoll_slot`: the `occurrence`-th registration under number `target` in epoll descriptor `epoll`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct EpollSlot {
    /// The epoll descriptor.
    pub epoll: u32,
    /// Number that was registered.
    pub target: u32,
    /// Counts registrations under the same number, from 0.
    pub occurrence: u32,
}

fn order(answer: libc::c_long) -> io::Result<Ordering> {
    match answer {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        3 => Err(io::Error::other("kcmp cannot order these objects")),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What two processes or threads may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Shared {
    /// The address space (`CLONE_VM`).
    Memory = 1,
    /// The table of descriptors (`CLONE_FILES`).
    Descriptors = 2,
    /// Root and working directory (`CLONE_FS`).
    Directories = 3,
}

/// Orders the address spaces of two processes; equal means that they share one (`vfork`, `CLONE_VM`).
pub fn address_spaces(a: i32, b: i32) -> io::Result<Ordering> {
    compare(Shared::Memory, a, b)
}

/// Orders what two processes or threads have of a kind; equal means that they share it.
pub fn compare(what: Shared, a: i32, b: i32) -> io::Result<Ordering> {
    // SAFETY: kcmp takes numbers only.
    order(unsafe { libc::syscall(libc::SYS_kcmp, a, b, what as libc::c_int, 0, 0) })
}

/// Orders two descriptors (process and number) by the open file behind them; equal means that it is the same one.
pub fn open_files(a: (i32, i32), b: (i32, i32)) -> io::Result<Ordering> {
    let number = |fd: i32| libc::c_ulong::from(fd.unsigned_abs());
    // SAFETY: kcmp takes numbers only.
    order(unsafe { libc::syscall(libc::SYS_kcmp, a.0, b.0, KCMP_FILE, number(a.1), number(b.1)) })
}

/// Orders the open file of a descriptor (process and number) and the one that `slot` of an epoll descriptor of process `watcher`
/// watches, as [`open_files`] orders. The kernel walks the registrations of the epoll descriptor for each call.
pub fn watched(file: (i32, i32), watcher: i32, slot: EpollSlot) -> io::Result<Ordering> {
    let number = libc::c_ulong::from(file.1.unsigned_abs());
    // SAFETY: beside numbers kcmp takes the address of a slot in the kernel's layout, which lives through the call and
    // is only read.
    order(unsafe { libc::syscall(libc::SYS_kcmp, file.0, watcher, KCMP_EPOLL_TFD, number, &raw const slot) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::epoll;
    use std::os::fd::AsRawFd;

    #[test]
    fn tells_the_same_open_file_from_another() {
        let own = std::process::id() as i32;
        let one = std::fs::File::open("/dev/null").unwrap();
        let same = one.try_clone().unwrap();
        let other = std::fs::File::open("/dev/null").unwrap();
        let compare =
            |a: &std::fs::File, b: &std::fs::File| open_files((own, a.as_raw_fd()), (own, b.as_raw_fd())).unwrap();
        assert_eq!(compare(&one, &same), Ordering::Equal);
        assert_eq!(compare(&one, &other), compare(&other, &one).reverse());
        assert_ne!(compare(&one, &other), Ordering::Equal);
        assert!(open_files((own, i32::MAX), (own, 0)).is_err());
    }

    #[test]
    fn finds_what_an_epoll_descriptor_watches() {
        let own = std::process::id() as i32;
        let watcher = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        epoll::add(&watcher, &a, epoll::EventData::new_u64(7), epoll::EventFlags::IN).unwrap();
        let slot = EpollSlot { epoll: watcher.as_raw_fd() as u32, target: a.as_raw_fd() as u32, occurrence: 0 };
        assert_eq!(watched((own, a.as_raw_fd()), own, slot).unwrap(), Ordering::Equal);
        let order = open_files((own, b.as_raw_fd()), (own, a.as_raw_fd())).unwrap();
        assert_eq!(watched((own, b.as_raw_fd()), own, slot).unwrap(), order);
        assert_ne!(order, Ordering::Equal);
        assert!(watched((own, a.as_raw_fd()), own, EpollSlot { occurrence: 1, ..slot }).is_err());
    }
}
