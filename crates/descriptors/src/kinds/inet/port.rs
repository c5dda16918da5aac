//! Sockets of a tree that have one port together.
//!
//! Both must allow it when the second is bound, and TCP's again when it listens. A program may have forbidden it since, which the
//! sockets that are there already do not mind. So all of them allow it while they are made, and get their options afterwards. A TCP
//! port with two listeners can only be shared by `SO_REUSEPORT`; UDP sockets are in the group that this makes only if they say so.

use std::collections::HashMap;
use std::os::fd::AsFd;

use rustix::net::sockopt;
use torpor_image::tree::{FileId, FileKind, InetSocket, InetState, OpenFile};
use torpor_linux::uapi::socket::{SOCK_RAW, SOCK_STREAM};

use crate::contract::error::RestoreFileError;
use crate::kinds::inet::{is_v4, port, shown};
use crate::kinds::socket::options::reuse;

/// How a socket is to allow others on its port while it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// `SO_REUSEPORT`, and not `SO_REUSEADDR` alone.
    port: bool,
    /// What it is to have in the end: `SO_REUSEADDR`, `SO_REUSEPORT`.
    wanted: (bool, bool),
}

impl Sharing {
    /// To be called before it is bound.
    pub(crate) fn allow(self, fd: impl AsFd) -> rustix::io::Result<()> {
        let fd = fd.as_fd();
        sockopt::set_socket_reuseaddr(fd, true)?;
        if self.port { sockopt::set_socket_reuseport(fd, true) } else { Ok(()) }
    }

    /// Gives it its own options, when all of them are bound and listen.
    pub(crate) fn settle(self, fd: impl AsFd, socket: &InetSocket) -> Result<(), RestoreFileError> {
        let (fd, (address, port)) = (fd.as_fd(), self.wanted);
        let set = sockopt::set_socket_reuseaddr(fd, address).and_then(|()| sockopt::set_socket_reuseport(fd, port));
        set.map_err(RestoreFileError::at("preparing", shown(socket)))
    }
}

/// Sockets that are to be bound to the port of another one, by their places among `files`.
pub(crate) fn shared(files: &[OpenFile]) -> HashMap<FileId, Sharing> {
    let mut ports: HashMap<(i32, u16), Vec<(FileId, &InetSocket)>> = HashMap::new();
    for (id, file) in (0..).zip(files) {
        if let FileKind::Inet(socket) = &file.kind
            && !matches!(socket.state, InetState::Established { .. })
            && socket.kind.1 != SOCK_RAW
            && port(&socket.local) != 0
        {
            ports.entry((socket.kind.1, port(&socket.local))).or_default().push((id, socket));
        }
    }
    let mut shared = HashMap::new();
    for ((kind, _), sockets) in ports.into_iter().filter(|(_, sockets)| sockets.len() > 1) {
        let listeners: Vec<_> = sockets.iter().map(|(_, socket)| *socket).filter(|one| listens(one)).collect();
        let both = |(n, one): (usize, &&InetSocket)| listeners[..n].iter().any(|other| overlap(one, other));
        let grouped =
            sockets.iter().any(|(_, socket)| reuse(&socket.options).1) || listeners.iter().enumerate().any(both);
        for (id, socket) in sockets {
            let wanted = reuse(&socket.options);
            // One that allows neither any more has allowed what the others do.
            let port = wanted.1 || (grouped && (kind == SOCK_STREAM || !wanted.0));
            shared.insert(id, Sharing { port, wanted });
        }
    }
    shared
}

const fn listens(socket: &InetSocket) -> bool {
    matches!(socket.state, InetState::Listening { .. })
}

/// Some packet could be for both.
fn overlap(one: &InetSocket, other: &InetSocket) -> bool {
    let ip =
        |socket: &InetSocket| socket.local.get(if is_v4(&socket.local) { 4..8 } else { 8..24 }).map(<[u8]>::to_vec);
    let any = |ip: &Option<Vec<u8>>| ip.as_ref().is_none_or(|ip| ip.iter().all(|byte| *byte == 0));
    let (one, other) = (ip(one), ip(other));
    one == other || any(&one) || any(&other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use torpor_image::tree::{Owner, SocketOption};
    use torpor_linux::uapi::socket::SOCK_DGRAM;

    fn socket(kind: i32, port: u16, reuse_port: bool) -> OpenFile {
        let mut local = vec![2, 0];
        local.extend(port.to_be_bytes());
        local.extend([127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        let option = SocketOption { level: 1, name: 15, value: 1_i32.to_ne_bytes().to_vec() };
        let kind = FileKind::Inet(Box::new(InetSocket {
            kind: (2, kind, 0),
            local,
            remote: Vec::new(),
            state: InetState::Idle,
            options: if reuse_port { vec![option] } else { Vec::new() },
            queue: Vec::new(),
            shut: 0,
        }));
        OpenFile { kind, flags: 2, position: 0, owner: Owner::default(), locks: Vec::new() }
    }

    #[test]
    fn only_ports_of_several_sockets_are_shared() {
        let files = [
            socket(SOCK_STREAM, 80, true),
            socket(SOCK_STREAM, 80, false),
            socket(SOCK_STREAM, 81, true),
            socket(SOCK_DGRAM, 80, false),
            socket(SOCK_DGRAM, 90, false),
            socket(SOCK_DGRAM, 90, false),
        ];
        let found = shared(&files);
        let mut ids: Vec<_> = found.keys().copied().collect();
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 4, 5]);
        assert_eq!(found[&1], Sharing { port: true, wanted: (false, false) });
        assert_eq!(found[&4], Sharing { port: false, wanted: (false, false) });
    }
}
