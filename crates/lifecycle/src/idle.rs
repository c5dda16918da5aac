//! When a running app may sleep by itself: what is watched, when, and what speaks against it.
//!
//! [`App::blockers`] is the only rule: an empty list on a fresh observation begins a capture, and the same list is what
//! `explain` shows. Counters are read every quarter of `idle_after` (within [`OBSERVE_MIN`] and [`OBSERVE_MAX`]) and at
//! the very moment at which the app could become idle; not at all while a pin, an exec session or the policy decides.

use std::fmt;
use std::time::Duration;

use crate::action::Action;
use crate::app::{App, Refused};
use crate::event::{Observation, Text};
use crate::phase::{Awake, Phase};
use crate::policy::{Policy, Share};
use crate::time::{Millis, words};
use crate::watch::{OBSERVE_MIN, Use, Watch};

/// Counters are read at least this often while use decides.
pub const OBSERVE_MAX: Duration = Duration::from_secs(5);

/// How often counters are read.
fn interval(policy: &Policy) -> Duration {
    (policy.idle_after / 4).clamp(OBSERVE_MIN, OBSERVE_MAX)
}

/// Something that keeps a running app awake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// Its policy: it sleeps on command only.
    OnlyOnCommand,
    /// A pin.
    Pinned,
    /// So many exec sessions.
    ExecSessions(u32),
    /// It was used.
    Used {
        /// How: `packets`, `start`, `command`, `exec`, or that it was not watched until then.
        how: &'static str,
        /// How long ago.
        ago: Duration,
        /// How long it has to be unused.
        idle_after: Duration,
    },
    /// It has just been started or woken, or a sleep was aborted.
    JustAwake {
        /// How long ago.
        ago: Duration,
        /// How long it has to be awake.
        min_awake: Duration,
    },
    /// More CPU than its limit.
    Cpu {
        /// Share of one core.
        share: Share,
        /// Its limit.
        limit: Share,
    },
    /// So many open connections, which its policy counts.
    Connections(u32),
    /// The last capture was refused.
    Refused {
        /// Why.
        reasons: Vec<Text>,
        /// Until the next attempt; none: not before a new start or a command.
        again_in: Option<Duration>,
    },
    /// Its CPU is not known yet.
    Unmeasured,
}

impl Blocker {
    /// Passes by itself at a time that is known.
    fn passes(&self) -> bool {
        match self {
            Self::Used { .. } | Self::JustAwake { .. } | Self::Unmeasured => true,
            Self::Refused { again_in, .. } => again_in.is_some(),
            Self::OnlyOnCommand | Self::Pinned | Self::ExecSessions(_) | Self::Cpu { .. } | Self::Connections(_) => {
                false
            }
        }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnlyOnCommand => f.write_str("its idle policy: it sleeps only on command"),
            Self::Pinned => f.write_str("a pin"),
            Self::ExecSessions(1) => f.write_str("an exec session"),
            Self::ExecSessions(n) => write!(f, "{n} exec sessions"),
            Self::Used { how, ago, idle_after } => {
                write!(f, "last use {} ago ({how}); it is idle after {} without", words(*ago), words(*idle_after))
            }
            Self::JustAwake { ago, min_awake } => {
                write!(f, "awake for {}, and for {} at least", words(*ago), words(*min_awake))
            }
            Self::Cpu { share, limit } => write!(f, "CPU: {share} of a core, more than {limit}"),
            Self::Connections(1) => f.write_str("an open connection"),
            Self::Connections(n) => write!(f, "{n} open connections"),
            Self::Refused { reasons, again_in: Some(again) } => {
                write!(f, "it could not be put to sleep, next attempt in {}: {}", words(*again), reasons.join("; "))
            }
            Self::Refused { reasons, again_in: None } => {
                write!(
                    f,
                    "it cannot be put to sleep until the app is restarted (`torpor restart`): {}",
                    reasons.join("; ")
                )
            }
            Self::Unmeasured => f.write_str("its CPU use is not measured yet"),
        }
    }
}

impl App {
    /// Everything that keeps it from sleeping by itself now; empty also when it does not run.
    pub fn blockers(&self) -> Vec<Blocker> {
        let Phase::Running(awake) = &self.phase else { return Vec::new() };
        let orders = self.orders();
        if orders.is_empty() { self.signs_of_use(awake) } else { orders }
    }

    /// What keeps it awake whether it is used or not: while there is any of this, nothing is watched.
    fn orders(&self) -> Vec<Blocker> {
        let mut found = Vec::new();
        if !self.policy.sleep {
            found.push(Blocker::OnlyOnCommand);
        }
        if self.pinned {
            found.push(Blocker::Pinned);
        }
        if self.exec_sessions > 0 {
            found.push(Blocker::ExecSessions(self.exec_sessions));
        }
        if let Some(Refused { reasons, again_at: None, .. }) = &self.refused {
            found.push(Blocker::Refused { reasons: reasons.clone(), again_in: None });
        }
        found
    }

    /// What keeps it awake for a while.
    fn signs_of_use(&self, awake: &Awake) -> Vec<Blocker> {
        let (now, policy, (used_at, used)) = (self.now, &self.policy, self.used);
        let mut found = Vec::new();
        if now < used_at + policy.idle_after {
            let ago = now.since(used_at);
            found.push(Blocker::Used { how: used.name(), ago, idle_after: policy.idle_after });
        }
        if now < awake.since + policy.min_awake {
            found.push(Blocker::JustAwake { ago: now.since(awake.since), min_awake: policy.min_awake });
        }
        if let Some(Refused { reasons, again_at: Some(at), .. }) = &self.refused
            && now < *at
        {
            found.push(Blocker::Refused { reasons: reasons.clone(), again_in: Some(at.since(now)) });
        }
        match awake.watch.cpu {
            None => found.push(Blocker::Unmeasured),
            Some(share) if share > policy.cpu_limit => found.push(Blocker::Cpu { share, limit: policy.cpu_limit }),
            Some(_) => {}
        }
        let connections = awake.watch.last.map_or(0, |seen| seen.connections);
        if !policy.with_connections && connections > 0 {
            found.push(Blocker::Connections(connections));
        }
        found
    }

    /// When it will sleep if nothing happens; none if something other than time keeps it awake, or it does not run.
    pub fn sleeps_at(&self) -> Option<Millis> {
        let Phase::Running(awake) = &self.phase else { return None };
        if !self.blockers().iter().all(Blocker::passes) {
            return None;
        }
        let idle_at = self.idle_at(awake);
        if idle_at > self.now { Some(idle_at) } else { awake.look_at }
    }

    /// The first moment at which time alone does not keep it awake.
    fn idle_at(&self, awake: &Awake) -> Millis {
        let again_at = self.refused.as_ref().and_then(|refused| refused.again_at).unwrap_or_default();
        (self.used.0 + self.policy.idle_after).max(awake.since + self.policy.min_awake).max(again_at)
    }

    /// When counters are to be read next, for a running app.
    pub(crate) fn next_look(&self, awake: &Awake) -> Option<Millis> {
        if !self.orders().is_empty() {
            return None;
        }
        let idle_at = self.idle_at(awake);
        let regular = self.now + interval(&self.policy);
        Some(match awake.watch.cpu {
            _ if idle_at > self.now => idle_at.min(regular),
            None => self.now + OBSERVE_MIN,
            Some(_) => regular,
        })
    }

    /// Begins to watch a running app, from a first observation on; or stops to, where nothing depends on it.
    pub(crate) fn watch(&mut self) {
        let Phase::Running(awake) = &self.phase else { return };
        let awake = Awake { watch: Watch::default(), ..awake.clone() };
        let look_at = self.next_look(&awake);
        self.phase = Phase::Running(Awake { look_at, ..awake });
        if look_at.is_some() {
            self.act(Action::Observe);
        }
    }

    /// As [`App::watch`], after a time in which nothing was watched: what happened in it is unknown, so it was use.
    pub(crate) fn watch_again(&mut self) {
        if matches!(self.phase, Phase::Running(_)) {
            self.used = (self.now, Use::Unwatched);
            self.watch();
        }
    }

    /// Counters were read.
    pub(crate) fn observed(&mut self, seen: Observation) {
        let (now, idle_after) = (self.now, self.policy.idle_after);
        // Late ones, of an app that has left this phase, say nothing any more.
        let Phase::Running(awake) = &mut self.phase else { return };
        if awake.watch.observe(seen, now, idle_after) {
            self.used = (now, Use::Packets);
        }
        if self.blockers().is_empty() {
            self.fall_asleep_idle();
        } else {
            self.plan_look();
        }
    }

    /// Counters are due. Should the answer never come, the next look asks again.
    pub(crate) fn look(&mut self) {
        let again_at = self.now + interval(&self.policy);
        if let Phase::Running(awake) = &mut self.phase {
            awake.look_at = Some(again_at);
            self.act(Action::Observe);
        }
    }

    /// Sets the next look of a running app from what is known now.
    pub(crate) fn plan_look(&mut self) {
        if let Phase::Running(awake) = &self.phase {
            let look_at = self.next_look(awake);
            if let Phase::Running(awake) = &mut self.phase {
                awake.look_at = look_at;
            }
        }
    }
}
