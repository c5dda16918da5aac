//! Who reaches whom, and who must not.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use common::*;
use torpor_network::{AppNetwork, GATEWAY_V4, METADATA, Network, NetworkConfig};
use torpor_testkit::programs;

fn joins(names: &[&str]) -> AppNetwork {
    AppNetwork { join: names.iter().map(|name| (*name).to_owned()).collect(), ..AppNetwork::default() }
}

#[test]
fn apps_reach_each_other_only_in_a_network_that_both_have_joined() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let one = app(&network, 1, &joins(&["a"])).await;
        let _one = one.listen("[::]:80");
        let two = app(&network, 2, &joins(&["a", "b"])).await;
        let three = app(&network, 3, &joins(&["b"])).await;
        let alone = app(&network, 4, &AppNetwork { outgoing: true, ..joins(&[]) }).await;
        for ip in network.addresses(1).unwrap().ips() {
            assert!(two.reaches((ip, 80)), "{ip}");
            assert!(three.is_cut_off_from((ip, 80)), "{ip}");
            assert!(alone.is_cut_off_from((ip, 80)), "{ip}");
        }
        network.update(3, &joins(&["a"])).await.unwrap();
        network.update(2, &joins(&[])).await.unwrap();
        let ip = network.addresses(1).unwrap().v4;
        assert!(three.reaches((ip, 80)));
        assert!(two.is_cut_off_from((ip, 80)));
        network.detach(3).await.unwrap();
        network.detach(1).await.unwrap();
        let table = sh("nft list table inet torpor");
        assert!(!table.contains("set net_"), "an empty network leaves nothing: {table}");
    });
}

#[test]
fn apps_do_not_reach_the_machine_but_by_ping() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let app = app(&network, 1, &AppNetwork { outgoing: true, ..AppNetwork::default() }).await;
        let _api = TcpListener::bind("[::]:7000").unwrap();
        let _local = TcpListener::bind("127.0.0.1:7001").unwrap();
        assert!(connect("127.0.0.1:7000".parse().unwrap(), PATIENCE).is_ok());
        for to in [IpAddr::V4(MACHINE_V4), MACHINE_V6.into(), GATEWAY_V4.into()] {
            assert!(app.is_cut_off_from((to, 7000)), "{to}");
        }
        // Its own 127.0.0.1 given up, its packets for it really leave.
        app.run(|| {
            sh("ip addr del 127.0.0.1/8 dev lo; echo 1 > /proc/sys/net/ipv4/conf/eth0/route_localnet; \
                ip route add 127.0.0.1/32 via 169.254.1.1 dev eth0 onlink");
        });
        assert!(app.is_cut_off_from((Ipv4Addr::LOCALHOST, 7001)), "the machine's loopback must be out of reach");
        assert!(app.is_cut_off_from((Ipv4Addr::LOCALHOST, 7000)));
        let _local6 = TcpListener::bind("[::1]:7002").unwrap();
        app.run(|| sh("ip -6 addr del ::1/128 dev lo; ip -6 route add ::1/128 via fe80::1 dev eth0"));
        assert!(app.is_cut_off_from((std::net::Ipv6Addr::LOCALHOST, 7002)), "by IPv6 too");
    });
}

#[test]
fn outgoing_connections_need_leave_and_get_the_machines_address() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let free = app(&network, 1, &AppNetwork { outgoing: true, ..AppNetwork::default() }).await;
        let bound = app(&network, 2, &AppNetwork::default()).await;
        let listener = machine.outside.listen("[::]:80");
        for (to, machines) in [(IpAddr::V4(OUTSIDE_V4), IpAddr::V4(MACHINE_V4)), (OUTSIDE_V6.into(), MACHINE_V6.into())]
        {
            let stream = free.connect((to, 80)).unwrap_or_else(|e| panic!("{to}: {e}"));
            let (accepted, peer) = accept(&listener);
            assert_eq!(peer, machines);
            exchange(&stream, &accepted);
            assert!(bound.is_cut_off_from((to, 80)), "{to} without leave");
        }
        network.update(1, &AppNetwork::default()).await.unwrap();
        assert!(free.is_cut_off_from((OUTSIDE_V4, 80)), "leave taken");
    });
}

#[test]
fn nobody_routes_to_apps_around_the_published_ports() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let app = app(&network, 1, &ports(&[tcp(8080, 80)])).await;
        let _listener = app.listen("[::]:80");
        machine.outside.run(|| {
            sh("ip route add 10.213.0.0/16 via 192.0.2.1; ip -6 route add fd74:6f72:706f::/64 via 2001:db8::1");
        });
        for ip in network.addresses(1).unwrap().ips() {
            assert!(machine.outside.is_cut_off_from((ip, 80)), "{ip}");
        }
    });
}

#[test]
fn the_machine_does_not_become_a_router() {
    on_machine(|machine| async move {
        // A second neighbour: before Torpor nothing is forwarded between the two, and so after.
        let second = Space::new();
        second.run(|| sh("ip link set lo up"));
        let path = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&second.fd()));
        sh(&format!("ip link add out1 type veth peer name in1 netns {path}; ip link set out1 up"));
        sh("ip addr add 198.51.100.1/24 dev out1; ip -6 addr add 2001:db8:1::1/64 dev out1 nodad");
        second.run(|| {
            sh("ip addr add 198.51.100.2/24 dev in1; ip -6 addr add 2001:db8:1::2/64 dev in1 nodad; \
                ip link set in1 up; ip route add default via 198.51.100.1; ip -6 route add default via 2001:db8:1::1")
        });
        machine.outside.run(|| sh("ip route add default via 192.0.2.1; ip -6 route add default via 2001:db8::1"));
        let _listener = second.listen("[::]:80");
        let there = ["198.51.100.2:80", "[2001:db8:1::2]:80"].map(|a| a.parse::<SocketAddr>().unwrap());
        for to in there {
            assert!(machine.outside.is_cut_off_from(to), "{to} before");
        }
        let network = machine.open().await;
        let _app = app(&network, 1, &ports(&[tcp(8080, 80)])).await;
        for to in there {
            assert!(machine.outside.is_cut_off_from(to), "{to} with Torpor");
        }
        // Somebody else makes it a router: then it is one.
        sh("echo 1 > /proc/sys/net/ipv4/ip_forward");
        let _other = app(&network, 2, &ports(&[])).await;
        assert!(machine.outside.reaches(there[0]), "a container engine's routing must work beside ours");
        network.teardown().await.unwrap();
        assert!(machine.outside.reaches(there[0]), "and after us");
    });
}

#[test]
fn spoofed_sources_are_dropped() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let app = app(&network, 1, &AppNetwork { outgoing: true, ..AppNetwork::default() }).await;
        let before = network.activity().unwrap()[&1];
        let server = machine.outside.udp("[::]:9");
        server.set_read_timeout(Some(SILENCE)).unwrap();
        app.run(|| sh("ip addr add 10.213.0.2/32 dev eth0; ip -6 addr add fd74:6f72:706f::2/128 dev eth0 nodad"));
        for (from, to) in [("10.213.0.2:0", "192.0.2.2:9"), ("[fd74:6f72:706f::2]:0", "[2001:db8::2]:9")] {
            let spoofer = app.udp(from);
            spoofer.send_to(b"x", to).unwrap();
            assert!(server.recv_from(&mut [0; 8]).is_err(), "{from}");
        }
        assert_eq!(network.activity().unwrap()[&1], before, "a dropped packet does not count");
        let honest = app.udp("10.213.0.1:0");
        honest.send_to(b"x", "192.0.2.2:9").unwrap();
        assert!(server.recv_from(&mut [0; 8]).is_ok(), "the same without a lie arrives");
    });
}

/// 169.254.169.254, 168.63.129.16, as a network of IPv6 alone reaches them (RFC 6052).
const TRANSLATED: [&str; 2] = ["64:ff9b::a9fe:a9fe", "64:ff9b::a83f:8110"];

#[test]
fn metadata_services_and_free_addresses_of_the_pool_are_out_of_reach() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let app = app(&network, 1, &AppNetwork { outgoing: true, ..AppNetwork::default() }).await;
        machine.outside.run(|| {
            sh("ip addr add 169.254.169.254/32 dev in0; ip addr add 10.213.9.9/32 dev in0; \
                ip addr add 203.0.113.1/32 dev in0");
            for ip in METADATA {
                sh(&format!("ip addr add {ip} dev in0 nodad"));
            }
            for ip in TRANSLATED {
                sh(&format!("ip addr add {ip} dev in0 nodad"));
            }
        });
        sh("ip route add default via 192.0.2.2; ip -6 route add default via 2001:db8::2");
        let _listener = machine.outside.listen("0.0.0.0:80");
        let names = machine.outside.udp("169.254.169.254:53");
        assert!(app.reaches(("203.0.113.1".parse::<IpAddr>().unwrap(), 80)), "the way is open");
        for to in ["169.254.169.254", "10.213.9.9"] {
            assert!(app.is_cut_off_from((to.parse::<IpAddr>().unwrap(), 80)), "{to}");
        }
        app.udp("0.0.0.0:0").send_to(b"name?", "169.254.169.254:53").unwrap();
        assert!(names.recv_from(&mut [0; 8]).is_ok(), "a name server there is reached");
        // Those that are not link-local, as configured.
        let _listener6 = machine.outside.listen("[::]:81");
        for ip in METADATA {
            let port = if ip.is_ipv4() { 80 } else { 81 };
            assert!(app.is_cut_off_from((ip, port)), "{ip}");
            let names = machine.outside.udp(&SocketAddr::new(ip, 53).to_string());
            app.udp(if ip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).send_to(b"name?", (ip, 53)).unwrap();
            assert!(names.recv_from(&mut [0; 8]).is_ok(), "a name server at {ip}");
        }
        for ip in TRANSLATED {
            assert!(app.is_cut_off_from((ip.parse::<IpAddr>().unwrap(), 81)), "{ip}");
        }
        drop(network);
        let blocked = vec!["203.0.113.0/24".parse().unwrap()];
        let network = Network::open(NetworkConfig { blocked, ..machine.config() }, None).await.unwrap();
        assert!(app.is_cut_off_from(("203.0.113.1".parse::<IpAddr>().unwrap(), 80)), "a list of one's own");
        let [link_local, other] = TRANSLATED.map(|ip| (ip.parse::<IpAddr>().unwrap(), 81));
        assert!(app.is_cut_off_from(link_local) && app.reaches(other));
        for ip in METADATA {
            assert!(app.reaches((ip, if ip.is_ipv4() { 80 } else { 81 })), "{ip}");
        }
        drop(network);
    });
}

/// What an app sends by IPv6 below addresses and ports: to and from link-local addresses, to all nodes, as a router, as a neighbour.
#[test]
fn link_local_packets_of_an_app_reach_nobody() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let joined = AppNetwork { outgoing: true, ..joins(&["a"]) };
        let app_space = app(&network, 1, &joined).await;
        let other = app(&network, 2, &joined).await;
        let _listener = TcpListener::bind("[::]:7000").unwrap();
        let service = std::net::UdpSocket::bind("[::]:7000").unwrap();
        service.set_read_timeout(Some(SILENCE)).unwrap();
        let of_other = other.udp("[::]:7000");
        of_other.set_read_timeout(Some(SILENCE)).unwrap();
        let links = || sh("ip -6 route show table all | sort; ip -6 addr show; ip -6 neigh show nud permanent | sort");
        let before = links();
        let machines: Vec<String> = sh("ip -6 -o addr show scope link | awk '{ split($4, a, \"/\"); print a[1] }'")
            .lines()
            .map(str::to_owned)
            .collect();
        assert!(!machines.is_empty(), "the machine has a link-local address");
        // The app gives itself a link-local address, if it may.
        app_space.run(|| sh("ip -6 addr add fe80::5/64 dev eth0 nodad"));
        let own = network.addresses(1).unwrap().v6.to_string();
        let attack = |from: &str| {
            app_space.run(|| {
                let mut program = programs::python("link_local_attack.py");
                let other = network.addresses(2).unwrap().v6.to_string();
                assert!(program.args([from, &other]).args(&machines).status().unwrap().success());
            });
        };
        for from in ["fe80::5", &own] {
            attack(from);
            for (who, socket) in [("the machine", &service), ("another app", &of_other)] {
                assert!(socket.recv_from(&mut [0; 8]).is_err(), "{who} hears what {from} says");
            }
        }
        for ip in &machines {
            let to = app_space.run(|| {
                let scope: u32 = sh("ip -o link show eth0 | cut -d: -f1").trim().parse().unwrap();
                std::net::SocketAddrV6::new(ip.parse().unwrap(), 7000, 0, scope)
            });
            assert!(app_space.is_cut_off_from(to), "{ip}");
        }
        assert_eq!(links(), before, "routes, addresses and neighbours of the machine stay");
        let to = (network.addresses(2).unwrap().v6, 7001);
        let _reached = other.listen("[::]:7001");
        assert!(app_space.reaches(to), "an app of its network, by the addresses that it has");
        // The attack itself works: without the two rules that stop it, it is heard.
        sh("nft flush chain inet torpor raw; nft delete rule inet torpor input handle \
            $(nft -a list chain inet torpor input | awk '$1 == \"drop\" { print $NF }')");
        attack("fe80::5");
        assert!(service.recv_from(&mut [0; 8]).is_ok());
    });
}
