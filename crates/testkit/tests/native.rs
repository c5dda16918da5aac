//! The C programs do what their sources say, unslept; and those that check themselves do notice a wrong byte.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use torpor_testkit::client::Session;
use torpor_testkit::native;
use torpor_testkit::wait::{eventually, eventually_ok};

/// A free port: taken and given back, so another may take it first; tests of one process do not, as the kernel hands
/// them out in turn.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn at(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

struct Running(Child);

impl Running {
    fn start(name: &str, args: &[String]) -> Self {
        let mut command = Command::new(native::executable(name).unwrap());
        Self(command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

fn soon<T>(what: &str, step: impl FnMut() -> Result<T, torpor_testkit::Error>) -> T {
    eventually_ok(what, Duration::from_secs(20), step).unwrap()
}

/// Changes one byte of the largest writable private mapping of `pid` from outside.
fn damage(pid: u32) {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let range = |line: &str| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        (u64::from_str_radix(from, 16).unwrap(), u64::from_str_radix(to, 16).unwrap())
    };
    let anonymous = maps.lines().filter(|line| line.contains("rw-p 00000000 00:00 0")).map(range);
    let (from, to) = anonymous.max_by_key(|(from, to)| to - from).unwrap();
    let mut memory = fs::OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem")).unwrap();
    let mut byte = [0];
    let place = from + (to - from) / 3;
    memory.seek(SeekFrom::Start(place)).unwrap();
    memory.read_exact(&mut byte).unwrap();
    memory.seek(SeekFrom::Start(place)).unwrap();
    memory.write_all(&[byte[0] ^ 1]).unwrap();
}

#[test]
fn memcheck_checks_and_notices_one_wrong_bit() {
    let port = port();
    let mut running = Running::start("memcheck", &["16".into(), "2".into(), port.to_string(), "0".into()]);
    let mut session = soon("memcheck answers", || native::LineSession::open(at(port)));
    let line = session.ask().unwrap();
    assert!(line.starts_with("ok passes="), "{line}");
    damage(running.0.id());
    assert!(session.step().is_err());
    assert_eq!(running.0.wait().unwrap().code(), Some(3));
    let mut said = String::new();
    running.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("WRONG thread=") && said.contains("kind=anonymous"), "{said}");
}

#[test]
fn sleepers_return_on_time_with_what_they_should() {
    let list = Command::new(native::executable("sleepers").unwrap()).arg("list").output().unwrap();
    let wanted: BTreeSet<String> = String::from_utf8(list.stdout).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(wanted.len(), 15);
    let all = Command::new(native::executable("sleepers").unwrap()).args(["all", "0.5", "2"]).output().unwrap();
    assert!(all.status.success());
    let text = String::from_utf8(all.stdout).unwrap();
    let mut seen = BTreeSet::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let late: i64 = words[1].strip_prefix("late_us=").unwrap().parse().unwrap();
        // How late they are is the machine's affair.
        assert!((-1_000..60_000_000).contains(&late), "{line}");
        seen.insert(format!("{} {} {}", words[0], words[2], words[3]));
    }
    assert_eq!(text.lines().count(), 30);
    assert_eq!(seen, wanted);
}

#[test]
fn a_sleeper_tells_over_tcp_too() {
    let port = port();
    let _running = Running::start("sleepers", &["timerfd".into(), "0.05".into(), "2".into(), port.to_string()]);
    eventually("both lines are there", Duration::from_secs(20), || {
        native::read_all(at(port)).is_ok_and(|text| text.lines().count() == 2)
    })
    .unwrap();
}

#[test]
fn preforked_children_see_their_own_memory() {
    let port = port();
    let _running = Running::start("preforked", &[port.to_string(), "16".into(), "8".into(), "2".into()]);
    soon("preforked answers", || native::read_all(at(port)));
    for _ in 0..40 {
        let line = native::read_all(at(port)).unwrap();
        assert!(line.starts_with("ok child="), "{line}");
    }
}

#[test]
fn the_ignorer_ignores_and_answers() {
    let (ignored, answered) = (port(), port());
    let _running = Running::start("ignorer", &[ignored.to_string(), answered.to_string()]);
    let mut session = soon("the ignorer answers", || native::LineSession::open(at(answered)));
    let mut full = TcpStream::connect(at(ignored)).unwrap();
    full.set_nonblocking(true).unwrap();
    let full_up = full.write_all(&vec![7; 64 << 20]).unwrap_err();
    assert_eq!(full_up.kind(), std::io::ErrorKind::WouldBlock);
    let line = session.ask().unwrap();
    let unread: u64 = line.rsplit("ignored=").next().unwrap().parse().unwrap();
    assert!(unread > 1_000, "{line}");
}

#[test]
fn slowsender_sends_every_byte_both_ways() {
    let (blocking, evented) = (port(), port());
    let bytes = 20 << 20;
    let _running = Running::start("slowsender", &[blocking.to_string(), evented.to_string(), bytes.to_string()]);
    soon("slowsender answers", || native::download(at(blocking), |_| {}));
    for port in [blocking, evented] {
        let mut calls = 0;
        assert_eq!(native::download(at(port), |_| calls += 1).unwrap(), bytes);
        assert!(calls > 100);
    }
}

#[test]
fn registers_are_compared() {
    let port = port();
    let _running = Running::start("registers", &["4".into(), port.to_string()]);
    let mut session = soon("registers answers", || native::LineSession::open(at(port)));
    let answer = session.ask().unwrap();
    assert!(answer.starts_with("ok rounds=2 bytes="), "{answer}");
    session.step().unwrap();
}

#[test]
fn every_thread_of_a_tree_answers_and_its_memory_is_checked() {
    let ask = |socket: &UdpSocket, what: &[u8]| {
        let mut answer = [0; 64];
        let length = socket.send(what).and_then(|_| socket.recv(&mut answer))?;
        Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
    };
    let port = port();
    let running = Running::start("tree", &["3".into(), "2".into(), "3".into(), port.to_string()]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(at(port)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let network = |error| torpor_testkit::Error::network("tree", "ask")(error);
    assert_eq!(soon("tree answers", || ask(&socket, b"p").map_err(network)), "1");
    assert_eq!(ask(&socket, b"a").map_err(network).unwrap(), "6");
    assert_eq!(ask(&socket, b"s").map_err(network).unwrap(), "6");
    damage(running.0.id());
    assert_eq!(ask(&socket, b"s").map_err(network).unwrap(), "wrong memory");
}

#[test]
fn strawman_replaces_as_many_pages_as_it_is_asked_to() {
    let number = port();
    let _running = Running::start("strawman", &["8".to_owned(), number.to_string()]);
    soon("it listens", || native::ask_line(at(number), "touch 4096 1"));
    let ask = |line: &str| native::ask_line(at(number), line).unwrap();
    let pages = |arguments: &str| -> Vec<u64> {
        ask(&format!("pages {arguments}")).split(' ').map(|page| page.parse().unwrap()).collect()
    };
    let set: BTreeSet<u64> = pages("1048576 1").into_iter().collect();
    assert!(set.len() == 256 && set.iter().all(|page| *page < 2048), "{set:?}");
    let neighbours = set.iter().filter(|page| set.contains(&(**page + 1))).count();
    assert!(neighbours < 80, "scattered pages of which one in eight belongs to the set: {neighbours}");
    for (permille, replaced) in [(1, 1), (5, 2), (250, 64), (1000, 256)] {
        let others = |shift: u64| -> BTreeSet<u64> {
            let pages: BTreeSet<u64> = pages(&format!("1048576 1 {permille} {shift}")).into_iter().collect();
            assert_eq!(pages.len(), 256);
            pages.difference(&set).copied().collect()
        };
        assert_eq!((others(0).len(), others(1).len()), (replaced, replaced));
        assert!(others(0).is_disjoint(&others(1)), "another shift, other pages");
    }
    assert_ne!(set, pages("1048576 2").into_iter().collect());
    assert_eq!(ask("touch 1048576 1 500 3"), "ok");
    for line in ["touch 0 1", "touch 8388608 1", "touch 4096 1 1001", "touch", "?"] {
        assert_eq!(ask(line), "what?", "{line}");
    }
}
