//! Programs that wake before all of their memory is back, and change it meanwhile.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use common::dozing::{App, Pagers};
use torpor_engine::{
    Asleep, Expected, Journal, LazyServed, NoFaults, ParkedByWorker, Phase, RecoverError, Recovered, Sample,
    ServeError, Served, Touched, recover,
};
use torpor_testkit::native::executable;
use torpor_testkit::programs::python;

/// A program that changes its memory in every way when it is asked.
fn changer(megabytes: &str) -> App {
    let mut command = Command::new(executable("changer").unwrap());
    command.arg(megabytes);
    App::start(&command)
}

/// Asks by a new connection; the answer comes when it has woken.
fn ask(port: u16, line: String) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer.trim().split(" nonce=").next().unwrap_or_default().to_owned()
    })
}

/// It sleeps, and is asked.
fn asleep_and_asked(app: &mut App, line: &str) -> (Asleep, JoinHandle<String>) {
    let asleep = app.sleep(&NoFaults).unwrap();
    let answer = ask(app.port, line.to_owned());
    rustix::event::poll(&mut [rustix::event::PollFd::new(&asleep.watch, rustix::event::PollFlags::IN)], None).unwrap();
    (asleep, answer)
}

/// Its memory is complete: nothing is kept any more.
fn complete(app: &App, asleep: Asleep, pagers: &Pagers) {
    app.journal.record(Phase::Awake).unwrap();
    pagers.forget();
    asleep.image.remove().unwrap();
    drop(asleep);
}

/// What a worker does that comes after one that was killed.
fn recovered(app: &App, asleep: &Asleep, pagers: &Pagers) -> Result<Recovered, RecoverError> {
    let found = pagers.found(asleep.contexts.as_ref());
    recover(&app.target(&NoFaults), app.journal.phase(), asleep.image.store(), found, pagers)
}

#[test]
fn memory_is_changed_while_pages_are_missing() {
    let mut app = changer("48");
    let pagers = Pagers::default();
    let mut all = Served::default();
    for round in 0..30 {
        let line = format!("{round}\n");
        let (asleep, answer) = asleep_and_asked(&mut app, &line);
        app.wake(&asleep, Some(&pagers));
        assert!(matches!(app.journal.phase(), Phase::Lazy { .. }));
        let served = pagers.ended().unwrap().counts;
        (all.faults, all.zero_faults) = (all.faults + served.faults, all.zero_faults + served.zero_faults);
        (all.filled_pages, all.forks) = (all.filled_pages + served.filled_pages, all.forks + served.forks);
        complete(&app, asleep, &pagers);
        assert_eq!(answer.join().unwrap(), format!("ok {round}"));
    }
    assert!(all.faults > 0 && all.zero_faults > 0 && all.filled_pages > 0 && all.forks > 0, "{all:?}");
    // And with all of it at once again.
    let (asleep, answer) = asleep_and_asked(&mut app, "last\n");
    app.wake(&asleep, None);
    assert_eq!(answer.join().unwrap(), "ok last");
}

#[test]
fn a_new_pager_goes_on_where_one_was_killed() {
    let mut app = changer("48");
    let pagers = Pagers::default();
    for round in 1..25 {
        let line = format!("{round}\n");
        let (asleep, answer) = asleep_and_asked(&mut app, &line);
        pagers.stop_after(round * 7);
        app.wake(&asleep, Some(&pagers));
        pagers.ended().unwrap();
        for stop_after in [round * 11, round, 0] {
            pagers.stop_after(stop_after);
            assert!(matches!(recovered(&app, &asleep, &pagers).unwrap(), Recovered::Lazy));
            pagers.ended().unwrap();
        }
        complete(&app, asleep, &pagers);
        assert_eq!(answer.join().unwrap(), format!("ok {round}"));
    }
}

#[test]
fn every_byte_comes_back_to_an_interpreter() {
    let mut app = App::start(&python("memory_server.py"));
    let pagers = Pagers::default();
    for round in 1..10 {
        let (asleep, answer) = asleep_and_asked(&mut app, "x");
        app.wake(&asleep, Some(&pagers));
        pagers.ended().unwrap();
        complete(&app, asleep, &pagers);
        assert_eq!(answer.join().unwrap(), format!("{round} ok"));
    }
}

#[test]
fn what_was_touched_is_there_at_the_next_wake() {
    let mut app = App::start(&python("memory_server.py"));
    let pagers = Pagers::default();
    let wake = |app: &mut App, round: u32| -> LazyServed {
        let (asleep, answer) = asleep_and_asked(app, "x");
        app.wake(&asleep, Some(&pagers));
        let served = pagers.ended().unwrap();
        complete(app, asleep, &pagers);
        assert_eq!(answer.join().unwrap(), format!("{round} ok"));
        served
    };
    let first = wake(&mut app, 1);
    assert!(first.counts.faults > 0 && first.counts.staged_faults == 0);
    let range = |one: &Touched| (one.pid, one.page..one.page + 4096);
    app.expected = vec![Expected { cause: String::new(), ranges: first.touched.iter().map(range).collect() }];
    let is_expected = |app: &App, one: &Touched| {
        app.expected.iter().any(|part| part.ranges.iter().any(|(_, range)| range.contains(&one.page)))
    };
    let second = wake(&mut app, 2);
    assert!(!second.touched.iter().any(|one| is_expected(&app, one)), "{second:?}");
    // A sampled wake shows which of these pages are needed.
    app.sample = Some(Sample::WHOLE);
    let third = wake(&mut app, 3);
    assert!(third.is_sampled && third.counts.staged_faults > 1, "{third:?}");
    assert!(third.touched.iter().all(|one| one.staged == is_expected(&app, one)));
    // One slice of two: what it does not stage is there before the program runs.
    app.sample = Some(Sample { slice: 0, slices: 2 });
    let half = wake(&mut app, 4);
    let is_staged = |one: &Touched| half.staged.iter().any(|(pid, range)| *pid == one.pid && range.contains(&one.page));
    assert!(half.counts.staged_faults > 0 && half.counts.staged_faults < third.counts.staged_faults, "{half:?}");
    assert!(half.touched.iter().all(|one| one.staged == is_staged(one) && one.staged == is_expected(&app, one)));
    app.sample = Some(Sample::WHOLE);
    // Another cause has a part of its own, which this wake does not need.
    app.expected = vec![Expected::default(), Expected { cause: "another".into(), ..app.expected.remove(0) }];
    let fifth = wake(&mut app, 5);
    assert!(fifth.is_sampled && fifth.counts.staged_faults == 0, "{fifth:?}");
}

#[test]
fn what_is_small_is_in_place_before_it_runs() {
    let mut app = changer("1");
    let pagers = Pagers::default();
    let (asleep, answer) = asleep_and_asked(&mut app, "1\n");
    app.wake(&asleep, Some(&pagers));
    assert!(pagers.is_idle());
    assert_eq!((app.journal.phase(), answer.join().unwrap()), (Phase::Awake, "ok 1".to_owned()));
}

#[test]
fn damage_is_told_and_nobody_sees_it() {
    let mut app = changer("48");
    let pagers = Pagers::default();
    let (asleep, answer) = asleep_and_asked(&mut app, "1\n");
    let mut bytes = std::fs::read(asleep.image.path()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(asleep.image.path(), bytes).unwrap();
    app.wake(&asleep, Some(&pagers));
    assert!(matches!(pagers.ended(), Err(ServeError::Damaged { .. })));
    assert!(!answer.is_finished());
    drop(app);
    drop(answer);
}

#[test]
fn without_what_was_parked_it_is_lost() {
    let mut app = changer("48");
    let pagers = Pagers::default();
    let (asleep, _answer) = asleep_and_asked(&mut app, "1\n");
    pagers.stop_after(1);
    app.wake(&asleep, Some(&pagers));
    pagers.ended().unwrap();
    let lost =
        recover(&app.target(&NoFaults), app.journal.phase(), asleep.image.store(), ParkedByWorker::default(), &pagers);
    assert!(matches!(lost, Err(RecoverError::Lazy(_))));
    // Before its contexts: it would read zeros.
    drop(app);
}
