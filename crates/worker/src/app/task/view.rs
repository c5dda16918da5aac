//! An app as users see it.

use torpor_api::view::{AppStatus, DiskUse, Exit as ExitView, Explanation, State, Stats};
use torpor_api::worker::Desired;
use torpor_lifecycle::{Exit, Phase, StopReason};

use super::Task;
use super::adoption::AdoptionRetry;
use crate::app::workload::Workload;
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
pub(crate) fn port_words(port: &torpor_api::spec::Port) -> String {
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

impl<W: Workload> Task<W> {
    pub(super) fn status(&self) -> AppStatus {
        let counts = self.app.counts();
        let mut status = AppStatus {
            id: self.record.id.clone(),
            name: self.record.spec.name.clone(),
            state: self.state(),
            since: clock::wall(self.app.since()),
            pid: None,
            addresses: Vec::new(),
            ports: self.record.spec.ports.iter().map(port_words).collect(),
            memory_bytes: None,
            sleeps: counts.sleeps,
            last_exit: self.app.last_exit().map(|(exit, at)| exit_view(exit, *at)),
            stop_reason: self.stop_reason(),
            restarts: counts.restarts,
            pinned: self.app.pinned(),
            disk: self.disk(),
        };
        self.workload.describe(&mut status);
        status
    }

    /// Why it does not run.
    fn stop_reason(&self) -> Option<String> {
        match self.app.phase() {
            // The daemon has restarted since.
            Phase::Stopped { why: StopReason::NotStarted }
                if self.record.desired == Desired::Down && self.app.last_exit().is_some() =>
            {
                let ended = self.app.last_exit().filter(|_| !self.past.stop_requested);
                Some(ended.map_or_else(|| StopReason::Asked.to_string(), |(exit, _)| exit.to_string()))
            }
            Phase::Stopped { why } => Some(why.to_string()),
            Phase::Backoff { .. } => self.app.last_exit().map(|(exit, _)| exit.to_string()),
            _ => None,
        }
    }

    fn state(&self) -> State {
        match self.app.phase() {
            _ if self.operations.is_stuck() => State::NotAnswering,
            _ if self.adoption_retry.is_some() => State::Adopting,
            Phase::Warm(_) if self.workload.wake_blocker().is_some() => State::WakeBlocked,
            phase => state(phase),
        }
    }

    /// What its files take on disk, where that is limited.
    fn disk(&self) -> Option<DiskUse> {
        self.services.disks.of(&self.record.id, &self.files, self.disk_limit())
    }

    pub(super) fn explain(&self) -> Explanation {
        let account = self.app.explain(clock::now());
        let mut refusals = account.refusals;
        refusals.extend(self.operations.held_up().map(|why| why.to_string()));
        let mut explanation = Explanation {
            status: self.status(),
            why: self.why(account.why),
            keeps_awake: account.keeps_awake,
            sleeps_at: account.sleeps_at.map(clock::wall),
            keeps_dozing: account.keeps_dozing,
            warm_at: account.warm_at.map(clock::wall),
            wakes_at: account.wakes_at.map(clock::wall),
            at_limits: Vec::new(),
            refusals,
            lost_by_reboot: Vec::new(),
            missing_in: None,
            wake_sources: Vec::new(),
            working_set: None,
            sleeps: self.past.sleeps.all(),
            wakes: self.past.wakes.all(),
        };
        self.workload.explain(matches!(self.app.phase(), Phase::Running(_)), &mut explanation);
        explanation
    }

    /// Why it is where it is: the machine's reason, and what is in the way.
    fn why(&self, why: String) -> String {
        if let Some(queued) = self.wakes.words() {
            return format!("{why}; {queued}");
        }
        let unadopted = self.adoption_retry.as_ref().map(AdoptionRetry::words);
        if let Some(blocker) = unadopted.or_else(|| self.workload.wake_blocker()) {
            return blocker;
        }
        match self.workload.end_blocker() {
            Some(held) => format!("{why}: {held}"),
            None => why,
        }
    }

    pub(super) fn stats(&self) -> Stats {
        let counts = self.app.counts();
        let mut stats = Stats {
            name: self.record.spec.name.clone(),
            state: self.state(),
            processes: 0,
            threads: 0,
            private_bytes: 0,
            shared_bytes: 0,
            page_table_bytes: 0,
            kernel_bytes: None,
            image_bytes: None,
            disk: self.disk(),
            cpu_us: 0,
            packets: 0,
            refused_packets: 0,
            sleeps: counts.sleeps,
            warm_sleeps: counts.warm_sleeps,
            aborted_sleeps: counts.aborted_sleeps,
            wakes: counts.wakes,
            dropped_lines: self.log.dropped_lines(),
            working_set: None,
        };
        self.workload.measure(&mut stats);
        stats
    }
}
