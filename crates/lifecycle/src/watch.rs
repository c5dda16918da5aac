//! What the counters of a running app say: whether it was used, and how much CPU it takes.

use std::collections::VecDeque;
use std::time::Duration;

use crate::event::Observation;
use crate::policy::Share;
use crate::time::Millis;

/// Counters are not read more often than this, and CPU shares are not taken over less.
pub const OBSERVE_MIN: Duration = Duration::from_millis(250);
/// The span over which CPU is measured is `idle_after`, or longer by at most this part of it.
const CPU_MARKS: u32 = 8;

/// What counted as use of an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Start,
    Packets,
    Command,
    Exec,
    /// Nothing was watched until then: a pin, an exec session, another daemon.
    Unwatched,
}

impl Use {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Packets => "packets",
            Self::Command => "command",
            Self::Exec => "exec",
            Self::Unwatched => "not watched until then",
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
    pub(crate) last: Option<Observation>,
    /// Oldest first; all but the first lie within `idle_after`. At most `CPU_MARKS` + 2.
    marks: VecDeque<Mark>,
    newest: Option<Mark>,
    /// The larger of the share over `idle_after` and the share since the observation before: a program that has just
    /// begun to compute is not put to sleep for having been quiet before.
    pub(crate) cpu: Option<Share>,
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

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Duration = Duration::from_secs(8);

    fn seen(packets: u64, cpu_us: u64) -> Observation {
        Observation { packets, cpu_us, connections: 0 }
    }

    #[test]
    fn the_first_observation_is_where_counting_begins() {
        let mut watch = Watch::default();
        assert!(!watch.observe(seen(7, 9_000_000), Millis(0), SPAN));
        assert_eq!(watch.cpu, None);
        assert!(!watch.observe(seen(7, 9_000_000), Millis(1_000), SPAN));
        assert_eq!(watch.cpu, Some(Share(0)));
        assert!(watch.observe(seen(8, 9_000_000), Millis(2_000), SPAN));
    }

    #[test]
    fn the_larger_of_now_and_lately() {
        let mut watch = Watch::default();
        // A tenth of a core for 8 s, then a whole one for a second, then nothing.
        for second in 0..=8 {
            watch.observe(seen(0, second * 100_000), Millis(second * 1_000), SPAN);
        }
        assert_eq!(watch.cpu, Some(Share(1_000)));
        watch.observe(seen(0, 1_800_000), Millis(9_000), SPAN);
        assert_eq!(watch.cpu, Some(Share(10_000)));
        watch.observe(seen(0, 1_800_000), Millis(10_000), SPAN);
        assert_eq!(watch.cpu, Some(Share(2_000)), "1.6 s of 8 s");
        watch.observe(seen(0, 1_800_000), Millis(18_000), SPAN);
        assert_eq!(watch.cpu, Some(Share(0)));
    }

    #[test]
    fn shares_are_not_taken_over_moments() {
        let mut watch = Watch::default();
        watch.observe(seen(0, 0), Millis(0), SPAN);
        watch.observe(seen(0, 100_000), Millis(100), SPAN);
        assert_eq!(watch.cpu, None);
        watch.observe(seen(0, 100_000), Millis(1_000), SPAN);
        assert_eq!(watch.cpu, Some(Share(1_000)));
    }

    #[test]
    fn counters_that_go_back_begin_anew() {
        let mut watch = Watch::default();
        watch.observe(seen(9, 5_000_000), Millis(0), SPAN);
        watch.observe(seen(9, 5_000_000), Millis(1_000), SPAN);
        assert!(watch.observe(seen(1, 10), Millis(2_000), SPAN), "other packets: used");
        assert_eq!(watch.cpu, None);
    }

    #[test]
    fn marks_are_bounded() {
        let mut watch = Watch::default();
        for step in 0..10_000 {
            watch.observe(seen(0, step), Millis(step * 251), SPAN);
            assert!(watch.marks.len() <= CPU_MARKS as usize + 2, "{}", watch.marks.len());
        }
    }
}
