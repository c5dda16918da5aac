//! `torpor explain`. Its first two lines are the answer: where the app is and why, and what keeps it there. All times
//! are in the units of [`words`].

use jiff::Timestamp;
use torpor_api::view::{DiskBy, Explanation, Transition, WorkingSet};

use super::tables::disk;
use super::units::{ago, micros, size, words};
use super::{Cells, Narrow, safe, table, table_within};

/// Why an app is where it is, and what its last sleeps and wakes took; `verbose` adds their phases.
///
/// What the second line says in full is not said again below. At a `terminal`, the tables are cut to its width, unless `verbose`.
pub(crate) fn explanation(told: &Explanation, verbose: bool, terminal: Option<usize>, now: Timestamp) -> String {
    let reason = reason(told, now);
    let mut text = format!("{} is {}\n{}\n", told.status.name, safe(&told.why), safe(&reason.words));
    let mut details = String::new();
    let mut item = |title: &str, lines: &[String]| {
        for (at, line) in lines.iter().enumerate() {
            let title = if at == 0 { title } else { "" };
            details.push_str(&format!("{title:<16}{}\n", safe(line)));
        }
    };
    let next = |at: Timestamp| [format!("{}, if nothing happens", ago(at, now))];
    item("kept awake by", &told.keeps_awake);
    item("cannot sleep", &told.refusals);
    told.sleeps_at.filter(|at| reason.at != Some(*at)).into_iter().for_each(|at| item("will sleep", &next(at)));
    item("stays dozing", &told.keeps_dozing);
    told.warm_at.into_iter().for_each(|at| item("will go warm", &next(at)));
    let wakes_at = told.wakes_at.filter(|at| reason.at != Some(*at));
    wakes_at.into_iter().for_each(|at| item("timer wakes it", &[ago(at, now)]));
    if told.status.disk.is_some() {
        let by = match told.status.disk.map(|found| found.by) {
            Some(DiskBy::Quota) => "the kernel refuses more",
            _ => "measured while it runs; above the limit it is not started again",
        };
        item("disk", &[format!("{}; {by}", disk(told.status.disk))]);
    }
    item("at a limit", &told.at_limits);
    item("woken by", &told.wake_sources);
    item("a reboot costs", &told.lost_by_reboot);
    let missing =
        |path| format!("a part of it is still in {path}, and comes back when it is touched or in the background");
    told.missing_in.iter().for_each(|path| item("memory", &[missing(path)]));
    told.working_set.iter().for_each(|set| item("needs first", &[needs_first(set)]));
    if !details.is_empty() {
        text.push_str(&format!("\n{details}"));
    }
    for (title, transitions) in [("wakes", &told.wakes), ("sleeps", &told.sleeps)] {
        if !transitions.is_empty() {
            text.push_str(&format!("\nlast {title}\n{}", indented(&history(transitions, verbose, terminal, now))));
        }
    }
    text
}

/// How much of its memory it needs first, and how well that is known.
fn needs_first(set: &WorkingSet) -> String {
    let WorkingSet { wakes, pages, misses, used, unused, full, .. } = set;
    let learned = format!("{} of its memory when it wakes, learned from {wakes} wakes", size(Some(pages * PAGE_BYTES)));
    let missed = format!("the last one needed {misses} other pages");
    let watched = match used.zip(*unused) {
        Some((used, unused)) => {
            format!("{learned}; {missed}, and {used} of {} expected pages that were watched", used + unused)
        }
        None => format!("{learned}; {missed}"),
    };
    match full.join(", ") {
        none if none.is_empty() => watched,
        causes => format!("{watched}; it wakes with all of its memory ({causes}): too many other pages were needed"),
    }
}

/// The second line, and the time that it tells.
struct Reason {
    words: String,
    at: Option<Timestamp>,
}

impl From<String> for Reason {
    fn from(words: String) -> Self {
        Self { words, at: None }
    }
}

/// What keeps the app where it is.
fn reason(told: &Explanation, now: Timestamp) -> Reason {
    // The list below has all of them.
    let all = |items: &[String]| match items {
        [first, rest @ ..] if !rest.is_empty() => format!("{first} (and {} more)", rest.len()),
        few => few.concat(),
    };
    if !told.refusals.is_empty() {
        return format!("it cannot sleep: {}", all(&told.refusals)).into();
    }
    if !told.keeps_awake.is_empty() {
        return format!("it is kept awake by {}", all(&told.keeps_awake)).into();
    }
    if let Some(at) = told.sleeps_at {
        return Reason { words: format!("nothing keeps it awake; it sleeps {}", ago(at, now)), at: Some(at) };
    }
    if !told.keeps_dozing.is_empty() {
        return format!("it stays dozing: {}", all(&told.keeps_dozing)).into();
    }
    if told.wake_sources.is_empty() {
        return match told.wakes_at {
            Some(at) => Reason { words: format!("a timer wakes it {}", ago(at, now)), at: Some(at) },
            None => format!("it has been so for {}", words(now.duration_since(told.status.since))).into(),
        };
    }
    // Descriptors and processes are in the list below; the line names each source once.
    let mut sources: Vec<&str> =
        told.wake_sources.iter().map(|source| source.split(" (").next().unwrap_or(source)).collect();
    sources.sort_unstable();
    sources.dedup();
    format!("it wakes on {}", sources.join(", ")).into()
}

fn history(transitions: &[Transition], verbose: bool, terminal: Option<usize>, now: Timestamp) -> String {
    let rows: Vec<Cells> = transitions
        .iter()
        .map(|transition| {
            let outcome = transition.outcome.as_deref().map_or("done".to_owned(), safe);
            let mut cells =
                vec![ago(transition.at, now), safe(&transition.cause), micros(transition.total_us), outcome];
            if verbose {
                let phases =
                    transition.phases.iter().map(|phase| format!("{} {}", safe(&phase.name), micros(phase.us)));
                cells.push(phases.collect::<Vec<_>>().join(", "));
            }
            cells
        })
        .collect();
    let head = ["WHEN", "CAUSE", ">TOTAL", "OUTCOME", "PHASES"];
    if verbose {
        return table(&head, &rows);
    }
    let most = terminal.map(|columns| columns.saturating_sub(INDENT.len()));
    let steps = [
        Narrow::Cut("CAUSE", 20),
        Narrow::Cut("OUTCOME", 20),
        Narrow::Cut("CAUSE", 8),
        Narrow::Cut("OUTCOME", 8),
        Narrow::Drop("TOTAL"),
    ];
    table_within(most, &head[..head.len() - 1], &rows, &steps)
}

/// Bytes of a page, on the machines that Torpor runs on.
const PAGE_BYTES: u64 = 4096;
const INDENT: &str = "  ";

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("{INDENT}{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use torpor_api::view::{AppStatus, DiskUse, Phase, State};

    use super::*;
    use crate::output::tests::status;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn told() -> Explanation {
        let transition = |cause: &str, phases: &[(&str, u64)], outcome: Option<&str>| Transition {
            at: at("2026-01-01T23:58:00Z"),
            cause: cause.to_owned(),
            phases: phases.iter().map(|(name, us)| Phase { name: (*name).to_owned().into(), us: *us }).collect(),
            total_us: phases.iter().map(|(_, us)| us).sum(),
            outcome: outcome.map(str::to_owned),
        };
        Explanation {
            status: AppStatus {
                disk: Some(DiskUse { bytes: Some(1 << 20), limit_bytes: 1 << 30, by: DiskBy::Quota }),
                ..status("web", State::Running)
            },
            why: "running; it will sleep in 20 s if nobody uses it".to_owned(),
            keeps_awake: vec!["2 packets in the last 30 s".to_owned(), "an exec session".to_owned()],
            sleeps_at: Some(at("2026-01-02T00:00:20Z")),
            keeps_dozing: Vec::new(),
            warm_at: Some(at("2026-01-02T00:10:05Z")),
            wakes_at: None,
            refusals: Vec::new(),
            at_limits: vec!["5 packets were dropped".to_owned()],
            lost_by_reboot: vec!["a terminal".to_owned()],
            missing_in: Some("/a/9.image".to_owned()),
            wake_sources: Vec::new(),
            working_set: Some(WorkingSet {
                wakes: 9,
                pages: 300,
                expected: 290,
                misses: 2,
                used: Some(30),
                unused: Some(6),
                full: Vec::new(),
            }),
            sleeps: vec![transition("idle for 30 s", &[("freeze", 120)], Some("aborted: packet for tcp 80"))],
            wakes: vec![transition("packet for tcp 80", &[("fill", 400), ("thaw", 30)], None)],
        }
    }

    #[test]
    fn the_answer_comes_first() {
        let now = at("2026-01-02T00:00:00Z");
        let expected = "\
web is running; it will sleep in 20 s if nobody uses it
it is kept awake by 2 packets in the last 30 s (and 1 more)

kept awake by   2 packets in the last 30 s
                an exec session
will sleep      in 20 s, if nothing happens
will go warm    in 10 min 5 s, if nothing happens
disk            1.0 MiB of 1.0 GiB; the kernel refuses more
at a limit      5 packets were dropped
a reboot costs  a terminal
memory          a part of it is still in /a/9.image, and comes back when it is touched or in the background
needs first     1.2 MiB of its memory when it wakes, learned from 9 wakes; the last one needed 2 other pages, and 30 of 36 expected pages that were watched

last wakes
  WHEN       CAUSE               TOTAL  OUTCOME
  2 min ago  packet for tcp 80  430 µs  done

last sleeps
  WHEN       CAUSE           TOTAL  OUTCOME
  2 min ago  idle for 30 s  120 µs  aborted: packet for tcp 80
";
        assert_eq!(explanation(&told(), false, None, now), expected);
        let set = WorkingSet { wakes: 1, full: vec!["packet for tcp 80".to_owned()], ..WorkingSet::default() };
        let full = "; it wakes with all of its memory (packet for tcp 80): too many other pages were needed\n";
        assert!(explanation(&Explanation { working_set: Some(set), ..told() }, false, None, now).contains(full));
        let narrow = explanation(&told(), false, Some(56), now);
        assert!(narrow.contains("\n  2 min ago  idle for 30 s  120 µs  aborted: packet for…\n"), "{narrow}");
        let verbose = explanation(&told(), true, Some(50), now);
        assert!(verbose.contains("done     fill 400 µs, thaw 30 µs\n"), "{verbose}");
    }

    #[test]
    fn the_second_line_names_what_holds_the_app() {
        let now = at("2026-01-02T00:00:00Z");
        let none = Explanation { keeps_awake: Vec::new(), ..told() };
        let second = |told: &Explanation| explanation(told, false, None, now).lines().nth(1).unwrap().to_owned();
        let cannot = Explanation { refusals: vec!["python[12]: io_uring".to_owned()], ..told() };
        assert_eq!(second(&cannot), "it cannot sleep: python[12]: io_uring");
        assert_eq!(second(&none), "nothing keeps it awake; it sleeps in 20 s");
        let dozing = Explanation { sleeps_at: None, ..none };
        assert_eq!(second(&dozing), "it has been so for 2 min");
        let timer = Explanation { wakes_at: Some(at("2026-01-02T00:00:07Z")), ..dozing };
        assert_eq!(second(&timer), "a timer wakes it in 7 s");
        assert_eq!(explanation(&timer, false, None, now).matches("in 7 s").count(), 1);
        let sources = ["udp 53 (descriptor 4 of process 9)", "tcp 53 (descriptor 5 of process 9)", "udp 53 (x)"];
        let packets = Explanation { wake_sources: sources.map(str::to_owned).to_vec(), ..timer };
        assert_eq!(second(&packets), "it wakes on tcp 53, udp 53");
        assert!(explanation(&packets, false, None, now).contains("timer wakes it  in 7 s\n"));
    }
}
