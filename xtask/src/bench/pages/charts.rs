//! The charts of pages.

use super::super::chart::{Bar, Group, Kind, chart, number};
use super::super::report::Report;

/// Label, kind, subject, level.
type Shown = (&'static str, Kind, &'static str, &'static str);

/// How times of the results, in microseconds, are shown.
struct Scale {
    unit: &'static str,
    per: f64,
    /// In the subtitle.
    words: &'static str,
}

const MILLISECONDS: Scale = Scale { unit: "ms", per: 1000.0, words: "in milliseconds, seen by the client" };
const MICROSECONDS: Scale = Scale { unit: "µs", per: 1.0, words: "in microseconds" };

/// The chart of the result `name`, if it has one.
pub(super) fn of(name: &str, report: &Report) -> Option<String> {
    match name {
        "wake" => Some(wakes(report)),
        "paging" => Some(paging(report)),
        "clefs" => Some(clefs(report)),
        _ => None,
    }
}

/// Programs in the chart of wakes: a small one, a language runtime, one with much memory.
const PROGRAMS: [(&str, &str); 3] =
    [("lighttpd", "lighttpd"), ("node", "Node.js"), ("redis-80mb", "redis with 80 MB of data")];
const WAKES: [Shown; 7] = [
    ("never slept", Kind::Reference, "never-slept", "running"),
    ("Torpor, dozing", Kind::Own, "torpor", "dozing"),
    ("Torpor, warm", Kind::Own, "torpor", "warm"),
    ("CRIU restore", Kind::Peer, "criu", "image"),
    ("CRIU restore, lazy pages", Kind::Peer, "criu-lazy", "image"),
    ("runc + CRIU restore", Kind::Peer, "runc+criu", "image"),
    ("cold start, its state lost", Kind::Peer, "cold-start", "stopped"),
];
/// Working sets in the chart of paging.
const SETS: [&str; 5] = ["4 kB", "64 kB", "1 MB", "4 MB", "8 MB"];
/// Prediction errors in it.
const ERRORS: [(&str, &str); 3] = [
    ("4 MB, 1 %", "4 MB, of which 1 % was not expected"),
    ("4 MB, 10 %", "4 MB, of which 10 % was not expected"),
    ("4 MB, 50 %", "4 MB, of which 50 % was not expected"),
];
const PAGING: [Shown; 6] = [
    ("never slept", Kind::Reference, "never-slept", "running"),
    ("learned working set", Kind::Own, "learned", "dozing"),
    ("no working set", Kind::Own, "reactive", "dozing"),
    ("all memory first", Kind::Own, "full", "dozing"),
    ("CRIU restore", Kind::Peer, "criu", "image"),
    ("CRIU restore, lazy pages", Kind::Peer, "criu-lazy", "image"),
];

const SNAPSHOTS: [Shown; 4] = [
    ("Clef, what has changed", Kind::Own, "torpor", "image"),
    ("Clef, everything", Kind::Own, "torpor-full", "image"),
    ("checkpoint of a process", Kind::Own, "checkpoint", "image"),
    ("CRIU", Kind::Peer, "criu", "image"),
];
const REPLIES: [Shown; 2] =
    [("Clef", Kind::Own, "torpor", "durable"), ("redis, by its socket", Kind::Peer, "redis", "durable")];

/// Times to the first byte beside those of the peers.
fn wakes(report: &Report) -> String {
    let group = |(program, heading): &(&str, &str)| {
        let memory = report.find(program, "torpor", "dozing", "private_before");
        let memory =
            memory.map_or_else(String::new, |row| format!(", {} MB of private memory", number(row.median / 1024.0)));
        Group {
            heading: format!("{heading}{memory}"),
            bars: bars(report, program, "first_byte", &WAKES, &MILLISECONDS),
        }
    };
    let groups = PROGRAMS.iter().map(group).collect();
    times("From a request to the first byte of the answer", report, groups, &MILLISECONDS)
}

/// Times to the answer by working set, and by prediction error.
fn paging(report: &Report) -> String {
    let set = |size: &&str| Group {
        heading: format!("working set of {size}"),
        bars: bars(report, size, "first_byte", &PAGING, &MILLISECONDS),
    };
    let error = |(program, heading): &(&str, &str)| Group {
        heading: format!("working set of {heading}"),
        bars: bars(report, program, "first_byte_errors", &PAGING, &MILLISECONDS),
    };
    let groups = SETS.iter().map(set).chain(ERRORS.iter().map(error)).collect();
    times("Waking a program with 64 MB, by what the wake expects", report, groups, &MILLISECONDS)
}

/// Snapshots, restores and durable answers.
fn clefs(report: &Report) -> String {
    let group = |heading: &str, program, metric, shown| Group {
        heading: heading.to_owned(),
        bars: bars(report, program, metric, shown, &MICROSECONDS),
    };
    let groups = vec![
        group("snapshot of 10,000 functions", "paper", "snapshot", &SNAPSHOTS[..]),
        group("restore of 10,000 functions, with a first message", "paper", "restore_first_message", &SNAPSHOTS),
        group("answer that is on disk, alone", "counter", "durable_reply", &REPLIES),
        group("answer that is on disk, each of 64", "counter", "durable_reply_64", &REPLIES),
    ];
    times("States of Clefs, out and in", report, groups, &MICROSECONDS)
}

/// A bar for each subject that has this metric.
fn bars(report: &Report, program: &str, metric: &str, shown: &[Shown], scale: &Scale) -> Vec<Bar> {
    let bar = |(label, kind, subject, level): &Shown| {
        let row = report.find(program, subject, level, metric)?;
        Some(Bar { label: (*label).to_owned(), value: row.median / scale.per, kind: *kind })
    };
    shown.iter().filter_map(bar).collect()
}

/// A chart of medians, without empty groups.
fn times(title: &str, report: &Report, mut groups: Vec<Group>, scale: &Scale) -> String {
    groups.retain(|group| !group.bars.is_empty());
    let mut subtitle = format!("Medians, {}; logarithmic scale", scale.words);
    if let Some(warning) = report.conditions.warning() {
        subtitle = format!("{subtitle}. {warning}");
    }
    chart(title, &subtitle, scale.unit, &groups)
}

#[cfg(test)]
mod tests {
    use super::super::super::samples::tests::row;
    use super::*;

    fn report(program: &str, subject: &str) -> Report {
        let rows = vec![row(program, subject, "dozing", "first_byte", 1300.0)];
        Report { conditions: Default::default(), missing: Vec::new(), rows }
    }

    #[test]
    fn charts_show_what_was_measured() {
        let wakes = of("wake", &report("lighttpd", "torpor")).unwrap();
        assert!(wakes.contains("Torpor, dozing") && !wakes.contains("CRIU restore") && !wakes.contains("Node.js"));
        let paging = of("paging", &report("1 MB", "learned")).unwrap();
        assert!(paging.contains("working set of 1 MB") && !paging.contains("8 MB") && !paging.contains("never slept"));
        let clefs = of("clefs", &report("paper", "torpor")).unwrap();
        assert!(!clefs.contains("<rect class=\"own\""), "nothing of it was measured");
        assert_eq!(of("cost", &report("cost", "plain")), None);
    }
}
