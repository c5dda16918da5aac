//! What is checked before anything is started: the machine and process ids.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process, test_kill_process_group};
use torpor_image::Needs;
use torpor_image::tree::Tree;

use torpor_planner::plan::Plan;

/// What of the machine is in the way.
pub fn machine(needs: &Needs, tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut parts = release.split(['.', '-']).map_while(|part| part.parse::<u16>().ok());
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version < needs.kernel {
        let (major, minor) = needs.kernel;
        found.push(format!("it needs Linux {major}.{minor} or newer, and this is {release}"));
    }
    if release != tree.machine.kernel {
        // Programs have addresses within the vDSO, which is another with every kernel.
        found.push(format!("it was captured on Linux {}, and this is {release}", tree.machine.kernel));
    }
    let features = torpor_linux::cpu::features();
    let missing: Vec<String> = needs
        .cpu
        .iter()
        .zip(features)
        .enumerate()
        .filter(|(_, (wanted, here))| *wanted & !here != 0)
        .map(|(n, (wanted, here))| format!("word {n}: {:#x}", wanted & !here))
        .collect();
    if !missing.is_empty() {
        found.push(format!("this processor lacks features that the programs may use ({})", missing.join(", ")));
    }
    found
}

/// How long ids of processes that have ended are waited for: their parents, or init, are about to take note of it.
const ENDED_WAIT: Duration = Duration::from_secs(3);
const ENDED_LOOK: Duration = Duration::from_millis(1);

/// Process and thread ids that are taken.
pub(crate) fn ids(plan: &Plan) -> Vec<String> {
    let is_taken = |id: &i32| {
        let Some(pid) = Pid::from_raw(*id) else { return false };
        test_kill_process(pid) != Err(Errno::SRCH) || test_kill_process_group(pid) != Err(Errno::SRCH)
    };
    let ended = |id: &i32| {
        torpor_proc::stat::read(&format!("/proc/{id}/stat")).map_or(true, |stat| matches!(stat.state, 'Z' | 'X'))
    };
    let mut ids: BTreeSet<i32> = plan.tasks.iter().map(|task| task.tid).filter(is_taken).collect();
    let begun = Instant::now();
    while !ids.is_empty() && ids.iter().all(ended) && begun.elapsed() < ENDED_WAIT {
        // There is no event for it.
        std::thread::sleep(ENDED_LOOK);
        ids.retain(is_taken);
        if ids.is_empty() {
            // The kernel frees a number a moment after the process is gone.
            std::thread::sleep(ENDED_LOOK);
        }
    }
    ids.into_iter().map(taken).collect()
}

/// That a process id is taken, and by what. A number is also taken while it is that of a group or session whose leader has ended.
pub(super) fn taken(id: i32) -> String {
    if let Ok(name) = torpor_proc::read(&format!("/proc/{id}/comm")) {
        return format!("process id {id} is taken by {}", name.trim_end());
    }
    let all = torpor_proc::processes::all().unwrap_or_default();
    let group_and_session = |pid: &i32| {
        let stat = torpor_proc::stat::read(&format!("/proc/{pid}/stat")).ok()?;
        Some((stat.group, stat.session))
    };
    let member = all.into_iter().find_map(|pid: i32| {
        let (group, session) = group_and_session(&pid)?;
        let what = if group == id { "process group" } else { "session" };
        (group == id || session == id).then(|| format!("the {what} of process {pid} ({})", torpor_proc::name(pid)))
    });
    match member {
        Some(what) => format!("process id {id} is taken by {what}"),
        None => format!("process id {id} was taken a moment ago (try again)"),
    }
}
