//! What the tests of real programs share: putting an app to sleep for sure, its numbers, and a line of account for each test.
#![allow(dead_code, reason = "each test file uses its part")]

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use torpor_testkit::client::Session;
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native::{self, LineSession};
use torpor_testkit::servers::{Program, Servers};
pub(crate) use torpor_testkit::wait::PATIENCE;
use torpor_testkit::wait::eventually_ok;

/// Steps of `torpor-engine` in falling asleep, in order.
pub(crate) const FALLING_ASLEEP: [&str; 11] = [
    "prepared",
    "frozen",
    "stopped",
    "watched",
    "copied",
    "synced",
    "committed",
    "parked",
    "dropped",
    "released",
    "dozing",
];

/// Steps of `torpor-engine`, in order: from dozing to warm.
pub(crate) const HIBERNATING: [&str; 11] = [
    "examined",
    "resident",
    "activated",
    "attached",
    "collected",
    "written",
    "files-parked",
    "named",
    "ending",
    "ended",
    "warm",
];

/// The long version is asked for.
pub(crate) fn all() -> bool {
    std::env::var_os("TORPOR_TEST_ALL").is_some_and(|value| value == "1")
}

/// `short` by default, `long` under `TORPOR_TEST_ALL=1`.
pub(crate) fn rounds(short: u64, long: u64) -> u64 {
    if all() { long } else { short }
}

/// Says something past the harness's capture.
pub(crate) fn say(line: &str) {
    let line = format!("  {line}\n");
    rustix::io::write(rustix::stdio::stderr(), line.as_bytes()).expect("standard error takes a line");
}

/// A real server.
pub(crate) fn program(name: &str) -> Program {
    static SERVERS: OnceLock<Servers> = OnceLock::new();
    SERVERS.get_or_init(|| Servers::open().unwrap_or_else(|error| panic!("the servers: {error}"))).program(name).clone()
}

/// `torpor --json stats`, as far as tests look at it.
#[derive(Clone, Debug)]
pub(crate) struct Stats {
    pub(crate) state: String,
    pub(crate) processes: u64,
    pub(crate) private_bytes: u64,
    pub(crate) shared_bytes: u64,
    pub(crate) image_bytes: Option<u64>,
    pub(crate) sleeps: u64,
    pub(crate) aborted_sleeps: u64,
    pub(crate) wakes: u64,
}

/// The app's numbers. A program answers a moment before its wake is done: that moment is waited for.
pub(crate) fn stats(daemon: &Daemon, app: &str) -> Stats {
    let json = eventually_ok(&format!("{app} is awake or asleep"), PATIENCE, || match daemon.json(&["stats", app]) {
        Ok(json) if json["state"] == "waking" => Err(json.to_string()),
        json => json.map_err(|error| error.to_string()),
    });
    let json = json.unwrap();
    let number = |key: &str| json[key].as_u64().unwrap_or_else(|| panic!("{key} is no number in {json}"));
    Stats {
        state: json["state"].as_str().unwrap_or_default().to_owned(),
        processes: number("processes"),
        private_bytes: number("private_bytes"),
        shared_bytes: number("shared_bytes"),
        image_bytes: json["image_bytes"].as_u64(),
        sleeps: number("sleeps"),
        aborted_sleeps: number("aborted_sleeps"),
        wakes: number("wakes"),
    }
}

/// Puts the app to sleep, trying again where it was at work; gives back how often it had to.
pub(crate) fn doze(daemon: &Daemon, app: &str) -> u32 {
    let mut tries = 0;
    eventually_ok(&format!("{app} sleeps"), PATIENCE, || {
        tries += 1;
        daemon.ok(&["sleep", app])
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", told(daemon, app)));
    tries - 1
}

/// Puts the app to sleep, by options; again where it is just at work, or where a test's short deadline ended first because the machine
/// stood still. Nothing else may be in the way.
pub(crate) fn sleep(daemon: &Daemon, app: &str, options: &[&str]) {
    let command = [&["sleep", app], options].concat();
    eventually_ok(&format!("{app} sleeps"), PATIENCE, || {
        let output = daemon.cli(&command).unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            return Ok(());
        }
        let again = said.contains("aborted") || said.contains("has not ended within");
        assert!(again, "{said}\n{}\n{}", told(daemon, app), daemon.log());
        Err(said)
    })
    .unwrap();
}

/// Puts an app to the level warm; again where it is just at work.
pub(crate) fn warm(daemon: &Daemon, app: &str) {
    sleep(daemon, app, &["--level", "warm"]);
}

/// A daemon with `memcheck` as the app `check`, which sleeps on command only, and a connection to it.
pub(crate) fn memcheck(megabytes: &str) -> (Daemon, SocketAddr, LineSession) {
    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n", &[]).unwrap();
    let memcheck = native::program("memcheck", &[megabytes, "3", "7000", "0"], &[7000]).unwrap();
    let address = daemon.run_program(&memcheck, "check", "").unwrap()[0];
    let session = eventually_ok("memcheck answers", PATIENCE, || LineSession::open(address)).unwrap();
    (daemon, address, session)
}

/// `registers` as the app `check`, which sleeps on command only, and a connection to it.
pub(crate) fn registers(threads: &str) -> (Daemon, LineSession) {
    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n", &[]).unwrap();
    let registers = native::program("registers", &[threads, "7000"], &[7000]).unwrap();
    let address = daemon.run_program(&registers, "check", "").unwrap()[0];
    let session = eventually_ok("registers answers", PATIENCE, || LineSession::open(address)).unwrap();
    (daemon, session)
}

/// Whether nothing answers in the daemon's place.
pub(crate) fn is_dead(daemon: &Daemon) -> bool {
    !daemon.cli(&["ps"]).is_ok_and(|ps| ps.status.success())
}

/// Starts the daemon again, with this fault.
pub(crate) fn restart(daemon: &mut Daemon, fault: Option<&str>) {
    daemon.term().unwrap();
    daemon.set_environment("TORPOR_FAULT", fault);
    daemon.up().unwrap();
}

/// The daemon's keeper; nothing where none answers.
pub(crate) fn keeper(daemon: &Daemon) -> Option<u32> {
    let keeper = torpor_keeper::Client::connect(&daemon.run_dir().join("keeper.sock")).ok()?;
    keeper.ping().ok().map(|info| info.pid)
}

/// Kills a process of the daemon's.
pub(crate) fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// What `explain` and the last events say, for failures.
pub(crate) fn told(daemon: &Daemon, app: &str) -> String {
    let explain = daemon.ok(&["explain", app]).unwrap_or_else(|error| error.to_string());
    let events = daemon.ok(&["events", "-n", "12", "--app", app]).unwrap_or_else(|error| error.to_string());
    let logs = daemon.ok(&["logs", "-n", "20", app]).unwrap_or_else(|error| error.to_string());
    format!("explain: {explain}\nevents: {events}\nits output: {logs}")
}

/// An app's memory.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) stats: Stats,
    /// Resident pages of private areas that one process alone has changed, by the kernel's `smaps`: this has to leave.
    pub(crate) exclusive_bytes: u64,
    /// Resident pages of private areas that forked processes share copy-on-write, once for each that maps them.
    pub(crate) forked_bytes: u64,
}

/// Measures the app's memory.
pub(crate) fn memory(daemon: &Daemon, app: &str) -> Memory {
    let detail = daemon.json(&["inspect", app]).unwrap();
    let initial = detail["status"]["pid"].as_i64().unwrap_or_else(|| panic!("no process in {detail}"));
    // From init, which orphans become children of; it is not the app's own.
    let (mut exclusive_bytes, mut forked_bytes) = (0, 0);
    for pid in descendants(parent(initial)).into_iter().skip(1) {
        let (exclusive, forked) = private_areas(pid);
        exclusive_bytes += exclusive;
        forked_bytes += forked;
    }
    Memory { stats: stats(daemon, app), exclusive_bytes, forked_bytes }
}

fn parent(pid: i64) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    line.and_then(|pid| pid.trim().parse().ok()).unwrap_or_else(|| panic!("no parent in {status}"))
}

/// The process and all its children and theirs.
fn descendants(initial: i64) -> Vec<i64> {
    let mut found = vec![initial];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        next += 1;
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(children.split_ascii_whitespace().filter_map(|child| child.parse::<i64>().ok()));
        }
    }
    found
}

/// Bytes that the process alone has changed, and that it shares copy-on-write. Only of private areas: shared memory may stay.
fn private_areas(pid: i64) -> (u64, u64) {
    // Of a process that has just ended, nothing.
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let mut private = false;
    let (mut exclusive, mut anonymous) = (0, 0);
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("Private_Dirty:"), Some(count)) if private => exclusive += count.parse::<u64>().unwrap(),
            (Some("Anonymous:"), Some(count)) if private => anonymous += count.parse::<u64>().unwrap(),
            (Some(range), Some(access)) if !range.ends_with(':') => private = access.ends_with('p'),
            _ => {}
        }
    }
    (exclusive << 10, anonymous.saturating_sub(exclusive) << 10)
}

/// Most exclusive memory that may stay in each process while dozing: the vDSO page that Torpor itself writes to, and what
/// the kernel keeps at hand of a thread (restartable sequences).
const KEPT_BYTES_PER_PROCESS: u64 = 32 << 10;

/// Checks that the private memory has left. What forked processes share copy-on-write may stay, and nothing else.
pub(crate) fn assert_memory_left(app: &str, before: &Memory, asleep: &Memory) {
    // One may have come or gone before it slept.
    let processes = before.stats.processes.max(asleep.stats.processes);
    let bound = KEPT_BYTES_PER_PROCESS * processes;
    let kept = asleep.exclusive_bytes;
    assert!(kept <= bound, "{app} keeps {kept} bytes, more than {bound}: {before:?}, asleep {asleep:?}");
    // What is shared changes with every process that forks or ends: it is taken from the sleeping app itself.
    let said = asleep.stats.private_bytes;
    assert!(said <= bound + asleep.forked_bytes, "{app}: {said} bytes by the stats: {before:?}, asleep {asleep:?}");
    assert!(said < before.stats.private_bytes, "{app} gave nothing back: {before:?}, asleep {asleep:?}");
}

/// Times of one kind.
#[derive(Debug, Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// Median and longest, in words.
    pub(crate) fn words(&self) -> String {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |n: usize| sorted.get(n).copied().unwrap_or_default().as_secs_f64() * 1e3;
        format!("{:.1} ms median, {:.1} ms longest", at(sorted.len() / 2), at(sorted.len().saturating_sub(1)))
    }
}

/// One checked step of a session, timed.
pub(crate) fn step(daemon: &Daemon, app: &str, session: &mut dyn Session) -> Duration {
    let begin = Instant::now();
    if let Err(error) = session.step() {
        panic!("{app}: {error}\n{}\n{}", told(daemon, app), daemon.log());
    }
    begin.elapsed()
}

/// A new checked connection.
pub(crate) fn connect(daemon: &Daemon, program: &Program, app: &str, address: SocketAddr) -> Box<dyn Session> {
    program.connect(address).unwrap_or_else(|error| panic!("{app}: {error}\n{}\n{}", told(daemon, app), daemon.log()))
}

/// Waits until the app has fallen asleep by itself.
pub(crate) fn wait_asleep(daemon: &Daemon, app: &str) -> Stats {
    let asleep = eventually_ok(&format!("{app} sleeps by itself"), PATIENCE, || {
        let now = stats(daemon, app);
        if now.state == "dozing" { Ok(now) } else { Err(now.state) }
    });
    asleep.unwrap_or_else(|error| panic!("{error}\n{}", told(daemon, app)))
}

/// Numbers that look random and are the same in every run (xorshift).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// 0 or more, less than `bound`.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
