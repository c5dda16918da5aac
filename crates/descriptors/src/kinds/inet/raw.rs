//! Where connected raw sockets send to, which `getpeername(2)` does not tell: they have no port. `/proc/net/raw` does.

use std::io;

use crate::kinds::socket::Kind;
use torpor_linux::uapi::socket::AF_INET;
use torpor_proc as proc;

/// `TCP_ESTABLISHED`, which stands for any connected socket.
const CONNECTED: &str = "01";

/// The address that the raw socket with this inode is connected to: a `sockaddr`, empty if it is not.
pub(crate) fn remote(kind: Kind, inode: u64) -> io::Result<Vec<u8>> {
    let path = if kind.0 == AF_INET { "/proc/thread-self/net/raw" } else { "/proc/thread-self/net/raw6" };
    let text = proc::read(path)?;
    let mut connected = text.lines().skip(1).filter_map(|line| entry(line).filter(|(found, _)| *found == inode));
    Ok(connected.next().map(|(_, address)| address).unwrap_or_default())
}

/// `  1: 0100007F:0001 0100007F:0000 01 00000000:00000000 00:00000000 00000000     0        0 4711 2 0000000000000000 0`: the inode,
/// and the address if there is one.
pub(crate) fn entry(line: &str) -> Option<(u64, Vec<u8>)> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let (remote, state, inode) = (words.get(2)?, *words.get(3)?, words.get(9)?.parse().ok()?);
    if state != CONNECTED {
        return None;
    }
    let digits = remote.split(':').next()?;
    // Each word as this processor has it in memory.
    let ip = (0..digits.len() / 8)
        .map(|n| u32::from_str_radix(digits.get(n * 8..n * 8 + 8)?, 16).ok().map(u32::to_ne_bytes))
        .collect::<Option<Vec<_>>>()?
        .concat();
    let family: u16 = if ip.len() == 4 { 2 } else { 10 };
    // Family and port; for IPv6 flow information before the address, and an interface behind it.
    let mut address = family.to_ne_bytes().to_vec();
    address.extend([0, 0]);
    if ip.len() == 4 {
        address.extend(ip);
        address.extend([0; 8]);
    } else {
        address.extend([0; 4]);
        address.extend(ip);
        address.extend([0; 4]);
    }
    Some((inode, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let line =
            "   1: 0100007F:00FD 0200007F:0000 01 00000000:00000000 00:00000000 00000000     0        0 4711 2 0 0";
        let mut wanted = vec![2, 0, 0, 0, 127, 0, 0, 2];
        wanted.extend([0; 8]);
        assert_eq!(entry(line), Some((4711, wanted)));
        assert_eq!(entry(&line.replace(" 01 ", " 07 ")), None);
        let ip = "00000000000000000000000001000000";
        let line = format!("  1: {ip}:00FD {ip}:0000 01 0:0 00:0 0 0 0 12 2 0 0");
        let (inode, address) = entry(&line).unwrap();
        assert_eq!((inode, address.len(), address[23]), (12, 28, 1));
    }
}
