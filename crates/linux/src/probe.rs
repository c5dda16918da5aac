//! What looking at a machine finds: the form in which every part answers `torpor doctor`.

/// How a look went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There.
    Ok,
    /// Missing, in the way or left over: something works less well, or waits for somebody.
    Degraded,
    /// Missing; no app can run.
    Missing,
}

/// One thing that was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What, as `overlay file system`.
    pub name: String,
    /// How it went.
    pub outcome: Outcome,
    /// What was found: a version, a path, an error.
    pub found: String,
    /// What follows from it, and what to do; empty where all is well.
    pub meaning: String,
}

impl Probe {
    /// What was found; `meaning` is left out where all is well.
    pub fn new(name: &str, outcome: Outcome, found: impl Into<String>, meaning: &str) -> Self {
        let meaning = if outcome == Outcome::Ok { "" } else { meaning };
        Self { name: name.to_owned(), outcome, found: found.into(), meaning: meaning.to_owned() }
    }

    /// How much of something that has a limit is in use; degraded from three quarters on.
    pub fn use_of(name: &str, used: u64, limit: u64, meaning: &str) -> Self {
        let near = used.saturating_mul(4) >= limit.saturating_mul(3);
        let outcome = if near { Outcome::Degraded } else { Outcome::Ok };
        Self::new(name, outcome, format!("{used} of {limit} in use"), meaning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nearly_used_up_is_told() {
        let outcome = |used, limit| Probe::use_of("x", used, limit, "raise it").outcome;
        assert_eq!([outcome(0, 100), outcome(74, 100)], [Outcome::Ok; 2]);
        assert_eq!([outcome(75, 100), outcome(101, 100), outcome(0, 0)], [Outcome::Degraded; 3]);
        assert_eq!(Probe::use_of("x", 75, 100, "raise it").meaning, "raise it");
    }
}
