//! Others remove our rules: what is closed meanwhile, and how they come back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use common::*;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use torpor_linux::probe::Outcome;
use torpor_network::{AppNetwork, GATEWAY_V4, Incident, Network, NetworkConfig, NetworkError};

fn outgoing(wants: AppNetwork) -> AppNetwork {
    AppNetwork { outgoing: true, ..wants }
}

/// Has the network looked after; its reports.
fn watched(network: &Arc<Network>) -> UnboundedReceiver<Incident> {
    let (told, reports) = unbounded_channel();
    let network = network.clone();
    tokio::spawn(async move { network.look_after(|incident| told.send(incident).unwrap()).await });
    reports
}

async fn next(reports: &mut UnboundedReceiver<Incident>) -> Incident {
    tokio::time::timeout(PATIENCE, reports.recv()).await.expect("no report came").unwrap()
}

#[test]
fn a_flush_is_mended_at_once_and_reported() {
    on_machine(|machine| async move {
        let network = Arc::new(machine.open().await);
        let mut reports = watched(&network);
        let app = app(&network, 1, &outgoing(AppNetwork { join: vec!["a".into()], ..ports(&[tcp(8080, 80)]) })).await;
        let listener = app.listen("0.0.0.0:80");
        let inward = machine.outside.connect((MACHINE_V4, 8080)).unwrap();
        let (inward_server, _) = accept(&listener);
        let outside = machine.outside.listen("0.0.0.0:90");
        let outward = app.connect((OUTSIDE_V4, 90)).unwrap();
        let (outward_server, _) = accept(&outside);
        // Elements of this set come with packets.
        let listed = || sh("nft -s list table inet torpor | grep -v 'elements.*ct count'");
        let rules = listed();
        sh("nft flush ruleset");
        let incident = next(&mut reports).await;
        incident.outcome.unwrap();
        assert!(incident.by.as_deref().is_some_and(|by| by.starts_with("nft (pid ")), "{:?}", incident.by);
        assert_eq!((incident.table.as_str(), incident.times), ("torpor", 1));
        assert_eq!(listed(), rules);
        exchange(&inward, &inward_server);
        exchange(&outward, &outward_server);
        assert!(machine.outside.reaches((MACHINE_V4, 8080)), "a new connection");

        // Whatever part of it is removed, all of it comes back.
        for (times, change) in [
            (2, "delete table inet torpor"),
            (3, "flush chain inet torpor forward"),
            (4, "flush table inet torpor"),
            (5, "flush ruleset"),
        ] {
            sh(&format!("nft {change}"));
            let incident = next(&mut reports).await;
            incident.outcome.unwrap();
            assert_eq!(incident.times, times, "{change}");
            assert_eq!(listed(), rules, "{change}");
        }
        exchange(&inward, &inward_server);
        let health = network.health();
        assert_eq!((health[0].outcome, health[1].outcome), (Outcome::Degraded, Outcome::Ok), "{health:?}");
        assert!(health[0].found.contains("5 times") && health[0].found.contains("nft (pid"), "{health:?}");

        // Changes of our own are none.
        network.update(1, &ports(&[tcp(8080, 80)])).await.unwrap();
        network.detach(1).await.unwrap();
        network.teardown().await.unwrap();
        sh("nft add table inet other; nft delete table inet other");
        tokio::task::yield_now().await;
        assert!(reports.try_recv().is_err());
        assert_eq!(sh("nft list ruleset"), "", "what was torn down stays so");
    });
}

#[test]
fn an_app_that_starts_while_the_table_is_missing_writes_it() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let first = app(&network, 1, &ports(&[tcp(8080, 80)])).await;
        let _first = first.listen("0.0.0.0:80");
        sh("nft flush ruleset");
        assert!(matches!(network.activity().unwrap_err(), NetworkError::TableGone { .. }));
        let second = app(&network, 2, &ports(&[tcp(8081, 80)])).await;
        let _second = second.listen("0.0.0.0:80");
        for port in [8080, 8081] {
            assert!(machine.outside.reaches((MACHINE_V4, port)), "{port}");
        }
        // The same while no worker runs.
        drop(network);
        sh("nft flush ruleset");
        let network = machine.open().await;
        assert_eq!(network.attached().await.unwrap().into_iter().collect::<Vec<_>>(), [1, 2]);
        assert!(machine.outside.is_cut_off_from((MACHINE_V4, 8080)));
        network.adopt(1, &ports(&[tcp(8080, 80)])).await.unwrap();
        assert!(machine.outside.reaches((MACHINE_V4, 8080)));
        // Somebody took one element away: removing the app still works.
        sh("nft delete element inet torpor any4 '{ tcp . 8080 }'");
        network.detach(1).await.unwrap();
        assert!(matches!(network.update(1, &AppNetwork::default()).await, Err(NetworkError::NotAttached { index: 1 })));
    });
}

/// What an app must not reach, whatever becomes of our rules.
fn assert_closed(machine: &Machine, network: &NetworkConfig, app: &Space) {
    let other = network.addresses(2).unwrap();
    let forbidden: [(IpAddr, u16); 6] = [
        (MACHINE_V4.into(), 7000),
        (MACHINE_V6.into(), 7000),
        (GATEWAY_V4.into(), 7000),
        (Ipv4Addr::LOCALHOST.into(), 7000),
        (other.v4.into(), 80),
        (other.v6.into(), 80),
    ];
    for to in forbidden {
        assert!(app.is_cut_off_from(to), "{to:?}");
    }
    for ip in other.ips() {
        assert!(machine.outside.is_cut_off_from((ip, 80)), "{ip} from outside");
    }
}

#[test]
fn closed_ports_stay_closed_while_the_table_is_missing() {
    on_machine(|machine| async move {
        let second = Space::new();
        let path = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&second.fd()));
        sh(&format!("ip link add out1 type veth peer name in1 netns {path}; ip link set out1 up"));
        sh("ip addr add 198.51.100.1/24 dev out1");
        second.run(|| {
            sh("ip link set lo up; ip addr add 198.51.100.2/24 dev in1; ip link set in1 up; \
                ip route add default via 198.51.100.1")
        });
        let elsewhere: SocketAddr = "198.51.100.2:80".parse().unwrap();
        let _elsewhere = second.listen("0.0.0.0:80");
        let config = machine.config();
        let network = Arc::new(machine.open().await);
        let app1 = app(&network, 1, &outgoing(ports(&[tcp(8080, 80)]))).await;
        let app2 = app(&network, 2, &ports(&[])).await;
        let _machines = TcpListener::bind("[::]:7000").unwrap();
        let _others = app2.listen("[::]:80");
        let listener = app1.listen("0.0.0.0:80");
        // Its own 127.0.0.1 given up, its packets for it really leave.
        app1.run(|| {
            sh("ip addr del 127.0.0.1/8 dev lo; echo 1 > /proc/sys/net/ipv4/conf/eth0/route_localnet; \
                ip route add 127.0.0.1/32 via 169.254.1.1 dev eth0 onlink")
        });
        machine.outside.run(|| {
            sh("ip route add 10.213.0.0/16 via 192.0.2.1; ip -6 route add fd74:6f72:706f::/64 via 2001:db8::1; \
                ip route add default via 192.0.2.1")
        });
        assert_closed(&machine, &config, &app1);
        let mut client = machine.outside.connect((MACHINE_V4, 8080)).unwrap();
        let (mut server, _) = accept(&listener);
        let outside = machine.outside.listen("0.0.0.0:90");
        let outward = app1.connect((OUTSIDE_V4, 90)).unwrap();
        let (mut outward_server, _) = accept(&outside);

        sh("nft flush ruleset");
        assert_closed(&machine, &config, &app1);
        assert!(app1.is_cut_off_from((OUTSIDE_V4, 90)), "nothing leaves with the app's own address");
        assert!(machine.outside.is_cut_off_from(elsewhere), "the machine is no router");
        // What comes for connections is not answered with a reset by the machine.
        client.write_all(b"in").unwrap();
        outward_server.write_all(b"out").unwrap();
        let denied = std::process::Command::new("nft").args(["delete", "table", "inet", "torpor_guard"]).output();
        assert!(!denied.unwrap().status.success(), "nobody but its owner removes the guard");

        // A worker that dies takes neither the guard with it …
        let socket = network.guard_socket().unwrap().unwrap();
        drop(network);
        assert_closed(&machine, &config, &app1);
        // … nor what its successor needs to change it.
        let network = Arc::new(Network::open(config.clone(), Some(socket)).await.unwrap());
        assert_eq!(network.health()[1].outcome, Outcome::Ok, "{:?}", network.health());
        network.adopt(1, &outgoing(ports(&[tcp(8080, 80)]))).await.unwrap();
        network.adopt(2, &ports(&[])).await.unwrap();
        let mut buffer = [0; 2];
        server.read_exact(&mut buffer).unwrap();
        let mut buffer = [0; 3];
        (&outward).read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"out");
        assert_closed(&machine, &config, &app1);
        assert!(app1.reaches((OUTSIDE_V4, 90)));

        // With the last descriptor of its owner the guard goes: this is what it was there for.
        drop(network);
        sh("nft flush ruleset");
        assert_eq!(sh("nft list ruleset"), "");
        assert!(app1.reaches((MACHINE_V4, 7000)), "without table and guard nothing is closed");
    });
}

#[test]
fn packets_leave_without_our_mark() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let app = app(&network, 1, &outgoing(AppNetwork::default())).await;
        sh("nft 'add table inet other; add chain inet other post { type filter hook postrouting priority 200; }; \
            add rule inet other post meta l4proto tcp meta mark 0 counter; \
            add rule inet other post meta l4proto tcp meta mark != 0 counter'");
        let _listener = machine.outside.listen("0.0.0.0:80");
        assert!(app.reaches((OUTSIDE_V4, 80)));
        let seen = sh("nft list chain inet other post");
        let marked = seen.lines().find(|line| line.contains("mark !=")).unwrap();
        assert!(marked.contains("packets 0 ") && seen.matches("packets 0 ").count() == 1, "{seen}");
    });
}

#[test]
fn one_app_cannot_fill_the_table_of_connections() {
    const LIMIT: u32 = 20;
    on_machine(|machine| async move {
        let config = NetworkConfig { connections_per_app: Some(LIMIT), ..machine.config() };
        let network = Network::open(config, None).await.unwrap();
        let greedy = app(&network, 1, &outgoing(AppNetwork { join: vec!["a".into()], ..AppNetwork::default() })).await;
        let modest = app(&network, 2, &outgoing(AppNetwork { join: vec!["a".into()], ..ports(&[udp(5353, 9)]) })).await;
        let server = machine.outside.udp("0.0.0.0:9");
        server.set_read_timeout(Some(SILENCE)).unwrap();
        let sockets: Vec<_> = (0..2 * LIMIT).map(|_| greedy.udp("0.0.0.0:0")).collect();
        for socket in &sockets {
            socket.send_to(b"x", "192.0.2.2:9").unwrap();
        }
        let mut answered = 0;
        while let Ok((_, from)) = server.recv_from(&mut [0; 8]) {
            server.send_to(b"y", from).unwrap();
            answered += 1;
        }
        assert_eq!(answered, LIMIT);
        sockets[0].recv_from(&mut [0; 8]).unwrap();
        assert_eq!(network.refused().unwrap()[&1], u64::from(LIMIT));
        // Neither towards the machine, its ports, or other apps.
        let before = sh("wc -l < /proc/net/nf_conntrack || true");
        for to in ["192.0.2.1:7000", "192.0.2.1:5353", "10.213.0.2:9", "169.254.1.1:5353"] {
            greedy.udp("0.0.0.0:0").send_to(b"x", to).unwrap();
        }
        assert_eq!(sh("wc -l < /proc/net/nf_conntrack || true"), before);
        // What it has goes on, and so do others.
        sockets[0].send_to(b"x", "192.0.2.2:9").unwrap();
        assert!(server.recv_from(&mut [0; 8]).is_ok(), "a connection that it has");
        modest.udp("0.0.0.0:0").send_to(b"x", "192.0.2.2:9").unwrap();
        assert!(server.recv_from(&mut [0; 8]).is_ok(), "another app");
    });
}

#[test]
fn at_its_limit_an_app_loses_no_packet_of_what_it_has_begun() {
    const LIMIT: u32 = 20;
    const EACH: u32 = 5;
    on_machine(|machine| async move {
        let config = NetworkConfig { connections_per_app: Some(LIMIT), ..machine.config() };
        let network = Network::open(config, None).await.unwrap();
        let app = app(&network, 1, &outgoing(AppNetwork::default())).await;
        // A collector of statistics that never answers.
        let server = machine.outside.udp("0.0.0.0:9");
        server.set_read_timeout(Some(SILENCE)).unwrap();
        let sockets: Vec<_> = (0..LIMIT).map(|_| app.udp("0.0.0.0:0")).collect();
        let beyond = app.udp("0.0.0.0:0");
        let send = |socket: &std::net::UdpSocket, text: &[u8]| socket.send_to(text, "192.0.2.2:9").unwrap();
        for socket in &sockets {
            send(socket, b"x");
        }
        for socket in sockets.iter().cycle().take((LIMIT * EACH) as usize) {
            send(&beyond, b"y");
            send(socket, b"x");
        }
        let (mut buffer, mut arrived) = ([0; 8], 0);
        while let Ok((length, _)) = server.recv_from(&mut buffer) {
            assert_eq!(&buffer[..length], b"x");
            arrived += 1;
        }
        assert_eq!(arrived, LIMIT * (EACH + 1));
        assert_eq!(network.refused().unwrap()[&1], u64::from(LIMIT * EACH));
        drop(network);
    });
}
