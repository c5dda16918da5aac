//! Which packets count as activity.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use common::*;
use rustix::net::sockopt;
use torpor_network::{AppNetwork, Network};

fn count(network: &Network) -> u64 {
    network.activity().unwrap()[&1]
}

#[test]
fn requests_count_in_both_directions_and_families() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let app = app(&network, 1, &ports(&[tcp(8080, 80), udp(5353, 53)])).await;
        let listener = app.listen("[::]:80");
        for to in [IpAddr::V4(MACHINE_V4), MACHINE_V6.into(), "127.0.0.1".parse().unwrap()] {
            let start = count(&network);
            let to = SocketAddr::new(to, 8080);
            let stream = if to.ip().is_loopback() {
                connect(to, PATIENCE).unwrap()
            } else {
                machine.outside.connect(to).unwrap()
            };
            let (server, _) = accept(&listener);
            assert_eq!(count(&network) - start, 2, "{to}: SYN and SYN+ACK, not the third");
            exchange(&stream, &server);
            assert_eq!(count(&network) - start, 4, "{to}: a segment each way");
        }
        let start = count(&network);
        let client = machine.outside.udp("0.0.0.0:0");
        client.send_to(b"", "192.0.2.1:5353").unwrap();
        wait_for(|| count(&network) - start == 1);
    });
}

#[test]
fn keepalives_bare_acknowledgements_and_pings_do_not_count() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let app = app(&network, 1, &AppNetwork { outgoing: true, ..ports(&[tcp(8080, 80)]) }).await;
        let listener = app.listen("[::]:80");
        for to in [IpAddr::V4(MACHINE_V4), MACHINE_V6.into()] {
            let stream = machine.outside.connect((to, 8080)).unwrap();
            let (server, _) = accept(&listener);
            exchange(&stream, &server);
            let start = count(&network);
            for socket in [&stream, &server] {
                sockopt::set_tcp_keepidle(socket, Duration::from_secs(1)).unwrap();
                sockopt::set_tcp_keepintvl(socket, Duration::from_secs(1)).unwrap();
                sockopt::set_socket_keepalive(socket, true).unwrap();
            }
            let segments = || sh("nft list counter inet watch seen | sed -n 's/.*packets \\([0-9]*\\).*/\\1/p'");
            sh("nft 'add table inet watch; add counter inet watch seen; \
                add chain inet watch c { type filter hook forward priority 200; }; \
                add rule inet watch c meta l4proto tcp counter name seen'");
            let start_at = Instant::now();
            while segments().trim().parse::<u64>().unwrap() < 4 {
                assert!(start_at.elapsed() < PATIENCE, "no keepalives were seen: {}", segments());
                std::thread::sleep(Duration::from_millis(50));
            }
            assert_eq!(count(&network), start, "{to}: {} segments passed", segments().trim());
            sh("nft delete table inet watch");
        }
        let start = count(&network);
        if std::path::Path::new("/bin/ping").exists() {
            app.run(|| sh("ping -c 2 -i 0.2 192.0.2.1; ping -c 1 192.0.2.2"));
        } else {
            // A datagram to a closed port is answered by ICMP: the datagram counts, the answer does not.
            let socket = app.udp("0.0.0.0:0");
            app.run(|| socket.connect("192.0.2.2:9")).unwrap();
            socket.send(b"x").unwrap();
            assert!(socket.recv(&mut [0; 8]).is_err());
            assert_eq!(count(&network), start + 1);
        }
    });
}

#[test]
fn ignored_networks_do_not_count_but_reach() {
    on_machine(|machine| async move {
        let network = machine.open().await;
        let ignore = ["192.0.2.0/25", "2001:db8::2/128", "192.0.2.7/32", "127.0.0.0/8"];
        let ignore = ignore.map(|net| net.parse().unwrap()).to_vec();
        let wants = AppNetwork { ignore, ..ports(&[tcp(8080, 80)]) };
        let app = app(&network, 1, &wants).await;
        let listener = app.listen("[::]:80");
        for to in [IpAddr::V4(MACHINE_V4), MACHINE_V6.into(), "127.0.0.1".parse().unwrap()] {
            let to = SocketAddr::new(to, 8080);
            let stream = if to.ip().is_loopback() {
                connect(to, PATIENCE).unwrap()
            } else {
                machine.outside.connect(to).unwrap()
            };
            exchange(&stream, &accept(&listener).0);
            assert_eq!(count(&network), 0, "{to}");
        }
        // Another address of the client, outside of what is ignored; the closing of the others is over by then.
        let start = count(&network);
        machine.outside.run(|| {
            sh("ip addr add 192.0.2.200/32 dev in0; \
            ip route replace 192.0.2.0/24 dev in0 src 192.0.2.200")
        });
        let stream = machine.outside.connect((MACHINE_V4, 8080)).unwrap();
        exchange(&stream, &accept(&listener).0);
        assert_eq!(start, 0);
        assert!(count(&network) >= 4, "another client counts");
    });
}
