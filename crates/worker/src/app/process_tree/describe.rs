//! What a process tree is and costs, for users and for the state machine.

use std::io;

use torpor_api::view::{AppStatus, Explanation, Stats};
use torpor_lifecycle::Observation;

use super::sleep_state::SleepState;
use super::{ProcessTree, usage};

impl ProcessTree {
    pub(super) fn observation(&self) -> Option<Observation> {
        let sandbox = self.run.sandbox.as_ref()?;
        let cpu_us = sandbox.cgroup().cpu_us().ok()?;
        let connections = usage::connections(sandbox.init_pid()).ok()?;
        let packets = self.shared.packets(self.record.index)?;
        Some(Observation { packets, cpu_us, connections })
    }

    pub(super) fn describe_processes(&self, status: &mut AppStatus) {
        status.pid = self.run.sandbox.as_ref().and_then(|sandbox| sandbox.initial_pid());
        status.addresses = crate::network::addresses(&self.shared.config.network, self.record.index);
        status.memory_bytes = self.memory_bytes();
    }

    /// Memory of its processes' own: what sleeping gives back.
    fn memory_bytes(&self) -> Option<u64> {
        let pids = self.run.sandbox.as_ref()?.cgroup().processes().ok()?;
        usage::usage(&pids).ok().map(|usage| usage.private_bytes)
    }

    pub(super) fn explain_processes(&self, runs: bool, explanation: &mut Explanation) {
        let is_lazy = self.lazy.as_ref().is_some_and(|lazy| !lazy.has_ended());
        if let (true, Some(sandbox)) = (runs, &self.run.sandbox) {
            let found = sandbox.cgroup().processes().map_err(io::Error::other);
            match found.and_then(|pids| torpor_engine::obstacles(&pids, is_lazy)) {
                Ok(obstacles) => {
                    let known = explanation.refusals.clone();
                    explanation.refusals.extend(obstacles.into_iter().filter(|found| !known.contains(found)));
                }
                Err(error) => tracing::debug!(app = self.record.spec.name, %error, "looking for obstacles to sleep"),
            }
        }
        explanation.at_limits = crate::refused::told(&self.shared, self.record.index).into_iter().collect();
        explanation.lost_by_reboot = self.lost_by_reboot();
        let missing_in = self.lazy.as_ref().and_then(|lazy| lazy.image());
        explanation.missing_in = missing_in.map(|(path, _)| path.display().to_string());
        explanation.working_set = self.learned.view();
        let sources = self.sleep.state.as_ref().map(|asleep| asleep.watch().sources()).unwrap_or_default();
        explanation.wake_sources = sources
            .iter()
            .enumerate()
            .map(|(n, source)| {
                let label = self.sleep.labels.get(n).unwrap_or(&source.what);
                format!("{label} (descriptor {} of process {})", source.fd, source.pid)
            })
            .collect();
    }

    /// As its image has it.
    fn lost_by_reboot(&self) -> Vec<String> {
        let Some(SleepState::Warm(app)) = &self.sleep.state else { return Vec::new() };
        let read = torpor_store::ImageFile::open(app.warm.image.path()).and_then(|image| image.contents());
        match read {
            Ok(torpor_store::Contents::Complete(tree)) => tree.surroundings.lost,
            Ok(torpor_store::Contents::Dozing(_)) => Vec::new(),
            Err(error) => vec![format!("everything: its image cannot be read ({error})")],
        }
    }

    pub(super) fn measure_processes(&self, stats: &mut Stats) {
        let cgroup = self.run.sandbox.as_ref().map(|sandbox| sandbox.cgroup());
        let pids = cgroup.and_then(|cgroup| cgroup.processes().ok()).unwrap_or_default();
        let usage = usage::usage(&pids).unwrap_or_default();
        stats.processes = usage.processes;
        stats.threads = usage.threads;
        stats.private_bytes = usage.private_bytes;
        stats.shared_bytes = usage.shared_bytes;
        stats.page_table_bytes = usage.page_table_bytes;
        stats.kernel_bytes = cgroup.and_then(|cgroup| cgroup.kernel_bytes().ok().flatten());
        let missing_in = || self.lazy.as_ref()?.image().map(|(_, bytes)| bytes);
        stats.image_bytes = self.sleep.state.as_ref().map(SleepState::image_bytes).or_else(missing_in);
        stats.working_set = self.learned.view();
        stats.cpu_us = cgroup.and_then(|cgroup| cgroup.cpu_us().ok()).unwrap_or(0);
        stats.packets = self.shared.packets(self.record.index).unwrap_or(0);
        stats.refused_packets = self.shared.refused_packets(self.record.index).unwrap_or(0);
    }
}
