//! Packets with descriptors over a `SOCK_SEQPACKET` socket: sendmsg(2), recvmsg(2), unix(7).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use torpor_linux::closer::AppFile;

use crate::limits::FDS_PER_PACKET;

const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(FDS_PER_PACKET));

/// What came in one packet.
#[derive(Debug)]
pub(crate) struct Received {
    /// Bytes in the buffer; 0 is the end of the connection.
    pub(crate) bytes: usize,
    /// The packet was longer than the buffer, or carried more descriptors than the process may open.
    pub(crate) truncated: bool,
}

/// Sends `head` and `tail` as one packet with `fds` (at most [`FDS_PER_PACKET`]) beside it.
pub(crate) fn send(socket: impl AsFd, head: &[u8], tail: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOMANYREFS);
    }
    let parts = [IoSlice::new(head), IoSlice::new(tail)];
    retry_on_intr(|| sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Receives one packet into `buffer`; its descriptors are added to `fds`, close-on-exec.
pub(crate) fn receive(socket: impl AsFd, buffer: &mut [u8], fds: &mut Vec<AppFile>) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message =
        retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC))?;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = part {
            fds.extend(more.map(AppFile::from));
        }
    }
    let truncated = message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok(Received { bytes: message.bytes, truncated })
}
