//! Clefs of a class, and their numbers.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use torpor_clef::control::ClefView;
use torpor_clef::{ClefStatus, Stats, Usage};

use super::units::{ago, micros, size, words};
use super::{Cells, Narrow, safe, table_within};

/// What makes the lines narrower at a terminal.
const STEPS: [Narrow; 2] = [Narrow::Cut("KEY", 20), Narrow::Drop("SIZE")];

/// One line for each Clef.
pub(crate) fn clefs(clefs: &[ClefStatus], most: Option<usize>) -> String {
    let state = |awake| if awake { "awake" } else { "asleep" };
    let row =
        |clef: &ClefStatus| vec![safe(&clef.key.to_string()), state(clef.awake).to_owned(), size(Some(clef.bytes))];
    let rows: Vec<Cells> = clefs.iter().map(row).collect();
    table_within(most, &["KEY", "STATE", ">SIZE"], &rows, &STEPS)
}

/// One line for each number.
pub(crate) fn clef_stats(stats: Stats, zone: &TimeZone) -> String {
    let Stats { clefs, awake, log_bytes, needed_bytes, host_started_ms, used_since_host_start } = stats;
    let (log, needed) = (size(Some(log_bytes)), size(Some(needed_bytes)));
    let text = format!("stored   {clefs}\nawake    {awake}\non disk  {log}, of which {needed} are needed\n");
    // An older host does not say.
    let Some(started) = host_started_ms else { return text };
    let used = clef_usage(&used_since_host_start);
    text + &format!("\nused by all since the host was started, {}:\n{used}", local(started, zone))
}

/// One line for each number.
pub(crate) fn clef_usage(usage: &Usage) -> String {
    let Usage { steps, busy_us, awake_ms, memory_kb_s, sent_bytes, stored_bytes, failed } = *usage;
    let awake = match awake_ms {
        0..60_000 => micros(awake_ms * 1000),
        _ => words(SignedDuration::from_secs(i64::try_from(awake_ms / 1000).unwrap_or(i64::MAX))),
    };
    let lines = [
        ("steps", format!("{steps}, of which {failed} failed")),
        ("busy", micros(busy_us)),
        ("awake", awake),
        ("memory use", format!("{memory_kb_s} KiB × s")),
        ("sent", size(Some(sent_bytes))),
        ("written", size(Some(stored_bytes))),
    ];
    lines.iter().map(|(name, value)| format!("{name:<11}  {value}\n")).collect()
}

/// All about a Clef of a class.
pub(crate) fn clef(view: &ClefView, class: &str, now: Timestamp, zone: &TimeZone) -> String {
    let when = |ms: u64| format!("{} ({})", local(ms, zone), timestamp(ms).map_or("-".to_owned(), |at| ago(at, now)));
    let mut text = String::new();
    let mut line = |name: &str, value: &str| text.push_str(&format!("{name:<11}  {}\n", safe(value)));
    line("clef", &format!("{class}/{}", view.key));
    line("state", if view.awake { "awake" } else { "asleep" });
    line("memory", &size(view.memory_bytes));
    line("stored", &size(Some(view.stored_bytes)));
    line("connections", &view.connections.to_string());
    for task in &view.tasks {
        let until = task.until_ms.map_or(String::new(), |until| format!(" until {}", when(until)));
        line("task", &format!("{}{until}", task.wait));
    }
    for alarm in &view.alarms {
        line("alarm", &format!("{} at {}", alarm.name, when(alarm.due_ms)));
    }
    for put in &view.values {
        line("kv", &format!("{} = {}", put.name, put.value));
    }
    text.push_str(&clef_usage(&view.usage));
    let (functions, others): (Vec<_>, Vec<_>) = view.globals.iter().partition(|global| global.kind == "function");
    let mut line = |name: &str, value: &str| text.push_str(&format!("{name:<11}  {}\n", safe(value)));
    if !functions.is_empty() {
        let names: Vec<&str> = functions.iter().map(|global| global.name.as_str()).collect();
        line("functions", &names.join(", "));
    }
    for global in others {
        line("global", &format!("{} = {}", global.name, global.value));
    }
    if view.globals_left_out > 0 {
        line("globals", &format!("{} more", view.globals_left_out));
    }
    if let Some(error) = &view.globals_error {
        line("globals", &format!("cannot be listed: {}", error.lines().next().unwrap_or_default()));
    }
    text
}

fn timestamp(ms: u64) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok()
}

fn local(ms: u64, zone: &TimeZone) -> String {
    timestamp(ms).map_or("-".to_owned(), |at| at.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M:%S %Z").to_string())
}
