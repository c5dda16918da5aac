//! The named steps of a restore: where time is measured, and where tests make things fail.

use super::{Fault, Named};

/// A point that has been reached. The order is the order of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RestoreStep {
    /// The image is read and fits this machine; its plan is at hand.
    Read,
    /// A piece of what files, segments and processes contain is there. Only faults know of it, in an app.
    Piece,
    /// An app's home that was made anew: what lay in its memory file systems is there. A fault comes behind each file.
    TmpfsRestored,
    /// Process ids are free, files are what they were.
    Checked,
    /// An app's home that was made anew: its System V semaphores and message queues are there. A fault comes behind each of them.
    IpcRestored,
    /// Everything that will be open is open here.
    Opened,
    /// The first process is there.
    Launched,
    /// All processes are there, in their sessions and groups.
    Forked,
    /// The stored pages match their checksums.
    Verified,
    /// Every process and thread has made all its steps.
    Built,
    /// An app's processes: they are frozen.
    Frozen,
    /// Every thread has its own registers, and nothing of the restorer is left in them.
    Finished,
    /// An app's processes: no longer traced, still frozen.
    Released,
    /// An app's processes: the journal says `Awake`.
    Awake,
    /// The tree runs.
    Running,
}

impl RestoreStep {
    /// All steps, in order.
    pub const ALL: [Self; 15] = [
        Self::Read,
        Self::Piece,
        Self::TmpfsRestored,
        Self::Checked,
        Self::IpcRestored,
        Self::Opened,
        Self::Launched,
        Self::Forked,
        Self::Verified,
        Self::Built,
        Self::Frozen,
        Self::Finished,
        Self::Released,
        Self::Awake,
        Self::Running,
    ];

    /// It is reached only in an app's home that was made anew, or with enough contents.
    pub const fn is_not_always_there(self) -> bool {
        matches!(self, Self::Piece | Self::TmpfsRestored | Self::IpcRestored)
    }

    /// Its name in phases, faults and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Piece => "piece",
            Self::TmpfsRestored => "tmpfs-restored",
            Self::Checked => "checked",
            Self::IpcRestored => "ipc-restored",
            Self::Opened => "opened",
            Self::Launched => "launched",
            Self::Forked => "forked",
            Self::Verified => "verified",
            Self::Built => "built",
            Self::Frozen => "frozen",
            Self::Finished => "finished",
            Self::Released => "released",
            Self::Awake => "awake",
            Self::Running => "running",
        }
    }
}

impl Named for RestoreStep {
    fn name(&self) -> &'static str {
        Self::name(*self)
    }
}

/// Told of every step but the last; a fault makes the restore fail right there.
pub type RestoreFaults<'a> = &'a dyn Fn(RestoreStep) -> Result<(), Fault<RestoreStep>>;
