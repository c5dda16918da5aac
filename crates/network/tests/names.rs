//! Names of apps, asked for by real resolvers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::names::*;
use common::*;
use simple_dns::Packet;
use torpor_network::AppNetwork;
use torpor_network::names::{Directory, NameServer};

/// What the C library's resolver finds in an app; nothing where it finds nothing.
async fn getent(app: &Arc<Space>, name: &str) -> String {
    let (app, name) = (app.clone(), name.to_owned());
    let ask = move || app.run(|| Command::new("getent").args(["ahosts", &name]).output().unwrap());
    let output = tokio::task::spawn_blocking(ask).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find(|line| line.contains("STREAM")).and_then(|line| line.split(' ').next()).unwrap_or("").to_owned()
}

#[test]
fn apps_of_one_network_find_each_other_and_the_world() {
    on_machine(|machine| async move {
        resolv_conf(&machine, "nameserver 192.0.2.2\nsearch corp.example\n");
        name_server(&machine.outside, "192.0.2.2");
        let (network, directory) = (machine.open().await, Arc::new(Directory::default()));
        let outgoing = |wants: AppNetwork| AppNetwork { outgoing: true, ..wants };
        let web = named(&network, &directory, 1, "web", &outgoing(joins(&["back"]))).await;
        let _db = named(&network, &directory, 2, "db", &joins(&["back", "other"])).await;
        let stranger = named(&network, &directory, 3, "stranger", &outgoing(joins(&["other"]))).await;
        let alone = named(&network, &directory, 4, "alone", &outgoing(joins(&[]))).await;
        let inside = named(&network, &directory, 5, "inside", &joins(&["back"])).await;
        assert_eq!(getent(&web, "example.test").await, "203.0.113.7", "before");
        assert_eq!(getent(&web, "db").await, "");
        let server = NameServer::start(&network, directory.clone()).await.unwrap();
        // The resolver prefers IPv6 where the app has such an address.
        let db: Vec<String> = network.addresses(2).unwrap().ips().iter().map(IpAddr::to_string).collect();
        for name in ["db", "DB", "db.back", "db.corp.example", "db.back.corp.example"] {
            let found = getent(&web, name).await;
            assert!(db.contains(&found), "{name}: {found}");
        }
        assert_eq!(getent(&web, "example.test").await, "203.0.113.7", "asked on");
        assert_eq!(getent(&web, "db.other").await, "", "a network that it has not joined");
        assert_ne!(getent(&stranger, "db").await, "");
        assert_eq!(getent(&stranger, "web").await, "", "no common network");
        assert_eq!(
            (getent(&alone, "db").await, getent(&alone, "example.test").await),
            (String::new(), "203.0.113.7".into())
        );
        assert_ne!(getent(&inside, "web").await, "");
        assert_eq!(getent(&inside, "example.test").await, "", "no leave for the outside");

        // One that comes later, and one that goes.
        let late = named(&network, &directory, 6, "late", &joins(&["back"])).await;
        assert_ne!((getent(&web, "late").await, getent(&late, "web").await), (String::new(), String::new()));
        directory.remove(2);
        assert_eq!(getent(&web, "db").await, "");
        // The ports themselves are out of reach.
        let ways = sh("nft list map inet torpor resolve4");
        let port: u16 = ways.split("127.0.0.1 . ").nth(1).unwrap().split([' ', ',']).next().unwrap().parse().unwrap();
        assert!(web.is_cut_off_from((MACHINE_V4, port)));
        // Rules that are removed come back with the way to it.
        sh("nft delete table inet torpor");
        network.update(1, &joins(&["back"])).await.unwrap();
        assert_ne!(getent(&web, "late").await, "");

        // The machine gets another name server and search domain, and an app that starts then uses them; older ones go on.
        std::fs::write(machine.run_dir.path().join("resolv.conf"), "nameserver 192.0.2.9\nsearch lab.example\n")
            .unwrap();
        server.renew(&network).await.unwrap();
        network.update(1, &outgoing(joins(&["back"]))).await.unwrap();
        assert_ne!(getent(&web, "late").await, "");
        assert_ne!(getent(&web, "late.lab.example").await, "");
        std::fs::write(machine.run_dir.path().join("resolv.conf"), "nameserver 192.0.2.2\nsearch corp.example\n")
            .unwrap();
        assert_ne!(getent(&web, "late").await, "");

        // Without the server queries go where they always went.
        network.update(1, &outgoing(joins(&["back"]))).await.unwrap();
        drop(server);
        assert_eq!(
            (getent(&web, "late").await, getent(&web, "example.test").await),
            (String::new(), "203.0.113.7".into())
        );
        let tables = sh("nft list tables");
        assert!(!tables.contains("torpor_names"), "{tables}");
    });
}

#[test]
fn a_name_server_on_the_machines_loopback_is_reached_by_the_gateway() {
    on_machine(|machine| async move {
        resolv_conf(&machine, "nameserver 127.0.0.53\n");
        let socket = UdpSocket::bind("127.0.0.53:53").unwrap();
        std::thread::spawn(move || serve(&socket));
        let (network, directory) = (machine.open().await, Arc::new(Directory::default()));
        let free = named(&network, &directory, 1, "free", &AppNetwork { outgoing: true, ..joins(&[]) }).await;
        let inside = named(&network, &directory, 2, "inside", &joins(&["back"])).await;
        let _server = NameServer::start(&network, directory.clone()).await.unwrap();
        // What apps have in the place of the machine's file.
        std::fs::write(machine.run_dir.path().join("app.conf"), "nameserver 169.254.1.1\n").unwrap();
        let conf = machine.run_dir.path().join("app.conf").display().to_string();
        let ask = |app: &Arc<Space>, name: &'static str| {
            let (app, conf) = (app.clone(), conf.clone());
            let script = format!("mount --bind {conf} $(readlink -f /etc/resolv.conf); getent ahostsv4 {name} || true");
            let run = move || app.run(|| Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap());
            async { String::from_utf8(tokio::task::spawn_blocking(run).await.unwrap().stdout).unwrap() }
        };
        assert!(ask(&free, "example.test").await.starts_with("203.0.113.7"));
        assert_eq!(ask(&inside, "example.test").await, "");
        assert!(ask(&inside, "inside").await.starts_with("10.213.0.2"));
        // By TCP, too: two queries over one connection.
        let asked = tokio::task::spawn_blocking(move || {
            let mut stream = inside.connect(("169.254.1.1".parse::<IpAddr>().unwrap(), 53)).unwrap();
            for id in [7, 8] {
                send_by_tcp(&mut stream, &query(id, "inside.back"));
                let reply = receive_by_tcp(&mut stream).unwrap();
                let reply = Packet::parse(&reply).unwrap();
                assert_eq!((reply.id(), reply.answers.len()), (id, 1));
            }
        });
        asked.await.unwrap();
    });
}

/// Greedy apps, in one network. Together they take all queries that the name server forwards at a time, and all its connections.
const GREEDY: usize = 16;
/// What each of them gets of 512 queries, and of 128 connections.
const QUERIES: usize = 32;
const CONNECTIONS: usize = 8;

/// A name server that never answers a query for `slow.test`, and counts them.
fn slow_name_server(space: &Space, address: &str) -> Arc<AtomicUsize> {
    let (socket, slow) = (space.udp(&format!("{address}:53")), Arc::new(AtomicUsize::new(0)));
    socket.set_read_timeout(None).unwrap();
    let count = slow.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).unwrap();
            if Packet::parse(&buffer[..length]).unwrap().questions[0].qname.to_string() == "slow.test" {
                count.fetch_add(1, Ordering::SeqCst);
            } else {
                socket.send_to(&reply(&buffer[..length]), from).unwrap();
            }
        }
    });
    slow
}

#[test]
fn apps_of_one_network_do_not_take_the_name_server_from_another() {
    on_machine(|machine| async move {
        resolv_conf(&machine, "nameserver 192.0.2.2\n");
        let slow = slow_name_server(&machine.outside, "192.0.2.2");
        let (network, directory) = (machine.open().await, Arc::new(Directory::default()));
        let outgoing = |name: &str| AppNetwork { outgoing: true, ..joins(&[name]) };
        let mut greedy = Vec::new();
        for index in 1..=GREEDY {
            let name = format!("greedy{index}");
            greedy.push(named(&network, &directory, index as u32, &name, &outgoing("back")).await);
        }
        let other = named(&network, &directory, 100, "other", &outgoing("front")).await;
        let _server = NameServer::start(&network, directory.clone()).await.unwrap();
        let server = (IpAddr::from(OUTSIDE_V4), 53);
        let asked = tokio::task::spawn_blocking(move || {
            let sockets: Vec<UdpSocket> = greedy.iter().map(|app| app.udp("0.0.0.0:0")).collect();
            for round in 0..QUERIES {
                for socket in &sockets {
                    socket.send_to(&query(round as u16, "slow.test"), server).unwrap();
                }
                wait_for(|| slow.load(Ordering::SeqCst) == (round + 1) * GREEDY);
            }
            let socket = other.udp("0.0.0.0:0");
            socket.send_to(&query(7, "example.test"), server).unwrap();
            let mut buffer = [0; 512];
            let length = socket.recv(&mut buffer).expect("no reply while apps of another network wait for theirs");
            assert_eq!(Packet::parse(&buffer[..length]).unwrap().answers.len(), 1);

            let idle: Vec<_> =
                (0..CONNECTIONS).flat_map(|_| greedy.iter().map(|app| app.connect(server).unwrap())).collect();
            let mut stream = other.connect(server).unwrap();
            send_by_tcp(&mut stream, &query(8, "other.front"));
            let reply = receive_by_tcp(&mut stream).expect("closed while apps of another network have connections");
            assert_eq!(Packet::parse(&reply).unwrap().answers.len(), 1);
            drop(idle);
        });
        asked.await.unwrap();
    });
}
