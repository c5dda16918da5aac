//! Random lives of an app in a model of its owner and the kernel, which checks every action against what is true there.

use std::collections::BTreeMap;

use proptest::prelude::*;
use torpor_lifecycle::*;

mod script;

use script::*;

/// What the owner is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Spawn,
    Capture { committed: bool },
    Hibernate { committed: bool },
    Wake,
}

/// The owner, the engine and the kernel.
#[derive(Debug)]
struct World {
    app: App,
    now: u64,
    op: Option<Op>,
    alive: bool,
    /// Frozen, and its memory is only in the image.
    dropped: bool,
    /// No processes, only the sandbox.
    warm: bool,
    image: bool,
    damaged: bool,
    terminated: bool,
    killed: bool,
    timer: Option<u64>,
    looks: u32,
    counters: Observation,
    open: BTreeMap<u64, Request>,
    next_ticket: u64,
    sessions: u32,
    pinned: bool,
    /// Something arrived that must wake it.
    activated: bool,
    /// A stop or restart was asked for since it last started.
    end_ordered: bool,
    log: Vec<String>,
}

impl World {
    fn new(policy: Policy, pinned: bool, found: Option<Found>) -> Self {
        let mut world = Self {
            app: App::new(policy, pinned, Millis(1_000)),
            now: 1_000,
            op: None,
            alive: false,
            dropped: false,
            warm: false,
            image: false,
            damaged: false,
            terminated: false,
            killed: false,
            timer: None,
            looks: 0,
            counters: Observation::default(),
            open: BTreeMap::new(),
            next_ticket: 0,
            sessions: 0,
            pinned,
            activated: false,
            end_ordered: false,
            log: Vec::new(),
        };
        if let Some(found) = found {
            world.alive = !matches!(found, Found::Gone(_));
            world.warm = matches!(found, Found::Warm { .. } | Found::Stored { .. });
            world.dropped = world.warm || matches!(found, Found::Dozing { .. } | Found::MidDropOrWake);
            // A running one may have an image left from its last wake, a dead one from its last sleep.
            world.image = found != Found::MidCapture;
            world.op = (found == Found::MidCapture).then_some(Op::Capture { committed: false });
            world.send(Event::Adopted(found));
        }
        world
    }

    fn send(&mut self, event: Event) {
        self.log.push(format!("{} {event:?}", self.now));
        for action in self.app.handle(event, Millis(self.now)) {
            self.log.push(format!("    {action:?}"));
            self.perform(action);
        }
        self.log.push(format!("    = {}", self.app.phase().name()));
        self.check_rest();
    }

    fn running(&self) -> bool {
        self.alive && !self.dropped && self.op.is_none()
    }

    fn perform(&mut self, action: Action) {
        let at = || self.log.join("\n");
        match action {
            Action::Spawn => {
                assert!(self.op.is_none() && !self.alive && !self.image, "spawn\n{}", at());
                self.op = Some(Op::Spawn);
                self.end_ordered = false;
                self.activated = false;
            }
            Action::BeginCapture { .. } => {
                assert!(self.running() && !self.pinned && self.sessions == 0, "capture\n{}", at());
                assert!(!self.terminated && !self.killed, "capture of an app that ends\n{}", at());
                // It runs, if only for a moment: somebody had asked that it sleep then.
                self.activated = false;
                self.op = Some(Op::Capture { committed: false });
            }
            Action::AbortCapture => {
                assert_eq!(self.op, Some(Op::Capture { committed: false }), "abort\n{}", at());
            }
            Action::BeginDeepen { .. } => {
                assert!(self.op.is_none() && self.alive && self.dropped && !self.warm, "hibernate\n{}", at());
                assert!(self.image && !self.pinned && self.sessions == 0, "hibernate\n{}", at());
                self.op = Some(Op::Hibernate { committed: false });
            }
            Action::AbortDeepen => {
                assert_eq!(self.op, Some(Op::Hibernate { committed: false }), "abort\n{}", at());
            }
            Action::BeginWake { .. } => {
                assert!(self.op.is_none() && self.alive && self.image && !self.damaged, "wake\n{}", at());
                self.op = Some(Op::Wake);
            }
            Action::Terminate => {
                assert!(self.running() && self.end_ordered, "terminate\n{}", at());
                self.terminated = true;
                self.activated = false;
            }
            Action::Kill => {
                assert!(self.op.is_none() && self.alive && (self.end_ordered || self.damaged), "kill\n{}", at());
                self.killed = true;
                self.activated = false;
            }
            Action::DiscardImage => {
                assert!(!self.dropped || !self.alive, "discarded the only copy\n{}", at());
                assert!(self.image, "discarded nothing\n{}", at());
                self.image = false;
            }
            Action::SetImageAside => {
                assert!(self.damaged, "set aside a good image\n{}", at());
                self.image = false;
            }
            Action::Observe => self.looks += 1,
            Action::SetTimer(Millis(time)) => {
                assert!(time >= self.now, "a timer in the past\n{}", at());
                self.timer = Some(time);
            }
            Action::ClearTimer => self.timer = None,
            Action::Reply(Ticket(ticket), answer) => self.replied(ticket, &answer),
            Action::Emit(note) => assert!(!note.kind().is_empty() && !note.to_string().is_empty()),
            Action::Unexpected { phase, event } => panic!("{event} unexpected while {phase}\n{}", at()),
        }
    }

    fn replied(&mut self, ticket: u64, answer: &Result<(), Refusal>) {
        let request = self.open.remove(&ticket);
        let request = request.unwrap_or_else(|| panic!("a second answer to {ticket}\n{}", self.log.join("\n")));
        if answer.is_err() {
            return;
        }
        let kept = match request {
            Request::Start | Request::Wake | Request::Exec | Request::Restart { .. } => self.running(),
            Request::Sleep { level } => self.dropped && self.op.is_none() && (level == Level::Dozing || self.warm),
            Request::Stop { .. } => !self.alive && self.op.is_none(),
        };
        // A program that has ended a moment ago, before it was started again, keeps a stop's promise too.
        assert!(kept, "{request:?} answered too early\n{}", self.log.join("\n"));
        if request == Request::Exec {
            self.sessions += 1;
        }
    }

    /// What holds whenever nothing is left to do at this moment.
    fn check_rest(&mut self) {
        let at = || self.log.join("\n");
        if matches!(self.app.phase(), Phase::Running(_)) {
            self.activated = false;
        }
        assert_eq!(self.app.phase().is_operation(), self.op.is_some(), "{}", at());
        assert_eq!(self.app.exec_sessions(), self.sessions, "{}", at());
        match self.app.phase() {
            Phase::Dozing(asleep) | Phase::Warm(asleep) => {
                assert_eq!(self.warm, matches!(self.app.phase(), Phase::Warm(_)), "{}", at());
                assert_eq!(self.warm, asleep.level() == Level::Warm, "{}", at());
                assert!(self.alive && self.dropped && self.image && !self.damaged, "{}", at());
                if asleep.retry.is_none() {
                    assert!(!self.activated && !self.pinned && self.sessions == 0, "sleeps in use\n{}", at());
                    assert!(self.open.is_empty(), "somebody waits for a sleeping app\n{}", at());
                }
                let by_itself = asleep.next_timer.is_some() || self.app.warm_at().is_some();
                // What was refused is not tried again.
                let timer = asleep.retry.as_ref().map_or(by_itself, |retry| retry.at.is_some());
                assert_eq!(self.timer.is_some(), timer, "{}", at());
            }
            Phase::Stopped { .. } => {
                assert!(!self.alive && !self.image && self.timer.is_none() && self.open.is_empty(), "{}", at());
            }
            Phase::Backoff { .. } => assert!(!self.alive && !self.image && self.timer.is_some(), "{}", at()),
            Phase::Running(_) => {
                assert!(self.running() && self.open.is_empty(), "{}", at());
                let account = self.app.explain(Millis(self.now));
                if let Some(sleeps_at) = account.sleeps_at
                    && self.looks == 0
                {
                    assert!(self.timer.is_some_and(|timer| timer <= sleeps_at.0), "would oversleep\n{}", at());
                }
            }
            Phase::Stopping { .. } => assert!(self.timer.is_some(), "{}", at()),
            _ => {}
        }
    }

    fn ask(&mut self, request: Request) -> u64 {
        self.next_ticket += 1;
        self.open.insert(self.next_ticket, request);
        self.end_ordered |= matches!(request, Request::Stop { .. } | Request::Restart { .. });
        self.send(Event::Request(Ticket(self.next_ticket), request));
        self.next_ticket
    }

    fn pass(&mut self, span: u64) {
        let end = self.now + span;
        for _ in 0..1_000 {
            match self.timer {
                Some(at) if at <= end => self.ring(),
                _ => break,
            }
        }
        self.now = self.now.max(end);
    }

    fn ring(&mut self) {
        if let Some(at) = self.timer.take() {
            self.now = self.now.max(at);
            self.send(Event::TimerFired);
        }
    }

    fn exit(&mut self, exit: Exit) {
        self.alive = false;
        self.dropped = false;
        self.warm = false;
        self.terminated = false;
        self.killed = false;
        self.damaged = false;
        self.send(Event::Exited(exit));
    }

    /// The operation comes to outcome number `choice`; 0 is success.
    fn outcome(&mut self, choice: u8) {
        let ended = !self.alive;
        match self.op {
            None => {}
            Some(Op::Spawn) => {
                self.op = None;
                if choice % 4 == 3 {
                    self.send(Event::StartFailed("no such program".into()));
                } else {
                    self.alive = true;
                    self.counters = Observation::default();
                    self.send(Event::Started);
                }
            }
            Some(Op::Capture { committed: false }) => match choice % 5 {
                0 | 1 => {
                    self.op = Some(Op::Capture { committed: true });
                    self.image = true;
                    self.dropped = self.alive;
                    self.send(Event::CaptureCommitted);
                }
                2 | 3 => {
                    self.op = None;
                    self.send(Event::CaptureAborted(WakeCause::Packet("packet for tcp 80".into())));
                }
                _ => {
                    self.op = None;
                    let retry = if choice > 127 { Retry::Later } else { Retry::Pointless };
                    self.send(Event::CaptureRefused { reasons: vec!["disk full".into()], retry });
                }
            },
            Some(Op::Capture { committed: true }) => {
                self.op = None;
                let next_timer = (choice % 3 == 1).then(|| Millis(self.now + u64::from(choice) * 300));
                self.send(if choice % 8 == 7 {
                    Event::DropFailed("ptrace".into())
                } else {
                    Event::Dozed { next_timer }
                });
            }
            Some(Op::Hibernate { committed: false }) => match choice % 7 {
                0 | 1 => {
                    self.op = Some(Op::Hibernate { committed: true });
                    self.warm = self.alive;
                    self.send(Event::HibernateCommitted);
                }
                2 => {
                    self.op = None;
                    self.dropped = false;
                    self.send(Event::HibernateAborted(WakeCause::Packet("packet for tcp 80".into())));
                }
                6 => {
                    self.op = None;
                    self.send(Event::HibernateFailed("ptrace".into()));
                }
                kind => {
                    self.op = None;
                    let dozes = kind != 3;
                    self.dropped = self.alive && dozes;
                    let retry = if choice > 127 { Retry::Later } else { Retry::Pointless };
                    self.send(Event::HibernateRefused { reasons: vec!["a pipe".into()], retry, dozes });
                }
            },
            Some(Op::Hibernate { committed: true }) => {
                self.op = None;
                let next_timer = (choice % 3 == 1).then(|| Millis(self.now + u64::from(choice) * 300));
                self.send(if choice % 8 == 7 {
                    Event::HibernateFailed("kill".into())
                } else {
                    Event::Hibernated { next_timer }
                });
            }
            Some(Op::Wake) => {
                self.op = None;
                match choice % 4 {
                    2 if choice % 8 == 6 => self.send(Event::WakeFailed(WakeFailure::Refused("changed".into()))),
                    2 => self.send(Event::WakeFailed(WakeFailure::Passing("no memory".into()))),
                    3 => {
                        self.damaged = true;
                        self.send(Event::WakeFailed(WakeFailure::Damaged("checksum".into())));
                        self.damaged &= !ended;
                    }
                    _ => {
                        self.dropped = false;
                        self.warm = false;
                        self.send(Event::Woken);
                    }
                }
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ask(request) => {
                self.ask(request);
            }
            Step::Packet => {
                self.activated = self.alive && !self.terminated && !self.killed;
                self.send(Event::Packet("packet for tcp 80".into()));
            }
            Step::Pin(pinned) => {
                self.pinned = pinned;
                self.send(Event::Pinned(pinned));
            }
            Step::ExecEnd if self.sessions > 0 => {
                self.sessions -= 1;
                self.send(Event::ExecEnded);
            }
            Step::ExecEnd => {}
            Step::Short => self.send(Event::Hibernate(SleepCause::Memory)),
            Step::Outcome(choice) => self.outcome(choice),
            Step::Exit(choice) if self.alive && self.op != Some(Op::Spawn) => self.exit(match choice % 4 {
                0 => Exit::Status(0),
                1 => Exit::Status(1),
                2 => Exit::Signal(9),
                _ => Exit::MemoryLimit(64 << 20),
            }),
            Step::Exit(_) => {}
            Step::Pass(span) => self.pass(span),
            Step::Look(packets, cpu_us) => {
                self.counters.packets += packets;
                self.counters.cpu_us += cpu_us;
                self.look();
            }
        }
    }

    fn look(&mut self) {
        self.looks = 0;
        self.send(Event::Observed(self.counters));
    }

    /// From here on everything succeeds, until nothing is under way any more.
    fn settle(&mut self) {
        for _ in 0..200 {
            match self.app.phase() {
                _ if self.op.is_some() => self.outcome(0),
                Phase::Stopping { .. } => self.exit(Exit::Status(0)),
                Phase::Backoff { .. } => self.ring(),
                Phase::Dozing(asleep) | Phase::Warm(asleep) if asleep.is_refused() => drop(self.ask(Request::Wake)),
                Phase::Dozing(asleep) | Phase::Warm(asleep) if asleep.retry.is_some() => self.ring(),
                _ => return,
            }
        }
        panic!("never settles\n{}", self.log.join("\n"));
    }

    /// Nobody uses it: time passes until it sleeps as deep as it will, or until nothing would change any more.
    fn leave_alone(&mut self) {
        for _ in 0..2_000 {
            match self.app.phase() {
                Phase::Dozing(asleep) | Phase::Warm(asleep)
                    if asleep.deadline_for_test().is_none() && self.app.warm_at().is_none() =>
                {
                    return;
                }
                _ if self.op.is_some() => self.outcome(0),
                _ if self.looks > 0 => self.look(),
                _ if self.timer.is_some() => self.ring(),
                _ => return,
            }
        }
        panic!("never comes to rest\n{}", self.log.join("\n"));
    }
}

/// `Asleep` as a test sees it.
trait Deadline {
    fn deadline_for_test(&self) -> Option<Millis>;
}

impl Deadline for Asleep {
    fn deadline_for_test(&self) -> Option<Millis> {
        self.retry.as_ref().map_or(self.next_timer, |retry| retry.at)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens in whatever order: no rule is broken on the way, everybody is answered, and it can still be
    /// started, falls asleep when left alone, and wakes.
    #[test]
    fn any_life(
        policy in policies(),
        pinned in any::<bool>(),
        found in found(),
        life in prop::collection::vec(steps(), 0..80),
    ) {
        let sleeps = policy.sleep;
        let mut world = World::new(policy, pinned, found);
        for step in life {
            world.step(step);
        }
        world.settle();
        let log = || world.log.join("\n");
        prop_assert!(world.open.is_empty(), "unanswered: {:?}\n{}", world.open, log());

        world.ask(Request::Start);
        world.settle();
        prop_assert!(matches!(world.app.phase(), Phase::Running(_)), "{}", world.log.join("\n"));

        world.step(Step::Pin(false));
        while world.sessions > 0 {
            world.step(Step::ExecEnd);
        }
        world.leave_alone();
        let refused = world.app.blockers().iter().any(|it| matches!(it, Blocker::Refused { again_in: None, .. }));
        let asleep = matches!(world.app.phase(), Phase::Dozing(_) | Phase::Warm(_));
        prop_assert_eq!(asleep, sleeps && !refused, "{}", world.log.join("\n"));
        let account = world.app.explain(Millis(world.now));
        if matches!(world.app.phase(), Phase::Dozing(_)) {
            prop_assert!(!account.keeps_dozing.is_empty(), "dozes for no reason\n{}", world.log.join("\n"));
        } else {
            prop_assert!(account.keeps_dozing.is_empty() && account.warm_at.is_none());
        }

        world.ask(Request::Wake);
        world.settle();
        prop_assert!(matches!(world.app.phase(), Phase::Running(_)), "{}", world.log.join("\n"));
    }

    /// A packet in any sleeping phase: it runs without anybody's help, even when waking fails at first.
    #[test]
    fn a_packet_is_never_lost(before in 0_usize..6, fails in 0_usize..6, warm in any::<bool>()) {
        let mut world = World::new(Policy::default(), false, None);
        world.ask(Request::Start);
        world.outcome(0);
        world.ask(Request::Sleep { level: if warm { Level::Warm } else { Level::Dozing } });
        for n in 0..6 {
            if n == before {
                world.step(Step::Packet);
            }
            match world.op {
                Some(Op::Wake) => break,
                _ => world.outcome(0),
            }
        }
        for _ in 0..fails {
            if world.op == Some(Op::Wake) {
                world.outcome(2);
                world.ring();
            }
        }
        world.settle();
        prop_assert!(matches!(world.app.phase(), Phase::Running(_)), "{}", world.log.join("\n"));
    }

    /// Events that no owner would send in that order: no panic, no timer in the past, at most one answer each.
    #[test]
    fn nonsense_does_no_harm(script in prop::collection::vec((0_u8..36, 0_u64..50_000, any::<bool>()), 0..120)) {
        let mut app = App::new(Policy::default(), false, Millis(0));
        let mut answered = std::collections::BTreeSet::new();
        for (number, (kind, time, flag)) in script.into_iter().enumerate() {
            let ask = |request| Event::Request(Ticket(number as u64), request);
            let event = match kind {
                0 => ask(Request::Start),
                1 => ask(Request::Wake),
                2 | 24 => ask(Request::Sleep { level: Level::Dozing }),
                3 => ask(Request::Exec),
                4 => ask(Request::Stop { grace: GRACE }),
                5 => ask(Request::Restart { grace: GRACE }),
                6 => Event::Pinned(flag),
                7 => Event::ExecEnded,
                8 => Event::Packet("packet".into()),
                9 => Event::TimerFired,
                10 => Event::Observed(Observation { packets: time % 2, cpu_us: time, connections: 1 }),
                11 | 25 => Event::Started,
                12 => Event::StartFailed("reason".into()),
                13 | 23 => Event::CaptureCommitted,
                14 => Event::Dozed { next_timer: flag.then_some(Millis(time)) },
                15 => Event::CaptureAborted(WakeCause::Timer),
                16 => Event::CaptureRefused { reasons: Vec::new(), retry: Retry::Later },
                17 => Event::DropFailed("reason".into()),
                18 => Event::Woken,
                19 if flag => Event::WakeFailed(WakeFailure::Refused("reason".into())),
                19 => Event::WakeFailed(WakeFailure::Passing("reason".into())),
                20 => Event::WakeFailed(WakeFailure::Damaged("reason".into())),
                21 => Event::Exited(Exit::Status(i32::from(flag))),
                26 | 27 => ask(Request::Sleep { level: Level::Warm }),
                28 => Event::Hibernate(SleepCause::Memory),
                29 | 30 => Event::HibernateCommitted,
                31 | 32 => Event::Hibernated { next_timer: flag.then_some(Millis(time)) },
                33 => Event::HibernateAborted(WakeCause::Timer),
                34 => Event::HibernateRefused { reasons: Vec::new(), retry: Retry::Later, dozes: flag },
                35 => Event::HibernateFailed("reason".into()),
                _ => Event::Adopted(if flag { Found::MidCapture } else { Found::MidDropOrWake }),
            };
            // Time goes backwards as well: the latest counts.
            for action in app.handle(event, Millis(time)) {
                match action {
                    Action::SetTimer(at) => prop_assert!(at >= Millis(time)),
                    Action::Reply(ticket, _) => prop_assert!(answered.insert(ticket)),
                    _ => {}
                }
            }
            prop_assert!(!app.explain(Millis(time)).why.is_empty());
        }
    }
}
