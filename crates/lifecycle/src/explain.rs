//! Why an app is where it is, in words: the part of `torpor explain` that needs no kernel.

use crate::app::App;
use crate::phase::{Asleep, Ending, HibernateStage, Next, Phase, StartedBy, StopReason, Warmed};
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
    /// What keeps it from going from dozing to warm now, beside time, a line each; empty where it does not doze.
    pub keeps_dozing: Vec<String>,
    /// When it will go warm if nothing happens.
    pub warm_at: Option<Millis>,
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
            keeps_dozing: at_now.keeps_dozing(),
            warm_at: at_now.warm_at(),
            wakes_at: match &at_now.phase {
                Phase::Dozing(asleep) | Phase::Warm(asleep) => asleep.deadline(),
                _ => None,
            },
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
            Phase::Dozing(asleep) | Phase::Warm(asleep) => self.why_asleep(asleep),
            Phase::Hibernating { cause, stage: HibernateStage::Abortable, .. } => format!("going warm: {cause}"),
            Phase::Hibernating { stage: HibernateStage::Aborting(by), .. } => {
                format!("staying dozing: going warm was aborted: {by}")
            }
            Phase::Hibernating { cause, stage: HibernateStage::Committed { wake: None }, .. } => {
                format!("going warm, its image is durable: {cause}")
            }
            Phase::Hibernating { cause, stage: HibernateStage::Committed { wake: Some(wake) }, .. } => {
                format!("going warm ({cause}), and will wake at once: {wake}")
            }
            Phase::Waking { cause, .. } => format!("waking: {cause}"),
            Phase::Stopping { next: Next::Lost(reason), .. } => {
                format!("its memory is lost, its image cannot be used: {reason}")
            }
            Phase::Stopping { ending: Ending::Asked { kill_at }, next } => {
                let then = if *next == Next::Start { ", and starts again after that" } else { "" };
                format!("stopping; it is killed in {}{then}", words(kill_at.since(now)))
            }
            Phase::Stopping { ending: Ending::Killed { .. }, .. } => {
                "stopping: it was killed, and its processes have not exited yet".to_owned()
            }
            Phase::Backoff { until } => {
                format!("restarting: {}; its restart policy starts it again in {}", ended(), words(until.since(now)))
            }
        }
    }

    fn why_asleep(&self, asleep: &Asleep) -> String {
        let now = self.now;
        let level = asleep.level();
        if let Some(retry) = &asleep.retry {
            let Some(at) = retry.at else {
                return format!(
                    "{level}, and cannot be woken: {}; put that right and wake it, or restart it on its files \
                     (`torpor restart`), which gives up its memory; connections to it are closed meanwhile",
                    retry.reason
                );
            };
            let again_in = words(at.since(now));
            return format!(
                "{level}: waking it ({}) failed, next attempt in {again_in}: {}",
                retry.cause, retry.reason
            );
        }
        let slept = words(now.since(asleep.since));
        // When it goes warm and when a timer wakes it have places of their own.
        match &asleep.warm {
            None => format!("dozing for {slept}: {}", asleep.cause),
            Some(warm) if warm.cause == asleep.cause && warm.since == asleep.since => {
                format!("warm for {slept}: {}", asleep.cause)
            }
            Some(Warmed { since, cause }) => {
                format!("warm for {} ({cause}), asleep for {slept}: {}", words(now.since(*since)), asleep.cause)
            }
        }
    }
}
