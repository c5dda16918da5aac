//! What the dump and the restore are asked for and hand over, and how they fail: types only.

pub(crate) mod connections;
pub(crate) mod error;
pub(crate) mod flags;
pub(crate) mod reason;

use std::collections::BTreeMap;
use std::time::Duration;

use torpor_image::tree::{Descriptor, Details, FileId, MemoryId, OpenFile, Pipe, SharedMemory};
use torpor_linux::closer::AppFile;
use torpor_process::step::{Fault, RestoreStep};
use torpor_process::view::View;

use self::connections::ConnectionLock;

/// Whose open files to take.
pub struct Request<'a> {
    /// Living processes of the tree, stopped; the root first. Machine's ids.
    pub processes: &'a [i32],
    /// Every process (those that have ended too) and thread of the tree: the machine's id, and the id in the tree's pid
    /// namespace.
    pub ids: &'a BTreeMap<i32, i32>,
    /// Mappings of shared memory and of files without a name, private ones too.
    pub areas: &'a [SharedArea],
    /// Where it is looked at from.
    pub view: &'a View,
    /// What becomes of its open files.
    pub open_files: OpenFiles,
    /// For TCP connections to the outside; without it they are refused.
    pub lock: Option<&'a dyn ConnectionLock>,
    /// The moment that the image is of, by `CLOCK_MONOTONIC`.
    pub since: Duration,
    /// What is in the way is looked for, and contents are left alone.
    pub look_only: bool,
    /// Asked for every [`torpor_pages::sink::BATCH_BYTES`]; `false` ends it with [`DumpError::Stopped`].
    pub go_on: &'a (dyn Fn() -> bool + Sync),
}

/// What becomes of the open files of a tree that is dumped. It is another question than whether the tree is in a sandbox: an app's
/// files are parked while it sleeps on its machine, and would be described if it were to continue on another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenFiles {
    /// They stay open elsewhere, with all that is in them: it is not described, and what cannot be described is not refused.
    Parked,
    /// Their description is all that is left of them: what cannot be described is refused.
    Described,
}

impl Request<'_> {
    /// The open files stay open elsewhere.
    pub(crate) fn parks(&self) -> bool {
        self.open_files == OpenFiles::Parked
    }
}

/// A mapping of something that is not a file with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedArea {
    /// Process that has it.
    pub pid: i32,
    /// First byte.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
    /// Its name in `/proc/PID/maps`.
    pub name: String,
    /// The process executes it.
    pub executed: bool,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Dumped {
    /// For [`torpor_image::tree::Tree::files`].
    pub files: Vec<OpenFile>,
    /// For [`torpor_image::tree::Tree::pipes`].
    pub pipes: Vec<Pipe>,
    /// For [`torpor_image::tree::Tree::memories`]; the pages are in the sink.
    pub memories: Vec<SharedMemory>,
    /// For [`torpor_image::tree::Tree::details`], but for threads'.
    pub details: Details,
    /// By the machine's process id, ascending numbers.
    pub descriptors: BTreeMap<i32, Vec<Descriptor>>,
    /// What each of [`Request::areas`] maps.
    pub areas: Vec<MemoryId>,
    /// Duplicates of an app's open files that can be kept while it has no processes.
    pub kept: Vec<(FileId, AppFile)>,
    /// Controlling terminals of sessions.
    pub terminals: Vec<ControllingTerminal>,
    /// Duplicates of TCP connections that are in the image.
    pub connections: Vec<AppFile>,
    /// What only comes back if it is kept, in words.
    pub warnings: Vec<String>,
}

/// The terminal of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllingTerminal {
    /// The session, as the machine numbers it.
    pub session: i32,
    /// A slave.
    pub slave: FileId,
    /// Process group in the foreground, as the machine numbers it.
    pub foreground: i32,
}

/// How long it is waited for the close of what was open here before its addresses are taken again.
pub const SETTLE: Duration = Duration::from_millis(100);

/// Told of each thing that is made, one by one; an error ends the making.
pub type EachRestored<'a> = &'a (dyn Fn() -> Result<(), Fault<RestoreStep>> + Sync);

/// Descriptors from outside of the tree, for [`torpor_image::tree::FileKind::Outside`] and parked ones.
pub type Given = BTreeMap<FileId, AppFile>;
