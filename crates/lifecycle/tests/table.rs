//! Every phase meets every event, the refused ones too.
//!
//! Adding a phase or an event does not compile until [`column`] or [`row`] knows it, and then fails until the table
//! says what is to happen. A cell reads: the phase that follows (`=` the same), what the owner has to do, in order
//! (`s`pawn, `c`apture, `a`bort, dee`p`en, a`b`ort that, `w`ake, `t`erminate, `k`ill, `d`iscard image, set it aside `q`, `o`bserve), then
//! `+` answered, `-` refused, `~` waits; `!` reported as impossible.
use std::time::Duration;

use torpor_lifecycle::*;

const COLUMNS: usize = 14;
const ROWS: usize = 33;

#[rustfmt::skip]
const TABLE: [(&str, [&str; COLUMNS]); ROWS] = [
    // event              Stopped     Starting Running     Capturing   Aborting Dropping  Dozing      Waking    Stopping Backoff     Hibernating   DAborting DCommitted Warm
    ("start",              ["Star s ~", "= ~",   "= +",      "Abrt a ~", "= ~",   "= ~",    "Wake w ~", "= ~",    "= ~",   "Star s ~", "DAbt b ~", "= ~",    "= ~",     "Wake w ~"]),
    ("wake",               ["= -",      "= ~",   "= +",      "Abrt a ~", "= ~",   "= ~",    "Wake w ~", "= ~",    "= -",   "= -",      "DAbt b ~", "= ~",    "= ~",     "Wake w ~"]),
    ("sleep",              ["= -",      "= ~",   "Capt c ~", "= ~",      "= -",   "= ~",    "= +",      "= ~",    "= -",   "= -",      "= ~",      "= -",    "= ~",     "= +"]),
    ("exec",               ["= -",      "= ~",   "= +",      "Abrt a ~", "= ~",   "= ~",    "Wake w ~", "= ~",    "= -",   "= -",      "DAbt b ~", "= ~",    "= ~",     "Wake w ~"]),
    ("stop",               ["= +",      "= ~",   "End t ~",  "Abrt a ~", "= ~",   "= ~",    "Wake w ~", "= ~",    "= ~",   "Stop +",   "DAbt b ~", "= ~",    "= ~",     "Wake w ~"]),
    ("restart",            ["Star s ~", "= ~",   "End t ~",  "Abrt a ~", "= ~",   "= ~",    "Wake w ~", "= ~",    "= ~",   "Star s ~", "DAbt b ~", "= ~",    "= ~",     "Wake w ~"]),
    ("pin",                ["=",        "=",     "=",        "Abrt a",   "=",     "=",      "Wake w",   "=",      "=",     "=",        "DAbt b",   "=",      "=",       "Wake w"]),
    ("unpin",              ["=",        "=",     "=",        "=",        "=",     "=",      "=",        "=",      "=",     "=",        "=",        "=",      "=",       "="]),
    ("exec-ended",         ["= !",      "= !",   "= !",      "= !",      "= !",   "= !",    "= !",      "= !",    "= !",   "= !",      "= !",      "= !",    "= !",     "= !"]),
    ("packet",             ["=",        "=",     "=",        "Abrt a",   "=",     "=",      "Wake w",   "=",      "=",     "=",        "DAbt b",   "=",      "=",       "Wake w"]),
    ("timer",              ["=",        "=",     "= o",      "=",        "=",     "=",      "=",        "=",      "= k",   "Star s",   "=",        "=",      "=",       "="]),
    ("observed",           ["=",        "=",     "=",        "=",        "=",     "=",      "=",        "=",      "=",     "=",        "=",        "=",      "=",       "="]),
    ("started",            ["= !",      "Run o", "= !",      "= !",      "= !",   "= !",    "= !",      "= !",    "= !",   "= !",      "= !",      "= !",    "= !",     "= !"]),
    ("start-failed",       ["= !",      "Stop",  "= !",      "= !",      "= !",   "= !",    "= !",      "= !",    "= !",   "= !",      "= !",      "= !",    "= !",     "= !"]),
    ("committed",          ["= !",      "= !",   "= !",      "Drop",     "Drop",  "= !",    "= !",      "= !",    "= !",   "= !",      "= !",      "= !",    "= !",     "= !"]),
    ("dozed",              ["= !",      "= !",   "= !",      "= !",      "= !",   "Doze",   "= !",      "= !",    "= !",   "= !",      "= !",      "= !",    "= !",     "= !"]),
    ("aborted",            ["= !",      "= !",   "= !",      "Run o",    "Run o", "= !",    "= !",      "= !",    "= !",   "= !",      "= !",      "= !",    "= !",     "= !"]),
    ("refused",            ["= !",      "= !",   "= !",      "Run o",    "Run o", "= !",    "= !",      "= !",    "= !",   "= !",      "= !",      "= !",    "= !",     "= !"]),
    ("drop-failed",        ["= !",      "= !",   "= !",      "= !",      "= !",   "Wake w", "= !",      "= !",    "= !",   "= !",      "= !",      "= !",    "= !",     "= !"]),
    ("woken",              ["= !",      "= !",   "= !",      "= !",      "= !",   "= !",    "= !",      "Run do", "= !",   "= !",      "= !",      "= !",    "= !",     "= !"]),
    ("wake-failed",        ["= !",      "= !",   "= !",      "= !",      "= !",   "= !",    "= !",      "Doze",   "= !",   "= !",      "= !",      "= !",    "= !",     "= !"]),
    ("damaged",            ["= !",      "= !",   "= !",      "= !",      "= !",   "= !",    "= !",      "End qk", "= !",   "= !",      "= !",      "= !",    "= !",     "= !"]),
    ("exited",             ["= !",      "=",     "Back",     "Abrt a",   "=",     "=",      "Back d",   "=",      "Stop",  "= !",      "DAbt b",   "=",      "=",       "Back d"]),
    ("adopted",            ["Run do",   "= !",   "= !",      "= !",      "= !",   "= !",    "= !",      "= !",    "= !",   "= !",      "= !",      "= !",    "= !",     "= !"]),
    ("sleep-warm",         ["= -",      "= ~",   "Capt c ~", "= ~",      "= -",   "= ~",    "Deep p ~", "= ~",    "= -",   "= -",      "= ~",      "= -",    "= ~",     "= +"]),
    ("hibernate",          ["=",        "=",     "=",        "=",        "=",     "=",      "Deep p",   "=",      "=",     "=",        "=",        "=",      "=",       "="]),
    ("hibernate-committed", ["= !",      "= !",   "= !",      "= !",      "= !",   "= !",    "= !",      "= !",    "= !",   "= !",      "DCom",     "DCom",   "= !",     "= !"]),
    ("hibernated",         ["= !",      "= !",   "= !",      "= !",      "= !",   "= !",    "= !",      "= !",    "= !",   "= !",      "= !",      "= !",    "Warm",    "= !"]),
    ("hibernate-aborted",  ["= !",      "= !",   "= !",      "= !",      "= !",   "= !",    "= !",      "= !",    "= !",   "= !",      "Run do",   "Run do", "= !",     "= !"]),
    ("stays-dozing",       ["= !",      "= !",   "= !",      "= !",      "= !",   "= !",    "= !",      "= !",    "= !",   "= !",      "Doze",     "Wake w", "= !",     "= !"]),
    ("hibernate-refused",  ["= !",      "= !",   "= !",      "= !",      "= !",   "= !",    "= !",      "= !",    "= !",   "= !",      "Run do",   "Run do", "= !",     "= !"]),
    ("hibernate-failed",   ["= !",      "= !",   "= !",      "= !",      "= !",   "= !",    "= !",      "= !",    "= !",   "= !",      "Wake w",   "Wake w", "Wake w",  "= !"]),
    ("wake-refused",       ["= !",      "= !",   "= !",      "= !",      "= !",   "= !",    "= !",      "Doze",   "= !",   "= !",      "= !",      "= !",    "= !",     "= !"]),
];

/// Column of a phase, and its short name.
fn column(phase: &Phase) -> (usize, &'static str) {
    match phase {
        Phase::Stopped { .. } => (0, "Stop"),
        Phase::Starting { .. } => (1, "Star"),
        Phase::Running(_) => (2, "Run"),
        Phase::Capturing { .. } => (3, "Capt"),
        Phase::Aborting { .. } => (4, "Abrt"),
        Phase::Dropping { .. } => (5, "Drop"),
        Phase::Dozing(_) => (6, "Doze"),
        Phase::Waking { .. } => (7, "Wake"),
        Phase::Stopping { .. } => (8, "End"),
        Phase::Backoff { .. } => (9, "Back"),
        Phase::Hibernating { stage: HibernateStage::Abortable, .. } => (10, "Deep"),
        Phase::Hibernating { stage: HibernateStage::Aborting(_), .. } => (11, "DAbt"),
        Phase::Hibernating { stage: HibernateStage::Committed { .. }, .. } => (12, "DCom"),
        Phase::Warm(_) => (13, "Warm"),
    }
}

/// Row of an event.
fn row(event: &Event) -> usize {
    match event {
        Event::Request(_, Request::Start) => 0,
        Event::Request(_, Request::Wake) => 1,
        Event::Request(_, Request::Sleep { level: Level::Dozing }) => 2,
        Event::Request(_, Request::Exec) => 3,
        Event::Request(_, Request::Stop { .. }) => 4,
        Event::Request(_, Request::Restart { .. }) => 5,
        Event::Pinned(true) => 6,
        Event::Pinned(false) => 7,
        Event::ExecEnded => 8,
        Event::Packet(_) => 9,
        Event::TimerFired => 10,
        Event::Observed(_) => 11,
        Event::Started => 12,
        Event::StartFailed(_) => 13,
        Event::CaptureCommitted => 14,
        Event::Dozed { .. } => 15,
        Event::CaptureAborted(_) => 16,
        Event::CaptureRefused { .. } => 17,
        Event::DropFailed(_) => 18,
        Event::Woken => 19,
        Event::WakeFailed(WakeFailure::Passing(_)) => 20,
        Event::WakeFailed(WakeFailure::Damaged(_)) => 21,
        Event::Exited(_) => 22,
        Event::Adopted(_) => 23,
        Event::Request(_, Request::Sleep { level: Level::Warm }) => 24,
        Event::Hibernate(_) => 25,
        Event::HibernateCommitted => 26,
        Event::Hibernated { .. } => 27,
        Event::HibernateAborted(_) => 28,
        Event::HibernateRefused { dozes: true, .. } => 29,
        Event::HibernateRefused { dozes: false, .. } => 30,
        Event::HibernateFailed(_) => 31,
        Event::WakeFailed(WakeFailure::Refused(_)) => 32,
    }
}

fn grace() -> Duration {
    Duration::from_secs(10)
}

/// One of each row.
fn events() -> Vec<Event> {
    let ask = |request| Event::Request(Ticket(99), request);
    vec![
        ask(Request::Start),
        ask(Request::Wake),
        ask(Request::Sleep { level: Level::Dozing }),
        ask(Request::Exec),
        ask(Request::Stop { grace: grace() }),
        ask(Request::Restart { grace: grace() }),
        Event::Pinned(true),
        Event::Pinned(false),
        Event::ExecEnded,
        Event::Packet("packet for tcp 80".into()),
        Event::TimerFired,
        Event::Observed(Observation { packets: 1, cpu_us: 1, connections: 1 }),
        Event::Started,
        Event::StartFailed("no such file".into()),
        Event::CaptureCommitted,
        Event::Dozed { next_timer: None },
        Event::CaptureAborted(WakeCause::Packet("packet for tcp 80".into())),
        Event::CaptureRefused { reasons: vec!["pinned pages".into()], retry: Retry::Later },
        Event::DropFailed("ptrace".into()),
        Event::Woken,
        Event::WakeFailed(WakeFailure::Passing("no memory".into())),
        Event::WakeFailed(WakeFailure::Damaged("checksum".into())),
        Event::Exited(Exit::Status(1)),
        Event::Adopted(Found::Running),
        ask(Request::Sleep { level: Level::Warm }),
        Event::Hibernate(SleepCause::Memory),
        Event::HibernateCommitted,
        Event::Hibernated { next_timer: None },
        Event::HibernateAborted(WakeCause::Packet("packet for tcp 80".into())),
        Event::HibernateRefused { reasons: vec!["io_uring".into()], retry: Retry::Later, dozes: true },
        Event::HibernateRefused { reasons: vec!["disk full".into()], retry: Retry::Later, dozes: false },
        Event::HibernateFailed("kill".into()),
        Event::WakeFailed(WakeFailure::Refused("it has been written to".into())),
    ]
}

/// One app in each phase, in the order of the columns, each led there by events.
fn apps() -> Vec<App> {
    let ask = |n, request| Event::Request(Ticket(n), request);
    let start = [ask(1, Request::Start), Event::Started];
    let sleep = ask(2, Request::Sleep { level: Level::Dozing });
    let deep = |then: &[Event]| {
        let doze = [sleep.clone(), Event::CaptureCommitted, Event::Dozed { next_timer: None }];
        [&start[..], &doze, &[Event::Hibernate(SleepCause::Memory)], then].concat()
    };
    let paths: [Vec<Event>; COLUMNS] = [
        vec![],
        vec![start[0].clone()],
        start.to_vec(),
        [&start[..], std::slice::from_ref(&sleep)].concat(),
        [&start[..], &[sleep.clone(), Event::Packet("packet for tcp 80".into())]].concat(),
        [&start[..], &[sleep.clone(), Event::CaptureCommitted]].concat(),
        [&start[..], &[sleep.clone(), Event::CaptureCommitted, Event::Dozed { next_timer: None }]].concat(),
        [
            &start[..],
            &[sleep.clone(), Event::CaptureCommitted, Event::Dozed { next_timer: None }, ask(3, Request::Wake)],
        ]
        .concat(),
        [&start[..], &[ask(4, Request::Stop { grace: grace() })]].concat(),
        [&start[..], &[Event::Exited(Exit::Status(1))]].concat(),
        deep(&[]),
        deep(&[Event::Packet("packet for tcp 80".into())]),
        deep(&[Event::HibernateCommitted]),
        deep(&[Event::HibernateCommitted, Event::Hibernated { next_timer: None }]),
    ];
    let lead = |path: &Vec<Event>| {
        let mut app = App::new(Policy::default(), false, Millis(1_000));
        for event in path {
            app.handle(event.clone(), Millis(1_000));
        }
        app
    };
    paths.iter().map(lead).collect()
}

/// What happened, as a cell.
fn cell(before: &Phase, after: &Phase, event: &Event, actions: &[Action]) -> String {
    let mut cell = if column(before) == column(after) { "=" } else { column(after).1 }.to_owned();
    let letters: String = actions
        .iter()
        .filter_map(|action| match action {
            Action::Spawn => Some('s'),
            Action::BeginCapture { .. } => Some('c'),
            Action::AbortCapture => Some('a'),
            Action::BeginDeepen { .. } => Some('p'),
            Action::AbortDeepen => Some('b'),
            Action::BeginWake { .. } => Some('w'),
            Action::Terminate => Some('t'),
            Action::Kill => Some('k'),
            Action::DiscardImage => Some('d'),
            Action::SetImageAside => Some('q'),
            Action::Observe => Some('o'),
            Action::SetTimer(_) | Action::ClearTimer | Action::Reply(..) | Action::Emit(_) => None,
            Action::Unexpected { .. } => Some('!'),
        })
        .collect();
    let reply = actions.iter().find_map(|action| match action {
        Action::Reply(Ticket(99), answer) => Some(if answer.is_ok() { "+" } else { "-" }),
        _ => None,
    });
    let reply = if matches!(event, Event::Request(..)) { reply.unwrap_or("~") } else { "" };
    for part in [letters.as_str(), reply] {
        if !part.is_empty() {
            cell.push(' ');
            cell.push_str(part);
        }
    }
    cell
}

#[test]
fn every_phase_meets_every_event() {
    let (apps, events) = (apps(), events());
    assert_eq!(apps.iter().map(|app| column(app.phase()).0).collect::<Vec<_>>(), (0..COLUMNS).collect::<Vec<_>>());
    assert_eq!(events.iter().map(row).collect::<Vec<_>>(), (0..ROWS).collect::<Vec<_>>());
    let mut wrong = Vec::new();
    for (event, (name, expected)) in events.iter().zip(&TABLE) {
        let got: Vec<String> = apps
            .iter()
            .map(|app| {
                let mut app = app.clone();
                let before = app.phase().clone();
                // Late enough for every timer to be due.
                let actions = app.handle(event.clone(), Millis(100_000));
                cell(&before, app.phase(), event, &actions)
            })
            .collect();
        if got != *expected {
            wrong.push(format!("(\"{name}\", {got:?})\n  not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// An event that is reported as impossible changes nothing.
#[test]
fn the_impossible_changes_nothing() {
    for app in apps() {
        for event in events() {
            let mut after = app.clone();
            let actions = after.handle(event.clone(), Millis(1_000));
            if actions.iter().any(|action| matches!(action, Action::Unexpected { .. })) {
                assert_eq!(actions.len(), 1, "{event:?} in {:?}", app.phase());
                assert_eq!(format!("{after:?}"), format!("{app:?}"));
            }
        }
    }
}
