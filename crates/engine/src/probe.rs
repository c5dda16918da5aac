//! What the engine needs of the kernel, for `torpor doctor`.

use std::fs::File;
use std::io;

use torpor_linux::pagemap::{self, Filter};

use crate::memory::layout::areas;
use crate::trace::park_place;
use crate::wait::since::SchedulerClock;

/// One thing that was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What.
    pub name: &'static str,
    /// It works.
    pub works: bool,
    /// No app can sleep without it.
    pub needed: bool,
    /// What was found.
    pub found: String,
    /// What follows; empty if it works.
    pub meaning: &'static str,
}

fn entry(name: &'static str, needed: bool, result: io::Result<String>, meaning: &'static str) -> Probe {
    match result {
        Ok(found) => Probe { name, works: true, needed, found, meaning: "" },
        Err(error) => Probe { name, works: false, needed, found: error.to_string(), meaning },
    }
}

/// Tries everything on this process.
pub fn probe() -> Vec<Probe> {
    let own = std::process::id() as i32;
    vec![
        entry("PAGEMAP_SCAN", true, scan(own), "apps cannot sleep: it needs Linux 6.7 or newer"),
        entry("room in the vDSO", true, vdso(own), "apps cannot sleep: there is no place for the park loop"),
        entry(
            "scheduler clock",
            false,
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
    park_place(pid).map(|place| format!("at {place:#x}")).map_err(io::Error::other)
}
