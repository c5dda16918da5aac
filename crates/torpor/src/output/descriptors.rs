//! What is open behind descriptors of an image, in words.

use torpor_image::tree::{
    FileId, FileKind, InetSocket, InetState, OpenFile, PathState, PipeEnd, PipeId, SharedMemory, SharedMemoryKind,
    Tree, UnixSocket, UnixState,
};

use super::safe;
use super::units::size;

/// Addresses of Internet sockets begin with these (`AF_INET`, `AF_INET6`).
const FAMILIES: [(u16, usize); 2] = [(2, 4), (10, 16)];

/// Bytes from the image as text for a terminal.
pub(super) fn text(bytes: &[u8]) -> String {
    safe(&String::from_utf8_lossy(bytes))
}

/// An open file of `tree`.
pub(super) fn open_file(tree: &Tree, id: FileId) -> String {
    let Some(file) = tree.files.get(id as usize) else { return "nothing".to_owned() };
    let mut words = kind(tree, file);
    for lock in &file.locks {
        words.push_str(&format!(", {:?} lock", lock.kind).to_lowercase());
    }
    words
}

fn kind(tree: &Tree, file: &OpenFile) -> String {
    match &file.kind {
        FileKind::Path(path) => at(path, file.position),
        FileKind::Pipe { pipe, end } => format!("pipe {pipe}{}", of_pipe(tree, *pipe, *end)),
        FileKind::Fifo { path, pipe, end } => format!("FIFO {}{}", text(&path.path), of_pipe(tree, *pipe, *end)),
        FileKind::Event { count, semaphore: false } => format!("eventfd, count {count}"),
        FileKind::Event { count, semaphore: true } => format!("eventfd semaphore, count {count}"),
        FileKind::Epoll { members } => {
            let numbers: Vec<String> = members.iter().map(|member| member.fd.to_string()).collect();
            if numbers.is_empty() { "epoll".to_owned() } else { format!("epoll on {}", numbers.join(", ")) }
        }
        FileKind::Signal { mask } => format!("signalfd for {} signals", mask.count_ones()),
        FileKind::Timer { left_ns: 0, ticks, .. } => format!("timerfd, not armed, {ticks} ticks unread"),
        FileKind::Timer { left_ns, interval_ns, .. } => {
            let every = if *interval_ns > 0 { format!(", every {}", seconds(*interval_ns)) } else { String::new() };
            format!("timerfd, in {}{every}", seconds(*left_ns))
        }
        FileKind::Inotify { watches } => {
            let paths: Vec<String> = watches.iter().map(|watch| text(&watch.path.path)).collect();
            format!("inotify on {}", super::list(&paths))
        }
        FileKind::Fanotify { marks, .. } => {
            let paths: Vec<String> = marks.iter().map(|mark| text(&mark.path.path)).collect();
            format!("fanotify on {}", super::list(&paths))
        }
        FileKind::Memory { memory } => match tree.memories.get(*memory as usize) {
            Some(shared) => shared_memory(shared),
            None => "shared memory".to_owned(),
        },
        FileKind::Process { pid } => format!("pidfd of process {pid}"),
        FileKind::Ended { .. } => "pidfd of a process that has ended".to_owned(),
        FileKind::Unix(socket) => unix(tree, socket),
        FileKind::Inet(socket) => inet(socket),
        FileKind::Netlink { kind: (_, protocol), .. } => format!("netlink socket, protocol {protocol}"),
        FileKind::Packet(socket) if socket.interface.is_empty() => "packet socket".to_owned(),
        FileKind::Packet(socket) => format!("packet socket on {}", text(&socket.interface)),
        FileKind::OfProcess { path } => text(path),
        FileKind::Master(terminal) => format!("master of terminal {}", terminal.number),
        FileKind::Slave { master } => match tree.files.get(*master as usize).map(|file| &file.kind) {
            Some(FileKind::Master(terminal)) => format!("terminal {}", terminal.number),
            _ => "terminal".to_owned(),
        },
        FileKind::Handle { state, .. } => format!("{}, by another name", at(state, file.position)),
        FileKind::Outside { name } => format!("{}, from outside", safe(name)),
    }
}

fn at(path: &PathState, position: u64) -> String {
    let name = text(&path.path);
    if position > 0 { format!("{name} at byte {position}") } else { name }
}

fn of_pipe(tree: &Tree, pipe: PipeId, end: PipeEnd) -> String {
    let end = match end {
        PipeEnd::Read => "reading",
        PipeEnd::Write => "writing",
        PipeEnd::Both => "both ends",
    };
    let waiting: usize = tree.pipes.get(pipe as usize).map_or(0, |pipe| pipe.contents.iter().map(Vec::len).sum());
    if waiting > 0 { format!(", {end}, {waiting} bytes unread") } else { format!(", {end}") }
}

/// A piece of shared memory.
pub(super) fn shared_memory(memory: &SharedMemory) -> String {
    let bytes = size(Some(memory.bytes));
    match &memory.kind {
        SharedMemoryKind::Anonymous => format!("shared anonymous memory, {bytes}"),
        SharedMemoryKind::Huge { .. } => format!("shared anonymous memory in huge pages, {bytes}"),
        SharedMemoryKind::Memfd { name, .. } => format!("memfd {}, {bytes}", text(name)),
        SharedMemoryKind::SystemV { id, .. } => format!("System V shared memory {id}, {bytes}"),
        SharedMemoryKind::Deleted { state, .. } => format!("deleted file {}, {bytes}", text(&state.path)),
    }
}

fn unix(tree: &Tree, socket: &UnixSocket) -> String {
    let mut words = match socket.kind {
        1 => "unix stream socket",
        2 => "unix datagram socket",
        _ => "unix packet socket",
    }
    .to_owned();
    if !socket.name.is_empty() {
        let name = text(&socket.name).replacen('\u{fffd}', "@", usize::from(socket.name[0] == 0));
        words.push_str(&format!(" {name}"));
    }
    match &socket.state {
        UnixState::Idle => {}
        UnixState::Listening { waiting, .. } if waiting.is_empty() => words.push_str(", listening"),
        UnixState::Listening { waiting, .. } => words.push_str(&format!(", listening, {} waiting", waiting.len())),
        UnixState::Connected { peer } => match holder(tree, *peer) {
            Some((pid, fd)) => words.push_str(&format!(", connected to {fd} of process {pid}")),
            None => words.push_str(", connected"),
        },
        UnixState::Lost { .. } => words.push_str(", its other end is gone"),
    }
    if !socket.queue.is_empty() {
        words.push_str(&format!(", {} messages unread", socket.queue.len()));
    }
    words
}

/// The first descriptor with that open file.
fn holder(tree: &Tree, file: FileId) -> Option<(i32, i32)> {
    tree.processes.iter().find_map(|process| {
        let found = process.alive()?.descriptors.iter().find(|descriptor| descriptor.file == file)?;
        Some((process.pid, found.fd))
    })
}

fn inet(socket: &InetSocket) -> String {
    let kind = match socket.kind {
        (_, 1, 262) => "MPTCP socket",
        (_, 1, _) => "TCP socket",
        (_, 2, _) => "UDP socket",
        _ => "raw socket",
    };
    let local = address(&socket.local).map_or(String::new(), |address| format!(" {address}"));
    let remote = address(&socket.remote).map_or(String::new(), |address| format!(" to {address}"));
    let state = match socket.state {
        InetState::Idle => "",
        InetState::Listening { .. } => ", listening",
        InetState::Established { .. } => ", connected",
        InetState::Closed => ", closed",
    };
    let queue = if socket.queue.is_empty() { String::new() } else { format!(", {} unread", socket.queue.len()) };
    format!("{kind}{local}{remote}{state}{queue}")
}

/// A `sockaddr_in` or `sockaddr_in6`.
fn address(bytes: &[u8]) -> Option<String> {
    let family = u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?);
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
    let (_, length) = *FAMILIES.iter().find(|(known, _)| *known == family)?;
    let from = if length == 4 { 4 } else { 8 };
    let ip = bytes.get(from..from + length)?;
    Some(match <[u8; 4]>::try_from(ip) {
        Ok(v4) => format!("{}:{port}", std::net::Ipv4Addr::from(v4)),
        Err(_) => format!("[{}]:{port}", std::net::Ipv6Addr::from(<[u8; 16]>::try_from(ip).ok()?)),
    })
}

fn seconds(ns: u64) -> String {
    format!("{:.1} s", ns as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_others_left_out() {
        assert_eq!(address(&[2, 0, 0x1f, 0x90, 127, 0, 0, 1]).as_deref(), Some("127.0.0.1:8080"));
        let mut v6 = vec![10, 0, 0, 80, 0, 0, 0, 0];
        v6.extend([0; 15]);
        v6.push(1);
        assert_eq!(address(&v6).as_deref(), Some("[::1]:80"));
        assert_eq!(address(&[2, 0, 0]), None);
        assert_eq!(address(&[]), None);
    }
}
