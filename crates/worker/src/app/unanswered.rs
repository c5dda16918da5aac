//! What is said of an app whose task does not answer.

use torpor_api::error::{ApiError, ErrorKind};
use torpor_api::view::{AppStatus, Explanation, State, Stats};
use torpor_network::NetworkConfig;

use super::task::{AppHandle, port_words};
use crate::clock;

fn held_up<P>(app: &AppHandle<P>) -> String {
    let since = app.busy.since().map_or(0, |since| clock::now().since(since).as_secs());
    format!("a call of the daemon's for it has not returned for {since} s")
}

/// Why a question to an app's task had no answer.
pub(crate) fn not_answering<P>(app: &AppHandle<P>) -> ApiError {
    let message = format!("{} does not answer: {}", app.record.spec.name, held_up(app));
    ApiError::new(ErrorKind::Timeout, message)
        .with_hint("other apps go on; a restart of the daemon adopts it anew (`systemctl restart torpor`)")
}

/// An app whose task does not answer.
pub(crate) fn status_of_unanswered<P>(app: &AppHandle<P>, network: &NetworkConfig) -> AppStatus {
    let record = &app.record;
    AppStatus {
        id: record.id.clone(),
        name: record.spec.name.clone(),
        state: State::NotAnswering,
        since: clock::wall(app.busy.since().unwrap_or_else(clock::now)),
        pid: None,
        addresses: crate::network::addresses(network, record.index),
        ports: record.spec.ports.iter().map(port_words).collect(),
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
pub(crate) fn explanation_of_unanswered<P>(app: &AppHandle<P>, network: &NetworkConfig) -> Explanation {
    Explanation::only(status_of_unanswered(app, network), format!("not answering: {}", held_up(app)))
}

/// The same, of numbers: none is known.
pub(crate) fn stats_of_unanswered<P>(app: &AppHandle<P>) -> Stats {
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
        working_set: None,
    }
}
