//! Why a tree was not restored.

use std::io;
use std::path::PathBuf;

use torpor_image::FormatError;
use torpor_linux::restorer::{Halt, LaunchError};

use torpor_descriptors::RestoreFileError;
use torpor_planner::compile::CompileError;
use torpor_process::step::Fault;
use torpor_process::step::RestoreStep;

/// Why a tree was not restored. Nothing of it is left, and its image is as it was.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The image cannot be read.
    #[error("reading {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// It is damaged, or no image.
    #[error("{}", .0.display())]
    Format(PathBuf, #[source] FormatError),
    /// It is an image of a dozing app's memory.
    #[error("{} holds only the memory of an app whose processes are still there", .0.display())]
    Dozing(PathBuf),
    /// It does not fit this machine, or what is on it: everything that is in the way.
    #[error("the image cannot be restored here: {}", .0.join("; "))]
    Refused(Vec<String>),
    /// A file that the tree maps or stands in cannot be opened now: another has a lease of it or executes it, or the machine lacks
    /// something for the moment.
    #[error("opening {}", .0.display())]
    Open(PathBuf, #[source] io::Error),
    /// The tree cannot be restored.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// Its open files could not be made.
    #[error(transparent)]
    Files(#[from] RestoreFileError),
    /// The first process could not be started.
    #[error("starting the first process")]
    Launch(#[from] LaunchError),
    /// A process or thread did not come to its next stop.
    #[error("building process {pid} ({name})")]
    Halt {
        /// Process.
        pid: i32,
        /// Its name.
        name: String,
        /// What happened.
        #[source]
        error: Halt,
    },
    /// A system call in a process was refused.
    #[error("process {pid} ({name}), thread {tid}: {call}")]
    Call {
        /// Process.
        pid: i32,
        /// Its name.
        name: String,
        /// Thread.
        tid: i32,
        /// The call with its arguments.
        call: String,
        /// What the kernel said.
        #[source]
        error: io::Error,
    },
    /// Something about a process could not be set from outside.
    #[error("{what} of process {pid}")]
    Set {
        /// Process or thread.
        pid: i32,
        /// What.
        what: &'static str,
        /// What the kernel said.
        #[source]
        error: io::Error,
    },
    /// What the restorer itself needs could not be made.
    #[error("{0}")]
    Own(&'static str, #[source] io::Error),
    /// Packets of its TCP connections could not be kept away, or let pass again.
    #[error("changing which packets of its TCP connections pass")]
    Lock(#[source] io::Error),
    /// A test asked for it.
    #[error(transparent)]
    Fault(#[from] Fault<RestoreStep>),
}

impl RestoreError {
    /// It was refused because of what the image needs and does not find here: before anything was started, or when a process id
    /// turned out to have been taken meanwhile.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Refused(_)
                | Self::Compile(_)
                | Self::Files(
                    RestoreFileError::Changed { .. } | RestoreFileError::Missing(_) | RestoreFileError::Taken { .. }
                )
                | Self::Dozing(_)
        )
    }
}
