//! Why an app is where it is, in words: the part of `torpor explain` that needs no kernel.

use crate::app::App;
use crate::phase::{Ending, Next, Phase, StartedBy, StopReason};
use crate::time::{Millis, words};

/// An app's state in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Why it is where it is, in a sentence.
    pub why: String,
    /// What keeps it awake now, a line each; empty if nothing does or it does not run.
    pub keeps_awake: Vec<String>,
    /// When it will sleep if nothing happens.
    pub sleeps_at: Option<Millis>,
    /// When it will wake by itself.
    pub wakes_at: Option<Millis>,
    /// Why the last capture was refused, if none has succeeded since.
    pub refusals: Vec<String>,
}

impl App {
    /// Its state in words, as of `now`.
    pub fn explain(&self, now: Millis) -> Account {
        let mut at_now = self.clone();
        at_now.now = self.now.max(now);
        Account {
            why: at_now.why(),
            keeps_awake: at_now.blockers().iter().map(ToString::to_string).collect(),
            sleeps_at: at_now.sleeps_at(),
            wakes_at: if let Phase::Dozing(asleep) = &at_now.phase { asleep.deadline() } else { None },
            refusals: at_now.refused.iter().flat_map(|refused| &refused.reasons).map(ToString::to_string).collect(),
        }
    }

    fn why(&self) -> String {
        let now = self.now;
        let ended = || self.last_exit.as_ref().map_or(String::new(), |(exit, _)| exit.to_string());
        match &self.phase {
            Phase::Stopped { why: StopReason::Ended(exit) } => {
                format!("stopped: {exit}; its restart policy leaves it so")
            }
            Phase::Stopped { why } => format!("stopped: {why}"),
            Phase::Starting { by: StartedBy::Request } => "starting by request".to_owned(),
            Phase::Starting { by: StartedBy::Policy } => format!("starting again by its restart policy: {}", ended()),
            Phase::Running(_) => match self.sleeps_at() {
                Some(at) => format!("running; it will sleep in {} if nobody uses it", words(at.since(now))),
                None => "running".to_owned(),
            },
            Phase::Capturing { cause } => format!("falling asleep: {cause}"),
            Phase::Aborting { by, .. } => format!("staying awake: {by}"),
            Phase::Dropping { cause, wake: None } => format!("falling asleep, its image is durable: {cause}"),
            Phase::Dropping { cause, wake: Some(wake) } => {
                format!("falling asleep ({cause}), and will wake at once: {wake}")
            }
            Phase::Dozing(asleep) => match (&asleep.retry, asleep.next_timer) {
                (Some(retry), _) => format!(
                    "dozing: waking it ({}) failed, next attempt in {}: {}",
                    retry.cause,
                    words(retry.at.since(now)),
                    retry.reason
                ),
                (None, Some(at)) => {
                    format!(
                        "dozing for {}: {}; a timer wakes it in {}",
                        words(now.since(asleep.since)),
                        asleep.cause,
                        words(at.since(now))
                    )
                }
                (None, None) => format!("dozing for {}: {}", words(now.since(asleep.since)), asleep.cause),
            },
            Phase::Waking { cause, .. } => format!("waking: {cause}"),
            Phase::Stopping { next: Next::Lost(reason), .. } => format!("lost, its image is damaged: {reason}"),
            Phase::Stopping { ending: Ending::Asked { kill_at }, next } => {
                let then = if *next == Next::Start { ", and starts again after that" } else { "" };
                format!("asked to end; it is killed in {}{then}", words(kill_at.since(now)))
            }
            Phase::Stopping { ending: Ending::Killed { .. }, .. } => {
                "killed; its processes have not ended yet".to_owned()
            }
            Phase::Backoff { until } => {
                format!("{}; its restart policy starts it again in {}", ended(), words(until.since(now)))
            }
        }
    }
}
