//! The charts of pages.

use super::super::chart::{Bar, Group, Kind, chart, number};
use super::super::report::Report;

/// Label, kind, subject, level.
type Shown = (&'static str, Kind, &'static str, &'static str);

/// The chart of the result `name`, if it has one.
pub(super) fn of(name: &str, report: &Report) -> Option<String> {
    match name {
        "wake" => Some(wakes(report)),
        "paging" => Some(paging(report)),
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

/// Times to the first byte beside those of the peers.
fn wakes(report: &Report) -> String {
    let group = |(program, heading): &(&str, &str)| {
        let memory = report.find(program, "torpor", "dozing", "private_before");
        let memory =
            memory.map_or_else(String::new, |row| format!(", {} MB of private memory", number(row.median / 1024.0)));
        Group { heading: format!("{heading}{memory}"), bars: bars(report, program, "first_byte", &WAKES) }
    };
    let groups = PROGRAMS.iter().map(group).collect();
    times("From a request to the first byte of the answer", report, groups)
}

/// Times to the answer by working set, and by prediction error.
fn paging(report: &Report) -> String {
    let set = |size: &&str| Group {
        heading: format!("working set of {size}"),
        bars: bars(report, size, "first_byte", &PAGING),
    };
    let error = |(program, heading): &(&str, &str)| Group {
        heading: format!("working set of {heading}"),
        bars: bars(report, program, "first_byte_errors", &PAGING),
    };
    let groups = SETS.iter().map(set).chain(ERRORS.iter().map(error)).collect();
    times("Waking a program with 64 MB, by what the wake expects", report, groups)
}

/// A bar for each subject that has this metric.
fn bars(report: &Report, program: &str, metric: &str, shown: &[Shown]) -> Vec<Bar> {
    let bar = |(label, kind, subject, level): &Shown| {
        let row = report.find(program, subject, level, metric)?;
        Some(Bar { label: (*label).to_owned(), value: row.median / 1000.0, kind: *kind })
    };
    shown.iter().filter_map(bar).collect()
}

/// A chart of medians, without empty groups.
fn times(title: &str, report: &Report, mut groups: Vec<Group>) -> String {
    groups.retain(|group| !group.bars.is_empty());
    let mut subtitle = "Medians, in milliseconds, seen by the client; logarithmic scale".to_owned();
    if let Some(warning) = report.conditions.warning() {
        subtitle = format!("{subtitle}. {warning}");
    }
    chart(title, &subtitle, "ms", &groups)
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
        assert_eq!(of("cost", &report("cost", "plain")), None);
    }
}
