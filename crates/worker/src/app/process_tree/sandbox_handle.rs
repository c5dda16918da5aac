//! Where an app's processes live, as the engine is told of it.

use std::io;

use torpor_engine::{Ids, SandboxHandle};
use torpor_sandbox::{ID_COUNT, Sandbox};

/// The sandbox of an app, for the engine.
pub(super) fn sandbox_handle(sandbox: &Sandbox) -> io::Result<SandboxHandle> {
    Ok(SandboxHandle {
        init: sandbox.pidfd().try_clone_to_owned()?,
        init_pid: sandbox.init_pid(),
        init_start_ticks: sandbox.init_start_ticks(),
        initial: sandbox.initial_inside(),
        cgroup: sandbox.cgroup().core().to_owned(),
        tasks: sandbox.cgroup().tasks_files(),
        user_namespace: sandbox.ids().map(|ids| Ids { first: ids.base, count: ID_COUNT }),
        time_namespace: sandbox.has_time_namespace(),
    })
}
