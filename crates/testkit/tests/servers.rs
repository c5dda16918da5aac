//! Every real server runs, answers, and keeps its state between the steps of one session; a restart is noticed.
#![allow(clippy::unwrap_used, reason = "tests")]

use torpor_testkit::bare::Bare;
use torpor_testkit::client::dns;
use torpor_testkit::client::{http, smtp};
use torpor_testkit::servers::{Check, Program, Servers, Transport, make_lighttpd_tarball};
use torpor_testkit::skip;

fn root() -> bool {
    rustix::process::geteuid().is_root()
}

fn steps(name: &str) {
    let program = Servers::open().unwrap().program(name).clone();
    let bare = Bare::start(&program).unwrap();
    let mut session = bare.session().unwrap();
    for _ in 0..3 {
        session.step().unwrap_or_else(|error| panic!("{error}; its log: {}", bare.log()));
    }
}

macro_rules! programs {
    ($($name:ident),*) => {$(
        #[test]
        fn $name() {
            if !root() {
                skip!("needs root for namespaces");
            }
            steps(stringify!($name));
        }
    )*};
}

programs!(lighttpd, nginx, bind, postfix, clamav, redis, mariadb, postgres, python, node, go, java);

#[test]
fn the_list_of_programs_is_complete() {
    if !root() {
        skip!("needs root for mmdebstrap");
    }
    let servers = Servers::open().unwrap();
    let names: Vec<&str> = servers.programs().iter().map(|program| program.name).collect();
    let wanted = [
        "lighttpd", "nginx", "bind", "postfix", "clamav", "redis", "mariadb", "postgres", "python", "node", "java",
        "go",
    ];
    assert_eq!(names, wanted, "each has a test above");
    for program in servers.programs() {
        assert_ne!(program.check, Check::None);
        let ports: Vec<u16> = (0..program.ports.len() as u16).map(|n| 20_000 + n).collect();
        let text = program.app_toml("some-name", &ports);
        let app: toml::Table = text.parse().unwrap();
        assert_eq!(app["ports"].as_array().unwrap().len(), ports.len());
        assert_eq!(app["source"]["tarball"]["path"].as_str(), program.tarball.to_str());
    }
    assert!(servers.program("bind").ports.contains(&(53, Transport::Tcp)));
}

fn ask(address: std::net::SocketAddr, cookie: Option<&[u8]>) -> dns::Answer {
    dns::DnsUdp::connect(address).unwrap().ask("www.servers.test", cookie).unwrap()
}

/// The sessions must fail where state is lost, or they prove nothing.
#[test]
fn another_instance_is_not_taken_for_the_same() {
    if !root() {
        skip!("needs root for namespaces");
    }
    let servers = Servers::open().unwrap();
    let program = servers.program("bind");
    let first = Bare::start(program).unwrap();
    first.session().unwrap();
    let old = first.enter(|| ask(first.address(), Some(b"torpor!!")));
    let second = Bare::start(program).unwrap();
    second.session().unwrap();
    let answer = second.enter(|| ask(second.address(), old.cookie.as_deref()));
    assert_eq!(answer.code, 23, "the second server has another secret: {answer:?}");
    let tcp = second.enter(|| {
        let mut tcp = dns::DnsTcp::connect(second.address()).unwrap();
        (tcp.ask("www.servers.test").unwrap(), tcp.ask("ns.servers.test").unwrap())
    });
    assert_eq!((&tcp.0.addresses[..], &tcp.1.addresses[..]), (&[[192, 0, 2, 80]][..], &[[192, 0, 2, 53]][..]));
}

#[test]
fn postfix_takes_a_message_into_its_queue() {
    if !root() {
        skip!("needs root for namespaces");
    }
    let servers = Servers::open().unwrap();
    let bare = Bare::start(servers.program("postfix")).unwrap();
    bare.session().unwrap();
    let answer = bare.enter(|| smtp::Smtp::open(bare.address()).unwrap().deliver("to@servers.test", "hello")).unwrap();
    assert!(answer.contains("queued as"), "{answer}");
}

#[test]
fn the_page_of_lighttpd_comes_with_a_time() {
    if !root() {
        skip!("needs root for namespaces");
    }
    let servers = Servers::open().unwrap();
    let bare = Bare::start(servers.program("lighttpd")).unwrap();
    bare.session().unwrap();
    let page = bare.enter(|| http::get(bare.address(), "/")).unwrap();
    assert_eq!(page.status, 200);
    assert!(page.text().contains("awake"));
    assert!(page.first_byte_us() > 1.0 && page.first_byte_us() < 1e6, "{} µs", page.first_byte_us());
}

/// The demo's tarball runs as it is, made without mmdebstrap.
#[test]
fn the_demos_lighttpd_serves() {
    if !root() {
        skip!("needs root for namespaces");
    }
    let dir = tempfile::tempdir().unwrap();
    let tarball = dir.path().join("lighttpd.tar");
    make_lighttpd_tarball(&tarball).unwrap();
    assert!(std::fs::metadata(&tarball).unwrap().len() < 64 << 20, "the demo's tarball should be small");
    let command = ["/usr/sbin/lighttpd", "-D", "-f", "/etc/lighttpd/lighttpd.conf"].map(str::to_owned).to_vec();
    let program = Program {
        name: "demo",
        tarball,
        command,
        user: None,
        ports: vec![(80, Transport::Tcp)],
        check: Check::LighttpdStatus,
    };
    let bare = Bare::start(&program).unwrap();
    bare.session().unwrap().step().unwrap();
    assert!(bare.enter(|| http::get(bare.address(), "/")).unwrap().text().contains("awake"));
}
