//! Unix sockets as the kernel lists them (`sock_diag(7)`): who is connected to whom, who waits at which listener.

use std::collections::HashMap;
use std::io;

use crate::kinds::socket::diag;
use crate::kinds::socket::diag::{attributes, u32_at};

/// `struct unix_diag_msg`.
const MESSAGE_BYTES: usize = 16;
/// `UDIAG_SHOW_PEER | UDIAG_SHOW_ICONS | UDIAG_SHOW_RQLEN`.
const SHOW: u32 = 0x4 | 0x8 | 0x10;
const PEER: u16 = 2;
const WAITING: u16 = 3;
const QUEUE: u16 = 4;
const SHUTDOWN: u16 = 6;

/// A socket in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Inode of the socket that it is connected to; 0: one that nobody has accepted, or that has been closed.
    pub(crate) peer: Option<u32>,
    /// Of a listener: inodes of the sockets whose connections wait, in order; 0: closed since.
    pub(crate) waiting: Vec<u32>,
    /// Of a listener: the most that may wait.
    pub(crate) backlog: u32,
    /// 1: not reading any more, 2: not writing any more.
    pub(crate) shut: u8,
}

/// Sockets of the calling thread's network namespace, by inode.
pub(crate) fn list() -> io::Result<HashMap<u32, Entry>> {
    // `struct unix_diag_req`: family, all states, any inode, what to show, no cookie.
    let mut request = vec![1, 0, 0, 0];
    for word in [u32::MAX, 0, SHOW, u32::MAX, u32::MAX] {
        request.extend_from_slice(&word.to_ne_bytes());
    }
    let mut found = HashMap::new();
    diag::list(&request, |payload| {
        let (inode, entry) = entry(payload)?;
        found.insert(inode, entry);
        Some(())
    })?;
    Ok(found)
}

fn entry(payload: &[u8]) -> Option<(u32, Entry)> {
    let inode = u32_at(payload, 4)?;
    let mut entry = Entry::default();
    attributes(payload.get(MESSAGE_BYTES..)?, |kind, value| {
        match kind {
            PEER => entry.peer = Some(u32_at(value, 0)?),
            WAITING => entry.waiting = value.chunks_exact(4).filter_map(|word| u32_at(word, 0)).collect(),
            QUEUE => entry.backlog = u32_at(value, 4)?,
            SHUTDOWN => entry.shut = *value.first()?,
            _ => {}
        }
        Some(())
    })?;
    Some((inode, entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fstat;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn pairs_and_those_who_wait_are_found() {
        let inode = |fd: &dyn std::os::fd::AsFd| fstat(fd.as_fd()).unwrap().st_ino as u32;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let one = UnixStream::connect(&path).unwrap();
        let two = UnixStream::connect(&path).unwrap();
        let (a, b) = UnixStream::pair().unwrap();
        a.shutdown(std::net::Shutdown::Write).unwrap();
        let found = list().unwrap();
        assert_eq!(found[&inode(&listener)].waiting, [inode(&one), inode(&two)]);
        assert!(found[&inode(&listener)].backlog > 0);
        assert_eq!(found[&inode(&one)].peer, Some(0));
        assert_eq!(found[&inode(&a)], Entry { peer: Some(inode(&b)), shut: 2, ..found[&inode(&a)].clone() });
        assert_eq!(found[&inode(&b)].shut, 1);
        drop(b);
        assert_eq!(list().unwrap()[&inode(&a)].peer, Some(0));
    }

    #[test]
    fn noise_is_refused() {
        assert!(entry(&[0; 15]).is_none());
        assert!(entry(&[[0; 16].as_slice(), &[200, 0, 2, 0]].concat()).is_none());
        assert!(entry(&[[0; 16].as_slice(), &[0, 0, 2, 0]].concat()).is_none());
    }
}
