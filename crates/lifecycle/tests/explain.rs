//! What `torpor explain` says, word for word, along one life.

use std::time::Duration;

use torpor_lifecycle::*;

/// One account, as lines.
fn account(app: &App, now: u64) -> String {
    let Account { why, keeps_awake, sleeps_at, wakes_at, refusals, keeps_dozing, warm_at } = app.explain(Millis(now));
    let mut text = format!("{why}\n");
    for line in keeps_awake {
        text += &format!("  awake: {line}\n");
    }
    for line in refusals {
        text += &format!("  refused: {line}\n");
    }
    for line in keeps_dozing {
        text += &format!("  dozes: {line}\n");
    }
    for (name, time) in [("sleeps", sleeps_at), ("warm", warm_at), ("wakes", wakes_at)] {
        if let Some(Millis(time)) = time {
            text += &format!("  {name} at {time}\n");
        }
    }
    text
}

struct Told {
    app: App,
    text: String,
}

impl Told {
    fn new(policy: Policy) -> Self {
        let mut told = Self { app: App::new(policy, false, Millis(0)), text: String::new() };
        told.tell(0);
        told
    }

    fn tell(&mut self, time: u64) {
        self.text.push_str(&account(&self.app, time));
    }

    /// Events at one time, then the account.
    fn at<const N: usize>(&mut self, time: u64, events: [Event; N]) -> &mut Self {
        for event in events {
            let said = self.app.handle(event, Millis(time));
            assert!(!said.iter().any(|it| matches!(it, Action::Unexpected { .. })), "{said:?}");
        }
        self.tell(time);
        self
    }

    #[track_caller]
    fn expect(&self, expected: &str) {
        assert_eq!(self.text, expected.trim_start_matches('\n'), "got:\n{}", self.text);
    }
}

fn ask(request: Request) -> Event {
    Event::Request(Ticket(1), request)
}

fn seen(packets: u64, cpu_us: u64, connections: u32) -> Event {
    Event::Observed(Observation { packets, cpu_us, connections })
}

#[test]
fn a_day_of_an_app() {
    let mut told = Told::new(Policy { with_connections: false, ..Policy::default() });
    told.at(1_000, [ask(Request::Start)])
        .at(2_000, [Event::Started, seen(0, 0, 0)])
        .at(7_000, [seen(3, 1_000_000, 2)])
        .at(8_000, [ask(Request::Exec), Event::Request(Ticket(2), Request::Exec)])
        .at(9_000, [Event::Pinned(true)])
        .at(10_000, [Event::Pinned(false), Event::ExecEnded, Event::ExecEnded, seen(3, 1_000_000, 0)])
        .at(15_000, [seen(3, 1_000_000, 0)])
        .at(40_000, [seen(3, 1_000_000, 0)])
        .at(
            40_001,
            [Event::CaptureRefused {
                reasons: vec!["pid 12: pages pinned by io_uring at 7f00".into()],
                retry: Retry::Later,
            }],
        )
        .at(51_000, [seen(3, 1_000_000, 0), seen(3, 1_000_000, 0)])
        .at(56_000, [seen(3, 1_000_000, 0)])
        .at(56_001, [Event::CaptureCommitted])
        .at(56_002, [Event::Dozed { next_timer: Some(Millis(146_002)) }])
        .at(100_000, [Event::Packet("packet for tcp 80".into())])
        .at(100_001, [Event::Woken, ask(Request::Sleep { level: Level::Dozing })])
        .at(100_002, [Event::Packet("packet for tcp 80".into())]);
    told.expect(
        "
stopped: not started
starting by request
running; it will sleep in 30 s if nobody uses it
  awake: last use 0 ms ago (start); it is idle after 30 s without
  awake: awake for 0 ms, and for 2 s at least
  awake: its CPU use is not measured yet
  sleeps at 32000
running
  awake: last use 0 ms ago (packets); it is idle after 30 s without
  awake: CPU: 20 % of a core, more than 5 %
  awake: 2 open connections
running
  awake: 2 exec sessions
running
  awake: a pin
  awake: 2 exec sessions
running; it will sleep in 30 s if nobody uses it
  awake: last use 0 ms ago (not watched until then); it is idle after 30 s without
  awake: its CPU use is not measured yet
  sleeps at 40000
running; it will sleep in 25 s if nobody uses it
  awake: last use 5 s ago (not watched until then); it is idle after 30 s without
  sleeps at 40000
falling asleep: idle for 30 s
running; it will sleep in 10 s if nobody uses it
  awake: awake for 0 ms, and for 2 s at least
  awake: it could not be put to sleep, next attempt in 10 s: pid 12: pages pinned by io_uring at 7f00
  awake: its CPU use is not measured yet
  refused: pid 12: pages pinned by io_uring at 7f00
  sleeps at 50001
running; it will sleep in 250 ms if nobody uses it
  awake: its CPU use is not measured yet
  refused: pid 12: pages pinned by io_uring at 7f00
  sleeps at 51250
falling asleep: idle for 46 s
  refused: pid 12: pages pinned by io_uring at 7f00
falling asleep, its image is durable: idle for 46 s
  refused: pid 12: pages pinned by io_uring at 7f00
dozing for 0 ms: idle for 46 s
  warm at 656002
  wakes at 146002
waking: packet for tcp 80
falling asleep: command
staying awake: packet for tcp 80
",
    );
}

#[test]
fn ends_of_an_app() {
    let mut told = Told::new(Policy { warm_after: Some(Duration::from_secs(10_800)), ..Policy::default() });
    told.at(0, [ask(Request::Start), Event::StartFailed("/usr/sbin/httpd: no such file".into())])
        .at(1_000, [ask(Request::Start), Event::Started])
        .at(
            2_000,
            [
                ask(Request::Sleep { level: Level::Dozing }),
                Event::CaptureCommitted,
                Event::Packet("packet for tcp 80".into()),
            ],
        )
        .at(3_000, [Event::Dozed { next_timer: None }])
        .at(3_001, [Event::WakeFailed(WakeFailure::Passing("out of memory".into()))])
        .at(3_101, [Event::TimerFired])
        .at(3_102, [Event::WakeFailed(WakeFailure::Damaged("page 7: wrong checksum".into()))])
        .at(3_103, [Event::Exited(Exit::Signal(9))])
        .at(3_353, [Event::TimerFired])
        .at(4_000, [Event::Started, ask(Request::Restart { grace: Duration::from_secs(10) })])
        .at(14_000, [Event::TimerFired])
        .at(14_001, [Event::Exited(Exit::Signal(9))])
        .at(15_000, [Event::Started, Event::Exited(Exit::MemoryLimit(64 << 20))])
        .at(16_000, [Event::TimerFired, Event::Started, Event::Exited(Exit::Status(0))]);
    let dozed = Event::Dozed { next_timer: None };
    told.at(
        17_000,
        [
            ask(Request::Start),
            Event::Started,
            ask(Request::Sleep { level: Level::Dozing }),
            Event::CaptureCommitted,
            dozed,
        ],
    );
    told.tell(7_217_000);
    told.at(7_217_000, [ask(Request::Stop { grace: Duration::from_secs(10) })])
        .at(7_217_001, [Event::Woken])
        .at(7_217_002, [Event::Exited(Exit::Status(0))]);
    told.expect(
        "
stopped: not started
stopped: could not be started: /usr/sbin/httpd: no such file
running; it will sleep in 30 s if nobody uses it
  awake: last use 0 ms ago (start); it is idle after 30 s without
  awake: awake for 0 ms, and for 2 s at least
  awake: its CPU use is not measured yet
  sleeps at 31000
falling asleep (command), and will wake at once: packet for tcp 80
waking: packet for tcp 80
dozing: waking it (packet for tcp 80) failed, next attempt in 100 ms: out of memory
  dozes: it is to be awake (packet for tcp 80), and waking it is tried again
  wakes at 3101
waking: packet for tcp 80
its memory is lost, its image cannot be used: page 7: wrong checksum
restarting: its memory is lost: page 7: wrong checksum; its restart policy starts it again in 250 ms
starting again by its restart policy: its memory is lost: page 7: wrong checksum
stopping; it is killed in 10 s, and starts again after that
stopping: it was killed, and its processes have not exited yet
starting by request
restarting: killed by the memory limit (64 MiB); its restart policy starts it again in 250 ms
stopped: exited with status 0; its restart policy leaves it so
dozing for 0 ms: command
  warm at 10817000
dozing for 2 h: command
  warm at 10817000
waking: stop
stopping; it is killed in 10 s
stopped: by request
",
    );
}

#[test]
fn a_program_that_cannot_be_run_ends_with_a_status_and_another_failure_does_not() {
    let mut told = Told::new(Policy::default());
    told.at(0, [ask(Request::Start), Event::StartFailed("no space".into())]);
    assert_eq!(told.app.last_exit(), None);
    let reason: Text = "program `httpd` not found".into();
    let failure = StartFailure { reason: reason.clone(), status: Some(127) };
    told.at(5, [ask(Request::Start), Event::StartFailed(failure)]);
    let (exit, at) = told.app.last_exit().unwrap();
    assert_eq!((exit, *at), (&Exit::NotRun(127, reason), Millis(5)));
    assert_eq!(exit.to_string(), "program `httpd` not found (status 127)");
}

#[test]
fn down_to_warm_and_back() {
    let mut told = Told::new(Policy::default());
    let dozed = Event::Dozed { next_timer: None };
    let refused =
        |retry| Event::HibernateRefused { reasons: vec!["pid 12: a pipe of another app".into()], retry, dozes: true };
    let warm = || ask(Request::Sleep { level: Level::Warm });
    told.text.clear();
    let doze = ask(Request::Sleep { level: Level::Dozing });
    told.at(1_000, [ask(Request::Start), Event::Started, doze, Event::CaptureCommitted, dozed])
        .at(401_000, [])
        .at(601_000, [Event::TimerFired])
        .at(601_001, [refused(Retry::Later)])
        .at(611_001, [Event::TimerFired, refused(Retry::Pointless)])
        .at(700_000, [warm()])
        .at(700_001, [Event::HibernateCommitted])
        .at(700_002, [Event::Packet("packet for tcp 80".into())])
        .at(
            700_003,
            [Event::Hibernated { next_timer: None }, Event::WakeFailed(WakeFailure::Passing("no memory".into()))],
        )
        .at(700_103, [Event::TimerFired, Event::Woken, warm(), Event::CaptureCommitted])
        .at(700_200, [Event::Dozed { next_timer: None }, Event::HibernateCommitted])
        .at(700_300, [Event::Hibernated { next_timer: Some(Millis(999_000)) }])
        .at(900_300, [])
        .at(900_400, [ask(Request::Wake), Event::Woken, warm(), Event::CaptureCommitted])
        .at(900_500, [Event::Dozed { next_timer: None }, Event::Packet("packet for tcp 80".into())]);
    told.expect(
        "
dozing for 0 ms: command
  warm at 601000
dozing for 6 min 40 s: command
  warm at 601000
going warm: dozed for 10 min
dozing for 10 min: command
  dozes: it could not go warm, next attempt in 10 s at the earliest: pid 12: a pipe of another app
  warm at 611001
dozing for 10 min 10 s: command
  dozes: it cannot go warm until the app is restarted (`torpor restart`): pid 12: a pipe of another app
going warm: command
going warm, its image is durable: command
going warm (command), and will wake at once: packet for tcp 80
warm: waking it (packet for tcp 80) failed, next attempt in 100 ms: no memory
  wakes at 700103
falling asleep, its image is durable: command
going warm, its image is durable: command
warm for 0 ms (command), asleep for 100 ms: command
  wakes at 999000
warm for 3 min 20 s (command), asleep for 3 min 20 s: command
  wakes at 999000
falling asleep, its image is durable: command
staying dozing: going warm was aborted: packet for tcp 80
",
    );
}

#[test]
fn why_it_does_not_go_warm_and_what_was_found() {
    let asleep = |policy| {
        let mut told = Told::new(policy);
        told.text.clear();
        told.at(0, [Event::Adopted(Found::Dozing { next_timer: None })]);
        told.text
    };
    let text = asleep(Policy { warm_after: None, ..Policy::default() });
    let text = text + &asleep(Policy { sleep: false, ..Policy::default() });
    let mut told = Told::new(Policy::default());
    told.text = text;
    told.at(5, [Event::Adopted(Found::Stored { next_timer: None })]).at(60_005, []);
    told.expect(
        "
dozing for 0 ms: found so when the worker started
  dozes: its policy, `warm_after`: it goes warm only on command or when memory is short
dozing for 0 ms: found so when the worker started
  dozes: its idle policy: it goes warm only on command or when memory is short
warm for 0 ms: found so when the worker started
warm for 1 min: found so when the worker started
",
    );
}
