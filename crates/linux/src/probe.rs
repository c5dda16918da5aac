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
}
