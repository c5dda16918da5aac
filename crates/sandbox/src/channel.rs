//! Messages with descriptors between the worker and its set-up processes: JSON over a SOCK_SEQPACKET socket.
//!
//! Both ends are this program, so a message that does not fit is a broken invariant of one of them; it is still only an
//! error for the sandbox in question.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest message, in bytes. What may be longer (a spec) travels as a file.
const MESSAGE_BYTES: usize = 64 << 10;
/// Most descriptors in one message.
const DESCRIPTORS: usize = 8;

/// One end.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

/// A message that has come in.
#[derive(Debug)]
pub(crate) struct Message<T> {
    /// What it says.
    pub(crate) body: T,
    /// What came with it.
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl From<OwnedFd> for Channel {
    fn from(end: OwnedFd) -> Self {
        Self(end)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Channel {
    /// Both ends; neither survives `execve`.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(ours), theirs))
    }

    /// The end that came as standard input.
    pub(crate) fn from_standard_input() -> io::Result<Self> {
        io::stdin().as_fd().try_clone_to_owned().map(Self)
    }

    /// Sends a message; EPIPE if the other end is gone.
    pub(crate) fn send(&self, body: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let text = serde_json::to_vec(body)?;
        if text.len() > MESSAGE_BYTES {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        loop {
            match sendmsg(&self.0, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                other => return other.map(drop).map_err(Into::into),
            }
        }
    }

    /// The next message; none at the end of the conversation. `TimedOut` if nothing comes for so long.
    pub(crate) fn receive<T: DeserializeOwned>(&self, within: Option<Duration>) -> io::Result<Option<Message<T>>> {
        self.wait(within)?;
        let mut buffer = vec![0; MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let slices = &mut [IoSliceMut::new(&mut buffer)];
            match recvmsg(&self.0, slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                // Whoever dies with unread messages resets the conversation: it is over.
                Err(rustix::io::Errno::CONNRESET) => return Ok(None),
                other => break other?,
            }
        };
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        Ok(Some(Message { body: serde_json::from_slice(&buffer[..received.bytes])?, descriptors }))
    }

    /// The same, unless `given_up` becomes readable before: `ConnectionAborted` then.
    pub(crate) fn receive_unless<T: DeserializeOwned>(
        &self,
        within: Duration,
        given_up: Option<BorrowedFd<'_>>,
    ) -> io::Result<Option<Message<T>>> {
        let started = Instant::now();
        loop {
            let left = within.saturating_sub(started.elapsed());
            let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
            let mut waits = vec![PollFd::new(&self.0, PollFlags::IN)];
            waits.extend(given_up.map(|given_up| PollFd::from_borrowed_fd(given_up, PollFlags::IN)));
            match poll(&mut waits, Some(&timeout)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) if waits.get(1).is_some_and(|given_up| !given_up.revents().is_empty()) => {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                Ok(_) => return self.receive(None),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn wait(&self, within: Option<Duration>) -> io::Result<()> {
        let Some(within) = within else { return Ok(()) };
        let started = Instant::now();
        loop {
            let left = within.saturating_sub(started.elapsed());
            let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A memory file that holds `value`, to be sent along.
pub(crate) fn to_file(value: &impl Serialize) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create(c"torpor-spec", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(value)?)?;
    file.rewind()?;
    Ok(file.into())
}

/// The value in a file that [`to_file`] made.
pub(crate) fn from_file<T: DeserializeOwned>(file: OwnedFd) -> io::Result<T> {
    let mut text = Vec::new();
    File::from(file).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_travel_and_the_end_is_seen() {
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = Channel(theirs);
        let file = to_file(&"hello").unwrap();
        ours.send(&7_u32, &[file.as_fd()]).unwrap();
        let message = theirs.receive::<u32>(Some(Duration::from_secs(5))).unwrap().unwrap();
        assert_eq!(message.body, 7);
        let [file]: [OwnedFd; 1] = message.descriptors.try_into().unwrap();
        assert_eq!(from_file::<String>(file).unwrap(), "hello");
        let silent = theirs.receive::<u32>(Some(Duration::from_millis(1))).unwrap_err();
        assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
        drop(ours);
        assert!(theirs.receive::<u32>(None).unwrap().is_none());
    }
}
