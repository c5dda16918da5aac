//! Real programs through many rounds of dozing, becoming warm and being built again, with a connection open all the time.
//! Postfix needs more of a sandbox than these tests make: `crates/torpor/tests/warm.rs` has it.

use std::time::{Duration, Instant};

use torpor_engine::{NoFaults, Phase};
use torpor_testkit::error::chain;
use torpor_testkit::servers::{Servers, Transport};

use super::app::App;

pub const TESTS: &[super::Test] = &[
    ("lighttpd_comes_back", lighttpd),
    ("nginx_comes_back", nginx),
    ("redis_comes_back", redis),
    ("bind_comes_back", bind),
    ("clamav_comes_back", clamav),
    ("postgres_comes_back", postgres),
    ("mariadb_comes_back", mariadb),
    ("python_comes_back", python),
    ("node_comes_back", node),
    ("java_comes_back", java),
    ("go_comes_back", go),
];

const ROUNDS: u32 = 20;

fn lighttpd() {
    rounds("lighttpd");
}

fn nginx() {
    rounds("nginx");
}

fn redis() {
    rounds("redis");
}

fn bind() {
    rounds("bind");
}

fn clamav() {
    rounds("clamav");
}

fn postgres() {
    rounds("postgres");
}

fn mariadb() {
    rounds("mariadb");
}

fn python() {
    rounds("python");
}

fn node() {
    rounds("node");
}

fn java() {
    rounds("java");
}

fn go() {
    rounds("go");
}

fn rounds(name: &str) {
    let servers = Servers::open().unwrap();
    let program = servers.program(name);
    let mut app = App::of_server(name);
    let (port, transport) = program.ports[0];
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let begun = Instant::now();
    let mut session = loop {
        match app.within(|| program.connect(address)) {
            Ok(session) => break session,
            Err(error) => {
                assert!(begun.elapsed() < Duration::from_secs(60), "{}; {}", chain(&error), app.log());
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    };
    for round in 0..ROUNDS {
        let asleep = app.doze();
        let hibernated = app.hibernate(&asleep, &NoFaults).result;
        let warm = hibernated.unwrap_or_else(|error| panic!("{name}, round {round}: {}; {}", chain(&error), app.log()));
        assert!(app.processes().is_empty(), "{name}, round {round}");
        app.resume(&warm).unwrap_or_else(|why| panic!("{name}, round {round}: {why}; {}", app.log()));
        assert_eq!(app.phase(), Phase::Awake);
        assert!(app.init_lives());
        let step = app.within(|| session.step());
        step.unwrap_or_else(|error| panic!("{name}, round {round}: {}; {}", chain(&error), app.log()));
        if transport == Transport::Tcp && round % 5 == 0 {
            // A new one, too.
            let other = app.within(|| program.connect(address));
            other.unwrap_or_else(|error| panic!("{name}, round {round}: {}; {}", chain(&error), app.log()));
        }
    }
}
