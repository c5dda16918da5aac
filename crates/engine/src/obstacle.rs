//! What keeps a process tree from being captured: found before anything is changed, all of it at once.

use std::fmt;

/// Where something in the way is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The process as a whole.
    Process,
    /// One of its threads.
    Thread(i32),
    /// One of its descriptors.
    Descriptor(i32),
    /// Part of its memory: first byte and behind the last.
    Memory(u64, u64),
}

/// One thing in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Process.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// Where.
    pub place: Place,
    /// What it is, and why it is in the way.
    pub what: String,
    /// What could be done about it; empty where nothing is known.
    pub remedy: String,
}

impl Obstacle {
    /// `what` in process `pid`, whose name is looked up.
    pub(crate) fn new(pid: i32, place: Place, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { pid, name: crate::proc::name(pid), place, what: what.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)?;
        match self.place {
            Place::Process => {}
            Place::Thread(tid) => write!(f, ", thread {tid}")?,
            Place::Descriptor(fd) => write!(f, ", descriptor {fd}")?,
            Place::Memory(start, end) => write!(f, ", memory {start:#x}-{end:#x}")?,
        }
        write!(f, ": {}", self.what)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, " ({})", self.remedy) }
    }
}
