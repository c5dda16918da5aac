//! What the engine needs of the kernel, for `torpor doctor`.

use std::fs::File;
use std::io;

use torpor_linux::pagemap::{self, Filter};
use torpor_linux::probe::{Outcome, Probe};
use torpor_linux::userfault::{self, Userfault};

use torpor_proc::maps::areas;
use torpor_process::trace::park_place;
use torpor_process::wait::since::SchedulerClock;

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
        entry(
            userfault::DEVICE,
            Outcome::Degraded,
            Userfault::of_this_process().map(|_| "works".to_owned()),
            "large apps wake more slowly: it needs Linux 6.1 or newer with CONFIG_USERFAULTFD, and the device in /dev",
        ),
        left_over(),
    ]
}

fn left_over() -> Probe {
    let name = "leftovers of restores";
    let meaning = "directories of dead sockets, left by restores that were killed: rm -r";
    match torpor_descriptors::left_over() {
        Ok(found) if found.is_empty() => Probe::new(name, Outcome::Ok, "none", meaning),
        Ok(found) => {
            let paths: Vec<_> = found.iter().map(|path| path.display().to_string()).collect();
            Probe::new(name, Outcome::Degraded, paths.join(", "), meaning)
        }
        Err(error) => Probe::new(name, Outcome::Degraded, error.to_string(), "they could not be looked for"),
    }
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_a_dead_restorer_left_is_told() {
        // No process has such an id.
        let dead = std::env::temp_dir().join(format!(".torpor-sockets-{}-0", u32::MAX));
        let alive = std::env::temp_dir().join(format!(".torpor-sockets-{}-left", std::process::id()));
        fs::create_dir(&dead).unwrap();
        fs::create_dir(&alive).unwrap();
        let told = left_over();
        fs::remove_dir(&dead).unwrap();
        fs::remove_dir(&alive).unwrap();
        let names = |path: &std::path::Path| told.found.contains(path.to_str().unwrap());
        assert!(told.outcome == Outcome::Degraded && names(&dead) && !names(&alive), "{told:?}");
    }
}
