//! System V shared memory: `shmget(2)`, `shmctl(2)`, `shmat(2)`; ids by `/proc/sys/kernel/shm_next_id` (`proc_sys_kernel(5)`).

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::ptr;

use libc::{c_int, c_void};

use crate::clone;

/// Bit of [`Segment::mode`]: it goes when nobody is attached any more (`SHM_DEST`).
pub const REMOVED: u32 = 0o1000;
/// Bit of [`Segment::mode`]: it is not swapped (`SHM_LOCKED`).
pub const LOCKED: u32 = 0o2000;

const SHM_LOCK: c_int = 11;
const NEXT_ID: &str = "/proc/sys/kernel/shm_next_id";

/// What the kernel tells of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Key; 0 if it has none (any more).
    pub key: i32,
    /// Permission bits, [`REMOVED`], [`LOCKED`].
    pub mode: u32,
    /// Its owner's user and group.
    pub owner: (u32, u32),
    /// Its maker's.
    pub maker: (u32, u32),
    /// Bytes.
    pub bytes: u64,
    /// Mappings of it, everybody's.
    pub attached: u64,
}

fn check(answer: c_int) -> io::Result<c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn state(id: i32) -> io::Result<libc::shmid_ds> {
    let mut state = MaybeUninit::<libc::shmid_ds>::zeroed();
    // SAFETY: IPC_STAT writes one shmid_ds to `state`, which has room for it.
    check(unsafe { libc::shmctl(id, libc::IPC_STAT, state.as_mut_ptr()) })?;
    // SAFETY: the call has filled it, and all zeros are a value of it as well.
    Ok(unsafe { state.assume_init() })
}

/// A segment of this IPC namespace; `None` if there is none with this id.
pub fn look(id: i32) -> io::Result<Option<Segment>> {
    let state = match state(id) {
        Ok(state) => state,
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EIDRM)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let about = state.shm_perm;
    Ok(Some(Segment {
        key: about.__key,
        mode: u32::from(about.mode),
        owner: (about.uid, about.gid),
        maker: (about.cuid, about.cgid),
        bytes: state.shm_segsz as u64,
        attached: state.shm_nattch,
    }))
}

/// The id of the segment with this key.
pub fn find(key: i32) -> io::Result<Option<i32>> {
    if key == libc::IPC_PRIVATE {
        return Ok(None);
    }
    // SAFETY: no memory is involved; without IPC_CREAT nothing is made.
    match check(unsafe { libc::shmget(key, 0, 0) }) {
        Ok(id) => Ok(Some(id)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a new segment (mode 0600) for a key that is free, as `maker` (effective user and group); gives its id. That is
/// `id`, unless the place that its number stands for is taken, or another process was quicker to make one. `huge`: flags for
/// huge pages ([`crate::hugepages::SHM_HUGETLB`] with a size), or 0.
pub fn make(key: i32, bytes: u64, id: i32, maker: (u32, u32), huge: u32) -> io::Result<i32> {
    std::fs::write(NEXT_ID, id.to_string())?;
    // SAFETY: these only tell.
    if unsafe { (libc::geteuid(), libc::getegid()) } == maker {
        return get(key, bytes, huge);
    }
    // Users and groups are a thread's own for the kernel; this one ends with the call.
    let made =
        std::thread::scope(|scope| scope.spawn(|| become_maker(maker).and_then(|()| get(key, bytes, huge))).join());
    made.unwrap_or_else(|_| Err(io::Error::other("the thread that makes the segment has panicked")))
}

/// Makes a new segment, with the id that comes.
pub(crate) fn get(key: i32, bytes: u64, huge: u32) -> io::Result<i32> {
    let len = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: no memory of ours is involved.
    check(unsafe { libc::shmget(key, len, libc::IPC_CREAT | libc::IPC_EXCL | 0o600 | huge.cast_signed()) })
}

/// Gives the calling thread, and only it, other effective ids. The process stays as dumpable as it was.
pub(crate) fn become_maker(maker: (u32, u32)) -> io::Result<()> {
    const SAME: i64 = -1;
    // SAFETY: prctl with these does not touch memory.
    let dumpable = unsafe { libc::prctl(libc::PR_GET_DUMPABLE) };
    let (user, group) = (i64::from(maker.0), i64::from(maker.1));
    // SAFETY: the system calls take numbers; the C library, which would change all threads, is passed by.
    let answer = unsafe {
        match libc::syscall(libc::SYS_setresgid, SAME, group, SAME) {
            0 => libc::syscall(libc::SYS_setresuid, SAME, user, SAME),
            error => error,
        }
    };
    let error = io::Error::last_os_error();
    if dumpable == 1 {
        // SAFETY: as above.
        check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) })?;
    }
    if answer == 0 { Ok(()) } else { Err(error) }
}

/// Sets a segment's owner and permission bits.
pub fn set(id: i32, owner: (u32, u32), mode: u32) -> io::Result<()> {
    let mut state = state(id)?;
    (state.shm_perm.uid, state.shm_perm.gid) = owner;
    state.shm_perm.mode = (mode & 0o777) as libc::c_ushort;
    // SAFETY: IPC_SET reads one shmid_ds.
    check(unsafe { libc::shmctl(id, libc::IPC_SET, &raw mut state) }).map(drop)
}

/// Keeps a segment's pages from being swapped.
pub fn lock(id: i32) -> io::Result<()> {
    // SAFETY: SHM_LOCK takes no memory.
    check(unsafe { libc::shmctl(id, SHM_LOCK, ptr::null_mut()) }).map(drop)
}

/// Removes a segment once nobody is attached to it.
pub fn remove(id: i32) -> io::Result<()> {
    // SAFETY: IPC_RMID takes no memory.
    check(unsafe { libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()) }).map(drop)
}

/// Removes a segment if this process has made it; makes system calls only.
pub(crate) fn remove_made_by(id: i32, maker: i32) {
    if state(id).is_ok_and(|state| state.shm_cpid == maker) {
        let _ = remove(id);
    }
}

/// Bytes of the mapping of a segment: whole pages, of whichever size it has.
fn mapped_bytes(start: usize, bytes: usize) -> usize {
    let lens = crate::hugepages::sizes().into_iter().map(|size| bytes.next_multiple_of(size as usize));
    let is_mapped =
        |len: &usize| std::fs::symlink_metadata(format!("/proc/self/map_files/{start:x}-{:x}", start + len)).is_ok();
    let small = bytes.next_multiple_of(4096);
    std::iter::once(small).chain(lens).find(is_mapped).unwrap_or(small)
}

/// A segment that is attached to this process. Processes that are forked meanwhile do not have it: the kernel counts who is
/// attached, and shows the number to the program whose segment it is.
#[derive(Debug)]
pub struct Attached {
    start: *mut c_void,
    /// Bytes, whole pages.
    len: usize,
}

impl Attached {
    /// Attaches the segment, for reading and writing.
    pub fn new(id: i32) -> io::Result<Self> {
        let bytes = state(id)?.shm_segsz;
        let _unforked = clone::hold_forks();
        // SAFETY: a new mapping at a place that the kernel chooses; nothing else lies there.
        let start = unsafe { libc::shmat(id, ptr::null(), 0) };
        if start as isize == -1 {
            return Err(io::Error::last_os_error());
        }
        let attached = Self { start, len: mapped_bytes(start as usize, bytes) };
        // SAFETY: changes what a fork does with the mapping that has just been made.
        check(unsafe { libc::madvise(start, attached.len, libc::MADV_DONTFORK) })?;
        Ok(attached)
    }

    /// The memory as a file, open for reading and writing. Needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.
    pub fn open(&self) -> io::Result<OwnedFd> {
        let start = self.start as usize;
        let link = format!("/proc/self/map_files/{start:x}-{:x}", start + self.len);
        File::options().read(true).write(true).open(link).map(OwnedFd::from)
    }

    /// Writes at this byte, up to the end of the last page: a segment's file ends where the segment does.
    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if at.saturating_add(bytes.len() as u64) > self.len as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let address = self.start as u64 + at;
        crate::vm::write(std::process::id() as i32, &[(address, bytes)])
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; nobody has been given an address in it.
        unsafe { libc::shmdt(self.start) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn makes_and_finds_segments() {
        let probe = make(libc::IPC_PRIVATE, 5000, 1 << 20, (77, 78), 0).unwrap();
        let about = look(probe).unwrap().unwrap();
        assert_eq!((about.maker, about.owner, about.bytes, about.attached), ((77, 78), (77, 78), 5000, 0));
        // SAFETY: it only tells.
        assert_eq!(unsafe { libc::prctl(libc::PR_GET_DUMPABLE) }, 1);
        set(probe, (5, 6), 0o640).unwrap();
        let attached = Attached::new(probe).unwrap();
        attached.write(4999, b"end and behind").unwrap();
        assert!(attached.write(8190, b"far").is_err());
        let mut byte = [0; 2];
        let file = File::from(attached.open().unwrap());
        assert_eq!((file.read_at(&mut byte, 4999).unwrap(), byte[0]), (1, b'e'));
        // A copy of this process is not attached.
        let copy = crate::ptrace_probe::PtraceProbe::start(None, 0, 0).unwrap();
        let about = look(probe).unwrap().unwrap();
        assert_eq!((about.owner, about.mode & 0o777, about.attached), ((5, 6), 0o640, 1));
        drop(copy);
        remove(probe).unwrap();
        assert_eq!(look(probe).unwrap().unwrap().mode & REMOVED, REMOVED);
        drop((attached, file));
        assert_eq!(look(probe).unwrap(), None);
        // The same number again.
        let again = make(libc::IPC_PRIVATE, 1, probe, (0, 0), 0).unwrap();
        remove(again).unwrap();
        assert_eq!(again, probe);

        let key = 0x7000_0000 | std::process::id() as i32;
        assert_eq!(find(key).unwrap(), None);
        let id = get(key, 1, 0).unwrap();
        assert_eq!(find(key).unwrap(), Some(id));
        assert_eq!(get(key, 1, 0).unwrap_err().raw_os_error(), Some(libc::EEXIST));
        remove(id).unwrap();
        assert_eq!(find(libc::IPC_PRIVATE).unwrap(), None);
    }
}
