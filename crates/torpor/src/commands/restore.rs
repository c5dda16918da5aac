//! Bringing trees of plain processes back, without the daemon.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, WaitOptions, waitpid};
use serde::Serialize;
use torpor_engine::restored::Guarded;
use torpor_engine::{LatePages, Restore};
use torpor_store::IMAGE_NAME;

use super::checkpoint::Lock;
use super::show;
use crate::cli::RestoreArgs;
use crate::failure::Failure;

/// What came of it, as `--json` prints it.
#[derive(Serialize)]
struct Outcome {
    /// The root's process id.
    pid: i32,
    processes: usize,
    threads: usize,
    page_bytes: u64,
    /// Bytes of pages that come while it runs.
    late_bytes: u64,
    /// What is not as it was.
    warnings: Vec<String>,
    total_us: u64,
    /// Microseconds of each step.
    steps: Vec<(&'static str, u64)>,
}

/// Restores a tree; gives the exit code: the root's, unless it is left to itself.
pub(super) fn restore(args: &RestoreArgs) -> Result<i32, Failure> {
    let own = |fd: &dyn AsFd| -> Option<OwnedFd> { fd.as_fd().try_clone_to_owned().ok() };
    let standard = [own(&io::stdin()), own(&io::stdout()), own(&io::stderr())];
    let image = args.image.join(IMAGE_NAME);
    let lock = Lock::default();
    // Without them it takes longer.
    let _ = torpor_engine::start_helpers();
    // Nobody reads what is said after the end of this command.
    let guarded = args.lazy.then(|| Guarded::new(!args.detach)).transpose().map_err(|error| no_device(&error))?;
    let late = guarded.as_ref().map(|guarded| guarded as &dyn LatePages);
    let done =
        torpor_engine::restore(Restore { image: &image, standard, lock: Some(&lock), late, faults: &|_| Ok(()) })?;
    let outcome = Outcome {
        pid: done.pid,
        processes: done.processes,
        threads: done.threads,
        page_bytes: done.page_bytes,
        late_bytes: done.late_bytes,
        total_us: done.timings.total_us(),
        steps: done.timings.steps().iter().map(|(step, us)| (step.name(), *us)).collect(),
        warnings: done.warnings,
    };
    if args.detach || args.json.json {
        show(args.json.json, &outcome, |outcome| {
            let Outcome { pid, processes, threads, page_bytes, late_bytes, total_us, .. } = outcome;
            let (kilobytes, milliseconds) = (page_bytes / 1024, *total_us as f64 / 1e3);
            let late = if *late_bytes > 0 { format!(" and {} kB later", late_bytes / 1024) } else { String::new() };
            format!("{pid}: {processes} processes, {threads} threads, {kilobytes} kB{late}, in {milliseconds:.1} ms\n")
        })?;
    }
    for warning in &outcome.warnings {
        eprintln!("torpor: {warning}");
    }
    if args.detach { Ok(0) } else { wait(outcome.pid) }
}

/// It was asked for what the machine does not have.
fn no_device(error: &io::Error) -> Failure {
    Failure::Usage(format!("--lazy needs /dev/userfaultfd, which `torpor doctor` looks at: {error}"))
}

/// Waits for the root's end; gives what a shell would.
fn wait(pid: i32) -> Result<i32, Failure> {
    let failed = |source: io::Error| Failure::Terminal { what: "wait for the restored process", source };
    loop {
        match waitpid(Pid::from_raw(pid), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed(error.into())),
            Ok(None) => {}
            Ok(Some((_, status))) => {
                let signalled = status.terminating_signal().map(|signal| 128 + signal);
                return Ok(status.exit_status().or(signalled).unwrap_or(1));
            }
        }
    }
}
