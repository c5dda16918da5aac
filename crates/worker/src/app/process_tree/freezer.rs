//! The freezer of a sandbox, as the engine knows it, and the limit of processes while it builds some.
//!
//! While an app's processes are built, its cgroups also hold processes of Torpor's own: the one that makes the first process,
//! stand-ins for session leaders that have ended, one that asks for memory. They must not count: an app that ran under a limit
//! comes back under it. So the limit is lifted while nothing of the app runs, and set again before anything of it does.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use torpor_engine::Freezer;
use torpor_sandbox::cgroup::Cgroup;
use torpor_sandbox::{CgroupError, Sandbox};

/// How long freezing may take; a process in uninterruptible sleep can hold it up.
const FREEZE_DEADLINE: Duration = Duration::from_secs(2);

/// The freezer of a sandbox. Dropping it sets the limit again if that is still to be done.
pub(super) struct SandboxFreezer<'a> {
    sandbox: &'a Sandbox,
    limit: Option<u32>,
    /// The limit is lifted.
    lifted: AtomicBool,
}

impl<'a> SandboxFreezer<'a> {
    /// Of processes that are there.
    pub(super) const fn of(sandbox: &'a Sandbox) -> Self {
        Self { sandbox, limit: None, lifted: AtomicBool::new(false) }
    }

    /// Of processes that are to be built, of an app with this limit of processes.
    pub(super) fn building(sandbox: &'a Sandbox, limit: Option<u32>) -> Result<Self, CgroupError> {
        if limit.is_some() {
            sandbox.cgroup().limit_processes(None)?;
        }
        Ok(Self { sandbox, limit, lifted: AtomicBool::new(limit.is_some()) })
    }

    fn limit_again(&self) -> Result<(), CgroupError> {
        if !self.lifted.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.sandbox.cgroup().limit_processes(self.limit)?;
        self.lifted.store(false, Ordering::Relaxed);
        Ok(())
    }
}

/// Whether the processes of a group are frozen, or are being frozen.
pub(super) fn is_to_be_frozen(cgroup: &Cgroup) -> io::Result<bool> {
    Ok(fs::read_to_string(cgroup.core().join("cgroup.freeze"))?.trim() == "1")
}

impl Drop for SandboxFreezer<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.limit_again() {
            // Without processes; the next wake sets it before there are any.
            tracing::warn!(error = %torpor_api::error::chain(&error), "limiting processes again");
        }
    }
}

impl Freezer for SandboxFreezer<'_> {
    fn freeze(&self) -> io::Result<()> {
        self.sandbox.cgroup().freeze(FREEZE_DEADLINE).map_err(io::Error::other)
    }

    fn begin_freezing(&self) -> io::Result<()> {
        self.sandbox.cgroup().freeze_request().map_err(io::Error::other)
    }

    fn thaw(&self) -> io::Result<()> {
        self.sandbox.cgroup().thaw().map_err(io::Error::other)
    }

    fn is_freezing(&self) -> io::Result<bool> {
        is_to_be_frozen(self.sandbox.cgroup())
    }

    fn processes(&self) -> io::Result<Vec<i32>> {
        self.sandbox.cgroup().processes().map_err(io::Error::other)
    }

    fn end_processes(&self) -> io::Result<()> {
        self.sandbox.end_processes().map_err(io::Error::other)
    }

    fn processes_are_back(&self, initial: i32, process: OwnedFd) -> io::Result<()> {
        self.limit_again().map_err(io::Error::other)?;
        self.sandbox.initial_is_back(initial, process).map_err(io::Error::other)
    }
}
