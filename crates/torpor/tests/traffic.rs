//! What wakes and what does not: probes, ignored sources, slow readers, unread data, time-outs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use support::{rounds, say};
use torpor_testkit::client::{Session, http};
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native::{self, LineSession};
use torpor_testkit::servers::Program;
use torpor_testkit::stalls::Stalls;
use torpor_testkit::wait::eventually;

const PATIENCE: Duration = Duration::from_secs(60);

fn start(program: &Program, tables: &str) -> (Daemon, Vec<SocketAddr>) {
    let mut daemon = Daemon::start().unwrap();
    let addresses = daemon.run_program(program, "app", tables).unwrap();
    (daemon, addresses)
}

fn wakes(daemon: &Daemon) -> u64 {
    daemon.json(&["stats", "app"]).unwrap()["wakes"].as_u64().unwrap()
}

/// Puts it to sleep, again and again if traffic that is still on its way aborts that.
fn sleep(daemon: &Daemon) {
    eventually("it falls asleep", PATIENCE, || daemon.cli(&["sleep", "app"]).unwrap().status.success()).unwrap();
    assert_eq!(daemon.state("app").unwrap(), "dozing");
}

#[test]
fn probes_that_only_connect_wake_nothing_and_use_up_no_backlog() {
    let (daemon, addresses) = start(&support::program("lighttpd"), "[idle]\nsleep = false\nwake_on = \"data\"\n");
    eventually("it answers", PATIENCE, || http::get(addresses[0], "/").is_ok()).unwrap();
    sleep(&daemon);
    let before = wakes(&daemon);
    for _ in 0..1000 {
        drop(TcpStream::connect(addresses[0]).unwrap());
    }
    assert_eq!(daemon.state("app").unwrap(), "dozing");
    http::get(addresses[0], "/").unwrap();
    assert_eq!(wakes(&daemon), before + 1, "one request wakes once");
    // Awake, the listener is as the program made it: a connection is accepted without data.
    let mut silent = TcpStream::connect(addresses[0]).unwrap();
    silent.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    assert!(silent.read(&mut [0; 16]).unwrap() > 0);
}

/// Connections that may wait at the app's listener, as the kernel shows it.
fn backlog(daemon: &Daemon) -> u32 {
    let pid = daemon.json(&["inspect", "app"]).unwrap()["status"]["pid"].as_i64().unwrap();
    let arguments = ["-t", &pid.to_string(), "-n", "ss", "-Hltn"];
    let shown = std::process::Command::new("nsenter").args(arguments).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    shown.split_ascii_whitespace().nth(2).and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{shown}"))
}

#[test]
fn probes_do_not_wake_a_warm_app_either_before_and_after_a_power_cut() {
    let (mut daemon, addresses) = start(&support::program("lighttpd"), "[idle]\nsleep = false\nwake_on = \"data\"\n");
    eventually("it answers", PATIENCE, || http::get(addresses[0], "/").is_ok()).unwrap();
    let own = backlog(&daemon);
    for cut in [false, true, false] {
        eventually("it goes warm", PATIENCE, || {
            daemon.cli(&["sleep", "app", "--level", "warm"]).unwrap().status.success()
        })
        .unwrap();
        if cut {
            daemon.power_off().unwrap();
            daemon.up().unwrap();
            // Until it has its listener again and looks at it, a connection may count.
            let adopted = || daemon.log().rsplit("torpor is up").next().unwrap().contains("every app is adopted");
            eventually("it is adopted", PATIENCE, adopted).unwrap();
            daemon.wait_state("app", "warm", PATIENCE).unwrap();
        }
        let before = wakes(&daemon);
        for _ in 0..300 {
            drop(TcpStream::connect(addresses[0]).unwrap());
        }
        assert_eq!(daemon.state("app").unwrap(), "warm", "{}", daemon.log());
        http::get(addresses[0], "/").unwrap();
        assert_eq!(wakes(&daemon), before + 1, "one request wakes once");
        assert_eq!(backlog(&daemon), own, "its listener is as the program made it");
    }
}

#[test]
fn ignored_sources_do_not_wake() {
    // The machine's own connections reach apps from the gateway's address.
    let tables = "[idle]\nsleep = false\nignore = [\"169.254.1.1/32\"]\n";
    let (daemon, addresses) = start(&support::program("bind"), tables);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    eventually("it runs", PATIENCE, || daemon.state("app").unwrap() == "running").unwrap();
    // Once its start is over, nothing else happens to it.
    eventually("it sleeps for a second", PATIENCE, || {
        sleep(&daemon);
        std::thread::sleep(Duration::from_secs(1));
        daemon.state("app").unwrap() == "dozing"
    })
    .unwrap();
    let before = wakes(&daemon);
    for _ in 0..50 {
        for address in &addresses {
            udp.send_to(b"not a query", address).unwrap();
            // One of its ports takes datagrams only.
            drop(TcpStream::connect(address));
        }
    }
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!((daemon.state("app").unwrap().as_str(), wakes(&daemon)), ("dozing", before));
}

#[test]
fn a_slow_reader_gets_every_byte_however_often_it_sleeps() {
    let bytes = rounds(96 << 20, 1 << 30);
    let program = native::program("slowsender", &["7001", "7002", &bytes.to_string()], &[7001, 7002]).unwrap();
    let (daemon, addresses) = start(&program, "[idle]\nafter = \"1s\"\nmin_awake = \"200ms\"\n");
    for (n, address) in addresses.into_iter().enumerate() {
        let before = wakes(&daemon);
        let mut next = bytes / 4;
        let received = native::download(address, |received| {
            if received >= next && received < bytes {
                next += bytes / 4;
                eventually("it falls asleep while its client pauses", PATIENCE, || {
                    daemon.state("app").unwrap() == "dozing"
                })
                .unwrap();
            }
        });
        assert_eq!(received.unwrap(), bytes);
        let woken = wakes(&daemon) - before;
        assert!(woken >= 3, "woken {woken} times");
        say(&format!("{} writes: {} MiB with {woken} sleeps in between", ["blocking", "epoll"][n], bytes >> 20));
    }
}

#[test]
fn an_app_in_the_middle_of_a_send_falls_asleep_at_the_first_command() {
    const BYTES: u64 = 32 << 20;
    let program = native::program("slowsender", &["7001", "7002", &BYTES.to_string()], &[7001, 7002]).unwrap();
    let (daemon, addresses) = start(&program, "[idle]\nsleep = false\n");
    let mut asked = 0;
    // Nobody reads meanwhile. A blocking send that has sent a part returns when the thread is stopped.
    let received = native::download(addresses[0], |received| {
        // The last eighth but one fits into no buffers of both sides; the last one may.
        if received >= (asked + 1) * BYTES / 8 && asked < 6 {
            asked += 1;
            eventually("it waits until its client reads", PATIENCE, || in_write(&daemon)).unwrap();
            let slept = daemon.cli(&["sleep", "app", "--level", "dozing"]).unwrap();
            assert!(slept.status.success(), "time {asked}: {}", String::from_utf8_lossy(&slept.stderr));
        }
    });
    assert_eq!((received.unwrap(), asked), (BYTES, 6));
}

/// A process of the app waits in `write(2)` or `sendto(2)`.
fn in_write(daemon: &Daemon) -> bool {
    let mut pids = vec![daemon.json(&["inspect", "app"]).unwrap()["status"]["pid"].as_i64().unwrap()];
    while let Some(pid) = pids.pop() {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        if ["1 ", "44 "].iter().any(|call| read("syscall").starts_with(call)) {
            return true;
        }
        pids.extend(
            read(&format!("task/{pid}/children")).split_ascii_whitespace().map(|pid| pid.parse::<i64>().unwrap()),
        );
    }
    false
}

#[test]
fn unread_data_neither_keeps_it_awake_nor_wakes_it() {
    let program = native::program("ignorer", &["7003", "7004"], &[7003, 7004]).unwrap();
    let (daemon, addresses) = start(&program, "[idle]\nafter = \"1s\"\nmin_awake = \"200ms\"\n");
    let mut session = None;
    eventually("it answers", PATIENCE, || {
        session = LineSession::open(addresses[1]).ok();
        session.is_some()
    })
    .unwrap();
    let mut session = session.unwrap();
    let mut ignored = TcpStream::connect(addresses[0]).unwrap();
    ignored.set_nonblocking(true).unwrap();
    let filling = std::time::Instant::now();
    // Until both sides' buffers are full for a while.
    let mut full = 0;
    while full < 20 {
        assert!(filling.elapsed() < PATIENCE, "its buffer never fills");
        match ignored.write(&[7; 1 << 16]) {
            Ok(_written) => full = 0,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                full += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
    daemon.wait_state("app", "dozing", PATIENCE).unwrap();
    let before = wakes(&daemon);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!((daemon.state("app").unwrap().as_str(), wakes(&daemon)), ("dozing", before));
    session.step().unwrap();
    assert_eq!(wakes(&daemon), before + 1);
    daemon.wait_state("app", "dozing", PATIENCE).unwrap();
    // A hang-up it does wait for: a reset, since a FIN would wait behind the unread data.
    rustix::net::sockopt::set_socket_linger(&ignored, Some(Duration::ZERO)).unwrap();
    drop(ignored);
    eventually("the hang-up wakes it", PATIENCE, || wakes(&daemon) > before + 1).unwrap();
}

#[test]
fn forked_processes_under_their_memory_limit_wake_within_it() {
    let program = native::program("preforked", &["7005", "16", "64", "4"], &[7005]).unwrap();
    // 64 MiB shared and 16 times 4 MiB of their own, and little besides.
    let tables = "[idle]\nsleep = false\n[limits]\nmemory = \"140M\"\n";
    let (daemon, addresses) = start(&program, tables);
    let ask = || native::read_all(addresses[0]).ok().filter(|answer| answer.starts_with("ok "));
    eventually("it answers", PATIENCE, || ask().is_some()).unwrap();
    let nonce = |answer: &str| answer.split("nonce=").nth(1).unwrap_or_default().trim().to_owned();
    let first = nonce(&ask().unwrap());
    for round in 0..rounds(5, 50) {
        sleep(&daemon);
        let answer = ask().unwrap_or_else(|| panic!("round {round}: {}", daemon.ok(&["events"]).unwrap_or_default()));
        assert_eq!(nonce(&answer), first, "round {round}");
    }
}

/// How late a time-out may end.
const LATE_US: i64 = 50_000;

#[test]
fn time_outs_end_on_time_whatever_the_sleeps_in_between() {
    // One run of three has to be on time but for what the machine itself stood still. What the calls return must be right in
    // each.
    let mut lateness = Vec::new();
    for _ in 0..3 {
        let stalls = Stalls::measure();
        let late = run_of_time_outs();
        let stalled = stalls.total().as_micros() as i64;
        lateness.push((late, stalled));
        if late < LATE_US + 2 * stalled {
            return;
        }
    }
    panic!("late, and the machine stood still, by {lateness:?} µs");
}

/// Puts the sleepers to sleep again and again; gives how late the latest of them was, in microseconds.
fn run_of_time_outs() -> i64 {
    let (seconds, every) = (rounds(24, 90), rounds(4, 10));
    let program = native::program("sleepers", &["all", &seconds.to_string(), "1", "7006"], &[7006]).unwrap();
    let (daemon, addresses) = start(&program, "[idle]\nsleep = false\ntimers_over = \"3s\"\n");
    let begun = std::time::Instant::now();
    let mut sleeps = 0;
    while begun.elapsed() < Duration::from_secs(seconds + 2) {
        std::thread::sleep(Duration::from_secs(1));
        sleeps += u64::from(daemon.cli(&["sleep", "app"]).unwrap().status.success());
        std::thread::sleep(Duration::from_secs(every - 1));
        let _ = daemon.cli(&["wake", "app"]).unwrap();
    }
    let listed = std::process::Command::new(native::executable("sleepers").unwrap()).arg("list").output().unwrap();
    let expected = String::from_utf8(listed.stdout).unwrap();
    let mut text = String::new();
    eventually("all have told", PATIENCE, || {
        text = native::read_all(addresses[0]).unwrap_or_default();
        let logged = daemon.ok(&["logs", "app"]).unwrap();
        text.push_str(&logged);
        expected.lines().all(|line| text.contains(&format!("{} late_us", line.split(' ').next().unwrap_or_default())))
    })
    .unwrap();
    say(&format!("{seconds} s waits through {sleeps} sleeps"));
    assert!(sleeps >= 3, "{sleeps} sleeps\n{}", daemon.log());
    let mut latest = 0;
    for line in expected.lines() {
        let (mode, result) = line.split_once(' ').unwrap();
        let at = text.find(&format!("{mode} late_us=")).unwrap();
        let found = text[at..].lines().next().unwrap().trim();
        assert!(found.ends_with(result), "{found}, not {result}");
        let late: i64 = found.split("late_us=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        say(found);
        assert!(late > -1000, "too early: {found}");
        latest = latest.max(late);
    }
    latest
}
