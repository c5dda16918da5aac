//! `torpor explain`.

use jiff::Timestamp;
use torpor_api::view::{Explanation, Transition};

use super::tables::state;
use super::units::{micros, since, when};
use super::{Cells, safe, table};

/// Why an app is where it is, and what its last sleeps and wakes took.
pub(crate) fn explanation(told: &Explanation, now: Timestamp) -> String {
    let app = &told.status;
    let mut text =
        format!("{} is {} for {}: {}\n\n", app.name, state(app.state), since(app.since, now), safe(&told.why));
    let mut item = |title: &str, lines: &[String]| {
        for (at, line) in lines.iter().enumerate() {
            let title = if at == 0 { title } else { "" };
            text.push_str(&format!("{title:<16}{}\n", safe(line)));
        }
    };
    let nothing = vec!["nothing".to_owned()];
    item("kept awake by", if told.keeps_awake.is_empty() { &nothing } else { &told.keeps_awake });
    if let Some(at) = told.sleeps_at {
        item("will sleep", &[format!("{}, if nothing happens", when(at, now))]);
    }
    item("stays dozing", &told.keeps_dozing);
    if let Some(at) = told.warm_at {
        item("will go warm", &[format!("{}, if nothing happens", when(at, now))]);
    }
    if let Some(at) = told.wakes_at {
        item("timer wakes it", &[when(at, now)]);
    }
    item("cannot sleep", &told.refusals);
    item("a reboot costs", &told.lost_by_reboot);
    item("woken by", &told.wake_sources);
    for (title, transitions) in [("wakes", &told.wakes), ("sleeps", &told.sleeps)] {
        if !transitions.is_empty() {
            text.push_str(&format!("\nlast {title}\n{}", indented(&history(transitions, now))));
        }
    }
    text
}

fn history(transitions: &[Transition], now: Timestamp) -> String {
    let rows: Vec<Cells> = transitions
        .iter()
        .map(|transition| {
            let phases = transition.phases.iter().map(|phase| format!("{} {}", safe(&phase.name), micros(phase.us)));
            let mut phases = phases.collect::<Vec<_>>().join(", ");
            if let Some(outcome) = &transition.outcome {
                phases = if phases.is_empty() { safe(outcome) } else { format!("{phases}; {}", safe(outcome)) };
            }
            vec![when(transition.at, now), safe(&transition.cause), micros(transition.total_us), phases]
        })
        .collect();
    table(&["WHEN", "CAUSE", ">TOTAL", "PHASES"], &rows)
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use torpor_api::view::{AppStatus, Phase, State};

    use super::*;

    #[test]
    fn tells_the_story() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let transition = |cause: &str, phases: &[(&str, u64)], outcome: Option<&str>| Transition {
            at: at("2026-01-01T23:58:00Z"),
            cause: cause.to_owned(),
            phases: phases.iter().map(|(name, us)| Phase { name: (*name).to_owned().into(), us: *us }).collect(),
            total_us: phases.iter().map(|(_, us)| us).sum(),
            outcome: outcome.map(str::to_owned),
        };
        let told = Explanation {
            status: AppStatus {
                id: String::new(),
                name: "web".to_owned(),
                state: State::Running,
                since: at("2026-01-01T23:58:00Z"),
                pid: None,
                addresses: Vec::new(),
                ports: Vec::new(),
                memory_bytes: None,
                sleeps: 1,
                last_exit: None,
                restarts: 0,
                pinned: false,
            },
            why: "packets came in".to_owned(),
            keeps_awake: vec!["2 packets in the last 30s".to_owned(), "an exec session".to_owned()],
            sleeps_at: Some(at("2026-01-02T00:00:20Z")),
            keeps_dozing: vec!["it could not go warm: python[12]: a pipe".to_owned()],
            warm_at: Some(at("2026-01-02T00:10:00Z")),
            wakes_at: None,
            refusals: vec!["python[12]: io_uring at 0x7f00".to_owned()],
            lost_by_reboot: vec!["a terminal".to_owned()],
            wake_sources: vec!["tcp 80".to_owned()],
            sleeps: vec![transition("idle for 30 s", &[("freeze", 120)], Some("aborted: packet for tcp 80"))],
            wakes: vec![transition("packet for tcp 80", &[("fill", 400), ("thaw", 30)], None)],
        };
        let expected = "\
web is running for 2m: packets came in

kept awake by   2 packets in the last 30s
                an exec session
will sleep      in 20s, if nothing happens
stays dozing    it could not go warm: python[12]: a pipe
will go warm    in 10m, if nothing happens
cannot sleep    python[12]: io_uring at 0x7f00
a reboot costs  a terminal
woken by        tcp 80

last wakes
  WHEN    CAUSE               TOTAL  PHASES
  2m ago  packet for tcp 80  430 µs  fill 400 µs, thaw 30 µs

last sleeps
  WHEN    CAUSE           TOTAL  PHASES
  2m ago  idle for 30 s  120 µs  freeze 120 µs; aborted: packet for tcp 80
";
        assert_eq!(explanation(&told, at("2026-01-02T00:00:00Z")), expected);
    }
}
