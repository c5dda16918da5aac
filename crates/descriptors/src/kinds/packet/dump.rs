//! Dumping a packet socket.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netdevice::index_to_name;
use torpor_image::tree::{FileKind, PacketMembership, PacketSocket};
use torpor_linux::uapi::socket::{AF_PACKET, SOCK_PACKET};

use crate::contract::reason::{Described, Reason};
use crate::kinds::socket::diag::{attributes, u32_at};
use crate::kinds::socket::options::Defaults;
use crate::kinds::socket::{Kind, diag};
use crate::list::Item;

/// `struct packet_diag_msg`.
const MESSAGE_BYTES: usize = 16;
/// `PACKET_SHOW_INFO | PACKET_SHOW_MCLIST | PACKET_SHOW_RING_CFG | PACKET_SHOW_FANOUT`.
const SHOW: u32 = 0x1 | 0x2 | 0x4 | 0x8;
const INFO: u16 = 0;
const MEMBERSHIPS: u16 = 1;
const RINGS: [u16; 2] = [2, 3];
const FANOUT: u16 = 4;
/// `struct packet_diag_mclist`: interface, count, kind, length of the address, address.
const MEMBERSHIP_BYTES: usize = 44;

/// What the kernel's list tells of a socket.
#[derive(Debug, Default, PartialEq, Eq)]
struct Entry {
    protocol: u16,
    interface: u32,
    /// Interface, how often, kind, address.
    memberships: Vec<(u32, u32, u16, Vec<u8>)>,
    rings: bool,
    fanout: bool,
}

fn entry(payload: &[u8]) -> Option<(u32, Entry)> {
    let mut entry = Entry { protocol: u16::from_ne_bytes([*payload.get(2)?, *payload.get(3)?]), ..Entry::default() };
    attributes(payload.get(MESSAGE_BYTES..)?, |kind, value| {
        match kind {
            INFO => entry.interface = u32_at(value, 0)?,
            MEMBERSHIPS => {
                entry.memberships = value.chunks_exact(MEMBERSHIP_BYTES).map(membership).collect::<Option<_>>()?;
            }
            FANOUT => entry.fanout = true,
            _ => entry.rings |= RINGS.contains(&kind),
        }
        Some(())
    })?;
    Some((u32_at(payload, 4)?, entry))
}

fn membership(bytes: &[u8]) -> Option<(u32, u32, u16, Vec<u8>)> {
    let half = |at: usize| Some(u16::from_ne_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let length = usize::from(half(10)?);
    Some((u32_at(bytes, 0)?, u32_at(bytes, 4)?, half(8)?, bytes.get(12..12 + length)?.to_vec()))
}

fn find(inode: u64) -> std::io::Result<Option<Entry>> {
    // `struct packet_diag_req`: family, no protocol, any inode, what to show, no cookie.
    let mut request = vec![AF_PACKET as u8, 0, 0, 0];
    for word in [0, SHOW, u32::MAX, u32::MAX] {
        request.extend_from_slice(&word.to_ne_bytes());
    }
    let mut found = None;
    diag::list(&request, |payload| {
        let (number, entry) = entry(payload)?;
        if u64::from(number) == inode {
            found = Some(entry);
        }
        Some(())
    })?;
    Ok(found)
}

pub(crate) fn describe(defaults: &mut Defaults, item: &Item, kind: Kind) -> Described<FileKind> {
    const CLOSE: &str = "close it before the checkpoint";
    let kind = (AF_PACKET, kind.1, 0);
    if kind.1 == SOCK_PACKET {
        return Err(Reason::parkable("a packet socket of an obsolete type (SOCK_PACKET)", CLOSE));
    }
    let entry = match find(item.stat.st_ino) {
        Ok(Some(entry)) => entry,
        Ok(None) => return Err(Reason::parkable("a packet socket of another network namespace", CLOSE)),
        Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {
            return Err(Reason::parkable(
                "a packet socket, which this kernel tells nothing of (CONFIG_PACKET_DIAG)",
                CLOSE,
            ));
        }
        Err(error) => return Err(error.into()),
    };
    if entry.rings {
        return Err(Reason::parkable("a packet socket with a ring buffer", CLOSE));
    }
    if entry.fanout {
        return Err(Reason::parkable("a packet socket that shares its packets with others (fanout)", CLOSE));
    }
    let mut polled = [PollFd::new(&item.fd, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    if !polled[0].revents().is_empty() {
        return Err(Reason::parkable(
            "a packet socket with packets that the program has not read",
            "try again when it has",
        ));
    }
    let name = |index: u32| match index_to_name(&item.fd, index) {
        Err(Errno::NODEV) => Err(Reason::parkable("a packet socket on an interface that is gone", CLOSE)),
        name => Ok(name?.into_bytes()),
    };
    let membership = |(index, count, kind, address): (u32, u32, u16, Vec<u8>)| {
        Ok(PacketMembership { interface: name(index)?, kind, address, count })
    };
    Ok(FileKind::Packet(Box::new(PacketSocket {
        kind: kind.1,
        protocol: entry.protocol,
        interface: if entry.interface == 0 { Vec::new() } else { name(entry.interface)? },
        memberships: entry.memberships.into_iter().map(membership).collect::<Described<_>>()?,
        options: defaults.options(&item.fd, kind)?,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read() {
        let attribute = |kind: u16, value: &[u8]| {
            let length = (value.len() as u16 + 4).to_ne_bytes();
            [&length, &kind.to_ne_bytes(), value].concat()
        };
        let mut head = vec![17, 2];
        head.extend_from_slice(&0x88b5_u16.to_ne_bytes());
        head.extend_from_slice(&77_u32.to_ne_bytes());
        head.extend_from_slice(&[0; 8]);
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let mut group = words(&[1, 2, 6 << 16]);
        group.extend_from_slice(&[9; 32]);
        let payload = [head.clone(), attribute(INFO, &words(&[4, 0, 0, 0, 0, 0])), attribute(MEMBERSHIPS, &group)];
        let expected =
            Entry { protocol: 0x88b5, interface: 4, memberships: vec![(1, 2, 0, vec![9; 6])], ..Entry::default() };
        assert_eq!(entry(&payload.concat()), Some((77, expected)));
        let ring = entry(&[head.clone(), attribute(2, &[])].concat()).unwrap().1;
        assert!(ring.rings && !ring.fanout);
        assert!(entry(&[head, attribute(MEMBERSHIPS, &[0xff; 44])].concat()).is_none());
        assert!(entry(&[0; 7]).is_none());
    }
}
