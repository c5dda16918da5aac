//! Killing an app's processes, on a thread of its own: what is killed may take long to end, or never end while somebody else holds it
//! (a tracer, a call of the kernel that nothing interrupts).
//!
//! The state machine asks again as long as the app has not ended. An attempt that is under way is not doubled, and after one that has
//! failed the next begins later each time. Meanwhile the app is `stopping`, and `explain` says what holds it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use torpor_lifecycle::Text;
use torpor_sandbox::Sandbox;

use super::texts::chain;
use super::{Message, ProcessTree};

/// Between the first attempt that fails and the next; doubled with each further one.
const AGAIN: Duration = Duration::from_secs(10);
/// At the most.
const AGAIN_AT_MOST: Duration = Duration::from_secs(300);

/// What has come of killing the sandbox that a task holds; reset with it.
#[derive(Debug, Default)]
pub(super) struct KillAttempts {
    operation: bool,
    failures: u32,
    not_before: Option<Instant>,
    held: Option<Text>,
}

impl KillAttempts {
    /// Whether an attempt may begin now, which then has.
    fn begin(&mut self, now: Instant) -> bool {
        if self.operation || self.not_before.is_some_and(|at| now < at) {
            return false;
        }
        self.operation = true;
        true
    }

    fn failed(&mut self, now: Instant, held: Text) {
        let pause = AGAIN.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX)).min(AGAIN_AT_MOST);
        *self = Self {
            operation: false,
            failures: self.failures.saturating_add(1),
            not_before: Some(now + pause),
            held: Some(held),
        };
    }

    /// Why it has not ended though it was killed.
    pub(super) fn held(&self) -> Option<&Text> {
        self.held.as_ref()
    }
}

impl ProcessTree {
    /// Kills it; its init's end tells when that is done.
    pub(super) fn kill_sandbox(&mut self) {
        let Some(sandbox) = self.run.sandbox.clone() else { return };
        if !self.run.kill_attempts.begin(Instant::now()) {
            return;
        }
        let sender = self.sender.clone();
        tokio::task::spawn_blocking(move || {
            let held = sandbox.kill().err().map(|error| chain(&error));
            // The task may have ended with the worker.
            let _ = sender.send(Message::Killed(sandbox, held));
        });
    }

    /// An attempt has come to its end.
    pub(super) fn killed(&mut self, sandbox: &Arc<Sandbox>, held: Option<Text>) {
        if !self.run.sandbox.as_ref().is_some_and(|own| Arc::ptr_eq(own, sandbox)) {
            return;
        }
        match held {
            None => self.run.kill_attempts = KillAttempts::default(),
            Some(held) => {
                let (app, first) = (self.record.spec.name.as_str(), self.run.kill_attempts.held.is_none());
                tracing::error!(app, error = %held, "killing it");
                if first {
                    self.shared.services.events.emit(
                        app,
                        "overdue",
                        format!("killed, and not ended: {held}"),
                        Default::default(),
                    );
                }
                self.run.kill_attempts.failed(Instant::now(), held);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_attempt_at_a_time_and_each_later_than_the_one_before() {
        let mut kill_attempts = KillAttempts::default();
        let mut now = Instant::now();
        assert!(kill_attempts.begin(now) && !kill_attempts.begin(now));
        for pause in [10, 20, 40, 80, 160, 300, 300] {
            kill_attempts.failed(now, "held".into());
            assert!(!kill_attempts.begin(now + Duration::from_secs(pause - 1)), "{pause}");
            now += Duration::from_secs(pause);
            assert!(kill_attempts.begin(now), "{pause}");
        }
        assert_eq!(kill_attempts.held(), Some(&"held".into()));
    }
}
