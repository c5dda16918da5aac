//! Capturing trees of plain processes, without the daemon.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use torpor_engine::{Checkpoint, ConnectionLock, Ends, PASS_MARK, Step};
use torpor_network::HeldConnections;
use torpor_worker::RequestedFaults;

use super::show;
use crate::cli::CheckpointArgs;
use crate::failure::Failure;

/// What came of it, as `--json` prints it.
#[derive(Serialize)]
struct Outcome {
    /// The image.
    image: String,
    processes: usize,
    threads: usize,
    image_bytes: u64,
    /// From the stop of the first thread until the tree was let go or had ended.
    stopped_us: u64,
    total_us: u64,
    /// Microseconds of each step.
    steps: Vec<(&'static str, u64)>,
    /// The nftables table that keeps packets of TCP connections away until the restore.
    #[serde(skip_serializing_if = "Option::is_none")]
    locked: Option<String>,
}

/// Keeps packets away by nftables.
#[derive(Debug, Default)]
pub(super) struct Lock(Mutex<Option<HeldConnections>>);

impl Lock {
    fn held(&self) -> MutexGuard<'_, Option<HeldConnections>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionLock for Lock {
    fn hold(&self, connections: &[Ends]) -> io::Result<()> {
        *self.held() = Some(HeldConnections::hold(connections, PASS_MARK)?);
        Ok(())
    }

    fn keep(&self, name: &str) -> io::Result<()> {
        // Before it is there, for whoever is killed says nothing any more. Where standard error is closed, the result has it.
        tell(&format!(
            "until the restore nothing answers its TCP connections' packets; to give the connections up: nft delete table inet {name}"
        ));
        let held = self.held();
        let Some(held) = held.as_ref() else { return Ok(()) };
        held.keep(name)?;
        forget_others(held, name)
    }

    fn release(&self, name: &str) -> io::Result<()> {
        let Some(held) = self.held().take() else { return Ok(()) };
        if !name.is_empty() {
            HeldConnections::forget(name)?;
        }
        forget_others(&held, name)?;
        held.release()
    }
}

/// What is kept of connections that are there again is a remnant of somebody who was killed.
fn forget_others(held: &HeldConnections, name: &str) -> io::Result<()> {
    for other in held.forget_others(name)? {
        tell(&format!(
            "removed nftables table inet {other}, which an earlier command had left for the same TCP connections"
        ));
    }
    Ok(())
}

pub(super) fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "torpor: {text}");
}

/// Captures a tree; gives the exit code.
pub(super) fn checkpoint(args: &CheckpointArgs) -> Result<i32, Failure> {
    let lock = Lock::default();
    let faults = RequestedFaults::from_environment().map_err(|error| Failure::Usage(error.to_string()))?;
    let request = Checkpoint {
        pid: args.pid,
        folder: &args.image,
        leave_running: args.leave_running,
        lock: args.tcp_established.then_some(&lock as &dyn ConnectionLock),
        faults: &faults,
    };
    let done = torpor_engine::checkpoint(&request)?;
    let outcome = Outcome {
        image: done.image.display().to_string(),
        processes: done.processes,
        threads: done.threads,
        image_bytes: done.image_bytes,
        stopped_us: done.timings.between_us(Step::Prepared, Step::Released),
        total_us: done.timings.total_us(),
        steps: done.timings.steps().iter().map(|(step, us)| (step.name(), *us)).collect(),
        locked: done.locked,
    };
    show(args.json.json, &outcome, |outcome| {
        format!(
            "{}: {} processes, {} threads, {} kB, stopped for {:.1} ms\n",
            outcome.image,
            outcome.processes,
            outcome.threads,
            outcome.image_bytes / 1024,
            outcome.stopped_us as f64 / 1e3
        )
    })?;
    Ok(0)
}
