//! Whether a port of the machine is free: before anything is changed, and naming who has it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use torpor_proc as proc;

use crate::app::AppNetwork;
use crate::error::NetworkError;
use crate::published::{Protocol, Published};
use crate::sock_diag::{SockDiag, Socket, TcpState};

/// Refuses ports that another app than `index` has published.
pub(crate) fn check_apps(
    index: u32,
    ports: &[Published],
    apps: &BTreeMap<u32, AppNetwork>,
) -> Result<(), NetworkError> {
    for port in ports {
        for (&owner, app) in apps.iter().filter(|(owner, _)| **owner != index) {
            if app.ports.iter().any(|other| other.overlaps(port)) {
                return Err(NetworkError::Published { port: *port, owner });
            }
        }
    }
    Ok(())
}

/// Refuses ports that a process in the calling thread's namespace has bound: publishing would hide it.
pub(crate) fn check_processes(ports: &[Published]) -> Result<(), NetworkError> {
    if ports.is_empty() {
        return Ok(());
    }
    let failed = || NetworkError::netlink("list the machine's sockets");
    let mut diag = SockDiag::open().map_err(failed())?;
    let tcp = diag.tcp(&[TcpState::Listen], 0).map_err(failed())?;
    let udp = if ports.iter().any(|port| port.protocol == Protocol::Udp) {
        diag.udp(0).map_err(failed())?
    } else {
        Vec::new()
    };
    for port in ports {
        let sockets = if port.protocol == Protocol::Tcp { &tcp } else { &udp };
        if let Some(socket) = sockets.iter().find(|socket| takes(socket, port)) {
            return Err(NetworkError::Bound { port: *port, owner: owner(socket) });
        }
    }
    Ok(())
}

/// Whether `socket` waits for packets that `port` would take.
fn takes(socket: &Socket, port: &Published) -> bool {
    if socket.local.port() != port.host || socket.remote.port() != 0 {
        return false;
    }
    let local = socket.local.ip().to_canonical();
    match port.only() {
        Some(ip) if !local.is_unspecified() => ip == local,
        Some(IpAddr::V4(_)) => !socket.v6 || socket.dual,
        Some(IpAddr::V6(_)) => socket.v6,
        None => (port.serves(false) && (local.is_ipv4() || socket.dual)) || (port.serves(true) && local.is_ipv6()),
    }
}

/// The process that holds `socket`, as far as `/proc` tells.
fn owner(socket: &Socket) -> String {
    let address = format!("a socket on {}", socket.local);
    let wanted = format!("socket:[{}]", socket.inode);
    for pid in proc::processes::all().unwrap_or_default() {
        // A process may end while it is looked at.
        let descriptors = proc::descriptors(pid).unwrap_or_default();
        if descriptors.iter().any(|(_, target)| *target == wanted) {
            return format!("{} (pid {pid}) on {}", proc::name(pid), socket.local);
        }
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(local: &str, dual: bool) -> Socket {
        let local: std::net::SocketAddr = local.parse().unwrap();
        Socket {
            state: TcpState::Listen,
            local,
            remote: if local.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" }.parse().unwrap(),
            receive_queue: 0,
            send_queue: 0,
            inode: 1,
            v6: local.is_ipv6(),
            dual,
        }
    }

    #[test]
    fn a_bound_port_is_taken_only_where_it_is_bound() {
        let port = |ip: Option<&str>| Published {
            host_ip: ip.map(|ip| ip.parse().unwrap()),
            host: 80,
            app: 80,
            protocol: Protocol::Tcp,
        };
        let cases = [
            ("0.0.0.0:80", false, None, true),
            ("0.0.0.0:81", false, None, false),
            ("127.0.0.1:80", false, None, true),
            ("127.0.0.1:80", false, Some("127.0.0.1"), true),
            ("127.0.0.1:80", false, Some("127.0.0.2"), false),
            ("127.0.0.1:80", false, Some("::"), false),
            ("0.0.0.0:80", false, Some("::1"), false),
            ("[::]:80", true, Some("127.0.0.1"), true),
            ("[::]:80", false, Some("127.0.0.1"), false),
            ("[::]:80", false, Some("0.0.0.0"), false),
            ("[::]:80", false, Some("::1"), true),
            ("[::1]:80", false, Some("::"), true),
        ];
        for (socket, dual, ip, taken) in cases {
            assert_eq!(takes(&listener(socket, dual), &port(ip)), taken, "{socket} dual={dual} against {ip:?}");
        }
    }
}
