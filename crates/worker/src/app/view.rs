//! An app as users see it.

use torpor_api::error::{ApiError, ErrorKind};
use torpor_api::view::{AppStatus, DiskUse, Exit as ExitView, Explanation, State, Stats};
use torpor_api::worker::Desired;
use torpor_lifecycle::{Exit, Phase, StopReason};
use torpor_network::NetworkConfig;

use super::process_tree::sleep_state::SleepState;
use super::process_tree::usage;
use super::task::{AppHandle, Task};
use crate::clock;

fn state(phase: &Phase) -> State {
    match phase {
        Phase::Stopped { .. } => State::Stopped,
        Phase::Starting { .. } => State::Starting,
        Phase::Running(_) | Phase::Aborting { .. } => State::Running,
        Phase::Capturing { .. } | Phase::Dropping { .. } => State::FallingAsleep,
        Phase::Dozing(_) => State::Dozing,
        Phase::Hibernating { .. } => State::GoingWarm,
        Phase::Warm(asleep) if asleep.is_refused() => State::WakeBlocked,
        Phase::Warm(_) => State::Warm,
        Phase::Waking { .. } => State::Waking,
        Phase::Stopping { .. } => State::Stopping,
        Phase::Backoff { .. } => State::Restarting,
    }
}

fn exit_view(exit: &Exit, at: torpor_lifecycle::Millis) -> ExitView {
    let (code, signal) = match exit {
        Exit::Status(status) | Exit::NotRun(status, _) => (Some(*status), None),
        Exit::Signal(signal) => (None, Some(*signal)),
        Exit::MemoryLimit(_) => (None, Some(9)),
        Exit::Lost(_) | Exit::Unknown => (None, None),
    };
    ExitView { code, signal, reason: exit.to_string(), at: clock::wall(at) }
}

/// A published port in words.
fn port(port: &torpor_api::spec::Port) -> String {
    let protocol = match port.protocol {
        torpor_api::spec::Protocol::Tcp => "tcp",
        torpor_api::spec::Protocol::Udp => "udp",
    };
    match port.host_ip {
        Some(std::net::IpAddr::V6(ip)) => format!("[{ip}]:{}->{}/{protocol}", port.host, port.app),
        Some(ip) => format!("{ip}:{}->{}/{protocol}", port.host, port.app),
        None => format!("{}->{}/{protocol}", port.host, port.app),
    }
}

fn held_up(app: &AppHandle) -> String {
    let since = app.busy.since().map_or(0, |since| clock::now().since(since).as_secs());
    format!("a call of the daemon's for it has not returned for {since} s")
}

/// Why a question to an app's task had no answer.
pub(crate) fn not_answering(app: &AppHandle) -> ApiError {
    let message = format!("{} does not answer: {}", app.record.spec.name, held_up(app));
    ApiError::new(ErrorKind::Timeout, message)
        .with_hint("other apps go on; a restart of the daemon adopts it anew (`systemctl restart torpor`)")
}

/// An app whose task does not answer.
pub(crate) fn status_of_unanswered(app: &AppHandle, network: &NetworkConfig) -> AppStatus {
    let record = &app.record;
    let addresses = network.addresses(record.index);
    let addresses = addresses.map(|found| found.ips().map(|ip| ip.to_string()).to_vec()).unwrap_or_default();
    AppStatus {
        id: record.id.clone(),
        name: record.spec.name.clone(),
        state: State::NotAnswering,
        since: clock::wall(app.busy.since().unwrap_or_else(clock::now)),
        pid: None,
        addresses,
        ports: record.spec.ports.iter().map(port).collect(),
        memory_bytes: None,
        sleeps: 0,
        last_exit: None,
        stop_reason: None,
        restarts: 0,
        pinned: record.pinned,
        disk: None,
    }
}

/// The same, explained.
pub(crate) fn explanation_of_unanswered(app: &AppHandle, network: &NetworkConfig) -> Explanation {
    Explanation::only(status_of_unanswered(app, network), format!("not answering: {}", held_up(app)))
}

/// The same, of numbers: none is known.
pub(crate) fn stats_of_unanswered(app: &AppHandle) -> Stats {
    Stats {
        name: app.record.spec.name.clone(),
        state: State::NotAnswering,
        processes: 0,
        threads: 0,
        private_bytes: 0,
        shared_bytes: 0,
        page_table_bytes: 0,
        kernel_bytes: None,
        image_bytes: None,
        disk: None,
        cpu_us: 0,
        packets: 0,
        refused_packets: 0,
        sleeps: 0,
        warm_sleeps: 0,
        aborted_sleeps: 0,
        wakes: 0,
        dropped_lines: app.log.dropped_lines(),
    }
}

impl Task {
    pub(super) fn status(&self) -> AppStatus {
        let addresses = self.shared.config.network.addresses(self.record.index);
        let addresses = addresses.map(|found| found.ips().map(|ip| ip.to_string()).to_vec()).unwrap_or_default();
        let counts = self.app.counts();
        AppStatus {
            id: self.record.id.clone(),
            name: self.record.spec.name.clone(),
            state: self.state(),
            since: clock::wall(self.app.since()),
            pid: self.sandbox.as_ref().and_then(|sandbox| sandbox.initial_pid()),
            addresses,
            ports: self.record.spec.ports.iter().map(port).collect(),
            memory_bytes: self.memory_bytes(),
            sleeps: counts.sleeps,
            last_exit: self.app.last_exit().map(|(exit, at)| exit_view(exit, *at)),
            stop_reason: self.stop_reason(),
            restarts: counts.restarts,
            pinned: self.app.pinned(),
            disk: self.disk(),
        }
    }

    /// Why it does not run.
    fn stop_reason(&self) -> Option<String> {
        match self.app.phase() {
            // The daemon has restarted since.
            Phase::Stopped { why: StopReason::NotStarted }
                if self.record.desired == Desired::Down && self.app.last_exit().is_some() =>
            {
                let ended = self.app.last_exit().filter(|_| !self.stop_requested);
                Some(ended.map_or_else(|| StopReason::Asked.to_string(), |(exit, _)| exit.to_string()))
            }
            Phase::Stopped { why } => Some(why.to_string()),
            Phase::Backoff { .. } => self.app.last_exit().map(|(exit, _)| exit.to_string()),
            _ => None,
        }
    }

    fn state(&self) -> State {
        match self.app.phase() {
            _ if self.operation.is_stuck() => State::NotAnswering,
            _ if self.adopt_at().is_some() => State::Adopting,
            Phase::Warm(_) if self.sandbox_retry.is_some() => State::WakeBlocked,
            phase => state(phase),
        }
    }

    /// What its files take on disk, where that is limited.
    fn disk(&self) -> Option<DiskUse> {
        self.shared.disks.of(&self.record.id, &self.files, self.disk_limit())
    }

    /// Memory of its processes' own: what sleeping gives back.
    fn memory_bytes(&self) -> Option<u64> {
        let pids = self.sandbox.as_ref()?.cgroup().processes().ok()?;
        usage::usage(&pids).ok().map(|usage| usage.private_bytes)
    }

    pub(super) fn explain(&self) -> Explanation {
        let account = self.app.explain(clock::now());
        let mut refusals = account.refusals;
        refusals.extend(self.operation.held_up().map(|why| why.to_string()));
        let known = refusals.clone();
        if let (Phase::Running(_), Some(sandbox)) = (self.app.phase(), &self.sandbox) {
            let found = sandbox.cgroup().processes().map_err(std::io::Error::other);
            match found.and_then(|pids| torpor_engine::obstacles(&pids)) {
                Ok(obstacles) => {
                    refusals.extend(obstacles.into_iter().filter(|found| !known.contains(found)));
                }
                Err(error) => tracing::debug!(app = self.record.spec.name, %error, "looking for obstacles to sleep"),
            }
        }
        let sources = self.asleep.as_ref().map(|asleep| asleep.watch().sources()).unwrap_or_default();
        let why = match (&self.queued, self.adoption_blocker().or_else(|| self.sandbox_blocker())) {
            (Some(queued), _) => format!("{}; {}", account.why, queued.words()),
            (None, Some(sandbox_retry)) => sandbox_retry,
            (None, None) => match self.kill_attempts.held() {
                Some(held) => format!("{}: {held}", account.why),
                None => account.why,
            },
        };
        Explanation {
            status: self.status(),
            why,
            keeps_awake: account.keeps_awake,
            sleeps_at: account.sleeps_at.map(clock::wall),
            keeps_dozing: account.keeps_dozing,
            warm_at: account.warm_at.map(clock::wall),
            wakes_at: account.wakes_at.map(clock::wall),
            at_limits: crate::refused::told(&self.shared, self.record.index).into_iter().collect(),
            refusals,
            lost_by_reboot: self.lost_by_reboot(),
            wake_sources: sources
                .iter()
                .enumerate()
                .map(|(n, source)| {
                    let label = self.labels.get(n).unwrap_or(&source.what);
                    format!("{label} (descriptor {} of process {})", source.fd, source.pid)
                })
                .collect(),
            sleeps: self.sleeps.all(),
            wakes: self.wakes.all(),
        }
    }

    /// As its image has it.
    fn lost_by_reboot(&self) -> Vec<String> {
        let Some(SleepState::Warm(app)) = &self.asleep else { return Vec::new() };
        let read = torpor_engine::ImageFile::open(&app.warm.image).and_then(|image| image.contents());
        match read {
            Ok(torpor_engine::Contents::Complete(tree)) => tree.surroundings.lost,
            Ok(torpor_engine::Contents::Dozing(_)) => Vec::new(),
            Err(error) => vec![format!("everything: its image cannot be read ({error})")],
        }
    }

    pub(super) fn stats(&self) -> Stats {
        let cgroup = self.sandbox.as_ref().map(|sandbox| sandbox.cgroup());
        let pids = cgroup.and_then(|cgroup| cgroup.processes().ok()).unwrap_or_default();
        let usage = usage::usage(&pids).unwrap_or_default();
        let counts = self.app.counts();
        Stats {
            name: self.record.spec.name.clone(),
            state: self.state(),
            processes: usage.processes,
            threads: usage.threads,
            private_bytes: usage.private_bytes,
            shared_bytes: usage.shared_bytes,
            page_table_bytes: usage.page_table_bytes,
            kernel_bytes: cgroup.and_then(|cgroup| cgroup.kernel_bytes().ok().flatten()),
            image_bytes: self.asleep.as_ref().map(SleepState::image_bytes),
            disk: self.disk(),
            cpu_us: cgroup.and_then(|cgroup| cgroup.cpu_us().ok()).unwrap_or(0),
            packets: self.shared.packets(self.record.index).unwrap_or(0),
            refused_packets: self.shared.refused_packets(self.record.index).unwrap_or(0),
            sleeps: counts.sleeps,
            warm_sleeps: counts.warm_sleeps,
            aborted_sleeps: counts.aborted_sleeps,
            wakes: counts.wakes,
            dropped_lines: self.log.dropped_lines(),
        }
    }
}
