//! What the worker and its set-up and exec processes say to each other.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::SetupError;
use crate::spec::Clocks;

/// The first message to the set-up process; with it come [`Files`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// `tasks` of the app's v1 groups.
    pub(crate) app_tasks: Vec<PathBuf>,
    /// What of the support group the set-up process enters: `tasks` in v1; `cgroup.procs` in v2 where it could not make
    /// processes in groups otherwise.
    pub(crate) support_files: Vec<PathBuf>,
    /// The app's own group in v2.
    pub(crate) core: PathBuf,
    /// The support group in v2.
    pub(crate) support: PathBuf,
    /// What the app sees of its groups.
    pub(crate) visible: Vec<(String, PathBuf)>,
    /// There is no program to start.
    pub(crate) empty: Option<Empty>,
}

/// A sandbox whose processes come later.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Empty {
    /// What the initial process will be called inside.
    pub(crate) initial: i32,
    /// A time namespace, which init holds.
    pub(crate) clocks: Option<Clocks>,
}

/// What a set-up process is asked to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Make a sandbox.
    SetUp(Begin),
    /// Try whether a directory can be seen with other owners; `Started` if so.
    TryIdMapping(PathBuf),
    /// Try whether a process made in this v2 group lives; `Started` if so, `Killed` if not.
    TryGroup(PathBuf),
}

/// What the worker says to its set-up process later.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum ToSetup {
    /// Let the program start.
    Go,
}

/// What the set-up process says to the worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum FromSetup {
    /// The app waits to become its program. Comes with pidfds of init and, where there is one, of the app.
    Ready {
        /// Init, as the set-up process's pid namespace numbers it.
        init: i32,
        /// The app's initial process.
        initial: Option<i32>,
    },
    /// `exec` has made its process, a child of the worker. Comes with its pidfd.
    Made {
        /// As the worker's pid namespace numbers it.
        pid: i32,
    },
    /// The process that `exec` has made has a terminal. Comes with the worker's side of it; before or after `Made`.
    Terminal,
    /// The program runs.
    Started,
    /// It does not, and all processes are gone.
    Failed(SetupError),
}

/// The descriptors that come with [`Begin`], in this order.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) spec: OwnedFd,
    pub(crate) stdio: [OwnedFd; 3],
    pub(crate) status: OwnedFd,
    pub(crate) init: OwnedFd,
    /// What init holds as descriptors 1 and 2: the reading ends of the app's output.
    pub(crate) output: Option<[OwnedFd; 2]>,
}

impl Files {
    pub(crate) fn new(mut descriptors: Vec<OwnedFd>) -> Option<Self> {
        const ALWAYS: usize = 6;
        let output = descriptors.split_off(ALWAYS.min(descriptors.len()));
        let output = if output.is_empty() { None } else { Some(output.try_into().ok()?) };
        let [spec, stdin, stdout, stderr, status, init]: [OwnedFd; ALWAYS] = descriptors.try_into().ok()?;
        Some(Self { spec, stdio: [stdin, stdout, stderr], status, init, output })
    }
}
