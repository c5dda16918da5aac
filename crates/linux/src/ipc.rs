//! System V semaphores and message queues: `semget(2)`, `semctl(2)`, `msgget(2)`, `msgctl(2)`, `msgrcv(2)`; ids by
//! `/proc/sys/kernel/{sem,msg}_next_id` (`proc_sys_kernel(5)`). All of the calling thread's IPC namespace.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use libc::{c_int, c_long, c_void};

const SEMAPHORES_NEXT: &str = "/proc/sys/kernel/sem_next_id";
const MESSAGES_NEXT: &str = "/proc/sys/kernel/msg_next_id";
/// `MSG_COPY`, which libc does not name everywhere: looks at a message by its place.
const MSG_COPY: c_int = 0o40_000;

/// Who may use an object, and how it is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Key; 0 if it has none.
    pub key: i32,
    /// Permission bits.
    pub mode: u32,
    /// Its owner's user and group.
    pub owner: (u32, u32),
    /// Its maker's.
    pub maker: (u32, u32),
}

impl From<libc::ipc_perm> for About {
    fn from(found: libc::ipc_perm) -> Self {
        Self {
            key: found.__key,
            mode: u32::from(found.mode) & 0o777,
            owner: (found.uid, found.gid),
            maker: (found.cuid, found.cgid),
        }
    }
}

fn check(answer: c_int) -> io::Result<c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn semaphore_state(id: i32) -> io::Result<libc::semid_ds> {
    let mut state = MaybeUninit::<libc::semid_ds>::zeroed();
    // SAFETY: IPC_STAT writes one semid_ds to `state`, which has room for it.
    check(unsafe { libc::semctl(id, 0, libc::IPC_STAT, state.as_mut_ptr()) })?;
    // SAFETY: the call has filled it, and all zeros are a value of it as well.
    Ok(unsafe { state.assume_init() })
}

/// A set of semaphores, and their values.
pub fn semaphores(id: i32) -> io::Result<(About, Vec<u16>)> {
    let state = semaphore_state(id)?;
    let mut values = vec![0_u16; state.sem_nsems as usize];
    // SAFETY: GETALL writes a value for each semaphore, whose number never changes.
    check(unsafe { libc::semctl(id, 0, libc::GETALL, values.as_mut_ptr()) })?;
    Ok((state.sem_perm.into(), values))
}

/// Makes a set of semaphores with these values. The id and key must be free, and nobody else make any meanwhile.
pub fn make_semaphores(id: i32, about: About, values: &[u16]) -> io::Result<()> {
    let count = c_int::try_from(values.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let flags = libc::IPC_CREAT | libc::IPC_EXCL | 0o600;
    std::fs::write(SEMAPHORES_NEXT, id.to_string())?;
    as_maker(about.maker, || {
        // SAFETY: no memory of ours is involved.
        is(id, check(unsafe { libc::semget(about.key, count, flags) })?)
    })?;
    // SAFETY: SETALL reads a value for each semaphore, as many as were made.
    check(unsafe { libc::semctl(id, 0, libc::SETALL, values.as_ptr()) })?;
    let mut state = semaphore_state(id)?;
    owned(&mut state.sem_perm, about);
    // SAFETY: IPC_SET reads one semid_ds.
    check(unsafe { libc::semctl(id, 0, libc::IPC_SET, &raw mut state) }).map(drop)
}

/// Removes a set of semaphores.
pub fn remove_semaphores(id: i32) -> io::Result<()> {
    // SAFETY: IPC_RMID takes no memory.
    check(unsafe { libc::semctl(id, 0, libc::IPC_RMID) }).map(drop)
}

fn queue_state(id: i32) -> io::Result<libc::msqid_ds> {
    let mut state = MaybeUninit::<libc::msqid_ds>::zeroed();
    // SAFETY: IPC_STAT writes one msqid_ds to `state`, which has room for it.
    check(unsafe { libc::msgctl(id, libc::IPC_STAT, state.as_mut_ptr()) })?;
    // SAFETY: the call has filled it, and all zeros are a value of it as well.
    Ok(unsafe { state.assume_init() })
}

/// A message of a queue: its type, greater than 0, and its text.
pub type Message = (i64, Vec<u8>);

/// A message queue: how many bytes it may hold, and what waits in it. It is only looked at.
pub fn queue(id: i32) -> io::Result<(About, u64, Vec<Message>)> {
    let state = queue_state(id)?;
    let mut buffer = vec![0_u64; 1 + (state.__msg_cbytes as usize).div_ceil(8)];
    let mut messages = Vec::new();
    for n in 0..state.msg_qnum as c_long {
        let flags = MSG_COPY | libc::IPC_NOWAIT;
        let room = (buffer.len() - 1) * 8;
        // SAFETY: the buffer has a word for the type and `room` bytes behind it.
        let read = unsafe { libc::msgrcv(id, buffer.as_mut_ptr().cast::<c_void>(), room, n, flags) };
        let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
        let text = buffer[1..].iter().flat_map(|word| word.to_ne_bytes()).take(read).collect();
        messages.push((buffer[0].cast_signed(), text));
    }
    Ok((state.msg_perm.into(), state.msg_qbytes, messages))
}

/// Makes a message queue that may hold so many bytes, with these messages. The id and key must be free, and nobody else make
/// any meanwhile.
pub fn make_queue(id: i32, about: About, most_bytes: u64, messages: &[Message]) -> io::Result<()> {
    std::fs::write(MESSAGES_NEXT, id.to_string())?;
    as_maker(about.maker, || {
        // SAFETY: no memory is involved.
        is(id, check(unsafe { libc::msgget(about.key, libc::IPC_CREAT | libc::IPC_EXCL | 0o600) })?)
    })?;
    let mut state = queue_state(id)?;
    owned(&mut state.msg_perm, about);
    state.msg_qbytes = most_bytes;
    // SAFETY: IPC_SET reads one msqid_ds.
    check(unsafe { libc::msgctl(id, libc::IPC_SET, &raw mut state) })?;
    for (kind, text) in messages {
        let mut buffer = vec![kind.cast_unsigned()];
        buffer.extend(text.chunks(8).map(|part| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_ne_bytes(word)
        }));
        // SAFETY: behind the type are at least as many bytes as the text has.
        check(unsafe { libc::msgsnd(id, buffer.as_ptr().cast::<c_void>(), text.len(), libc::IPC_NOWAIT) })?;
    }
    Ok(())
}

/// Removes a message queue.
pub fn remove_queue(id: i32) -> io::Result<()> {
    // SAFETY: IPC_RMID takes no memory.
    check(unsafe { libc::msgctl(id, libc::IPC_RMID, ptr::null_mut()) }).map(drop)
}

fn is(wanted: i32, made: i32) -> io::Result<()> {
    if made == wanted { Ok(()) } else { Err(io::Error::other(format!("it got id {made}"))) }
}

fn owned(perm: &mut libc::ipc_perm, about: About) {
    (perm.uid, perm.gid) = about.owner;
    perm.mode = (about.mode & 0o777) as libc::c_ushort;
}

/// In a thread of its own, which has these effective ids.
fn as_maker(maker: (u32, u32), make: impl FnOnce() -> io::Result<()> + Send) -> io::Result<()> {
    // SAFETY: these only tell.
    if unsafe { (libc::geteuid(), libc::getegid()) } == maker {
        return make();
    }
    let made = std::thread::scope(|scope| scope.spawn(|| crate::shm::become_maker(maker).and_then(|()| make())).join());
    made.unwrap_or_else(|_| Err(io::Error::other("the thread that makes it has panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_what_was_there() {
        // SAFETY: no memory is involved.
        let probe = check(unsafe { libc::semget(libc::IPC_PRIVATE, 3, 0o640) }).unwrap();
        let (mut about, values) = semaphores(probe).unwrap();
        assert_eq!((about.mode, values), (0o640, vec![0; 3]));
        remove_semaphores(probe).unwrap();
        about.owner = (5, 6);
        about.maker = (77, 78);
        make_semaphores(probe, about, &[1, 2, 30_000]).unwrap();
        assert_eq!(semaphores(probe).unwrap(), (about, vec![1, 2, 30_000]));
        remove_semaphores(probe).unwrap();
        assert!(semaphores(probe).is_err());

        // SAFETY: no memory is involved.
        let probe = check(unsafe { libc::msgget(libc::IPC_PRIVATE, 0o600) }).unwrap();
        let (mut about, most, none) = queue(probe).unwrap();
        assert!(none.is_empty() && most > 100);
        remove_queue(probe).unwrap();
        about.maker = (77, 78);
        let messages = vec![(4, b"hello".to_vec()), (1, Vec::new()), (i64::MAX, vec![7; 1000])];
        make_queue(probe, about, most - 1, &messages).unwrap();
        for _ in 0..2 {
            assert_eq!(queue(probe).unwrap(), (about, most - 1, messages.clone()), "looking takes nothing");
        }
        remove_queue(probe).unwrap();
        assert!(queue(probe).is_err());
    }
}
