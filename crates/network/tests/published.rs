//! Published ports: from outside, from the machine, from other apps; TCP and UDP, IPv4 and IPv6.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use common::*;
use torpor_network::GATEWAY_V4;

#[test]
fn tcp_from_outside_keeps_the_clients_address() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let app = app(&network, 1, &ports(&[tcp(8080, 80)])).await;
        let listener = app.listen("[::]:80");
        for (to, client) in [(IpAddr::V4(MACHINE_V4), IpAddr::V4(OUTSIDE_V4)), (MACHINE_V6.into(), OUTSIDE_V6.into())] {
            let stream = machine.outside.connect((to, 8080)).unwrap();
            let (server, peer) = accept(&listener);
            assert_eq!(peer, client);
            exchange(&stream, &server);
        }
        assert!(machine.outside.is_cut_off_from((MACHINE_V4, 80)), "only the published number");
    });
}

#[test]
fn udp_from_outside_keeps_the_clients_address() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let app = app(&network, 1, &ports(&[udp(5353, 53)])).await;
        let server = app.udp("[::]:53");
        for (to, from) in [(IpAddr::V4(MACHINE_V4), IpAddr::V4(OUTSIDE_V4)), (MACHINE_V6.into(), OUTSIDE_V6.into())] {
            let client = machine.outside.udp(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" });
            udp_exchange(&client, SocketAddr::new(to, 5353), &server, Some(from));
        }
    });
}

fn udp_exchange(client: &UdpSocket, to: SocketAddr, server: &UdpSocket, expected: Option<IpAddr>) {
    client.send_to(b"ask", to).unwrap();
    let mut buffer = [0; 16];
    let (length, peer) = server.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"ask");
    if let Some(expected) = expected {
        assert_eq!(peer.ip().to_canonical(), expected);
    }
    server.send_to(b"answer", peer).unwrap();
    let (length, from) = client.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..length], from), (&b"answer"[..], to), "the answer comes from the port that was asked");
}

#[test]
fn the_machine_reaches_published_ports_on_its_loopback_and_its_own_addresses() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let app = app(&network, 1, &ports(&[tcp(8080, 80), udp(5353, 53)])).await;
        let listener = app.listen("[::]:80");
        let server = app.udp("[::]:53");
        let here = [
            (IpAddr::V4(Ipv4Addr::LOCALHOST), Some(IpAddr::V4(GATEWAY_V4))),
            (Ipv4Addr::new(127, 1, 2, 3).into(), None),
            (MACHINE_V4.into(), Some(MACHINE_V4.into())),
            (MACHINE_V6.into(), Some(MACHINE_V6.into())),
            (Ipv6Addr::LOCALHOST.into(), Some(network.config().host_v6().into())),
        ];
        for (to, expected) in here {
            let stream = connect(SocketAddr::new(to, 8080), PATIENCE).unwrap_or_else(|e| panic!("{to}: {e}"));
            let (accepted, peer) = accept(&listener);
            exchange(&stream, &accepted);
            assert!(expected.is_none_or(|expected| expected == peer), "{to} is seen as {peer}");
            let client = UdpSocket::bind(SocketAddr::new(if to.is_ipv4() { to } else { "::".parse().unwrap() }, 0));
            let client = client.unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            udp_exchange(&client, SocketAddr::new(to, 5353), &server, expected);
        }
    });
}

#[test]
fn a_port_on_one_address_is_on_no_other() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let wants = ports(&[at("127.0.0.1", tcp(8080, 80)), at("192.0.2.1", tcp(8081, 80)), at("::", tcp(8082, 80))]);
        let app = app(&network, 1, &wants).await;
        let _listener = app.listen("[::]:80");
        let (v4, v6) = (IpAddr::V4(MACHINE_V4), IpAddr::V6(MACHINE_V6));
        for (port, outside4, outside6, loopback) in
            [(8080, false, false, true), (8081, true, false, false), (8082, false, true, false)]
        {
            assert_eq!(machine.outside.reaches((v4, port)), outside4, "{port} from outside");
            assert_eq!(machine.outside.reaches((v6, port)), outside6, "{port} from outside by IPv6");
            let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
            assert_eq!(connect(local, SILENCE).is_ok(), loopback, "{port} on 127.0.0.1");
        }
        // A neighbour that sends packets for 127.0.0.1 over the wire.
        machine.outside.run(|| {
            sh("ip addr del 127.0.0.1/8 dev lo; echo 1 > /proc/sys/net/ipv4/conf/in0/route_localnet; \
                ip route add 127.0.0.1/32 via 192.0.2.1 src 192.0.2.2");
        });
        assert!(
            machine.outside.is_cut_off_from((Ipv4Addr::LOCALHOST, 8080)),
            "a loopback port must not answer the wire"
        );
    });
}

#[test]
fn apps_reach_published_ports_of_others_and_of_themselves_through_the_machine() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let server = app(&network, 1, &ports(&[tcp(8080, 80)])).await;
        let client = app(&network, 2, &ports(&[])).await;
        let listener = server.listen("[::]:80");
        let addresses = network.addresses(2).unwrap();
        for (to, from) in [
            (IpAddr::V4(MACHINE_V4), IpAddr::V4(addresses.v4)),
            (MACHINE_V6.into(), addresses.v6.into()),
            (GATEWAY_V4.into(), addresses.v4.into()),
        ] {
            let stream = client.connect((to, 8080)).unwrap_or_else(|e| panic!("{to}: {e}"));
            let (accepted, peer) = accept(&listener);
            assert_eq!(peer, from, "another app's address is kept");
            exchange(&stream, &accepted);
        }
        for to in [IpAddr::V4(MACHINE_V4), MACHINE_V6.into()] {
            let stream = server.connect((to, 8080)).unwrap_or_else(|e| panic!("itself by {to}: {e}"));
            let (accepted, _) = accept(&listener);
            exchange(&stream, &accepted);
        }
    });
}

#[test]
fn a_udp_client_finds_the_next_app_on_the_same_port() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let client = machine.outside.udp("0.0.0.0:4000");
        let to = SocketAddr::new(MACHINE_V4.into(), 5353);
        // Before anything is published, so that the kernel tracks an untranslated flow.
        client.send_to(b"ask", to).unwrap();
        for index in 1..=2 {
            let app = app(&network, index, &ports(&[udp(5353, 53)])).await;
            let server = app.udp("0.0.0.0:53");
            udp_exchange(&client, to, &server, Some(OUTSIDE_V4.into()));
            network.detach(index).await.unwrap();
        }
    });
}
