//! How a process tree ends, and what is removed then.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use torpor_api::worker::AppRecord;
use torpor_lifecycle::{Exit, Text};
use torpor_sandbox::cgroup::Cgroup;
use torpor_sandbox::{ExitStatus, Sandbox};

use super::kill::KillAttempts;
use super::sleep_state::SleepState;
use super::texts::chain;
use super::{ProcessTree, parked};
use crate::app::operation::Kind;

/// How an app ends that is killed.
pub(super) const SIGKILL: i32 = 9;
/// How long the end of an app's output may be waited for once its processes are gone.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

impl ProcessTree {
    /// Asks its initial process to end.
    pub(super) fn signal_stop(&mut self) {
        if let Some(sandbox) = &self.run.sandbox {
            let signal = stop_signal(&self.record);
            if let Err(error) = sandbox.signal(signal) {
                tracing::warn!(app = self.record.spec.name, error = %chain(&error), "asking it to end");
            }
        }
    }

    /// Its init has ended: all its processes have. How; none where it sleeps on, or the worker ends. `sleeps_on`: nobody wants its end.
    pub(super) async fn clean_up_exited(&mut self, sleeps_on: bool) -> Option<Exit> {
        let sandbox = self.run.sandbox.take()?;
        self.run.kill_attempts = KillAttempts::default();
        let was_warm = sleeps_on && matches!(self.sleep.state, Some(SleepState::Warm(_)));
        self.run.init = None;
        self.sleep.watch = None;
        self.sleep.state = None;
        self.sleep.cached_image = None;
        let limit = self.record.spec.limits.memory;
        let end = tokio::task::spawn_blocking(move || {
            let ooms = sandbox.cgroup().oom_kills().unwrap_or(0);
            let status = sandbox.exit_status();
            (ooms, status, sandbox.destroy())
        });
        let (ooms, status, destroyed) = match end.await {
            Ok(end) => end,
            // The daemon ends: the next one finds what is left.
            Err(error) if error.is_cancelled() => return None,
            Err(error) => {
                tracing::error!(app = self.record.spec.name, %error, "taking down its sandbox");
                return Some(Exit::Unknown);
            }
        };
        if let Err(error) = destroyed {
            tracing::error!(app = self.record.spec.name, error = %chain(&error), "taking down its sandbox");
        }
        self.end_lazy();
        self.after_exit().await;
        if was_warm && self.restore_sandbox().await.is_some() {
            // Its init was killed, and with it its sandbox: it had no processes that could have ended.
            tracing::warn!(app = self.record.spec.name, "its sandbox was gone and was made again");
            return None;
        }
        let status = match status {
            Ok(status) => status,
            Err(error) => {
                tracing::warn!(app = self.record.spec.name, error = %chain(&error), "reading its exit status");
                None
            }
        };
        Some(exit_of(status, ooms, limit.map(|limit| limit.0)))
    }

    /// Ends a sandbox that is not held.
    pub(super) async fn take_down(&self, sandbox: Arc<Sandbox>) {
        let name = self.record.spec.name.clone();
        let destroyed = tokio::task::spawn_blocking(move || {
            if let Err(error) = sandbox.destroy() {
                tracing::error!(app = name, error = %chain(&error), "taking down its sandbox");
            }
        });
        if let Err(error) = destroyed.await {
            tracing::error!(app = self.record.spec.name, %error, "taking down its sandbox");
        }
    }

    /// Waits until what its processes wrote last is in the log. They are gone, so the pipes end.
    async fn finish_output(&mut self) {
        let Some(mut output) = self.run.output.take() else { return };
        if tokio::time::timeout(LAST_OUTPUT, output.ended()).await.is_err() {
            tracing::warn!(app = self.record.spec.name, "somebody outside of the sandbox holds its output open");
        }
    }

    /// Removes what belongs to a run of the app: network, parked descriptors, records.
    pub(super) async fn after_exit(&mut self) {
        // What is parked of a warm app holds its output open.
        tokio::task::block_in_place(|| self.forget_parked());
        self.finish_output().await;
        let name = &self.record.spec.name;
        if let Err(error) = self.shared.network.detach(self.record.index).await {
            tracing::warn!(app = name, error = %chain(&error), "taking down its network");
        }
        let drop_parked = || self.shared.keeper.drop_prefix(&parked::prefix(&self.record.id));
        if let Err(error) = tokio::task::block_in_place(drop_parked) {
            tracing::warn!(app = name, error = %chain(&error), "forgetting its parked descriptors");
        }
        match fs::remove_file(self.files.sandbox_record()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(app = name, %error, "removing its record");
            }
            _ => {}
        }
    }

    /// Ends what is left of a sandbox that is not held.
    pub(super) async fn destroy_leftovers(&self) -> Result<(), Text> {
        let (shared, id, run) = (self.shared.clone(), self.record.id.clone(), self.files.run.clone());
        let destroyed = tokio::task::block_in_place(|| {
            let hierarchies = shared.launcher.hierarchies();
            torpor_sandbox::destroy_leftovers(hierarchies, &shared.config.instance, &id, &run)
        });
        destroyed.map_err(|error| chain(&error))
    }

    /// Gives up the operation under way, and ends what is half made of it.
    pub(super) fn end_given_up(&self, kind: Kind) {
        if let Some(abort) = &self.abort {
            abort.ask();
        }
        let name = self.record.spec.name.clone();
        let (shared, id, sandbox) = (self.shared.clone(), self.record.id.clone(), self.run.sandbox.clone());
        // On a thread of its own: what is killed may take long to end.
        tokio::task::spawn_blocking(move || {
            let ended = match (kind, sandbox) {
                // Its commit was refused, so it has none but half-built processes.
                (Kind::Wake, Some(sandbox)) => sandbox.end_processes().map_err(|error| chain(&error)),
                (Kind::Start, _) => {
                    let group = Cgroup::at(shared.launcher.hierarchies(), &shared.config.instance, &id);
                    group.kill().map_err(|error| chain(&error))
                }
                _ => Ok(()),
            };
            if let Err(error) = ended {
                tracing::error!(app = name, %error, "ending what was given up");
            }
        });
    }
}

/// The number of the signal that asks the app to end.
fn stop_signal(record: &AppRecord) -> i32 {
    match record.resolved.defaults.stop_signal.as_deref().map(|name| name.trim_start_matches("SIG")) {
        Some("INT" | "2") => 2,
        Some("QUIT" | "3") => 3,
        Some("HUP" | "1") => 1,
        Some("USR1" | "10") => 10,
        Some("USR2" | "12") => 12,
        Some("WINCH" | "28") => 28,
        Some("KILL" | "9") => 9,
        // As images of service managers have it; the first is 34 in the C library's count.
        Some(other) => match other.strip_prefix("RTMIN+").unwrap_or(other).parse() {
            Ok(number @ 0..=30) if other.starts_with("RTMIN+") => 34 + number,
            Ok(number @ 1..=64) => number,
            _ => 15,
        },
        None => 15,
    }
}

/// What an app's end was, from its initial process's status and the kills by its memory limit.
pub(super) fn exit_of(status: Option<ExitStatus>, oom_kills: u64, limit_bytes: Option<u64>) -> Exit {
    match status {
        Some(ExitStatus::Signaled(SIGKILL)) if oom_kills > 0 => Exit::MemoryLimit(limit_bytes.unwrap_or(0)),
        Some(ExitStatus::Exited(code)) => Exit::Status(code),
        Some(ExitStatus::Signaled(signal)) => Exit::Signal(signal),
        Some(ExitStatus::Unknown) | None => Exit::Unknown,
    }
}
