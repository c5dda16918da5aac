//! How much memory going warm takes for a moment: the daemon's own, and what comes back to the processes of the app.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::Error;

/// Between two looks at processes that may end at any time; the kernel keeps the peak itself.
const LOOK: Duration = Duration::from_millis(1);

/// The processes whose cgroup path names both the instance and the app.
fn processes_of(instance: &str, id: &str) -> Result<Vec<u32>, Error> {
    let pids = torpor_proc::processes::all().map_err(Error::file("list", "/proc"))?;
    let is_its = |pid: &u32| {
        torpor_proc::read(&format!("/proc/{pid}/cgroup"))
            .is_ok_and(|groups| groups.lines().any(|line| line.contains(instance) && line.contains(id)))
    };
    Ok(pids.into_iter().map(i32::cast_unsigned).filter(is_its).collect())
}

/// Resident memory of a process now and at its highest, kB; none once it has ended.
fn resident(pid: u32) -> Option<(f64, f64)> {
    let status = torpor_proc::read(&format!("/proc/{pid}/status")).ok()?;
    Some((torpor_proc::number(&status, "VmRSS")?, torpor_proc::number(&status, "VmHWM")?))
}

/// What the resident memory of each process rises by at most while `work` runs, in kB, summed up: of the daemon, and of the processes of the app `id`.
pub(super) fn rise<T>(
    daemon: u32,
    (instance, id): (&str, &str),
    work: impl FnOnce() -> Result<T, Error>,
) -> Result<(T, f64), Error> {
    let mut before = Vec::new();
    for pid in processes_of(instance, id)?.into_iter().chain([daemon]) {
        // Resets the peak (`proc_pid_clear_refs(5)`).
        let path = format!("/proc/{pid}/clear_refs");
        fs::write(&path, "5").map_err(Error::file("write", &path))?;
        before.extend(resident(pid).map(|(now, _)| (pid, now)));
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut rises = vec![0_f64; before.len()];
            loop {
                let is_last = is_over.load(Ordering::Acquire);
                for ((pid, now), rise) in before.iter().zip(&mut rises) {
                    if let Some((_, peak)) = resident(*pid) {
                        *rise = rise.max(peak - now);
                    }
                }
                if is_last {
                    return rises.iter().sum();
                }
                std::thread::sleep(LOOK);
            }
        });
        let done = work();
        is_over.store(true, Ordering::Release);
        let rise = watching.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((done?, rise))
    })
}
