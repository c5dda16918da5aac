//! What people ask for.

use std::mem;
use std::time::Duration;

use crate::action::{Action, MAX_WAITING, Refusal};
use crate::app::{App, Goal, Stop, Waiting};
use crate::event::{Event, Level, Request, SleepCause, Ticket, WakeCause};
use crate::phase::{Ending, HibernateStage, Next, Phase, StartedBy, StopReason};

impl App {
    pub(crate) fn request(&mut self, ticket: Ticket, request: Request) {
        // A crowd that waits for a wake does not keep anyone from ending the app.
        let ends = matches!(request, Request::Stop { .. } | Request::Restart { .. });
        let places = if ends { 2 * MAX_WAITING } else { MAX_WAITING };
        let answer = match request {
            _ if self.waiting.len() >= places => Some(Err(Refusal::TooMany)),
            Request::Start => self.request_start(ticket),
            Request::Wake => self.request_awake(ticket, Goal::Awake, WakeCause::Command),
            Request::Exec => self.request_exec(ticket),
            Request::Sleep { level } => self.request_sleep(ticket, level),
            Request::Stop { grace } => self.request_end(ticket, Goal::Ended, grace, Next::Stay),
            Request::Restart { grace } => self.request_end(ticket, Goal::Awake, grace, Next::Start),
        };
        if let Some(answer) = answer {
            self.act(Action::Reply(ticket, answer));
        }
    }

    pub(crate) fn pin(&mut self, pinned: bool) {
        let before = mem::replace(&mut self.pinned, pinned);
        match (before, pinned) {
            (false, true) => self.activate(WakeCause::Pin),
            (true, false) => self.watch_again(),
            (false, false) | (true, true) => {}
        }
    }

    pub(crate) fn exec_ended(&mut self) {
        match self.exec_sessions {
            0 => self.unexpected(&Event::ExecEnded),
            1 => {
                self.exec_sessions = 0;
                self.watch_again();
            }
            more => self.exec_sessions = more - 1,
        }
    }

    fn wait(&mut self, ticket: Ticket, goal: Goal) -> Option<Result<(), Refusal>> {
        self.waiting.push(Waiting { ticket, goal });
        None
    }

    fn request_start(&mut self, ticket: Ticket) -> Option<Result<(), Refusal>> {
        match &mut self.phase {
            Phase::Stopped { .. } | Phase::Backoff { .. } => {
                let waits = self.wait(ticket, Goal::Awake);
                self.spawn_by_request();
                waits
            }
            Phase::Stopping { next, .. } => {
                *next = Next::Start;
                self.wait(ticket, Goal::Awake)
            }
            _ => {
                // A start after an order to stop, or after an end that is not through yet: one after the other.
                if let Some(stop) = &mut self.stop {
                    stop.next = Next::Start;
                } else if self.exited.is_some() {
                    self.stop = Some(Stop { grace: Duration::ZERO, next: Next::Start });
                }
                self.request_awake(ticket, Goal::Awake, WakeCause::Command)
            }
        }
    }

    /// For wake and exec: `goal` once it runs.
    fn request_awake(&mut self, ticket: Ticket, goal: Goal, cause: WakeCause) -> Option<Result<(), Refusal>> {
        match &self.phase {
            Phase::Running(_) => {
                self.activate(cause);
                Some(Ok(()))
            }
            Phase::Stopped { why } => Some(Err(Refusal::Stopped(why.clone()))),
            Phase::Backoff { .. } => Some(Err(Refusal::Restarting)),
            Phase::Stopping { next: Next::Start, .. } => self.wait(ticket, goal),
            Phase::Stopping { next: Next::Stay, .. } => Some(Err(Refusal::BeingStopped)),
            Phase::Stopping { next: Next::Lost(reason), .. } => Some(Err(Refusal::Lost(reason.clone()))),
            _ if self.stop.as_ref().is_some_and(|stop| stop.next == Next::Stay) => Some(Err(Refusal::BeingStopped)),
            _ => {
                let waits = self.wait(ticket, goal);
                self.activate(cause);
                waits
            }
        }
    }

    fn request_exec(&mut self, ticket: Ticket) -> Option<Result<(), Refusal>> {
        let answer = self.request_awake(ticket, Goal::Exec, WakeCause::Exec);
        if answer == Some(Ok(())) {
            self.exec_sessions = self.exec_sessions.saturating_add(1);
            self.plan_look();
        }
        answer
    }

    fn request_sleep(&mut self, ticket: Ticket, level: Level) -> Option<Result<(), Refusal>> {
        let goal = if level == Level::Warm { Goal::Warm } else { Goal::Asleep };
        match &self.phase {
            Phase::Running(_) => match self.kept_awake() {
                Some(refusal) => Some(Err(refusal)),
                None => {
                    let waits = self.wait(ticket, goal);
                    self.sleep_on_command();
                    waits
                }
            },
            Phase::Capturing { .. } | Phase::Dropping { .. } => self.wait(ticket, goal),
            Phase::Dozing(asleep) if level > asleep.level() => {
                if let Some(retry) = &asleep.retry {
                    return Some(Err(Refusal::SleepAborted(retry.cause.clone())));
                }
                self.deep_refused = None;
                let asleep = asleep.clone();
                let waits = self.wait(ticket, goal);
                self.begin_hibernate(SleepCause::Command, asleep);
                waits
            }
            Phase::Dozing(_) | Phase::Warm(_) => Some(Ok(())),
            Phase::Hibernating { stage: HibernateStage::Abortable | HibernateStage::Committed { .. }, .. } => {
                self.wait(ticket, goal)
            }
            Phase::Hibernating { stage: HibernateStage::Aborting(by), .. } | Phase::Aborting { by, .. } => {
                Some(Err(Refusal::SleepAborted(by.clone())))
            }
            // It is put to sleep as soon as it runs.
            Phase::Starting { .. } | Phase::Waking { .. } if self.stop.is_some() => Some(Err(Refusal::BeingStopped)),
            Phase::Starting { .. } | Phase::Waking { .. } => self.wait(ticket, goal),
            Phase::Stopped { why } => Some(Err(Refusal::Stopped(why.clone()))),
            Phase::Stopping { .. } => Some(Err(Refusal::BeingStopped)),
            Phase::Backoff { .. } => Some(Err(Refusal::Restarting)),
        }
    }

    /// What keeps a running app awake even if somebody wants it asleep.
    fn kept_awake(&self) -> Option<Refusal> {
        match self.exec_sessions {
            _ if self.pinned => Some(Refusal::Pinned),
            0 => None,
            sessions => Some(Refusal::ExecSessions(sessions)),
        }
    }

    fn sleep_on_command(&mut self) {
        self.refused = None;
        self.begin_capture(SleepCause::Command);
    }

    /// It runs: whoever has asked meanwhile that it sleep gets that now.
    pub(crate) fn sleep_if_asked(&mut self) {
        if !self.waiting.iter().any(|waiting| waiting.goal.is_sleep()) {
            return;
        }
        match self.kept_awake() {
            Some(refusal) => self.answer(Goal::is_sleep, &Err(refusal)),
            None => self.sleep_on_command(),
        }
    }

    /// For stop (`goal`: ended) and restart (`goal`: awake again).
    fn request_end(&mut self, ticket: Ticket, goal: Goal, grace: Duration, next: Next) -> Option<Result<(), Refusal>> {
        if next == Next::Stay {
            self.refuse_wakers(&Refusal::BeingStopped);
        }
        match &mut self.phase {
            Phase::Stopped { .. } | Phase::Backoff { .. } if next == Next::Stay => {
                if matches!(self.phase, Phase::Backoff { .. }) {
                    self.enter(Phase::Stopped { why: StopReason::Asked });
                }
                return Some(Ok(()));
            }
            Phase::Stopped { .. } | Phase::Backoff { .. } => self.spawn_by_request(),
            Phase::Running(_) => self.terminate(Stop { grace, next }),
            // It would not come to hear of it: it need not wake for that.
            Phase::Dozing(_) | Phase::Warm(_) if grace.is_zero() => self.kill(next),
            Phase::Stopping { ending, next: following } => {
                *following = next;
                if let Ending::Asked { kill_at } = ending {
                    *kill_at = (*kill_at).min(self.now + grace);
                }
            }
            _ => {
                let grace = self.stop.as_ref().map_or(grace, |earlier| earlier.grace.min(grace));
                self.activate(WakeCause::Stop);
                self.stop = Some(Stop { grace, next });
            }
        }
        self.wait(ticket, goal)
    }

    fn spawn_by_request(&mut self) {
        self.counts.restarts = 0;
        self.failures = 0;
        self.spawn(StartedBy::Request);
    }
}
