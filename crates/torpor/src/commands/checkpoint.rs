//! Capturing trees of plain processes, without the daemon.

use serde::Serialize;
use torpor_engine::{Checkpoint, NoFaults, Step};

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
}

/// Captures a tree; gives the exit code.
pub(super) fn checkpoint(args: &CheckpointArgs) -> Result<i32, Failure> {
    let request =
        Checkpoint { pid: args.pid, folder: &args.image, leave_running: args.leave_running, faults: &NoFaults };
    let done = torpor_engine::checkpoint(&request)?;
    let outcome = Outcome {
        image: done.image.display().to_string(),
        processes: done.processes,
        threads: done.threads,
        image_bytes: done.image_bytes,
        stopped_us: done.timings.between_us(Step::Prepared, Step::Released),
        total_us: done.timings.total_us(),
        steps: done.timings.steps().iter().map(|(step, us)| (step.name(), *us)).collect(),
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
