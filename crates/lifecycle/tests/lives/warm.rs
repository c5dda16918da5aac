//! From dozing to warm and back.

use std::time::Duration;

use torpor_lifecycle::*;

use super::life::*;

#[test]
fn goes_warm_when_it_has_dozed_for_long() {
    let mut life = Life::running(Policy::default());
    life.fall_asleep(100_000, None);
    assert_eq!(life.timer, Some(700_000));
    life.at(699_999, Event::TimerFired);
    assert_eq!(life.said, [Action::SetTimer(Millis(700_000))], "rang early");
    life.at(700_000, Event::TimerFired);
    assert!(life.said(&Action::BeginDeepen { cause: SleepCause::Dozed(Duration::from_secs(600)) }));
    life.at(700_001, Event::HibernateCommitted).at(700_002, Event::Hibernated { next_timer: Some(Millis(900_000)) });
    assert_eq!(life.timer, Some(900_000));
    life.at(900_000, Event::TimerFired);
    assert!(life.said(&Action::BeginWake { cause: WakeCause::Timer }));
    life.at(900_001, Event::Woken);
    let slept = Duration::from_millis(800_001);
    assert!(life.said(&Action::Emit(Note::Woken(WakeCause::Timer, slept))), "the whole sleep: {:?}", life.said);
    assert_eq!(life.app.counts(), Counts { sleeps: 1, warm_sleeps: 1, wakes: 1, ..Counts::default() });

    // A timer of its own that comes before.
    let mut timed = Life::running(Policy::default());
    timed.fall_asleep(100_000, Some(190_000));
    assert_eq!(timed.timer, Some(190_000));
    timed.at(190_000, Event::TimerFired);
    assert!(timed.said(&Action::BeginWake { cause: WakeCause::Timer }));

    let by_hand = Policy { sleep: false, ..Policy::default() };
    assert_eq!(Life::dozing(by_hand).timer, None, "what sleeps on command only stays at the level it was given");
}

#[test]
fn sleeping_warm_by_hand_from_wherever_it_is() {
    let warm = Request::Sleep { level: Level::Warm };
    let mut life = Life::running(Policy { warm_after: None, ..Policy::default() });
    life.ask(2_000, warm).ask(2_000, Request::Sleep { level: Level::Dozing });
    life.at(2_001, Event::CaptureCommitted).at(2_002, Event::Dozed { next_timer: None });
    assert!(life.said(&Action::BeginDeepen { cause: SleepCause::Command }));
    assert_eq!(life.replies(), [Ok(())], "who wanted it to doze has got it");
    life.at(2_003, Event::HibernateCommitted).at(2_004, Event::Hibernated { next_timer: None });
    assert_eq!(life.replies(), [Ok(())]);
    life.ask(2_005, warm).ask(2_005, Request::Sleep { level: Level::Dozing });
    assert_eq!(life.replies(), [Ok(())], "deeper than asked is asleep too");

    // Asked for while it falls asleep by itself.
    let mut life = Life::running(Policy::default());
    let slept = life.live(u64::MAX, quiet).unwrap();
    life.ask(slept, warm).at(slept, Event::CaptureCommitted).at(slept, Event::Dozed { next_timer: None });
    assert!(life.said(&Action::BeginDeepen { cause: SleepCause::Command }));

    // A wake that came between ends it.
    let mut life = Life::running(Policy::default());
    life.ask(2_000, warm).at(2_000, Event::CaptureCommitted).at(2_000, packet());
    life.at(2_001, Event::Dozed { next_timer: None });
    assert!(life.said(&Action::BeginWake { cause: cause() }));
    assert_eq!(life.replies(), [Err(Refusal::SleepAborted(cause()))]);

    // It cannot sleep at all.
    let mut life = Life::running(Policy::default());
    life.ask(2_000, warm);
    refuse(&mut life, 2_001, Retry::Later);
    assert_eq!(life.replies(), [Err(Refusal::SleepRefused(vec!["pid 7: io_uring".into()]))]);
}

#[test]
fn memory_sends_only_what_dozes_and_was_not_refused() {
    let short = || Event::Hibernate(SleepCause::Memory);
    let mut life = Life::running(Policy { warm_after: None, ..Policy::default() });
    life.at(START, short());
    assert_eq!((life.said.as_slice(), life.app.hibernates_from()), (&[][..], None));
    life.fall_asleep(2_000, None);
    assert_eq!(life.app.hibernates_from(), Some(Millis(2_000)));
    life.at(3_000, short());
    assert!(life.said(&Action::BeginDeepen { cause: SleepCause::Memory }));
    refuse_warm(&mut life, 3_001, Retry::Later, true);
    life.at(13_000, short());
    assert_eq!(life.said, [], "refused a moment ago");
    assert_eq!(life.app.hibernates_from(), Some(Millis(13_001)));
    life.at(13_001, short());
    assert!(life.said(&Action::BeginDeepen { cause: SleepCause::Memory }));
    refuse_warm(&mut life, 13_002, Retry::Pointless, true);
    life.at(9_000_000, short());
    assert_eq!((life.said.as_slice(), life.app.hibernates_from()), (&[][..], None));
    life.ask(9_000_000, Request::Sleep { level: Level::Warm });
    assert!(life.said(&Action::BeginDeepen { cause: SleepCause::Command }), "people may always try");
    refuse_warm(&mut life, 9_000_001, Retry::Later, true);
    assert_eq!(life.replies(), [Err(Refusal::WarmRefused(vec!["pid 7: io_uring".into()]))]);
}

#[test]
fn refused_deepenings_back_off_and_leave_it_dozing() {
    let mut life = Life::dozing(Policy::default());
    let mut now = START + 600_000;
    for seconds in [10, 20, 40, 80, 160, 320, 600, 600] {
        life.at(now, Event::TimerFired);
        assert!(matches!(life.app.phase(), Phase::Hibernating { .. }));
        refuse_warm(&mut life, now, Retry::Later, true);
        assert!(matches!(life.app.phase(), Phase::Dozing(_)) && !life.said(&Action::DiscardImage));
        assert_eq!(life.timer, Some(now + seconds * 1_000));
        now += seconds * 1_000;
    }
    life.at(now, Event::TimerFired);
    refuse_warm(&mut life, now, Retry::Pointless, true);
    assert_eq!(life.timer, None);
    // Over a wake it is still pointless; after a fresh start no more.
    life.ask(now, Request::Wake).at(now, Event::Woken);
    life.fall_asleep(now, None);
    assert_eq!(life.timer, None);
    life.at(now, Event::Exited(Exit::Signal(9))).at(now + 250, Event::TimerFired).at(now + 250, Event::Started);
    life.fall_asleep(now + 250, None);
    assert_eq!(life.timer, Some(now + 250 + 600_000));
}

#[test]
fn a_hibernating_that_ends_awake_is_a_wake() {
    let mut life = Life::dozing(Policy::default());
    life.at(2_000, Event::Hibernate(SleepCause::Memory));
    refuse_warm(&mut life, 3_000, Retry::Later, false);
    assert!(life.said(&Action::DiscardImage), "the image of the doze is old");
    assert!(life.said(&Action::Emit(Note::Woken(WakeCause::Recovery, Duration::from_secs(2)))));
    assert!(matches!(life.app.phase(), Phase::Running(_)));
    assert_eq!(life.app.counts().wakes, 1);
}

#[test]
fn a_packet_aborts_a_hibernating_until_its_commit_and_wakes_after_it() {
    let hibernating = || {
        let mut life = Life::dozing(Policy::default());
        life.ask(2_000, Request::Sleep { level: Level::Warm });
        life
    };
    let mut before = hibernating();
    before.at(2_000, packet());
    assert_eq!(before.said, [Action::AbortDeepen]);
    before.at(2_001, Event::HibernateAborted(WakeCause::Command));
    assert_eq!(before.replies(), [Err(Refusal::SleepAborted(cause()))], "who came first is named");
    assert!(before.said(&Action::DiscardImage) && before.said(&Action::Observe));
    assert_eq!(before.live(u64::MAX, quiet), Some(32_001), "and is use");

    let mut unseen = hibernating();
    unseen.at(2_001, Event::HibernateAborted(cause()));
    assert!(unseen.said(&Action::Emit(Note::Woken(cause(), Duration::from_millis(1_001)))));

    // It had not begun: it dozes, and is woken from there.
    let mut dozes = hibernating();
    dozes.at(2_000, packet());
    refuse_warm(&mut dozes, 2_001, Retry::Later, true);
    assert!(dozes.said(&Action::BeginWake { cause: cause() }) && !dozes.said(&Action::DiscardImage));

    let mut race = hibernating();
    race.at(2_000, packet()).at(2_001, Event::HibernateCommitted).at(2_002, Event::Hibernated { next_timer: None });
    assert!(race.said(&Action::BeginWake { cause: cause() }));
    assert_eq!(race.replies(), [Ok(())], "it was warm");

    let mut after = hibernating();
    after.at(2_000, Event::HibernateCommitted).at(2_001, packet());
    assert_eq!(after.said, []);
    after.at(2_002, Event::Hibernated { next_timer: None });
    assert!(after.said(&Action::BeginWake { cause: cause() }));
}

#[test]
fn a_stop_and_a_pin_end_a_hibernating_and_wake_a_warm_app() {
    let mut life = Life::dozing(Policy::default());
    life.at(2_000, Event::Hibernate(SleepCause::Memory)).ask(2_000, stop());
    assert_eq!(life.said, [Action::AbortDeepen]);
    let mut refused = Life { app: life.app.clone(), said: Vec::new(), timer: None, tickets: 50 };
    life.at(2_001, Event::HibernateAborted(WakeCause::Stop));
    assert!(life.said(&Action::Terminate));
    refuse_warm(&mut refused, 2_001, Retry::Later, true);
    assert!(refused.said(&Action::BeginWake { cause: WakeCause::Stop }));
    refused.at(2_002, Event::Woken);
    assert!(refused.said(&Action::Terminate));

    let mut warm = Life::warm(Policy::default());
    warm.ask(2_000, stop());
    assert!(warm.said(&Action::BeginWake { cause: WakeCause::Stop }));
    warm.at(2_001, Event::Woken);
    assert!(warm.said(&Action::Terminate));

    let mut pinned = Life::warm(Policy::default());
    pinned.at(2_000, Event::Pinned(true));
    assert!(pinned.said(&Action::BeginWake { cause: WakeCause::Pin }));
}

#[test]
fn a_wake_that_fails_goes_back_to_its_level() {
    let mut life = Life::warm(Policy::default());
    life.at(2_000, packet()).at(2_001, Event::WakeFailed(WakeFailure::Passing("no memory".into())));
    assert!(matches!(life.app.phase(), Phase::Warm(_)) && !life.said(&Action::DiscardImage));
    assert_eq!(life.timer, Some(2_101));
    life.at(2_101, Event::TimerFired);
    assert!(life.said(&Action::BeginWake { cause: cause() }));
    life.at(2_102, Event::WakeFailed(WakeFailure::Damaged("page 7".into())));
    assert!(life.said(&Action::SetImageAside) && life.said(&Action::Kill), "its sandbox is left");

    // From dozing: what is to be awake does not go deeper, by nobody's wish.
    let mut dozing = Life::dozing(Policy::default());
    dozing.at(2_000, packet()).at(2_001, Event::WakeFailed(WakeFailure::Passing("no memory".into())));
    assert!(matches!(dozing.app.phase(), Phase::Dozing(_)));
    dozing.at(2_002, Event::Hibernate(SleepCause::Memory));
    assert_eq!(dozing.said, []);
    dozing.ask(2_002, Request::Sleep { level: Level::Warm });
    assert_eq!(dozing.replies(), [Err(Refusal::SleepAborted(cause()))]);
}

#[test]
fn a_wake_that_is_refused_is_not_tried_again_by_itself() {
    let refused = || Event::WakeFailed(WakeFailure::Refused("/etc/app.conf has been written to".into()));
    let mut life = Life::warm(Policy::default());
    life.at(2_000, packet()).at(2_001, refused());
    assert!(matches!(life.app.phase(), Phase::Warm(asleep) if asleep.is_refused()));
    assert!(!life.said(&Action::DiscardImage) && !life.said(&Action::SetImageAside) && !life.said(&Action::Kill));
    assert!(life.said(&Action::Emit(Note::WakeRefused("/etc/app.conf has been written to".into()))));
    assert_eq!(life.timer, None);
    life.at(2_002, packet());
    assert_eq!(life.said, [], "nor by packets");
    let why = life.app.explain(Millis(2_003)).why;
    assert!(why.contains("has been written to") && why.contains("torpor restart"), "{why}");

    life.ask(3_000, Request::Wake);
    assert!(life.said(&Action::BeginWake { cause: WakeCause::Command }), "people may");
    life.at(3_001, refused());
    assert_eq!(life.replies(), [Err(Refusal::WakeRefused("/etc/app.conf has been written to".into()))]);

    let grace = Duration::from_secs(10);
    life.ask(4_000, Request::Restart { grace }).at(4_001, refused());
    assert!(life.said(&Action::Kill));
    life.at(4_002, Event::Exited(Exit::Signal(9)));
    assert!(life.said(&Action::DiscardImage) && life.said(&Action::Spawn), "afresh on its files");
}

#[test]
fn a_wake_that_is_refused_starts_it_afresh_where_that_is_the_policy() {
    let mut life = Life::warm(Policy { wake_blocked: WakeBlocked::Restart, ..Policy::default() });
    let reason = || "/data/index has been written to".into();
    life.ask(2_000, Request::Wake).at(2_001, Event::WakeFailed(WakeFailure::Refused(reason())));
    assert!(life.said(&Action::Emit(Note::GivenUp(reason()))) && life.said(&Action::Kill));
    assert_eq!(life.replies(), [], "who wants it awake waits for the new one");
    life.at(2_002, Event::Exited(Exit::Signal(9)));
    assert!(life.said(&Action::DiscardImage) && life.said(&Action::Spawn));
    life.at(2_003, Event::Started);
    assert_eq!(life.replies(), [Ok(())]);
}

#[test]
fn ending_that_fails_after_the_commit_wakes_from_the_image() {
    let mut life = Life::dozing(Policy::default());
    life.ask(2_000, Request::Sleep { level: Level::Warm });
    life.at(2_000, Event::HibernateCommitted).at(2_001, Event::HibernateFailed("kill".into()));
    assert!(life.said(&Action::BeginWake { cause: WakeCause::Recovery }) && !life.said(&Action::DiscardImage));
    assert_eq!(life.replies(), [Err(Refusal::WarmRefused(vec!["kill".into()]))]);
    life.at(2_002, Event::WakeFailed(WakeFailure::Passing("busy".into())));
    assert!(matches!(life.app.phase(), Phase::Warm(_)), "the image is the truth");
}

#[test]
fn a_hibernating_that_leaves_neither_a_running_nor_a_sleeping_app_wakes_from_where_it_was() {
    let mut life = Life::dozing(Policy::default());
    life.at(2_000, Event::Hibernate(SleepCause::Memory))
        .at(2_001, Event::HibernateFailed("a part of its memory".into()));
    assert!(life.said(&Action::BeginWake { cause: WakeCause::Recovery }) && !life.said(&Action::DiscardImage));
    let mut passing = Life { app: life.app.clone(), said: Vec::new(), timer: None, tickets: 50 };
    passing.at(2_002, Event::WakeFailed(WakeFailure::Passing("busy".into())));
    assert!(matches!(passing.app.phase(), Phase::Dozing(_)), "its image of the doze is still the truth");
    life.at(2_002, Event::WakeFailed(WakeFailure::Damaged("its memory".into())));
    assert!(life.said(&Action::SetImageAside) && life.said(&Action::Kill));
}

#[test]
fn an_end_during_a_hibernating_waits_for_its_outcome() {
    let mut life = Life::dozing(Policy::default());
    life.ask(2_000, Request::Sleep { level: Level::Warm }).at(2_000, Event::Exited(Exit::Signal(9)));
    assert_eq!(life.said, [Action::AbortDeepen]);
    refuse_warm(&mut life, 2_001, Retry::Later, true);
    assert_eq!(life.replies(), [Err(Refusal::Ended(Exit::Signal(9)))]);
    assert!(life.said(&Action::DiscardImage) && life.timer == Some(2_251));

    let mut warm = Life::warm(Policy::default());
    warm.at(2_000, Event::Exited(Exit::Unknown));
    assert!(warm.said(&Action::DiscardImage) && matches!(warm.app.phase(), Phase::Backoff { .. }));
}

#[test]
fn a_new_daemon_takes_over_what_is_warm_or_stored() {
    for found in [Found::Warm { next_timer: Some(Millis(9_000)) }, Found::Stored { next_timer: Some(Millis(9_000)) }] {
        let mut life = Life::new(Policy::default());
        life.at(START, Event::Adopted(found.clone()));
        assert!(matches!(life.app.phase(), Phase::Warm(_)) && life.timer == Some(9_000), "{:?}", life.said);
        life.at(5_000, packet());
        assert!(life.said(&Action::BeginWake { cause: cause() }));
        let mut pinned = App::new(Policy::default(), true, Millis(0));
        let said = pinned.handle(Event::Adopted(found), Millis(START));
        assert!(said.contains(&Action::BeginWake { cause: WakeCause::Pin }));
    }
}

#[test]
fn users_see_every_turn_of_going_warm() {
    let mut life = Life::dozing(Policy::default());
    let mut kinds = Vec::new();
    let short = Event::Hibernate(SleepCause::Memory);
    let refused = Event::HibernateRefused { reasons: Vec::new(), retry: Retry::Later, dozes: true };
    for (time, event) in [
        (2_000, short.clone()),
        (2_000, refused),
        (20_000, short),
        (20_000, Event::HibernateCommitted),
        (20_000, Event::Hibernated { next_timer: None }),
        (20_000, packet()),
        (20_000, Event::Woken),
    ] {
        life.at(time, event);
        kinds.extend(
            life.said.iter().filter_map(|it| if let Action::Emit(note) = it { Some(note.kind()) } else { None }),
        );
    }
    assert_eq!(kinds.join(" "), "going-warm warm-refused going-warm warm woken");
}
