//! An app, what it was told and what it last asked for.

use std::time::Duration;

use torpor_lifecycle::*;

pub(crate) const START: u64 = 1_000;

/// An app and what it last asked for.
pub(crate) struct Life {
    pub(crate) app: App,
    pub(crate) said: Vec<Action>,
    pub(crate) timer: Option<u64>,
    pub(crate) tickets: u64,
}

impl Life {
    pub(crate) fn new(policy: Policy) -> Self {
        Self { app: App::new(policy, false, Millis(START)), said: Vec::new(), timer: None, tickets: 0 }
    }

    pub(crate) fn running(policy: Policy) -> Self {
        let mut life = Self::new(policy);
        life.ask(START, Request::Start);
        life.at(START, Event::Started);
        life
    }

    pub(crate) fn dozing(policy: Policy) -> Self {
        let mut life = Self::running(policy);
        life.fall_asleep(START, None);
        life
    }

    pub(crate) fn fall_asleep(&mut self, time: u64, next_timer: Option<u64>) {
        self.ask(time, Request::Sleep { level: Level::Dozing });
        self.at(time, Event::CaptureCommitted);
        self.at(time, Event::Dozed { next_timer: next_timer.map(Millis) });
        assert!(matches!(self.app.phase(), Phase::Dozing(_)), "{:?}", self.said);
    }

    pub(crate) fn warm(policy: Policy) -> Self {
        let mut life = Self::dozing(policy);
        life.go_warm(START, None);
        life
    }

    pub(crate) fn go_warm(&mut self, time: u64, next_timer: Option<u64>) {
        self.ask(time, Request::Sleep { level: Level::Warm });
        assert!(self.said(&Action::BeginDeepen { cause: SleepCause::Command }), "{:?}", self.said);
        self.at(time, Event::HibernateCommitted);
        self.at(time, Event::Hibernated { next_timer: next_timer.map(Millis) });
        assert!(matches!(self.app.phase(), Phase::Warm(_)) && self.replies() == [Ok(())], "{:?}", self.said);
    }

    pub(crate) fn at(&mut self, time: u64, event: Event) -> &mut Self {
        if event == Event::TimerFired {
            self.timer = None;
        }
        self.said = self.app.handle(event, Millis(time));
        for action in &self.said {
            match action {
                Action::SetTimer(at) => self.timer = Some(at.0),
                Action::ClearTimer => self.timer = None,
                _ => {}
            }
        }
        self
    }

    pub(crate) fn ask(&mut self, time: u64, request: Request) -> &mut Self {
        self.tickets += 1;
        self.at(time, Event::Request(Ticket(self.tickets), request))
    }

    pub(crate) fn observe(&mut self, time: u64, packets: u64, cpu_us: u64, connections: u32) -> &mut Self {
        self.at(time, Event::Observed(Observation { packets, cpu_us, connections }))
    }

    pub(crate) fn said(&self, action: &Action) -> bool {
        self.said.contains(action)
    }

    pub(crate) fn replies(&self) -> Vec<Result<(), Refusal>> {
        let reply = |action: &Action| if let Action::Reply(_, answer) = action { Some(answer.clone()) } else { None };
        self.said.iter().filter_map(reply).collect()
    }

    pub(crate) fn captures(&self) -> Option<SleepCause> {
        self.said.iter().find_map(|it| if let Action::BeginCapture { cause } = it { Some(*cause) } else { None })
    }

    /// Rings every timer and answers every look with these counters until `end` or until it falls asleep; says when.
    pub(crate) fn live(&mut self, end: u64, counters: impl Fn(u64) -> Observation) -> Option<u64> {
        while let Some(time) = self.timer.filter(|time| *time <= end) {
            self.at(time, Event::TimerFired);
            if self.said(&Action::Observe) {
                self.at(time, Event::Observed(counters(time)));
            }
            if self.captures().is_some() {
                return Some(time);
            }
        }
        None
    }
}

pub(crate) fn packet() -> Event {
    Event::Packet("packet for tcp 80".into())
}

pub(crate) fn stop() -> Request {
    Request::Stop { grace: Duration::from_secs(10) }
}

pub(crate) fn quiet(_: u64) -> Observation {
    Observation::default()
}

pub(crate) fn cause() -> WakeCause {
    WakeCause::Packet("packet for tcp 80".into())
}

pub(crate) fn refuse(life: &mut Life, time: u64, retry: Retry) {
    life.at(time, Event::CaptureRefused { reasons: vec!["pid 7: io_uring".into()], retry });
}

pub(crate) fn refuse_warm(life: &mut Life, time: u64, retry: Retry, dozes: bool) {
    life.at(time, Event::HibernateRefused { reasons: vec!["pid 7: io_uring".into()], retry, dozes });
}
