//! Opening, taking over, conflicts, many apps, and leaving nothing behind.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::net::{IpAddr, TcpListener, UdpSocket};
use std::time::Instant;

use common::*;
use torpor_linux::probe::Outcome;
use torpor_network::{AppNetwork, HeldConnections, Network, NetworkConfig, NetworkError, probe};

/// All that we could leave on a machine.
fn traces() -> String {
    sh("nft list ruleset; ip -o link | sed 's/ qlen.*//'; ip route show table all; ip -6 route show table all; \
        ip neigh show nud permanent; \
        for f in /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv[46]/conf/*/forwarding \
            /proc/sys/net/ipv6/conf/*/accept_ra /proc/sys/net/ipv4/conf/*/route_localnet; do echo $f $(cat $f); done")
}

#[test]
fn teardown_leaves_nothing() {
    on_machine(|machine| async move {
        sh("nft 'add table ip other; add chain ip other c { type filter hook forward priority 0; }; \
            add rule ip other c counter'");
        sh("echo 1 > /proc/sys/net/ipv4/conf/out0/route_localnet");
        let before = traces();
        let network = machine.open().await;
        let _one = app(&network, 1, &ports(&[tcp(8080, 80)])).await;
        let _two =
            app(&network, 2, &AppNetwork { join: vec!["a".into()], outgoing: true, ..AppNetwork::default() }).await;
        assert_ne!(traces(), before);
        network.teardown().await.unwrap();
        assert_eq!(traces(), before);
        assert_eq!(std::fs::read_dir(machine.run_dir.path()).unwrap().count(), 0);
        machine.open().await.teardown().await.unwrap();
        assert_eq!(traces(), before);
    });
}

#[test]
fn a_new_worker_adopts_apps_connections_and_counts() {
    on_machine(|machine| async move {
        let before = traces();
        let network = machine.open().await;
        let ignore = ["10.0.0.0/9", "1.2.3.4/32", "fd00::/8"].map(|net| net.parse().unwrap()).to_vec();
        let wants = AppNetwork {
            ports: vec![tcp(8080, 80), at("127.0.0.1", udp(53, 53)), at("::1", tcp(1, 2)), at("0.0.0.0", tcp(9, 9))],
            outgoing: true,
            join: vec!["a".into(), "b-c".into()],
            ignore,
        };
        let app1 = app(&network, 1, &wants).await;
        let app2 = app(&network, 2, &AppNetwork { join: vec!["a".into()], ..AppNetwork::default() }).await;
        let listener = app1.listen("[::]:80");
        let stream = machine.outside.connect((MACHINE_V4, 8080)).unwrap();
        let (server, _) = accept(&listener);
        exchange(&stream, &server);
        let counted = network.activity().unwrap();
        assert_eq!(counted[&1], 4);
        let rules = sh("nft list table inet torpor");
        drop(network);

        let network = machine.open().await;
        assert_eq!(network.activity().unwrap(), counted);
        assert_eq!(sh("nft list table inet torpor"), rules);
        assert_eq!(network.attached().await.unwrap().into_iter().collect::<Vec<_>>(), [1, 2]);
        exchange(&stream, &server);
        assert!(app2.reaches((network.addresses(1).unwrap().v4, 80)));
        let taken = network.check(3, &ports(&[at("192.0.2.1", tcp(8080, 1))])).await.unwrap_err();
        assert!(matches!(taken, NetworkError::Published { owner: 1, .. }), "{taken}");
        // What was read back is exactly what was written: nothing to change, and everything can be removed.
        // The other app's connection is closed by now: its last packet may be on its way.
        let counted = [(1, 9), (2, 3)].into();
        wait_for(|| network.activity().unwrap() == counted);
        network.update(1, &wants).await.unwrap();
        assert_eq!(network.activity().unwrap(), counted, "an update that changes nothing keeps the count");
        network.detach(1).await.unwrap();
        network.detach(1).await.unwrap();
        assert!(!sh("nft list table inet torpor").contains("torpor-1\""));
        network.detach(2).await.unwrap();
        network.teardown().await.unwrap();
        assert_eq!(traces(), before);
    });
}

#[test]
fn a_taken_port_is_refused_by_name_before_anything_changes() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let _first = app(&network, 1, &ports(&[tcp(8080, 80)])).await;
        let _listener = TcpListener::bind("127.0.0.1:8081").unwrap();
        let _socket = UdpSocket::bind("[::]:8082").unwrap();
        let before = traces();
        let me = format!("pid {}", std::process::id());
        for (port, says) in [
            (tcp(8080, 80), "app 1"),
            (at("127.0.0.1", tcp(8080, 80)), "app 1"),
            (tcp(8081, 80), me.as_str()),
            (udp(8082, 80), &me),
            (at("192.0.2.1", udp(8082, 80)), &me),
        ] {
            let space = Space::new();
            let refusal = network.attach(2, space.fd(), &ports(&[port])).await.unwrap_err().to_string();
            assert!(refusal.contains(says) && refusal.contains(&port.to_string()), "{refusal}");
            assert_eq!(traces(), before);
        }
        for port in [udp(8080, 80), udp(8081, 80), tcp(8082, 80), at("192.0.2.1", tcp(8081, 80))] {
            network.check(2, &ports(&[port])).await.unwrap();
        }
        network.check(1, &ports(&[tcp(8080, 80)])).await.unwrap();
    });
}

#[test]
fn a_failed_attach_leaves_nothing() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let space = Space::new();
        space.run(|| sh("ip link add eth0 type veth peer name other"));
        let before = traces();
        assert!(network.attach(1, space.fd(), &AppNetwork::default()).await.is_err(), "eth0 is taken in there");
        assert!(network.attach(0, space.fd(), &AppNetwork::default()).await.is_err());
        let file = std::fs::File::open("/proc/self/ns/uts").unwrap();
        assert!(network.attach(1, std::os::fd::AsFd::as_fd(&file), &AppNetwork::default()).await.is_err());
        assert_eq!(traces(), before);
        // And the same index works afterwards, also over an interface that a crash left.
        sh("ip link add torpor-1 type veth peer name gone");
        let app = app(&network, 1, &ports(&[tcp(8080, 80)])).await;
        let _listener = app.listen("0.0.0.0:80");
        assert!(machine.outside.reaches((MACHINE_V4, 8080)));
        // Attached again, into a new namespace, as after a restart of the app.
        let app = Space::new();
        network.attach(1, app.fd(), &ports(&[tcp(8081, 80)])).await.unwrap();
        let _listener = app.listen("0.0.0.0:80");
        assert!(machine.outside.reaches((MACHINE_V4, 8081)));
        assert!(machine.outside.is_cut_off_from((MACHINE_V4, 8080)));
        // Its namespace may be gone before it is detached.
        drop(app);
        network.detach(1).await.unwrap();
        assert!(network.activity().unwrap().is_empty());
    });
}

#[test]
fn a_pool_that_collides_is_refused() {
    on_machine(|machine| async move {
        sh("ip route add 10.213.5.0/24 dev out0");
        let error = Network::open(machine.config(), None).await.unwrap_err();
        assert!(matches!(&error, NetworkError::Collision { interface, .. } if interface == "out0"), "{error}");
        assert_eq!(sh("nft list ruleset"), "");
        let other = NetworkConfig { v4_pool: "10.99.0.0/16".parse().unwrap(), ..machine.config() };
        Network::open(other, None).await.unwrap();
    });
}

#[test]
fn two_instances_live_beside_each_other() {
    on_machine(|machine| async move {
        let before = traces();
        let first = machine.open().await;
        let config = NetworkConfig {
            instance: "torporsecond".into(),
            v4_pool: "10.99.0.0/16".parse().unwrap(),
            v6_pool: "fd00:99::/64".parse().unwrap(),
            ..machine.config()
        };
        let second = Network::open(config, None).await.unwrap();
        let one = app(&first, 1, &ports(&[tcp(8080, 80)])).await;
        let two = app(&second, 1, &ports(&[tcp(8081, 80)])).await;
        let (_a, _b) = (one.listen("[::]:80"), two.listen("[::]:80"));
        assert!(machine.outside.reaches((MACHINE_V4, 8080)) && machine.outside.reaches((MACHINE_V4, 8081)));
        assert!(two.is_cut_off_from((first.addresses(1).unwrap().v4, 80)));
        first.teardown().await.unwrap();
        for to in [IpAddr::V4(MACHINE_V4), MACHINE_V6.into()] {
            assert!(machine.outside.reaches((to, 8081)), "the other one goes on: {to}");
        }
        second.teardown().await.unwrap();
        assert_eq!(traces(), before, "the last one puts everything back");
    });
}

#[test]
fn doctor_finds_what_is_there_and_what_is_in_the_way() {
    on_machine(|machine| async move {
        let before = traces();
        for check in probe(&machine.config()).await {
            assert_eq!(check.outcome, Outcome::Ok, "{check:?}");
        }
        sh(
            "nft 'add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }'",
        );
        let checks = probe(&machine.config()).await;
        let found = checks.iter().find(|check| check.outcome != Outcome::Ok).unwrap();
        assert!(found.found.contains("filter FORWARD") && found.meaning.contains("torpor-+"), "{found:?}");
        sh("nft delete table ip filter");
        let ends = [("192.0.2.1:80".parse().unwrap(), "198.51.100.7:4000".parse().unwrap())];
        let held = HeldConnections::hold(&ends, 7).unwrap();
        held.keep("torpor_tcp_left").unwrap();
        let checks = probe(&machine.config()).await;
        let found = checks.iter().find(|check| check.outcome != Outcome::Ok).unwrap();
        assert_eq!((found.outcome, &*found.found), (Outcome::Degraded, "nftables tables torpor_tcp_left"));
        assert!(found.meaning.contains("nft delete table inet NAME"), "{found:?}");
        held.release().unwrap();
        HeldConnections::forget("torpor_tcp_left").unwrap();
        assert_eq!(traces(), before);
    });
}

#[test]
fn two_hundred_apps_attach_and_serve() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let mut apps = Vec::new();
        let start = Instant::now();
        for index in 1..=200_u32 {
            let app = app(&network, index, &ports(&[tcp(20_000 + index as u16, 80)])).await;
            apps.push((app.listen("0.0.0.0:80"), app));
        }
        let attach = start.elapsed() / 200;
        for index in 1..=200_u16 {
            let stream = machine.outside.connect((MACHINE_V4, 20_000 + index)).unwrap();
            let (listener, _) = &apps[usize::from(index) - 1];
            let (server, peer) = accept(listener);
            assert_eq!(peer, IpAddr::V4(OUTSIDE_V4));
            exchange(&stream, &server);
        }
        let counts = network.activity().unwrap();
        assert!((1..=200).all(|index| counts[&index] >= 4));
        let start = Instant::now();
        for index in 1..=200 {
            network.detach(index).await.unwrap();
        }
        println!("attach {attach:?}, detach {:?} per app", start.elapsed() / 200);
        assert!(network.attached().await.unwrap().is_empty());
    });
}

#[test]
fn the_counts_of_a_thousand_apps_are_read_at_once() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let elements: String =
            (1..=1000).map(|index| format!("add element inet torpor activity {{ \"torpor-{index}\" }}\n")).collect();
        let file = machine.run_dir.path().join("elements");
        std::fs::write(&file, elements).unwrap();
        sh(&format!("nft -f {}", file.display()));
        const READS: u32 = 100;
        let start = Instant::now();
        for _ in 0..READS {
            assert_eq!(network.activity().unwrap().len(), 1000);
        }
        println!("one read of 1,000 counts takes {:?}", start.elapsed() / READS);
    });
}

/// In `make test-all`: a minute or so.
#[test]
#[ignore = "makes 1,000 namespaces"]
fn a_thousand_apps_fit() {
    on_machine(|machine| async move {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let raised = rustix::process::Rlimit { current: files.maximum, maximum: files.maximum };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
        let before = traces();
        let network = machine.open().await;
        let mut apps = Vec::new();
        let mut hundred = Instant::now();
        for index in 1..=1000_u32 {
            let ignore = vec!["203.0.113.0/24".parse().unwrap()];
            let wants = AppNetwork { ignore, outgoing: true, ..ports(&[tcp(20_000 + index as u16, 80)]) };
            let app = app(&network, index, &wants).await;
            apps.push((app.listen("[::]:80"), app));
            if index % 100 == 0 {
                println!("apps up to {index}: {:?} each", hundred.elapsed() / 100);
                hundred = Instant::now();
            }
        }
        let start = Instant::now();
        for index in 1..=1000_u16 {
            let to = if index % 2 == 0 { IpAddr::V4(MACHINE_V4) } else { IpAddr::V6(MACHINE_V6) };
            let stream = machine.outside.connect((to, 20_000 + index)).unwrap();
            exchange(&stream, &accept(&apps[usize::from(index) - 1].0).0);
        }
        println!("1,000 exchanges: {:?}", start.elapsed());
        for loopback in ["127.0.0.1:21000", "[::1]:21000"] {
            let stream = connect(loopback.parse().unwrap(), PATIENCE).unwrap();
            exchange(&stream, &accept(&apps[999].0).0);
        }
        let start = Instant::now();
        assert!(network.activity().unwrap().values().all(|count| *count >= 4));
        println!("one read of all counts: {:?}", start.elapsed());
        drop(network);
        let start = Instant::now();
        let network = machine.open().await;
        println!("takeover: {:?}", start.elapsed());
        assert_eq!(network.attached().await.unwrap().len(), 1000);
        let start = Instant::now();
        network.detach(500).await.unwrap();
        println!("detach: {:?}", start.elapsed());
        let start = Instant::now();
        network.teardown().await.unwrap();
        println!("teardown: {:?}", start.elapsed());
        assert_eq!(traces(), before);
    });
}
