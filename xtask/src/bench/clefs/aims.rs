//! What Clefs are to reach.

use super::{ASLEEP, DURABLE, IMAGE, RUNNING, TORPOR};
use crate::bench::chart::number;
use crate::bench::samples::Row;

/// Which values are good.
#[derive(Clone, Copy, Debug)]
enum Aim {
    AtMost(f64),
    AtLeast(f64),
}

/// Program, level, metric, and the aim for its median.
const AIMS: [(&str, &str, &str, Aim); 8] = [
    ("paper", IMAGE, "snapshot", Aim::AtMost(5.0)),
    ("paper", IMAGE, "restore_first_message", Aim::AtMost(20.0)),
    ("counter", DURABLE, "durable_reply", Aim::AtMost(200.0)),
    ("counter", DURABLE, "durable_reply_64", Aim::AtMost(20.0)),
    ("empty", RUNNING, "idle_per_gib", Aim::AtLeast(30_000.0)),
    ("counter", ASLEEP, "sleeping_bytes", Aim::AtMost(40.0)),
    ("counter", ASLEEP, "http_asleep", Aim::AtMost(1000.0)),
    ("counter", DURABLE, "http_awake_rate", Aim::AtLeast(30_000.0)),
];
/// The 99th percentile of `http_asleep`.
const ASLEEP_P99_US: f64 = 5000.0;

/// Prints which aims are reached.
pub(super) fn tell(rows: &[Row]) {
    for (program, level, metric, aim) in AIMS {
        let row = rows.iter().find(|row| {
            (row.program.as_str(), row.subject.as_str(), row.level.as_str(), row.metric.as_str())
                == (program, TORPOR, level, metric)
        });
        let Some(row) = row else { continue };
        say(&format!("{program} {metric}"), row.median, &row.unit, aim);
        if metric == "http_asleep" {
            say(&format!("{program} {metric}, 99th percentile"), row.p99, &row.unit, Aim::AtMost(ASLEEP_P99_US));
        }
    }
}

fn say(what: &str, value: f64, unit: &str, aim: Aim) {
    let (is_reached, words, limit) = match aim {
        Aim::AtMost(limit) => (value <= limit, "at most", limit),
        Aim::AtLeast(limit) => (value >= limit, "at least", limit),
    };
    let verdict = if is_reached { "reached" } else { "MISSED" };
    eprintln!("{verdict:<8} {what}: {} {unit}, aim: {words} {}", number(value), number(limit));
}
