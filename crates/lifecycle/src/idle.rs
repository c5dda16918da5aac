//! When a running app may sleep by itself: what is watched, when, and what speaks against it.
//!
//! [`App::blockers`] is the only rule: an empty list on a fresh observation begins a capture, and the same list is what
//! `explain` shows. Counters are read every quarter of `idle_after` (within [`OBSERVE_MIN`] and [`OBSERVE_MAX`]) and at
//! the very moment at which the app could become idle; not at all while a pin, an exec session or the policy decides.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::app::App;
use crate::event::{Observation, Text};
use crate::phase::{Awake, Phase};
use crate::policy::{Policy, Share};
use crate::time::{Millis, words};

/// Counters are not read more often than this, and CPU shares are not taken over less.
pub const OBSERVE_MIN: Duration = Duration::from_millis(250);
/// Counters are read at least this often while use decides.
pub const OBSERVE_MAX: Duration = Duration::from_secs(5);
/// The CPU share over `idle_after` is known to one part in so many of it.
const CPU_MARKS: u32 = 8;

/// How often counters are read.
fn interval(policy: &Policy) -> Duration {
    (policy.idle_after / 4).clamp(OBSERVE_MIN, OBSERVE_MAX)
}

/// What counted as use of an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Start,
    Packets,
    Wake,
    /// Nothing was watched until then: a pin, an exec session, another daemon.
    Unwatched,
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
        /// How.
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
    /// So many established connections, which its policy counts.
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
                write!(f, "{how} {} ago; it is idle after {} without use", words(*ago), words(*idle_after))
            }
            Self::JustAwake { ago, min_awake } => {
                write!(f, "awake since {}; it stays so for at least {}", words(*ago), words(*min_awake))
            }
            Self::Cpu { share, limit } => write!(f, "CPU: {share} of a core, more than {limit}"),
            Self::Connections(1) => f.write_str("an established connection"),
            Self::Connections(n) => write!(f, "{n} established connections"),
            Self::Refused { reasons, again_in: Some(again) } => {
                write!(f, "it could not be put to sleep, next attempt in {}: {}", words(*again), reasons.join("; "))
            }
            Self::Refused { reasons, again_in: None } => {
                write!(f, "it cannot be put to sleep until it is started afresh: {}", reasons.join("; "))
            }
            Self::Unmeasured => f.write_str("its CPU use is not measured yet"),
        }
    }
}

/// CPU used up to a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    at: Millis,
    cpu_us: u64,
}

impl Mark {
    fn share_until(self, later: Self) -> Option<Share> {
        Share::of(later.cpu_us.saturating_sub(self.cpu_us), later.at.since(self.at))
    }
}

/// What observations say since the app began to run (or to be watched again).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watch {
    last: Option<Observation>,
    /// Oldest first; all but the first lie within `idle_after`. At most `CPU_MARKS` + 2.
    marks: VecDeque<Mark>,
    newest: Option<Mark>,
    /// The larger of the share over `idle_after` and the share since the observation before: a program that has just
    /// begun to compute is not put to sleep for having been quiet before.
    cpu: Option<Share>,
}

impl Watch {
    /// Takes an observation; true if it shows use since the one before. The first is where counting begins.
    pub(crate) fn observe(&mut self, seen: Observation, now: Millis, idle_after: Duration) -> bool {
        let used = self.last.is_some_and(|last| last.packets != seen.packets);
        if self.last.is_some_and(|last| seen.cpu_us < last.cpu_us) {
            *self = Self::default();
        }
        self.last = Some(seen);
        let mark = Mark { at: now, cpu_us: seen.cpu_us };
        let Some(before) = self.newest else {
            self.newest = Some(mark);
            self.marks.push_back(mark);
            return used;
        };
        if now.since(before.at) < OBSERVE_MIN {
            return used;
        }
        self.newest = Some(mark);
        while self.marks.get(1).is_some_and(|second| now.since(second.at) >= idle_after) {
            self.marks.pop_front();
        }
        let over_idle_after = self.marks.front().and_then(|oldest| oldest.share_until(mark));
        self.cpu = before.share_until(mark).max(over_idle_after);
        if self.marks.back().is_none_or(|last| now.since(last.at) >= idle_after / CPU_MARKS) {
            self.marks.push_back(mark);
        }
        used
    }
}

impl App {
    /// Everything that keeps it from sleeping by itself now; meaningful while it runs.
    pub fn blockers(&self) -> Vec<Blocker> {
        let Phase::Running(awake) = &self.phase else { return Vec::new() };
        let (now, policy) = (self.now, &self.policy);
        let mut found = Vec::new();
        if !policy.sleep {
            found.push(Blocker::OnlyOnCommand);
        }
        if self.pinned {
            found.push(Blocker::Pinned);
        }
        if self.exec_sessions > 0 {
            found.push(Blocker::ExecSessions(self.exec_sessions));
        }
        let (used_at, used) = self.used;
        if now < used_at + policy.idle_after {
            let how = match used {
                Use::Start => "started",
                Use::Packets => "packets",
                Use::Wake => "woken",
                Use::Unwatched => "not watched until",
            };
            found.push(Blocker::Used { how, ago: now.since(used_at), idle_after: policy.idle_after });
        }
        if now < awake.since + policy.min_awake {
            found.push(Blocker::JustAwake { ago: now.since(awake.since), min_awake: policy.min_awake });
        }
        if let Some(refused) = &self.refused
            && refused.again_at.is_none_or(|at| now < at)
        {
            let again_in = refused.again_at.map(|at| at.since(now));
            found.push(Blocker::Refused { reasons: refused.reasons.clone(), again_in });
        }
        match awake.watch.cpu {
            None => found.push(Blocker::Unmeasured),
            Some(share) if share > policy.cpu_limit => {
                found.push(Blocker::Cpu { share, limit: policy.cpu_limit });
            }
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
        let hopeless = self.refused.as_ref().is_some_and(|refused| refused.again_at.is_none());
        if !self.policy.sleep || self.pinned || self.exec_sessions > 0 || hopeless {
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
            self.act(crate::action::Action::Observe);
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

    /// Counters are due, or not yet.
    pub(crate) fn look(&mut self) {
        if let Phase::Running(Awake { look_at: Some(at), .. }) = &self.phase
            && *at <= self.now
        {
            // Should the answer never come, the next look asks again.
            if let Phase::Running(awake) = &mut self.phase {
                awake.look_at = Some(self.now + interval(&self.policy));
            }
            self.act(crate::action::Action::Observe);
        }
    }

    /// Sets the next look of a running app from what is known now.
    fn plan_look(&mut self) {
        if let Phase::Running(awake) = &self.phase {
            let look_at = self.next_look(awake);
            if let Phase::Running(awake) = &mut self.phase {
                awake.look_at = look_at;
            }
        }
    }
}
