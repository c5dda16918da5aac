//! The rules one by one: idleness, refusals, retries, orders to end, restarts, take-overs.

use std::time::Duration;

use torpor_lifecycle::*;

mod life;
mod warm;

use life::*;

#[test]
fn sleeps_exactly_when_it_becomes_idle() {
    let mut life = Life::running(Policy::default());
    assert!(life.said(&Action::Observe), "the first look is the baseline");
    assert_eq!(life.live(u64::MAX, quiet), Some(START + 30_000));
    assert_eq!(life.captures(), Some(SleepCause::Idle(Duration::from_secs(30))));
}

#[test]
fn looks_seldom() {
    let mut life = Life::running(Policy::default());
    let mut looks = 0;
    while life.captures().is_none() {
        let time = life.timer.unwrap();
        life.at(time, Event::TimerFired);
        looks += 1;
        life.observe(time, 0, 0, 0);
    }
    assert_eq!(looks, 6, "every 5 s in 30 s");
}

#[test]
fn packets_put_sleep_off() {
    let mut life = Life::running(Policy::default());
    // The last of many packets is seen by the look at 11 s.
    let slept = life.live(u64::MAX, |time| Observation { packets: time.min(10_500), ..Default::default() });
    assert_eq!(slept, Some(11_000 + 30_000));
}

#[test]
fn computing_keeps_awake_until_it_ends() {
    let mut life = Life::running(Policy::default());
    // A tenth of a core until 60 s, then nothing: the share over 30 s falls to 5 % some 15 s later.
    let busy = |time: u64| Observation { cpu_us: time.min(60_000) * 100, ..Default::default() };
    let slept = life.live(u64::MAX, busy).unwrap();
    assert!((75_000..85_000).contains(&slept), "{slept}");
}

#[test]
fn one_that_has_just_begun_to_compute_is_not_idle() {
    let mut life = Life::running(Policy::default());
    // A whole core in the last second before it would sleep: 3.3 % over 30 s, and still at it.
    let late = |time: u64| Observation { cpu_us: time.saturating_sub(30_000) * 1_000, ..Default::default() };
    assert_eq!(life.live(START + 30_000, late), None);
    assert!(life.app.blockers().iter().any(|it| matches!(it, Blocker::Cpu { .. })));
}

#[test]
fn connections_count_only_by_policy() {
    let connected = |_| Observation { connections: 3, ..Default::default() };
    assert_eq!(Life::running(Policy::default()).live(u64::MAX, connected), Some(START + 30_000));
    let mut counting = Life::running(Policy { with_connections: false, ..Policy::default() });
    assert_eq!(counting.live(200_000, connected), None);
    assert_eq!(counting.app.blockers(), [Blocker::Connections(3)]);
}

#[test]
fn nothing_is_watched_where_use_does_not_decide() {
    let pinned = App::new(Policy::default(), true, Millis(START));
    let mut by_hand = Life::running(Policy { sleep: false, ..Policy::default() });
    assert_eq!((by_hand.timer, by_hand.said(&Action::Observe)), (None, false));
    by_hand.app = pinned;
    by_hand.ask(START, Request::Start).at(START, Event::Started);
    assert_eq!((by_hand.timer, by_hand.said(&Action::Observe)), (None, false));
    // What happened under the pin is unknown, so idleness begins with its end.
    by_hand.at(500_000, Event::Pinned(false));
    assert_eq!(by_hand.live(u64::MAX, quiet), Some(530_000));

    let mut exec = Life::running(Policy::default());
    exec.ask(START, Request::Exec);
    assert!(exec.said(&Action::ClearTimer) && exec.replies() == [Ok(())]);
    exec.at(600_000, Event::ExecEnded);
    assert_eq!(exec.live(u64::MAX, quiet), Some(630_000));
}

#[test]
fn a_timer_wakes_for_min_awake_only_and_people_for_idle_after() {
    let mut life = Life::running(Policy::default());
    life.fall_asleep(100_000, Some(190_000));
    assert_eq!(life.timer, Some(190_000));
    life.at(189_999, Event::TimerFired);
    assert!(!life.said(&Action::BeginWake { cause: WakeCause::Timer }) && life.timer == Some(190_000), "rang early");
    life.at(190_000, Event::TimerFired);
    assert!(life.said(&Action::BeginWake { cause: WakeCause::Timer }));
    life.at(190_001, Event::Woken).observe(190_001, 7, 0, 0);
    assert_eq!(life.live(u64::MAX, |_| Observation { packets: 7, ..Default::default() }), Some(192_001));

    for (event, cause) in [(packet(), cause()), (Event::Request(Ticket(9), Request::Wake), WakeCause::Command)] {
        let mut life = Life::dozing(Policy::default());
        life.at(200_000, event);
        assert_eq!(life.said[0], Action::BeginWake { cause }, "nothing is done before the wake");
        life.at(200_001, Event::Woken);
        assert_eq!(life.live(u64::MAX, quiet), Some(230_001));
    }
}

#[test]
fn a_packet_during_a_wake_by_timer_is_use() {
    let mut life = Life::running(Policy::default());
    life.fall_asleep(100_000, Some(190_000));
    life.at(190_000, Event::TimerFired).at(190_000, packet()).at(190_001, Event::Woken);
    assert_eq!(life.live(u64::MAX, quiet), Some(220_000));
}

#[test]
fn sleeping_costs_nothing() {
    let mut life = Life::running(Policy::default());
    life.ask(START, Request::Sleep { level: Level::Dozing });
    assert!(life.said(&Action::ClearTimer));
    life.at(START, Event::CaptureCommitted).at(START, Event::Dozed { next_timer: None });
    assert_eq!(life.timer, Some(START + 600_000), "only for going warm");
    life.observe(50_000, 5, 5, 5);
    assert_eq!(life.said, []);
    life.go_warm(60_000, None);
    assert_eq!(life.timer, None);
    life.observe(70_000, 5, 5, 5);
    assert_eq!(life.said, []);
    let policy = Policy { warm_after: None, ..Policy::default() };
    assert_eq!(Life::dozing(policy).timer, None);
}

#[test]
fn requests_that_arrive_together_wake_once() {
    let mut life = Life::dozing(Policy::default());
    let mut wakes = 0;
    for n in 0..100 {
        let event = if n % 2 == 0 { packet() } else { Event::Request(Ticket(1_000 + n), Request::Wake) };
        life.at(2_000, event);
        wakes += life.said.iter().filter(|action| matches!(action, Action::BeginWake { .. })).count();
        assert!(life.replies().is_empty());
    }
    assert_eq!(wakes, 1);
    life.at(2_001, Event::Woken);
    assert_eq!(life.replies().len(), 50);
}

#[test]
fn a_packet_aborts_until_the_commit_and_wakes_after_it() {
    let mut before = Life::running(Policy::default());
    before.ask(2_000, Request::Sleep { level: Level::Dozing }).at(2_000, packet());
    assert!(before.said(&Action::AbortCapture));
    before.at(2_001, Event::CaptureAborted(WakeCause::Command));
    assert_eq!(before.replies(), [Err(Refusal::SleepAborted(cause()))], "who came first is named");
    assert_eq!(before.app.counts().aborted_sleeps, 1);

    let mut race = Life::running(Policy::default());
    race.ask(2_000, Request::Sleep { level: Level::Dozing }).at(2_000, packet()).at(2_001, Event::CaptureCommitted);
    race.at(2_002, Event::Dozed { next_timer: None });
    assert!(race.said(&Action::BeginWake { cause: cause() }));
    assert_eq!(race.replies(), [Ok(())], "it did sleep");

    let mut after = Life::running(Policy::default());
    after.ask(2_000, Request::Sleep { level: Level::Dozing }).at(2_000, Event::CaptureCommitted).at(2_001, packet());
    assert_eq!(after.said, []);
    after.at(2_002, Event::Dozed { next_timer: None });
    assert!(after.said(&Action::BeginWake { cause: cause() }));
}

#[test]
fn by_hand_wins_over_idleness_but_not_over_pins_and_sessions() {
    let mut life = Life::running(Policy { with_connections: false, ..Policy::default() });
    life.observe(START, 5, 5_000_000, 9).ask(START, Request::Sleep { level: Level::Dozing });
    assert_eq!(life.captures(), Some(SleepCause::Command));

    let mut life = Life::running(Policy::default());
    life.at(START, Event::Pinned(true)).ask(START, Request::Sleep { level: Level::Dozing });
    assert_eq!(life.replies(), [Err(Refusal::Pinned)]);
    life.at(START, Event::Pinned(false)).ask(START, Request::Exec).ask(START, Request::Sleep { level: Level::Dozing });
    assert_eq!(life.replies(), [Err(Refusal::ExecSessions(1))]);
}

#[test]
fn exec_and_pin_undo_a_sleep() {
    for (event, cause) in
        [(Event::Pinned(true), WakeCause::Pin), (Event::Request(Ticket(9), Request::Exec), WakeCause::Exec)]
    {
        let mut falling = Life::running(Policy::default());
        falling.ask(START, Request::Sleep { level: Level::Dozing }).at(START, event.clone());
        assert!(falling.said(&Action::AbortCapture));
        let mut asleep = Life::dozing(Policy::default());
        asleep.at(START, event);
        assert!(asleep.said(&Action::BeginWake { cause }));
        assert_eq!(asleep.app.exec_sessions(), 0, "granted once it runs");
    }
}

#[test]
fn refused_captures_back_off() {
    let mut life = Life::running(Policy::default());
    let mut last = life.live(u64::MAX, quiet).unwrap();
    for seconds in [10, 20, 40, 80, 160, 320, 600, 600] {
        refuse(&mut life, last, Retry::Later);
        let next = life.live(u64::MAX, quiet).unwrap();
        assert_eq!(next - last, seconds * 1_000);
        last = next;
    }
    // By hand at once, and from the beginning.
    refuse(&mut life, last, Retry::Later);
    life.ask(last, Request::Sleep { level: Level::Dozing });
    assert_eq!(life.captures(), Some(SleepCause::Command));
    refuse(&mut life, last, Retry::Later);
    assert_eq!(life.replies(), [Err(Refusal::SleepRefused(vec!["pid 7: io_uring".into()]))]);
    assert_eq!(life.live(u64::MAX, quiet), Some(last + 10_000));
    // Success forgets.
    life.at(last, Event::CaptureCommitted).at(last, Event::Dozed { next_timer: None });
    assert!(life.app.explain(Millis(last)).refusals.is_empty());
}

#[test]
fn an_app_that_can_never_be_captured_is_not_retried() {
    let mut life = Life::running(Policy::default());
    let last = life.live(u64::MAX, quiet).unwrap();
    refuse(&mut life, last, Retry::Pointless);
    assert_eq!(life.live(u64::MAX, quiet), None);
    assert!(!life.said(&Action::Observe), "nothing depends on use any more");
    life.at(last, Event::Exited(Exit::Signal(11))).at(last + 250, Event::TimerFired).at(last + 250, Event::Started);
    assert_eq!(life.live(u64::MAX, quiet), Some(last + 250 + 30_000), "a fresh start may");
}

#[test]
fn a_failed_drop_wakes_and_backs_off() {
    let mut life = Life::running(Policy::default());
    let slept = life.live(u64::MAX, quiet).unwrap();
    life.at(slept, Event::CaptureCommitted).at(slept, Event::DropFailed("ptrace".into()));
    assert!(life.said(&Action::BeginWake { cause: WakeCause::Recovery }) && !life.said(&Action::DiscardImage));
    life.at(slept, Event::Woken);
    assert_eq!(life.live(u64::MAX, quiet), Some(slept + 10_000));
}

#[test]
fn a_wake_that_fails_is_tried_again() {
    let mut life = Life::dozing(Policy::default());
    life.ask(2_000, Request::Wake);
    let mut now = 2_000;
    for delay in [100, 200, 400, 800] {
        life.at(now, Event::WakeFailed(WakeFailure::Passing("no memory".into())));
        assert!(!life.said(&Action::DiscardImage) && !life.said(&Action::Kill));
        assert_eq!(life.timer, Some(now + delay));
        life.at(now, packet());
        assert_eq!(life.said, [], "packets do not hurry it");
        now += delay;
        life.at(now, Event::TimerFired);
        assert!(life.said(&Action::BeginWake { cause: WakeCause::Command }));
    }
    life.at(now, Event::WakeFailed(WakeFailure::Passing("no memory".into()))).ask(now, Request::Exec);
    assert!(life.said(&Action::BeginWake { cause: WakeCause::Exec }), "people do");
    life.at(now, Event::Woken);
    assert_eq!(life.replies(), [Ok(())]);
}

#[test]
fn a_damaged_image_is_lost_set_aside_and_restarted() {
    let mut life = Life::dozing(Policy::default());
    life.ask(2_000, Request::Exec).at(2_001, Event::WakeFailed(WakeFailure::Damaged("page 7: checksum".into())));
    assert_eq!(life.replies(), [Err(Refusal::Lost("page 7: checksum".into()))]);
    assert!(life.said(&Action::SetImageAside) && life.said(&Action::Kill) && !life.said(&Action::DiscardImage));
    life.at(2_002, Event::Exited(Exit::Signal(9)));
    assert_eq!(life.app.last_exit(), Some(&(Exit::Lost("page 7: checksum".into()), Millis(2_002))));
    assert!(!life.said(&Action::DiscardImage), "kept for inspection");
    life.at(2_252, Event::TimerFired);
    assert!(life.said(&Action::Spawn));
    assert_eq!(life.app.counts().restarts, 1);
}

#[test]
fn a_stop_wakes_then_asks_then_kills() {
    let mut life = Life::dozing(Policy::default());
    life.ask(2_000, stop());
    assert!(life.said(&Action::BeginWake { cause: WakeCause::Stop }));
    life.at(2_001, Event::Woken);
    assert!(life.said(&Action::Terminate) && life.said(&Action::DiscardImage) && life.replies().is_empty());
    assert_eq!(life.timer, Some(12_001), "grace begins with the signal");
    life.at(12_001, Event::TimerFired);
    assert!(life.said(&Action::Kill) && life.said(&Action::Emit(Note::Killed)));
    assert_eq!(life.timer, Some(22_001));
    life.at(22_001, Event::TimerFired);
    assert!(life.said(&Action::Kill) && !life.said(&Action::Emit(Note::Killed)), "again, and told once");
    life.at(22_002, Event::Exited(Exit::Signal(9)));
    assert_eq!(life.replies(), [Ok(())]);
    assert_eq!(*life.app.phase(), Phase::Stopped { why: StopReason::Asked });
    assert_eq!(life.app.last_exit().unwrap().0, Exit::Signal(9));
}

#[test]
fn a_stop_without_grace_wakes_nobody() {
    let mut life = Life::dozing(Policy::default());
    life.ask(2_000, Request::Stop { grace: Duration::ZERO });
    assert!(life.said(&Action::Kill) && !life.said(&Action::BeginWake { cause: WakeCause::Stop }));
    assert!(!life.said(&Action::DiscardImage) && life.replies().is_empty(), "the image goes last");
    life.at(2_001, Event::Exited(Exit::Signal(9)));
    assert!(life.said(&Action::DiscardImage));
    assert_eq!(life.replies(), [Ok(())]);
    assert_eq!(*life.app.phase(), Phase::Stopped { why: StopReason::Asked });
}

#[test]
fn a_stop_ends_what_cannot_be_woken() {
    let mut life = Life::dozing(Policy::default());
    life.ask(2_000, stop()).at(2_001, Event::WakeFailed(WakeFailure::Passing("no memory".into())));
    assert!(life.said(&Action::Kill) && !life.said(&Action::DiscardImage), "the image goes last");
    life.at(2_002, Event::Exited(Exit::Signal(9)));
    assert!(life.said(&Action::DiscardImage));
    assert_eq!(life.replies(), [Ok(())]);
}

#[test]
fn the_last_order_wins_and_a_second_stop_may_shorten_the_first() {
    let mut life = Life::running(Policy::default());
    life.ask(2_000, stop()).ask(3_000, Request::Stop { grace: Duration::from_secs(1) });
    assert_eq!(life.timer, Some(4_000));
    life.ask(3_000, Request::Start).ask(3_100, Request::Exec);
    assert!(life.replies().is_empty(), "both wait for the new start");
    life.at(3_200, Event::Exited(Exit::Status(0)));
    assert_eq!(life.replies(), [Ok(()), Ok(())], "the stops");
    assert!(life.said(&Action::Spawn));
    life.ask(3_300, stop());
    assert_eq!(life.replies(), [Err(Refusal::BeingStopped), Err(Refusal::BeingStopped)]);
    life.at(3_400, Event::Started);
    assert!(life.said(&Action::Terminate));
}

#[test]
fn a_restart_ends_and_starts() {
    let mut life = Life::dozing(Policy { restart: RestartPolicy::No, ..Policy::default() });
    life.ask(2_000, Request::Restart { grace: Duration::from_secs(1) }).at(2_001, Event::Woken);
    assert!(life.said(&Action::Terminate) && life.replies().is_empty());
    life.at(2_002, Event::Exited(Exit::Status(0)));
    assert!(life.said(&Action::Spawn) && life.replies().is_empty());
    life.at(2_003, Event::Started);
    assert_eq!(life.replies(), [Ok(())]);
}

#[test]
fn restart_policies() {
    let after = |restart, exit: &Exit| {
        let mut life = Life::running(Policy { restart, ..Policy::default() });
        life.at(2_000, Event::Exited(exit.clone()));
        matches!(life.app.phase(), Phase::Backoff { .. })
    };
    let failures = [Exit::Status(1), Exit::Signal(9), Exit::MemoryLimit(64 << 20), Exit::Unknown];
    for exit in &failures {
        assert!(!after(RestartPolicy::No, exit) && after(RestartPolicy::OnFailure, exit));
    }
    assert!(!after(RestartPolicy::OnFailure, &Exit::Status(0)) && after(RestartPolicy::Always, &Exit::Status(0)));
}

#[test]
fn restarts_back_off_and_begin_anew_after_running_well() {
    let mut life = Life::running(Policy::default());
    let mut now = 2_000;
    let mut crash = |life: &mut Life, runs: u64| {
        now += runs;
        life.at(now, Event::Exited(Exit::Signal(11)));
        let delay = life.timer.unwrap() - now;
        now += delay;
        life.at(now, Event::TimerFired).at(now, Event::Started);
        delay
    };
    assert_eq!([0, 0, 0].map(|runs| crash(&mut life, runs)), [250, 500, 1_000]);
    assert_eq!(crash(&mut life, 59_999), 2_000);
    assert_eq!(crash(&mut life, 60_000), 250);
    assert_eq!(life.app.counts().restarts, 5);
    life.ask(500_000, Request::Restart { grace: Duration::ZERO }).at(500_000, Event::Exited(Exit::Status(0)));
    assert_eq!(life.app.counts().restarts, 0);
}

#[test]
fn a_start_that_fails_is_repeated_only_by_policy() {
    let mut life = Life::new(Policy::default());
    life.ask(START, Request::Start).at(START, Event::StartFailed("no such file".into()));
    assert_eq!(life.replies(), [Err(Refusal::StartFailed("no such file".into()))]);
    assert!(matches!(life.app.phase(), Phase::Stopped { why: StopReason::StartFailed(_) }));

    let mut life = Life::running(Policy::default());
    life.at(2_000, Event::Exited(Exit::Status(1))).at(2_250, Event::TimerFired);
    life.at(2_251, Event::StartFailed("no space".into()));
    assert_eq!(life.timer, Some(2_751));
}

#[test]
fn an_end_while_asleep_discards_the_image_first() {
    let mut life = Life::dozing(Policy::default());
    life.at(2_000, Event::Exited(Exit::Signal(9)));
    assert_eq!(life.said[0], Action::DiscardImage, "old memory is never put onto newer files");
    assert_eq!(life.timer, Some(2_250));
}

#[test]
fn an_end_during_a_capture_waits_for_its_outcome() {
    let mut life = Life::running(Policy::default());
    life.ask(2_000, Request::Sleep { level: Level::Dozing }).at(2_000, Event::Exited(Exit::Status(3)));
    assert_eq!(life.said, [Action::AbortCapture]);
    life.at(2_001, Event::CaptureRefused { reasons: vec!["no such process".into()], retry: Retry::Later });
    assert_eq!(life.replies(), [Err(Refusal::Ended(Exit::Status(3)))]);
    assert_eq!(life.timer, Some(2_251));
}

#[test]
fn a_new_daemon_takes_over_whatever_it_finds() {
    let found = |found, pinned| {
        let mut life = Life::new(Policy::default());
        life.app = App::new(Policy::default(), pinned, Millis(0));
        life.at(START, Event::Adopted(found));
        life
    };
    assert_eq!(found(Found::Running, false).live(u64::MAX, quiet), Some(START + 30_000));

    let mut dozing = found(Found::Dozing { next_timer: Some(Millis(9_000)) }, false);
    assert_eq!(dozing.timer, Some(9_000));
    dozing.at(5_000, packet());
    assert!(dozing.said(&Action::BeginWake { cause: cause() }));

    let overdue = found(Found::Dozing { next_timer: Some(Millis(5)) }, false);
    assert_eq!(overdue.timer, Some(START), "a timer that rang meanwhile rings now");

    assert!(found(Found::Dozing { next_timer: None }, true).said(&Action::BeginWake { cause: WakeCause::Pin }));

    let mut mid = found(Found::MidCapture, false);
    assert!(mid.said(&Action::AbortCapture));
    mid.at(START, Event::CaptureAborted(WakeCause::Recovery));
    assert!(matches!(mid.app.phase(), Phase::Running(_)));

    let mut mid = found(Found::MidDropOrWake, false);
    assert!(mid.said(&Action::BeginWake { cause: WakeCause::Recovery }) && !mid.said(&Action::DiscardImage));
    mid.ask(START, stop()).at(START, Event::Woken);
    assert!(mid.said(&Action::Terminate));

    let gone = found(Found::Gone(Exit::Unknown), false);
    assert_eq!(gone.said[0], Action::DiscardImage);
    assert_eq!(gone.timer, Some(START + 250));
}

#[test]
fn waiting_is_bounded() {
    let mut life = Life::new(Policy::default());
    for _ in 0..MAX_WAITING {
        life.ask(START, Request::Start);
        assert!(life.replies().is_empty());
    }
    life.ask(START, Request::Start);
    assert_eq!(life.replies(), [Err(Refusal::TooMany)]);
    let mut started = life.app.clone();
    assert!(started.handle(Event::Started, Millis(START)).len() > MAX_WAITING);
    life.ask(START, stop());
    assert_eq!(life.replies().len(), MAX_WAITING, "a stop gets in, and answers them");
}

/// What users were told along a life, and what was counted.
#[test]
fn users_see_every_turn() {
    let mut life = Life::new(Policy::default());
    let mut kinds = Vec::new();
    let mut tell = |life: &mut Life, events: &[Event]| {
        for event in events {
            life.at(5_000, event.clone());
            kinds.extend(
                life.said.iter().filter_map(|it| if let Action::Emit(note) = it { Some(note.kind()) } else { None }),
            );
        }
    };
    let ask = |request| Event::Request(Ticket(7), request);
    let doze =
        [ask(Request::Sleep { level: Level::Dozing }), Event::CaptureCommitted, Event::Dozed { next_timer: None }];
    let refused = Event::CaptureRefused { reasons: Vec::new(), retry: Retry::Later };
    tell(&mut life, &[ask(Request::Start), Event::StartFailed("no such file".into())]);
    tell(&mut life, &[ask(Request::Start), Event::Started]);
    tell(&mut life, &doze);
    tell(&mut life, &[packet(), Event::WakeFailed(WakeFailure::Passing("no memory".into())), ask(Request::Wake)]);
    tell(
        &mut life,
        &[Event::Woken, ask(Request::Sleep { level: Level::Dozing }), packet(), Event::CaptureAborted(cause())],
    );
    tell(&mut life, &[ask(Request::Sleep { level: Level::Dozing }), refused]);
    tell(&mut life, &doze);
    tell(
        &mut life,
        &[packet(), Event::WakeFailed(WakeFailure::Damaged("checksum".into())), Event::Exited(Exit::Signal(9))],
    );
    tell(&mut life, &[ask(Request::Start), Event::Started, ask(Request::Stop { grace: Duration::ZERO })]);
    tell(&mut life, &[Event::TimerFired, Event::Exited(Exit::Signal(9))]);
    assert_eq!(
        kinds.join(" "),
        "start-failed started falling-asleep dozing wake-failed woken falling-asleep sleep-aborted falling-asleep \
         sleep-refused falling-asleep dozing lost exited restarting started stopping killed exited"
    );
    assert_eq!(life.app.counts(), Counts { sleeps: 2, aborted_sleeps: 1, wakes: 1, ..Counts::default() });
    assert_eq!(life.app.since(), Millis(5_000));

    let mut taken = Life::new(Policy::default());
    taken.at(START, Event::Adopted(Found::Running));
    assert!(taken.said(&Action::Emit(Note::Adopted)));
    let mut taken = Life::dozing(Policy::default());
    taken.ask(2_000, stop()).at(2_000, Event::WakeFailed(WakeFailure::Passing("no memory".into())));
    assert!(taken.said(&Action::Emit(Note::WakeFailed("no memory".into(), None))));
}

#[test]
fn traffic_that_the_engine_saw_is_use() {
    let mut life = Life::running(Policy::default());
    life.ask(50_000, Request::Sleep { level: Level::Dozing }).at(50_001, Event::CaptureAborted(cause()));
    assert_eq!(life.replies(), [Err(Refusal::SleepAborted(cause()))]);
    assert_eq!(life.live(u64::MAX, quiet), Some(80_001));
}

#[test]
fn an_end_after_a_take_over_discards_the_image() {
    let none = None;
    for found in [
        Found::Dozing { next_timer: none },
        Found::Warm { next_timer: none },
        Found::Stored { next_timer: none },
        Found::MidDropOrWake,
    ] {
        let mut life = Life::new(Policy::default());
        life.at(START, Event::Adopted(found.clone())).at(START, Event::Exited(Exit::Signal(9)));
        if found == Found::MidDropOrWake {
            life.at(START, Event::WakeFailed(WakeFailure::Passing("no such process".into())));
        }
        assert!(life.said(&Action::DiscardImage), "{found:?}");
    }
}

#[test]
fn a_start_is_kept_through_what_came_before_it() {
    // After a stop that waits for the wake.
    let mut life = Life::dozing(Policy { restart: RestartPolicy::No, ..Policy::default() });
    life.ask(2_000, stop())
        .ask(2_000, Request::Start)
        .at(2_001, Event::Woken)
        .at(2_002, Event::Exited(Exit::Status(0)));
    assert!(life.said(&Action::Spawn));
    assert_eq!(life.replies(), [Ok(())], "the stop; the start is answered when it runs");
    life.at(2_003, Event::Started);
    assert_eq!(life.replies(), [Ok(())]);
    // After an end whose operation is not over.
    let mut life = Life::running(Policy { restart: RestartPolicy::No, ..Policy::default() });
    life.ask(2_000, Request::Sleep { level: Level::Dozing })
        .at(2_000, Event::Exited(Exit::Status(0)))
        .ask(2_000, Request::Start);
    life.at(2_001, Event::CaptureAborted(WakeCause::Recovery));
    assert!(life.said(&Action::Spawn));
}

#[test]
fn a_start_by_hand_begins_anew() {
    let mut life = Life::running(Policy::default());
    for _ in 0..3 {
        life.at(2_000, Event::Exited(Exit::Status(1)));
        let again = life.timer.unwrap();
        life.at(again, Event::TimerFired).at(2_000, Event::Started);
    }
    assert_eq!(life.app.counts().restarts, 3);
    life.at(2_000, Event::Exited(Exit::Status(1))).ask(2_000, Request::Start).at(2_000, Event::Started);
    assert_eq!(life.app.counts().restarts, 0);
    let now = life.app.since().0;
    life.at(now, Event::Exited(Exit::Status(1)));
    assert_eq!(life.timer, Some(now + 250));
}

#[test]
fn a_wake_of_a_running_app_is_use() {
    let mut life = Life::running(Policy::default());
    life.ask(20_000, Request::Wake);
    assert_eq!(life.replies(), [Ok(())]);
    assert_eq!(life.live(u64::MAX, quiet), Some(50_000));
}

#[test]
fn counters_that_cannot_be_read_keep_it_awake_and_are_asked_for_again() {
    let mut life = Life::running(Policy::default());
    for n in 1..20 {
        let time = life.timer.unwrap();
        assert_eq!(time, START + n * 5_000);
        life.at(time, Event::TimerFired);
        assert!(life.said(&Action::Observe) && life.captures().is_none());
    }
}
