//! Internet and netlink sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketType, sockopt};
use torpor_linux::closer::{self, AppFile};
use torpor_linux::socket;

use crate::contract::SETTLE;
use crate::kinds::socket::options::fresh;
use crate::tests::{refusal, round, take};

#[test]
fn listeners_listen_again_with_their_options() {
    for kind in [6, 262] {
        for (family, address) in [(2, "127.0.0.1:0"), (10, "[::1]:0")] {
            let fd = fresh((family, 1, kind)).unwrap();
            sockopt::set_socket_reuseaddr(&fd, true).unwrap();
            let address: SocketAddr = address.parse().unwrap();
            rustix::net::bind(&fd, &address).unwrap();
            sockopt::set_socket_keepalive(&fd, true).unwrap();
            rustix::net::listen(&fd, 37).unwrap();
            if kind == 6 {
                sockopt::set_tcp_nodelay(&fd, true).unwrap();
                sockopt::set_tcp_keepidle(&fd, std::time::Duration::from_secs(99)).unwrap();
                sockopt::set_socket_recv_buffer_size(&fd, 300_000).unwrap();
            }
            let port = TcpListener::from(fd.try_clone().unwrap()).local_addr().unwrap();
            let made = round(vec![fd]).remove(0);
            assert_eq!(socket::tcp_state(&made).unwrap().2, 37);
            assert!(sockopt::socket_keepalive(&made).unwrap() && sockopt::socket_reuseaddr(&made).unwrap());
            assert_eq!(sockopt::socket_protocol(&made).unwrap().unwrap().as_raw().get(), kind as u32);
            if kind == 6 {
                assert_eq!(sockopt::tcp_keepidle(&made).unwrap().as_secs(), 99);
                assert_eq!(sockopt::socket_recv_buffer_size(&made).unwrap(), 600_000);
            }
            let listener = TcpListener::from(made);
            assert_eq!(listener.local_addr().unwrap(), port);
            let mut client = TcpStream::connect(port).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            client.write_all(b"x").unwrap();
            server.read_exact(&mut [0]).unwrap();
        }
    }
}

#[test]
fn connections_are_refused_by_name() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let text = refusal(&[listener.try_clone().unwrap().into()]);
    assert!(text.contains("at which 1 connections wait to be accepted"), "{text}");
    let (server, _) = listener.accept().unwrap();
    let text = refusal(&[client.try_clone().unwrap().into()]);
    assert!(text.contains("a TCP socket on 127.0.0.1:") && text.contains("connected to 127.0.0.1:"), "{text}");
    drop(server);
    assert!(refusal(&[client.into()]).contains("in the middle of closing"));
}

#[test]
fn sockets_that_do_nothing_yet() {
    let fd = fresh((2, 1, 6)).unwrap();
    rustix::net::bind(&fd, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
    let before = socket::local_address(&fd).unwrap();
    let idle = fresh((10, 1, 6)).unwrap();
    let raw = fresh((2, 3, 1)).unwrap();
    let made = round(vec![fd, idle, raw]);
    assert_eq!(socket::local_address(&made[0]).unwrap(), before);
    assert_eq!(sockopt::socket_domain(&made[1]).unwrap(), AddressFamily::INET6);
    assert_eq!(sockopt::socket_type(&made[2]).unwrap(), SocketType::RAW);
}

#[test]
fn datagrams_wait_with_their_senders() {
    for (any, local) in [("127.0.0.1:0", "127.0.0.1:0"), ("[::1]:0", "[::1]:0"), ("0.0.0.0:0", "127.0.0.1:0")] {
        let receiver = UdpSocket::bind(any).unwrap();
        let port = receiver.local_addr().unwrap().port();
        let sender = UdpSocket::bind(local).unwrap();
        let to = SocketAddr::new(sender.local_addr().unwrap().ip(), port);
        for part in [&b"one"[..], b"", &[9; 30_000], b"two"] {
            sender.send_to(part, to).unwrap();
        }
        let from = sender.local_addr().unwrap();
        let made = round(vec![receiver.into()]).remove(0);
        let receiver = UdpSocket::from(made);
        assert_eq!(receiver.local_addr().unwrap().port(), port);
        let mut buffer = vec![0; 65536];
        for length in [3, 0, 30_000, 3] {
            assert_eq!(receiver.recv_from(&mut buffer).unwrap(), (length, from));
        }
    }
}

#[test]
fn connected_datagram_sockets_stay_connected() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(server.local_addr().unwrap()).unwrap();
    let made = round(vec![OwnedFd::from(client)]).remove(0);
    let client = UdpSocket::from(made);
    client.send(b"hello").unwrap();
    let mut buffer = [0; 10];
    let (length, from) = server.recv_from(&mut buffer).unwrap();
    assert_eq!((length, from), (5, client.local_addr().unwrap()));
}

#[test]
fn netlink_sockets_keep_their_ports_and_groups() {
    let fd = fresh((16, 3, 0)).unwrap();
    let mut address = 16_u16.to_ne_bytes().to_vec();
    address.extend_from_slice(&[0; 6]);
    // Groups that nobody sends to any more, those of DECnet: news of the machine's network may come at any moment.
    address.extend_from_slice(&(1_u32 << 12 | 1 << 15).to_ne_bytes());
    socket::bind(&fd, &address).unwrap();
    let before = socket::local_address(&fd).unwrap();
    let made = round(vec![fd]).remove(0);
    assert_eq!(socket::local_address(&made).unwrap(), before);
    assert_eq!(socket::netlink_groups(&made).unwrap(), [13, 16]);
    let other = fresh((16, 3, 12)).unwrap();
    assert!(refusal(&[other]).contains("a netlink socket of protocol 12"));
}

#[test]
fn packet_sockets_keep_their_address() {
    let fd = fresh((17, 2, 0)).unwrap();
    // Protocol 0x88b6 on the loopback interface.
    let mut address = vec![17, 0, 0x88, 0xb6, 1, 0, 0, 0];
    address.resize(20, 0);
    socket::bind(&fd, &address).unwrap();
    let before = socket::local_address(&fd).unwrap();
    let made = round(vec![fd]).remove(0);
    assert_eq!(socket::local_address(&made).unwrap(), before);
}

#[test]
fn groups_are_joined_again() {
    let group = "239.9.8.7".parse().unwrap();
    let receiver = UdpSocket::bind("0.0.0.0:0").unwrap();
    receiver.join_multicast_v4(&group, &std::net::Ipv4Addr::LOCALHOST).unwrap();
    let port = receiver.local_addr().unwrap().port();
    let made = round(vec![receiver.into()]).remove(0);
    let receiver = UdpSocket::from(made);
    receiver.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sockopt::set_ip_multicast_if(&sender, &std::net::Ipv4Addr::LOCALHOST).unwrap();
    sender.send_to(b"to all", (group, port)).unwrap();
    let mut buffer = [0; 10];
    assert_eq!(receiver.recv(&mut buffer).unwrap(), 6);
    // Left, it must not be found.
    receiver.leave_multicast_v4(&group, &std::net::Ipv4Addr::LOCALHOST).unwrap();
    let taken = take(&[receiver.into()]).unwrap();
    let torpor_image::tree::FileKind::Inet(socket) = &taken.tree.files[0].kind else { panic!() };
    assert!(
        socket.options.iter().all(|option| option.name != torpor_linux::uapi::socket::MCAST_JOIN_GROUP),
        "{:?}",
        socket.options
    );
}

/// Two ends of a connection over loopback.
fn connection(address: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(address).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Takes connections, closes them without a word, makes them again.
fn connected_again(streams: Vec<TcpStream>) -> Vec<TcpStream> {
    let fds: Vec<OwnedFd> = streams.into_iter().map(OwnedFd::from).collect();
    let taken = take(&fds).unwrap();
    let fds: Vec<AppFile> = fds.into_iter().map(AppFile::from).collect();
    crate::silence(&fds);
    drop(fds);
    closer::settle(SETTLE);
    taken.descriptors().into_iter().map(TcpStream::from).collect()
}

#[test]
fn connections_within_the_tree_go_on() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (mut client, mut served) = connection(address);
        client.write_all(b"unread").unwrap();
        served.write_all(b"also").unwrap();
        client.set_nodelay(true).unwrap();
        let ends = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        let mut made = connected_again(vec![client, served]);
        let (mut served, mut client) = (made.pop().unwrap(), made.pop().unwrap());
        assert_eq!((client.local_addr().unwrap(), client.peer_addr().unwrap()), ends);
        assert!(client.nodelay().unwrap() && !served.nodelay().unwrap());
        let mut got = [0; 6];
        served.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"unread");
        client.read_exact(&mut got[..4]).unwrap();
        assert_eq!(&got[..4], b"also");
        client.write_all(b"more").unwrap();
        drop(client);
        let mut rest = Vec::new();
        served.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"more");
    }
}

#[test]
fn a_connection_that_is_full_loses_nothing() {
    let (mut client, served) = connection("127.0.0.1:0");
    client.set_nonblocking(true).unwrap();
    let data: Vec<u8> = (0..64_u32 << 20).map(|n| (n % 251) as u8).collect();
    let mut written = 0;
    // Until neither queue takes more.
    while let Ok(bytes) = client.write(&data[written..]) {
        written += bytes;
    }
    assert!(written > 100_000 && written < data.len());
    let mut made = connected_again(vec![client, served]);
    let (mut served, client) = (made.pop().unwrap(), made.pop().unwrap());
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut got = Vec::new();
    served.read_to_end(&mut got).unwrap();
    assert!(got == data[..written], "{} of {written} bytes", got.len());
}

#[test]
fn half_closed_connections_stay_half_closed() {
    let (mut client, mut served) = connection("127.0.0.1:0");
    client.write_all(b"all").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    while socket::tcp_state(&client).unwrap().0 != 5 {
        std::thread::yield_now();
    }
    served.write_all(b"answer").unwrap();
    let mut made = connected_again(vec![client, served]);
    (served, client) = (made.pop().unwrap(), made.pop().unwrap());
    assert_eq!(socket::tcp_state(&client).unwrap().0, 5);
    assert_eq!(socket::tcp_state(&served).unwrap().0, 8);
    let mut got = Vec::new();
    served.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"all");
    served.write_all(b" more").unwrap();
    drop(served);
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"answer more");
}
