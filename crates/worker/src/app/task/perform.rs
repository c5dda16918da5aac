//! Orders, what the machine decides about them, and how that is performed.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use tokio::sync::oneshot;
use torpor_lifecycle::{Action, Event, Found, Note, Phase, Refusal, Request, StopReason, WakeCause};

use super::{Order, Task};
use crate::app::history::QUEUED;
use crate::app::workload::{Exportable, Workload};
use crate::clock;

impl<W: Workload> Task<W> {
    pub(super) async fn order(&mut self, order: Order<W::Place>) {
        match order {
            // Whoever asked may have hung up.
            Order::Request(_, answer) if self.put_away => drop(answer.send(Err(Refusal::BeingStopped))),
            Order::Pin(_) | Order::ExecEnded | Order::Hibernate(_) if self.put_away => {}
            Order::Request(request, answer) => self.request(request, answer).await,
            Order::Pin(pinned) => {
                self.tell(Event::Pinned(pinned)).await;
                self.wake_at_once().await;
            }
            Order::ExecEnded => self.tell(Event::ExecEnded).await,
            // Whoever asks may have gone meanwhile; then nobody needs the answer.
            Order::NotStarted(answer) => {
                let phase = self.app.phase();
                let not_started = matches!(phase, Phase::Stopped { why: StopReason::NotStarted });
                let _ = answer.send(not_started && self.adoption_retry.is_none());
            }
            Order::Status(answer) => drop(answer.send(self.look(Self::status))),
            Order::Explain(answer) => drop(answer.send(self.look(Self::explain))),
            Order::Stats(answer) => drop(answer.send(self.look(Self::stats))),
            Order::Images(answer) => drop(answer.send(tokio::task::block_in_place(|| self.workload.images()))),
            Order::RemoveImages(answer) => {
                drop(answer.send(tokio::task::block_in_place(|| self.workload.remove_images())));
            }
            Order::Export(answer) => drop(answer.send(self.exportable())),
            Order::AdoptImport(answer) => drop(answer.send(self.adopt_import().await)),
            Order::PutAway(answer) => drop(answer.send(self.put_away().await)),
            Order::Hibernate(done) => self.demote_for_memory(done).await,
            Order::Place(answer) => drop(answer.send(self.workload.place())),
            Order::End(_) => {}
        }
    }

    async fn request(&mut self, request: Request, answer: oneshot::Sender<Result<(), Refusal>>) {
        if let Some(refusal) = self.adopt_for(&request).await {
            // Whoever asked may have hung up.
            let _ = answer.send(Err(refusal));
            return;
        }
        let ticket = self.answers.expect(answer);
        let waits = matches!(request, Request::Sleep { .. });
        self.tell(Event::Request(ticket, request)).await;
        if !waits {
            self.wake_at_once().await;
        }
    }

    /// Tells the machine, and performs what it decides. What performing leads to at once is told in turn.
    pub(super) async fn tell(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.app.handle(event, clock::now()) {
                events.extend(self.perform(action).await);
            }
        }
        self.update_accounting();
    }

    /// Performs one action; gives the event that it leads to, if that is known at once.
    async fn perform(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Spawn => match self.operations.held_up() {
                Some(reason) => return Some(Event::StartFailed(reason.into())),
                None => self.workload.start(&mut self.operations),
            },
            Action::BeginCapture { .. } | Action::BeginDeepen { .. } if self.operations.held_up().is_some() => {
                return self.operations.held_up().map(|why| Self::no_sleep(&action, why));
            }
            Action::BeginCapture { .. } | Action::BeginDeepen { .. } if self.services.image_space.is_full() => {
                return Some(self.no_space(&action));
            }
            Action::BeginCapture { cause } => {
                self.past.sleep_begins(cause);
                self.workload.sleep(cause, &mut self.operations);
            }
            Action::AbortCapture | Action::AbortDeepen => self.workload.abort(),
            Action::BeginDeepen { cause } => {
                self.past.sleep_begins(cause);
                self.workload.hibernate(&mut self.operations);
            }
            Action::BeginWake { cause } => return self.prepare_and_wake(&cause).await,
            Action::Terminate => self.workload.terminate(),
            Action::Kill => return self.workload.kill().map(Event::Exited),
            Action::DiscardImage => self.workload.discard(),
            Action::SetImageAside => self.workload.quarantine(),
            Action::Observe => return self.look(|task| task.workload.observe()).map(Event::Observed),
            Action::SetTimer(at) => self.timer = Some(at),
            Action::ClearTimer => self.timer = None,
            Action::Reply(ticket, answer) => self.answers.give(ticket, answer),
            Action::Emit(note) => self.emit(&note),
            Action::Unexpected { phase, event } => {
                tracing::error!(app = self.record.spec.name, phase, event, "event that cannot happen in this phase");
            }
        }
        None
    }

    async fn prepare_and_wake(&mut self, cause: &WakeCause) -> Option<Event> {
        if self.workload.wake_blocker().is_some() {
            if let Err(failure) = self.workload.prepare_wake().await {
                return Some(Event::WakeFailed(failure));
            }
            self.wakes.fell_asleep(&self.app);
        }
        self.begin_wake(cause)
    }

    /// Looks at the workload. That may wait for locks of its memory, which it may hold for long: other tasks do not wait for this thread.
    fn look<T>(&self, look: impl FnOnce(&Self) -> T) -> T {
        if self.workload.blocks_when_observed() { tokio::task::block_in_place(|| look(self)) } else { look(self) }
    }

    fn exportable(&self) -> io::Result<Option<Exportable>> {
        if !matches!(self.app.phase(), Phase::Warm(_)) {
            return Ok(None);
        }
        self.workload.exportable()
    }

    /// Becomes warm from the image that lies in its directory, as after a reboot. After an error nothing of it is running or
    /// set up, and its files are as they were.
    async fn adopt_import(&mut self) -> Result<(), String> {
        let next_timer = self.workload.adopt_import().await?;
        self.wakes.fell_asleep(&self.app);
        self.tell(Event::Adopted(Found::Stored { next_timer })).await;
        Ok(())
    }

    async fn put_away(&mut self) -> Result<(), String> {
        if !matches!(self.app.phase(), Phase::Warm(_)) {
            return Err(format!("it is {}", self.app.phase().name()));
        }
        self.workload.put_away().await?;
        // A timer of its own must not wake it: the wake would use up its image.
        self.put_away = true;
        Ok(())
    }

    fn emit(&mut self, note: &Note) {
        self.save_history(note);
        let mut fields = BTreeMap::new();
        if let Some(transition) = self.past.last(note) {
            fields.insert("total_us".to_owned(), transition.total_us.into());
            if let Some(queued) = transition.phases.iter().find(|phase| phase.name == QUEUED) {
                fields.insert("queued_us".to_owned(), queued.us.into());
            }
        }
        self.services.events.emit(&self.record.spec.name, note.kind(), note.to_string(), fields);
    }
}
