//! Limits that cannot be what they were.

use rustix::thread::CapabilitySet;
use torpor_image::tree::Tree;
use torpor_linux::limits::hard_limits;

use torpor_planner::plan::Plan;

/// Without CAP_SYS_RESOURCE hard limits cannot be raised over ours: lowers them in the plan.
pub fn lower_limits(tree: &Tree, plan: &mut Plan, warnings: &mut Vec<String>) {
    let able = rustix::thread::capabilities(None).map(|sets| sets.effective);
    if able.is_ok_and(|able| able.contains(CapabilitySet::SYS_RESOURCE)) {
        return;
    }
    let own = hard_limits();
    for task in plan.tasks.clone() {
        let Some(table) = plan.limits(&task) else { continue };
        let lowered = lower(table, &own);
        let process = &tree.processes[task.process as usize];
        if !lowered.is_empty() {
            warnings.push(format!(
                "process {}: hard limits {lowered:?} are lower than they were: CAP_SYS_RESOURCE is missing",
                process.pid
            ));
        }
    }
}

/// Lowers pairs of limits to `own` hard ones; gives the numbers of those that were higher.
fn lower(table: &mut [u8], own: &[u64]) -> Vec<usize> {
    let mut lowered = Vec::new();
    for (n, (pair, own)) in table.chunks_exact_mut(16).zip(own).enumerate() {
        let (soft, hard) = pair.split_at_mut(8);
        let mut changed = false;
        for word in [soft, hard] {
            let value = u64::from_ne_bytes(std::array::from_fn(|n| word[n]));
            if value > *own {
                word.copy_from_slice(&own.to_ne_bytes());
                changed = true;
            }
        }
        if changed {
            lowered.push(n);
        }
    }
    lowered
}
