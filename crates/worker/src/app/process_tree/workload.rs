//! What the task asks of a process tree, and where that is done.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use torpor_api::ApiError;
use torpor_api::view::{AppImage, AppStatus, Explanation, Stats};
use torpor_lifecycle::{Event, Exit, Millis, Observation, SleepCause, Text, WakeCause, WakeFailure};
use torpor_sandbox::Sandbox;

use super::boot_image::SandboxRetry;
use super::sleep_state::SleepState;
use super::{Message, Outcome, ProcessTree, exit};
use crate::app::deadlines::Operations;
use crate::app::operation::{Ended, Kind};
use crate::app::workload::{Adoption, Exportable, Happening, Report, Wake, Workload};

impl Workload for ProcessTree {
    type Place = Arc<Sandbox>;
    type Outcome = Box<Outcome>;

    async fn adopt(&mut self) -> Result<Adoption, Text> {
        self.find().await
    }

    fn release(&mut self) {
        self.stop_lazy();
        (self.sleep.watch, self.run.init, self.run.sandbox, self.sleep.state) = (None, None, None, None);
        (self.run.output, self.sleep.cached_image) = (None, None);
        self.sleep.deferred.clear();
    }

    async fn end_unadopted(&mut self, reason: &Text) -> Result<(), Text> {
        self.destroy_leftovers().await?;
        self.after_exit().await;
        self.lose_images(&format!("it was stopped while it could not be adopted: {reason}"));
        Ok(())
    }

    async fn adopt_import(&mut self) -> Result<Option<Millis>, String> {
        match self.try_restore_sandbox().await {
            Ok(Some(next_timer)) => Ok(next_timer),
            Ok(None) => Err("it has no image".to_owned()),
            Err(error) => Err(error.reason().to_string()),
        }
    }

    fn start(&mut self, operations: &mut Operations) {
        self.begin_start(operations);
    }

    fn terminate(&mut self) {
        self.signal_stop();
    }

    fn kill(&mut self) -> Option<Exit> {
        if self.run.sandbox.is_none() {
            self.sandbox_retry = None;
            return Some(Exit::Signal(exit::SIGKILL));
        }
        self.kill_sandbox();
        None
    }

    async fn exited(&mut self, sleeps_on: bool) -> Option<Exit> {
        self.clean_up_exited(sleeps_on).await
    }

    async fn put_away(&mut self) -> Result<(), String> {
        self.remove_sandbox().await
    }

    async fn next(&mut self) -> Happening<Box<Outcome>> {
        loop {
            // While its processes are built, that has an outcome first: what holds it is not to be taken away meanwhile.
            let settled = self.resuming.is_none();
            let message = tokio::select! {
                biased;
                () = readable(self.sleep.watch.as_ref()) => return Happening::Awaited,
                Some(message) = self.messages.recv() => message,
                () = readable(self.run.init.as_ref()), if settled => return Happening::Exited,
            };
            match message {
                Message::Ended(operation, outcome) => return Happening::Ended(operation, outcome),
                Message::Event(event) => return Happening::Event(event),
                Message::Unserved(wake, reason) => self.unserved(&wake, &reason),
                Message::Folded(folded) => self.folded(folded),
                Message::Killed(sandbox, held) => self.killed(&sandbox, held),
            }
        }
    }

    fn awaited(&mut self) -> Option<Event> {
        self.watch_fired()
    }

    async fn ended(&mut self, outcome: Box<Outcome>, ended: Ended) -> Option<Report> {
        match *outcome {
            Outcome::Started(result) => self.started(result, ended).await,
            Outcome::Slept(attempt) => Some(self.slept(attempt, ended)),
            Outcome::Hibernated(hibernated) => Some(self.hibernated(hibernated, ended)),
            Outcome::Resumed(resumed) => self.resumed(resumed, ended),
        }
    }

    fn give_up(&mut self, kind: Kind) {
        self.end_given_up(kind);
    }

    fn abandon(&mut self, kind: Kind) {
        if let (Kind::Wake, Some(app)) = (kind, self.resuming.take()) {
            self.hold(SleepState::Warm(app), SystemTime::now());
        }
    }

    fn sleep(&mut self, cause: SleepCause, operations: &mut Operations) {
        self.begin_sleep(cause, operations);
    }

    fn hibernate(&mut self, operations: &mut Operations) {
        self.begin_hibernate(operations);
    }

    fn abort(&mut self) {
        if let Some(abort) = &self.abort {
            abort.ask();
        }
    }

    async fn prepare_wake(&mut self) -> Result<(), WakeFailure> {
        self.restore_sandbox_for_wake().await
    }

    fn wake(&mut self, cause: &WakeCause, operations: &mut Operations) -> Wake {
        self.begin_wake(cause, operations)
    }

    fn memory_to_hibernate(&self, image_bytes: u64) -> u64 {
        // Its complete image refers to pages that stay missing; what must be back first is little.
        if self.sleep.contexts_held { 0 } else { image_bytes }
    }

    fn confirm_asleep(&mut self) -> bool {
        !matches!(self.sleep.state, Some(SleepState::Warm(_))) || self.check_parked()
    }

    fn park_again(&mut self) {
        self.keeper_lost();
    }

    fn retry_at(&self) -> Option<Instant> {
        self.sandbox_retry.as_ref().map(SandboxRetry::again_at)
    }

    async fn retry(&mut self) -> Option<Exit> {
        self.retry_sandbox().await
    }

    fn refuse_clients(&mut self, refuse: bool) {
        self.update_connection_resets(refuse);
    }

    fn discard(&mut self) {
        self.discard_image();
    }

    fn quarantine(&mut self) {
        self.quarantine_image();
    }

    fn observe(&self) -> Option<Observation> {
        self.observation()
    }

    fn blocks_when_observed(&self) -> bool {
        // Looking at processes waits for locks of their memory; where there are none, there is nothing to wait for.
        self.run.sandbox.is_some() && !matches!(self.sleep.state, Some(SleepState::Warm(_)))
    }

    fn wake_blocker(&self) -> Option<String> {
        self.sandbox_retry.as_ref().map(SandboxRetry::words)
    }

    fn end_blocker(&self) -> Option<Text> {
        self.run.kill_attempts.held().cloned()
    }

    fn describe(&self, status: &mut AppStatus) {
        self.describe_processes(status);
    }

    fn explain(&self, runs: bool, explanation: &mut Explanation) {
        self.explain_processes(runs, explanation);
    }

    fn measure(&self, stats: &mut Stats) {
        self.measure_processes(stats);
    }

    fn images(&self) -> Result<Vec<AppImage>, ApiError> {
        self.list_images()
    }

    fn remove_images(&mut self) -> Result<Vec<AppImage>, ApiError> {
        self.remove_unused_images()
    }

    fn exportable(&self) -> io::Result<Option<Exportable>> {
        self.export()
    }

    fn place(&self) -> Option<Arc<Sandbox>> {
        self.run.sandbox.clone()
    }
}

/// Waits until `fd` is readable; for ever if there is none. Its readiness is forgotten: whoever reads what is there has to
/// read all of it.
async fn readable(fd: Option<&AsyncFd<OwnedFd>>) {
    match fd {
        Some(fd) => match fd.ready(Interest::READABLE).await {
            Ok(mut guard) => guard.clear_ready(),
            Err(error) => {
                tracing::error!(%error, "waiting for a descriptor");
                std::future::pending().await
            }
        },
        None => std::future::pending().await,
    }
}
