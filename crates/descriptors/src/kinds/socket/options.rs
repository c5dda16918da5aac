//! Options of sockets.
//!
//! A socket's options go into the image where they differ from those of a fresh socket of its kind.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with, sockopt};
use torpor_image::tree::SocketOption;
use torpor_linux::socket::{self, PLAIN, Plain};
use torpor_linux::uapi::socket::{
    AF_INET, AF_INET6, IPPROTO_ICMPV6, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_MPTCP, IPPROTO_RAW, IPPROTO_TCP, IPPROTO_UDP,
    MCAST_JOIN_GROUP, SO_ATTACH_FILTER, SO_BUF_LOCK, SO_PEEK_OFF, SO_RCVBUF, SO_REUSEADDR, SO_REUSEPORT, SO_SNDBUF,
    SOL_NETLINK, SOL_PACKET, SOL_SOCKET, TCP_MAXSEG,
};

use crate::context::Network;
use crate::contract::error::RestoreFileError;
use crate::contract::reason::{Described, Reason};
use crate::kinds::socket::Kind;
use crate::kinds::socket::multicast;

/// Values by place in [`PLAIN`].
type Values = Vec<Option<Vec<u8>>>;

/// Options of fresh sockets, by kind.
#[derive(Debug, Default)]
pub(crate) struct Defaults(HashMap<Kind, Values>);

/// What kind of socket it is, as given to `socket(2)`.
pub(crate) fn kind(fd: impl AsFd) -> rustix::io::Result<Kind> {
    let fd = fd.as_fd();
    let protocol = sockopt::socket_protocol(fd)?.map_or(0, |protocol| protocol.as_raw().get() as i32);
    let family = i32::from(sockopt::socket_domain(fd)?.as_raw());
    Ok((family, sockopt::socket_type(fd)?.as_raw() as i32, protocol))
}

/// A new socket of this kind.
pub(crate) fn fresh(kind: Kind) -> rustix::io::Result<OwnedFd> {
    let family = AddressFamily::from_raw(kind.0 as _);
    let protocol = std::num::NonZeroU32::new(kind.2.unsigned_abs()).map(Protocol::from_raw);
    socket_with(family, SocketType::from_raw(kind.1 as _), SocketFlags::CLOEXEC, protocol)
}

/// Options for multicast of either level; the kernel keeps other things of TCP connections where they are.
const MULTICAST: [(i32, std::ops::RangeInclusive<i32>); 4] =
    [(IPPROTO_IP, 32..=34), (IPPROTO_IP, 49..=49), (IPPROTO_IPV6, 17..=19), (IPPROTO_IPV6, 29..=29)];

fn applies(option: &Plain, (family, _, protocol): Kind) -> bool {
    let stream = protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP;
    if stream && MULTICAST.iter().any(|(level, names)| option.level == *level && names.contains(&option.get)) {
        return false;
    }
    match option.level {
        SOL_SOCKET => true,
        IPPROTO_IP => family == AF_INET || family == AF_INET6,
        IPPROTO_IPV6 => family == AF_INET6,
        IPPROTO_TCP => protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP,
        IPPROTO_UDP => protocol == IPPROTO_UDP,
        IPPROTO_RAW => {
            family == AF_INET && protocol != IPPROTO_TCP && protocol != IPPROTO_UDP && protocol != IPPROTO_MPTCP
        }
        IPPROTO_ICMPV6 => family == AF_INET6 && protocol == IPPROTO_ICMPV6,
        SOL_NETLINK => family == 16,
        SOL_PACKET => family == 17,
        _ => false,
    }
}

fn values(fd: impl AsFd, kind: Kind) -> Values {
    let fd = fd.as_fd();
    // Kernels and kinds differ in what they know; what cannot be read was never set.
    PLAIN.iter().map(|option| applies(option, kind).then(|| socket::get(fd, option).ok()).flatten()).collect()
}

/// The least that a program can set (`TCP_MIN_MSS`).
const SMALLEST_SEGMENT: u32 = 88;

fn u32_of(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_ne_bytes)
}

/// Whether a socket lets others use its address, and its port: as an image has it.
pub(crate) fn reuse(options: &[SocketOption]) -> (bool, bool) {
    let is_set = |name| {
        let found = options.iter().find(|option| (option.level, option.name) == (SOL_SOCKET, name));
        found.is_some_and(|option| option.value.iter().any(|byte| *byte != 0))
    };
    (is_set(SO_REUSEADDR), is_set(SO_REUSEPORT))
}

impl Defaults {
    /// The options of `fd` that are not a fresh socket's.
    pub(crate) fn options(&mut self, fd: impl AsFd, kind: Kind) -> Described<Vec<SocketOption>> {
        let fd = fd.as_fd();
        let fresh = match self.0.entry(kind) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => place.insert(values(fresh(kind)?, kind)),
        };
        let found = values(fd, kind);
        let number = |name| {
            let place = PLAIN.iter().position(|option| (option.level, option.get) == (SOL_SOCKET, name))?;
            found[place].as_deref()?.try_into().ok().map(i32::from_ne_bytes)
        };
        let locked = number(SO_BUF_LOCK).unwrap_or(0);
        let mut options = Vec::new();
        for ((option, value), usual) in PLAIN.iter().zip(&found).zip(fresh.iter()) {
            let Some(value) = value.as_ref().filter(|value| usual.as_ref() != Some(value)) else { continue };
            // The kernel itself adapts the buffers of TCP sockets that the program has not set.
            let adapts = kind.2 == IPPROTO_TCP || kind.2 == IPPROTO_MPTCP;
            let own = match (option.level, option.get) {
                (SOL_SOCKET, SO_SNDBUF) => !adapts || locked & 1 != 0,
                (SOL_SOCKET, SO_RCVBUF) => !adapts || locked & 2 != 0,
                // Of a socket that is not connected the kernel gives the program's own, if it has set one; else what it has
                // computed itself, which is small where there are IP options.
                (IPPROTO_TCP, TCP_MAXSEG) => u32_of(value).is_none_or(|bytes| bytes >= SMALLEST_SEGMENT),
                _ => true,
            };
            if own {
                options.push(SocketOption { level: option.level, name: option.get, value: value.clone() });
            }
        }
        match socket::attached_filter(fd) {
            Ok(Some(code)) => options.push(SocketOption { level: SOL_SOCKET, name: SO_ATTACH_FILTER, value: code }),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(Reason::parkable("a socket with a filter in eBPF, which cannot be read", ""));
            }
            // Kinds that take no filters.
            Err(_) => {}
        }
        Ok(options)
    }
}

/// The error of something that names an interface or an address which is not there.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    const GONE: [Errno; 3] = [Errno::NODEV, Errno::ADDRNOTAVAIL, Errno::NETUNREACH];
    Errno::from_io_error(error).is_some_and(|error| GONE.contains(&error))
}

/// As if the interface had been removed since: not an error.
pub(crate) fn unless_gone(done: io::Result<()>, network: Network) -> io::Result<()> {
    done.or_else(|error| if network == Network::New && is_gone(&error) { Ok(()) } else { Err(error) })
}

fn apply(
    fd: impl AsFd,
    options: &[SocketOption],
    late: bool,
    network: Network,
    name: &str,
) -> Result<(), RestoreFileError> {
    let fd = fd.as_fd();
    for wanted in options {
        let failed =
            || RestoreFileError::at("setting an option of", format!("{name} ({} {})", wanted.level, wanted.name));
        if wanted.name == MCAST_JOIN_GROUP && wanted.level != SOL_SOCKET {
            if !late {
                unless_gone(multicast::join(fd, wanted), network).map_err(failed())?;
            }
            continue;
        }
        if (wanted.level, wanted.name) == (SOL_SOCKET, SO_ATTACH_FILTER) {
            if late {
                socket::attach_filter(fd, &wanted.value).map_err(failed())?;
            }
            continue;
        }
        let option = Plain::find(wanted.level, wanted.name);
        let option = option.ok_or_else(|| failed()(Errno::NOPROTOOPT.into()))?;
        if option.late == late {
            unless_gone(socket::set(fd, option, &wanted.value), network).map_err(failed())?;
        }
    }
    Ok(())
}

/// Sets the options that count from the beginning: before an address is bound.
pub(crate) fn set_early(fd: impl AsFd, options: &[SocketOption], name: &str) -> Result<(), RestoreFileError> {
    apply(fd, options, false, Network::Same, name)
}

/// The same where the network may be a new one: interfaces that the program had made are gone then.
pub(crate) fn set_early_in(
    fd: impl AsFd,
    options: &[SocketOption],
    network: Network,
    name: &str,
) -> Result<(), RestoreFileError> {
    apply(fd, options, false, network, name)
}

/// A filter is among them.
pub(crate) fn has_filter(options: &[SocketOption]) -> bool {
    options.iter().any(|option| (option.level, option.name) == (SOL_SOCKET, SO_ATTACH_FILTER))
}

/// Sets those that would be in the way of making the socket; the filter before what locks it.
pub(crate) fn set_late(fd: impl AsFd, options: &[SocketOption], name: &str) -> Result<(), RestoreFileError> {
    let (filters, others): (Vec<_>, Vec<_>) =
        options.iter().cloned().partition(|option| option.name == SO_ATTACH_FILTER);
    apply(fd.as_fd(), &filters, true, Network::Same, name)?;
    apply(fd.as_fd(), &others, true, Network::Same, name)
}

fn socket_option(name: i32) -> &'static Plain {
    Plain::find(SOL_SOCKET, name).expect("the list has it")
}

/// Where peeking begins (`SO_PEEK_OFF`); -1: not used.
pub(crate) fn peek_offset(fd: impl AsFd) -> io::Result<Vec<u8>> {
    socket::get(fd, socket_option(SO_PEEK_OFF))
}

pub(crate) fn set_peek_offset(fd: impl AsFd, value: &[u8]) -> io::Result<()> {
    socket::set(fd, socket_option(SO_PEEK_OFF), value)
}

/// Sizes of a socket's buffers (`SO_SNDBUF`, `SO_RCVBUF`), as they are.
pub(crate) fn buffer_sizes(fd: impl AsFd) -> io::Result<(u32, u32)> {
    let fd = fd.as_fd();
    let size = |name| -> io::Result<u32> {
        let bytes = socket::get(fd, socket_option(name))?;
        bytes.try_into().map(u32::from_ne_bytes).map_err(|_| io::ErrorKind::InvalidData.into())
    };
    Ok((size(SO_SNDBUF)?, size(SO_RCVBUF)?))
}

/// Sets what [`buffer_sizes`] has read, and leaves it to the kernel to adapt them.
pub(crate) fn set_buffer_sizes(fd: impl AsFd, sizes: (u32, u32)) -> io::Result<()> {
    let fd = fd.as_fd();
    socket::set(fd, socket_option(SO_SNDBUF), &sizes.0.to_ne_bytes())?;
    socket::set(fd, socket_option(SO_RCVBUF), &sizes.1.to_ne_bytes())?;
    socket::set(fd, socket_option(SO_BUF_LOCK), &0_i32.to_ne_bytes())
}

/// A send buffer that takes all that a queue had; gives what undoes it.
pub(crate) fn widen(fd: impl AsFd) -> io::Result<[Vec<u8>; 2]> {
    const WIDE_BYTES: i32 = 1 << 30;
    let fd = fd.as_fd();
    let (size, lock) = (socket_option(SO_SNDBUF), socket_option(SO_BUF_LOCK));
    let before = [socket::get(fd, size)?, socket::get(fd, lock)?];
    socket::set(fd, size, &WIDE_BYTES.to_ne_bytes())?;
    Ok(before)
}

pub(crate) fn narrow(fd: impl AsFd, before: &[Vec<u8>; 2]) -> io::Result<()> {
    let fd = fd.as_fd();
    socket::set(fd, socket_option(SO_SNDBUF), &before[0])?;
    socket::set(fd, socket_option(SO_BUF_LOCK), &before[1])
}
