//! What the engine needs of the kernel, for `torpor doctor`.

use std::fs::File;
use std::io;

use torpor_linux::pagemap::{self, Filter};
use torpor_linux::probe::{Outcome, Probe};

use crate::memory::layout::areas;
use crate::trace::park_place;
use crate::wait::since::SchedulerClock;

fn entry(name: &str, missing: Outcome, result: io::Result<String>, meaning: &str) -> Probe {
    match result {
        Ok(found) => Probe::new(name, Outcome::Ok, found, meaning),
        Err(error) => Probe::new(name, missing, error.to_string(), meaning),
    }
}

/// Tries everything on this process.
pub fn probe() -> Vec<Probe> {
    let own = std::process::id() as i32;
    vec![
        entry("PAGEMAP_SCAN", Outcome::Missing, scan(own), "apps cannot sleep: it needs Linux 6.7 or newer"),
        entry(
            "room in the vDSO",
            Outcome::Missing,
            vdso(own),
            "apps cannot sleep: there is no place for the park loop",
        ),
        entry(
            "scheduler clock",
            Outcome::Degraded,
            SchedulerClock::open().map(|_| "/proc/PID/sched".to_owned()),
            "time-outs of sleeping apps may end late: a kernel with CONFIG_SCHED_DEBUG shows when a wait began",
        ),
    ]
}

fn scan(pid: i32) -> io::Result<String> {
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let first = areas(pid)?.into_iter().next().ok_or(io::ErrorKind::NotFound)?;
    let everything = Filter { report: pagemap::category::PRESENT, ..Filter::default() };
    pagemap::scan(&pagemap, first.start, first.end, everything, &mut Vec::new())?;
    Ok("works".to_owned())
}

fn vdso(pid: i32) -> io::Result<String> {
    park_place(pid, &areas(pid)?).map(|place| format!("at {place:#x}")).map_err(io::Error::other)
}
