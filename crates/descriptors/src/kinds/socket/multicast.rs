//! Multicast groups that sockets have joined.
//!
//! The kernel does not list them by socket, but it lists the groups of each interface, and says of a socket whether it has
//! joined one. That is asked for each pair of a socket and a group, under a lock of the network namespace: how often is bounded
//! ([`MOST_ASKED`]).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use torpor_image::tree::SocketOption;
use torpor_linux::socket::{self, REQUEST_BYTES, group_request, membership};
use torpor_linux::uapi::socket::{IPPROTO_IP, IPPROTO_IPV6, MCAST_JOIN_GROUP, SOCK_RAW};

use crate::contract::reason::{Described, Reason};
use crate::kinds::socket::Kind;
use torpor_proc as proc;

const INET: u16 = 2;
const INET6: u16 = 10;

/// A group of an interface: the protocol's level, the interface's number, the group's `sockaddr`.
type Group = (i32, u32, Vec<u8>);

/// How often the kernel is asked for a tree; it answers in about 1 µs.
const MOST_ASKED: usize = 1 << 20;
/// After so many answers it is asked whether to go on.
const ASKED_AT_ONCE: usize = 1 << 10;

/// The multicast groups that any socket of the calling thread's network namespace has joined. The kernel is asked for them once.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    groups: Option<Vec<Group>>,
    asked: usize,
}

impl Groups {
    /// The groups that a socket has joined, as options.
    pub(crate) fn joined(
        &mut self,
        fd: &OwnedFd,
        kind: Kind,
        go_on: &dyn Fn() -> bool,
    ) -> Described<Vec<SocketOption>> {
        let mut options = Vec::new();
        let groups = match &mut self.groups {
            Some(known) => known,
            none => none.insert(groups()?),
        };
        for (level, interface, group) in groups {
            // A socket of IPv6 can have joined IPv4 groups, too, unless it is a raw one.
            let is_v6 = kind.0 == i32::from(INET6);
            if (*level == IPPROTO_IPV6 && !is_v6) || (*level == IPPROTO_IP && is_v6 && kind.1 == SOCK_RAW) {
                continue;
            }
            self.asked += 1;
            if self.asked > MOST_ASKED {
                let what = "so many sockets and multicast groups that finding who has joined which would take too long";
                return Err(Reason::refused(what, "let it join fewer groups, or have fewer datagram sockets"));
            }
            if self.asked.is_multiple_of(ASKED_AT_ONCE) && !go_on() {
                return Err(Reason::Stopped);
            }
            let request = group_request(*interface, group);
            match membership(fd, *level, &request) {
                Ok(None) => {}
                Ok(Some(true)) => {
                    options.push(SocketOption { level: *level, name: MCAST_JOIN_GROUP, value: request.to_vec() })
                }
                Ok(Some(false)) => {
                    let what = "a socket that takes a multicast group from certain sources only";
                    return Err(Reason::parkable(what, "close it before the checkpoint"));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(options)
    }
}

/// Joins a group again.
pub(crate) fn join(fd: impl AsFd, option: &SocketOption) -> io::Result<()> {
    let request: &[u8; REQUEST_BYTES] =
        option.value.as_slice().try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    if option.level != IPPROTO_IP && option.level != IPPROTO_IPV6 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    socket::join(fd, option.level, request)
}

/// Groups of all interfaces of the calling thread's network namespace.
fn groups() -> io::Result<Vec<Group>> {
    let mut found = v4(&proc::read("/proc/thread-self/net/igmp")?);
    match proc::read("/proc/thread-self/net/igmp6") {
        Ok(text) => found.extend(text.lines().filter_map(v6)),
        // No IPv6 here.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(found)
}

/// Interfaces (`1  lo  :  1  V3`), each with its groups behind it (`  010000E0  1 0:00000000  0`).
pub(crate) fn v4(text: &str) -> Vec<Group> {
    let mut found = Vec::new();
    let mut interface = None;
    for line in text.lines().skip(1) {
        let Some(first) = line.split_ascii_whitespace().next() else { continue };
        if line.starts_with(|c: char| c.is_ascii_digit()) {
            interface = first.parse().ok();
        } else if let (Some(interface), Ok(group)) = (interface, u32::from_str_radix(first, 16)) {
            let mut address = INET.to_ne_bytes().to_vec();
            address.extend_from_slice(&[0, 0]);
            address.extend_from_slice(&group.to_ne_bytes());
            found.push((IPPROTO_IP, interface, address));
        }
    }
    found
}

/// `1    lo   ff020000000000000000000000000001     1 0000000C 0`
pub(crate) fn v6(line: &str) -> Option<Group> {
    let mut words = line.split_ascii_whitespace();
    let interface = words.next()?.parse().ok()?;
    let digits = words.nth(1)?;
    let group = u128::from_str_radix(digits, 16).ok()?;
    let mut address = INET6.to_ne_bytes().to_vec();
    address.extend_from_slice(&[0; 6]);
    address.extend_from_slice(&group.to_be_bytes());
    Some((IPPROTO_IPV6, interface, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let text = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
                    1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n\
                    7\teth0      :     2      V3\n\t\t\t\tFB0000E0     1 0:00000000\t\t0\n";
        let found = v4(text);
        assert_eq!(found.len(), 2);
        assert_eq!((found[1].0, found[1].1, &found[1].2[4..8]), (IPPROTO_IP, 7, &[224, 0, 0, 251][..]));
        let found = v6("3    eth0            ff0200000000000000000000000000fb     1 0000000C 0").unwrap();
        assert_eq!((found.1, found.2[8], found.2[23]), (3, 0xff, 0xfb));
        assert!(v6("").is_none());
    }
    #[test]
    fn asking_is_bounded_and_ends_when_told_to() {
        const UDP: Kind = (INET as i32, 2, 17);
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap().into();
        let mut address = INET.to_ne_bytes().to_vec();
        address.extend_from_slice(&[0, 0, 239, 1, 2, 3]);
        let group: Group = (IPPROTO_IP, 1, address);
        let mut groups = Groups { groups: Some(vec![group; ASKED_AT_ONCE]), asked: 0 };
        assert_eq!(groups.joined(&socket, UDP, &|| true).unwrap(), []);
        assert!(matches!(groups.joined(&socket, UDP, &|| false), Err(Reason::Stopped)));
        groups.asked = MOST_ASKED - ASKED_AT_ONCE;
        assert_eq!(groups.joined(&socket, UDP, &|| true).unwrap(), []);
        assert!(matches!(groups.joined(&socket, UDP, &|| true), Err(Reason::Refused { .. })));
    }
}
