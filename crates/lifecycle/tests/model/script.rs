//! What may happen, at random.

use std::time::Duration;

use proptest::prelude::*;
use torpor_lifecycle::*;

/// Something that the world does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Ask(Request),
    Packet,
    Pin(bool),
    ExecEnd,
    /// Memory is short.
    Short,
    /// The operation under way comes to this one of its outcomes.
    Outcome(u8),
    Exit(u8),
    /// Time passes, and timers ring.
    Pass(u64),
    /// Counters are read, after so many packets and so much CPU.
    Look(u64, u64),
}

pub(crate) const GRACE: Duration = Duration::from_secs(5);

pub(crate) fn requests() -> impl Strategy<Value = Request> {
    prop_oneof![
        3 => Just(Request::Start),
        3 => Just(Request::Wake),
        4 => Just(Request::Sleep { level: Level::Dozing }),
        4 => Just(Request::Sleep { level: Level::Warm }),
        2 => Just(Request::Exec),
        1 => Just(Request::Stop { grace: GRACE }),
        1 => Just(Request::Restart { grace: GRACE }),
    ]
}

pub(crate) fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => requests().prop_map(Step::Ask),
        2 => Just(Step::Packet),
        1 => any::<bool>().prop_map(Step::Pin),
        2 => Just(Step::ExecEnd),
        2 => Just(Step::Short),
        8 => any::<u8>().prop_map(Step::Outcome),
        1 => any::<u8>().prop_map(Step::Exit),
        3 => (0_u64..20_000).prop_map(Step::Pass),
        3 => (0_u64..2, 0_u64..2_000_000).prop_map(|(packets, cpu)| Step::Look(packets, cpu)),
    ]
}

pub(crate) fn policies() -> impl Strategy<Value = Policy> {
    let restart = prop_oneof![Just(RestartPolicy::No), Just(RestartPolicy::OnFailure), Just(RestartPolicy::Always)];
    let warm_after = prop::option::of((0_u64..30_000).prop_map(Duration::from_millis));
    (any::<bool>(), 0_u64..60_000, warm_after, 0_u64..5_000, any::<bool>(), restart).prop_map(
        |(sleep, idle_after, warm_after, min_awake, with_connections, restart)| Policy {
            sleep,
            warm_after,
            idle_after: Duration::from_millis(idle_after),
            min_awake: Duration::from_millis(min_awake),
            with_connections,
            restart,
            ..Policy::default()
        },
    )
}

pub(crate) fn found() -> impl Strategy<Value = Option<Found>> {
    prop_oneof![
        5 => Just(None),
        1 => Just(Some(Found::Running)),
        1 => (0_u64..90_000).prop_map(|at| Some(Found::Dozing { next_timer: Some(Millis(at)) })),
        1 => Just(Some(Found::Dozing { next_timer: None })),
        1 => Just(Some(Found::Warm { next_timer: None })),
        1 => (0_u64..90_000).prop_map(|at| Some(Found::Stored { next_timer: Some(Millis(at)) })),
        1 => Just(Some(Found::MidCapture)),
        1 => Just(Some(Found::MidDropOrWake)),
        1 => Just(Some(Found::Gone(Exit::Unknown))),
    ]
}
