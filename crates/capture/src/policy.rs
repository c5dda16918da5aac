//! Which of the machine's memory threads and areas prefer (`set_mempolicy(2)`, `mbind(2)`).

use std::collections::HashMap;

use torpor_image::tree::MemoryPolicy;
use torpor_linux::uapi::memory::MPOL_F_ADDR;
use torpor_linux::uapi::syscall;

use super::call_batch::{Answers, Asked, CallBatch, Place};
use super::remote::Remote;
use torpor_proc::maps::Area;
use torpor_process::trace::TraceError;

/// Nodes that a kernel can have at most.
const NODES: usize = 1024;
/// Areas that are asked about at once: calls and answers fit into their pages.
const AT_ONCE: usize = 180;
const WITH_NODES_AT_ONCE: usize = 25;

/// A question for a policy.
pub(super) struct AskedPolicy {
    mode: Place,
    nodes: Place,
    asked: Asked,
}

impl AskedPolicy {
    /// Of the area at this address, or else of the thread.
    pub(super) fn ask(list: &mut CallBatch, area: Option<u64>) -> Self {
        let (mode, nodes) = (list.place(8), list.place(NODES / 8));
        let flags = area.map_or(0, |_| MPOL_F_ADDR);
        let arguments = [mode.address, nodes.address, NODES as u64, area.unwrap_or(0), flags];
        Self { mode, nodes, asked: list.ask("get_mempolicy", syscall::GET_MEMPOLICY, &arguments) }
    }

    /// Kernels without CONFIG_NUMA have no policies.
    pub(super) fn answered(&self, answers: &Answers) -> MemoryPolicy {
        let Ok(_) = answers.result(self.asked) else { return MemoryPolicy::default() };
        let mode = answers.word(self.mode, 0) as u32;
        if mode == 0 {
            return MemoryPolicy::default();
        }
        let mut nodes: Vec<u64> = (0..NODES / 64).map(|n| answers.word(self.nodes, n)).collect();
        nodes.truncate(nodes.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1));
        MemoryPolicy { mode, nodes }
    }
}

/// Policies of areas that have one, by address.
pub(super) fn of_areas(remote: &Remote<'_>, areas: &[Area]) -> Result<HashMap<u64, MemoryPolicy>, TraceError> {
    let mut with_policy = Vec::new();
    // The kernel's own areas have none.
    let areas: Vec<u64> = areas.iter().filter(|area| !area.name.starts_with("[v")).map(|area| area.start).collect();
    for some in areas.chunks(AT_ONCE) {
        let mut list = remote.questions();
        let asked: Vec<(u64, Place, Asked)> = some
            .iter()
            .map(|start| {
                let mode = list.place(8);
                let arguments = [mode.address, 0, 0, *start, MPOL_F_ADDR];
                (*start, mode, list.ask("get_mempolicy", syscall::GET_MEMPOLICY, &arguments))
            })
            .collect();
        let answers = remote.ask(0, list)?;
        let has = |(_, mode, asked): &&(u64, Place, Asked)| {
            answers.result(*asked).is_ok() && answers.word(*mode, 0) as u32 != 0
        };
        with_policy.extend(asked.iter().filter(has).map(|(start, ..)| *start));
    }
    let mut found = HashMap::new();
    for some in with_policy.chunks(WITH_NODES_AT_ONCE) {
        let mut list = remote.questions();
        let asked: Vec<(u64, AskedPolicy)> =
            some.iter().map(|start| (*start, AskedPolicy::ask(&mut list, Some(*start)))).collect();
        let answers = remote.ask(0, list)?;
        found.extend(asked.iter().map(|(start, asked)| (*start, asked.answered(&answers))));
    }
    Ok(found)
}
