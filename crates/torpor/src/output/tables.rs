//! Lists: numbers, images, events, lines of output; all about one app.

use jiff::Timestamp;
use torpor_api::view::{
    AppDetail, AppImage, AppStatus, DiskUse, Event, ImageStanding, Level, State, Stats, StoredImage,
};
use torpor_api::worker::LogLine;

use super::table::width;
use super::units::{micros, size, when};
use super::{Cells, Narrow, list, safe, table_within};

/// A state in a word.
pub(super) fn state(state: State) -> &'static str {
    match state {
        State::Stopped => "stopped",
        State::Starting => "starting",
        State::Running => "running",
        State::FallingAsleep => "falling asleep",
        State::Dozing => "dozing",
        State::GoingWarm => "going warm",
        State::Warm => "warm",
        State::WakeBlocked => "wake-blocked",
        State::Waking => "waking",
        State::Stopping => "stopping",
        State::Restarting => "restarting",
        State::Adopting => "adopting",
        State::Importing => "importing",
        State::Unreadable => "unreadable",
        State::NotAnswering => "not answering",
    }
}

/// How an app is, in a line: after `run`, `start`, `sleep`, `wake` and the like.
pub(crate) fn status_line(app: &AppStatus) -> String {
    let mut line = format!("{} is {}", app.name, state(app.state));
    if app.pinned {
        line.push_str(", pinned");
    }
    if !app.ports.is_empty() && app.state != State::Stopped {
        line.push_str(&format!(", on {}", app.ports.join(", ")));
    }
    line.push('\n');
    line
}

/// As [`status_line`], for the answer to `torpor sleep`: an app that already sleeps deeper is left as it is.
pub(crate) fn slept_line(app: &AppStatus, asked: Level) -> String {
    if asked == Level::Dozing && app.state == State::Warm {
        return format!("{} is already warm, which is deeper than dozing; nothing was done\n", app.name);
    }
    status_line(app)
}

/// `torpor inspect`, without `--json`.
pub(crate) fn detail(detail: &AppDetail, now: Timestamp) -> Result<String, serde_json::Error> {
    let app = &detail.status;
    let mut lines = vec![
        ("name", app.name.clone()),
        ("id", app.id.clone()),
        ("state", format!("{}, since {}", state(app.state), when(app.since, now))),
        ("made", format!("{} ({})", when(detail.created, now), detail.created)),
        ("process", app.pid.map_or("-".to_owned(), |pid| pid.to_string())),
        ("addresses", list(&app.addresses)),
        ("ports", list(&app.ports)),
        ("memory", size(app.memory_bytes)),
        ("disk", disk(app.disk)),
        ("sleeps", app.sleeps.to_string()),
        ("restarts", app.restarts.to_string()),
        ("pinned", if app.pinned { "yes" } else { "no" }.to_owned()),
    ];
    if let Some(exit) = &app.last_exit {
        lines.push(("last end", format!("{}, {}", safe(&exit.reason), when(exit.at, now))));
    }
    lines.push(("layers", list(&detail.layers)));
    let mut text: String = lines.iter().map(|(key, value)| format!("{key:<11}{value}\n")).collect();
    text.push_str("description\n");
    for line in serde_json::to_string_pretty(&detail.spec)?.lines() {
        text.push_str(&format!("  {line}\n"));
    }
    Ok(text)
}

/// What makes the table of `torpor stats` narrower at a terminal.
const STATS_STEPS: [Narrow; 15] = [
    Narrow::Drop("ABORTED"),
    Narrow::Drop("REFUSED"),
    Narrow::Drop("LINES LOST"),
    Narrow::Drop("WARM"),
    Narrow::Drop("TABLES"),
    Narrow::Drop("KERNEL"),
    Narrow::Drop("SHARED"),
    Narrow::Drop("THREADS"),
    Narrow::Drop("PROCS"),
    Narrow::Drop("PACKETS"),
    Narrow::Drop("DISK"),
    Narrow::Drop("IMAGE"),
    Narrow::Drop("SLEEPS"),
    Narrow::Drop("WAKES"),
    Narrow::Drop("CPU"),
];

/// `torpor stats`. At a `terminal` that is too narrow for the table, columns are left out, or, of a single app, all numbers are below
/// each other.
pub(crate) fn stats(stats: &[Stats], terminal: Option<usize>) -> String {
    let rows: Vec<Cells> = stats
        .iter()
        .map(|app| {
            vec![
                app.name.clone(),
                state(app.state).to_owned(),
                app.processes.to_string(),
                app.threads.to_string(),
                size(Some(app.private_bytes)),
                size(Some(app.shared_bytes)),
                size(Some(app.page_table_bytes)),
                size(app.kernel_bytes),
                size(app.image_bytes),
                disk(app.disk),
                micros(app.cpu_us),
                app.packets.to_string(),
                app.refused_packets.to_string(),
                app.sleeps.to_string(),
                app.warm_sleeps.to_string(),
                app.aborted_sleeps.to_string(),
                app.wakes.to_string(),
                app.dropped_lines.to_string(),
            ]
        })
        .collect();
    let head = [
        "NAME",
        "STATE",
        ">PROCS",
        ">THREADS",
        ">PRIVATE",
        ">SHARED",
        ">TABLES",
        ">KERNEL",
        ">IMAGE",
        "DISK",
        ">CPU",
        ">PACKETS",
        ">REFUSED",
        ">SLEEPS",
        ">WARM",
        ">ABORTED",
        ">WAKES",
        ">LINES LOST",
    ];
    match (rows.as_slice(), terminal) {
        ([row], Some(columns)) if width(&head, &rows) > columns => {
            let line =
                |(head, cell): (&&str, &String)| format!("{:<12}{cell}\n", head.trim_start_matches('>').to_lowercase());
            head.iter().zip(row).map(line).collect()
        }
        _ => table_within(terminal, &head, &rows, &STATS_STEPS),
    }
}

/// What its files take on disk, of what they may: `12.0 MiB of 1.0 GiB`.
pub(super) fn disk(disk: Option<DiskUse>) -> String {
    let Some(found) = disk else { return "-".to_owned() };
    let bytes = if found.bytes == Some(u64::MAX) { "too deep".to_owned() } else { size(found.bytes) };
    let over = if found.is_over() { " (over)" } else { "" };
    format!("{bytes} of {}{over}", size(Some(found.limit_bytes)))
}

/// `torpor images`.
pub(crate) fn images(images: &[StoredImage], terminal: Option<usize>, now: Timestamp) -> String {
    let rows: Vec<Cells> = images
        .iter()
        .map(|image| {
            let digest = image.digest.strip_prefix("sha256:").unwrap_or(&image.digest);
            vec![
                image.name.clone().unwrap_or_else(|| "-".to_owned()),
                digest.chars().take(12).collect(),
                size(Some(image.bytes)),
                image.layers.to_string(),
                when(image.created, now),
                list(&image.used_by),
            ]
        })
        .collect();
    let steps = [
        Narrow::Cut("USED BY", 16),
        Narrow::Drop("LAYERS"),
        Narrow::Drop("DIGEST"),
        Narrow::Drop("STORED"),
        Narrow::Cut("USED BY", 7),
        Narrow::Drop("SIZE"),
    ];
    table_within(terminal, &["NAME", "DIGEST", ">SIZE", ">LAYERS", "STORED", "USED BY"], &rows, &steps)
}

/// `torpor image ls`.
pub(crate) fn app_images(images: &[AppImage], terminal: Option<usize>, now: Timestamp) -> String {
    let rows: Vec<Cells> = images
        .iter()
        .map(|image| {
            let level = match image.level {
                Some(Level::Dozing) => "dozing",
                Some(Level::Warm) => "warm",
                None => "?",
            };
            let standing = match image.standing {
                ImageStanding::InUse => "in use",
                ImageStanding::Passing => "passing",
                ImageStanding::SetAside => "set aside",
            };
            vec![
                safe(&image.app),
                level.to_owned(),
                image.generation.to_string(),
                size(Some(image.bytes)),
                when(image.written, now),
                standing.to_owned(),
                safe(&image.path),
            ]
        })
        .collect();
    let steps = [
        Narrow::Drop("GENERATION"),
        Narrow::Drop("PATH"),
        Narrow::Drop("WRITTEN"),
        Narrow::Drop("LEVEL"),
        Narrow::Drop("SIZE"),
    ];
    let head = ["APP", "LEVEL", ">GENERATION", ">SIZE", "WRITTEN", "STANDING", "PATH"];
    table_within(terminal, &head, &rows, &steps)
}

/// One line of `torpor events`.
pub(crate) fn event(event: &Event) -> String {
    let at = format!("{:.3}", event.at);
    // What concerns no app has none.
    let app = if event.app.is_empty() { "-" } else { &event.app };
    format!("{at}  {:<16}  {:<14}  {}\n", safe(app), safe(&event.kind), safe(&event.message))
}

/// One line of `torpor logs`: as the app wrote it, for it may mean its colours. What Torpor adds says so.
pub(crate) fn log_line(line: &LogLine, timestamps: bool) -> String {
    let own = if line.stream == "torpor" { "torpor: " } else { "" };
    if timestamps { format!("{:.3}  {own}{}\n", line.at, line.line) } else { format!("{own}{}\n", line.line) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use torpor_api::view::DiskBy;

    use super::*;
    use crate::output::tests::status;

    fn now() -> Timestamp {
        "2026-01-02T00:00:00Z".parse().unwrap()
    }

    #[test]
    fn stats_is_aligned() {
        let stats = Stats {
            name: "web".to_owned(),
            state: State::Dozing,
            processes: 1,
            threads: 2,
            private_bytes: 36_864,
            shared_bytes: 0,
            page_table_bytes: 57_344,
            kernel_bytes: None,
            image_bytes: Some(1_500_000),
            disk: Some(DiskUse { bytes: Some(3 << 20), limit_bytes: 2 << 20, by: DiskBy::Accounting }),
            cpu_us: 12_345,
            packets: 7,
            refused_packets: 3,
            sleeps: 3,
            warm_sleeps: 1,
            aborted_sleeps: 1,
            wakes: 2,
            dropped_lines: 17,
            working_set: None,
        };
        let expected = "\
NAME  STATE   PROCS  THREADS   PRIVATE  SHARED    TABLES  KERNEL    IMAGE  DISK                           CPU  PACKETS  REFUSED  SLEEPS  WARM  ABORTED  WAKES  LINES LOST
web   dozing      1        2  36.0 KiB     0 B  56.0 KiB       -  1.4 MiB  3.0 MiB of 2.0 MiB (over)  12.3 ms        7        3       3     1        1      2          17
";
        assert_eq!(super::stats(std::slice::from_ref(&stats), None), expected);
        assert_eq!(super::stats(std::slice::from_ref(&stats), Some(200)), expected);
        let alone = super::stats(std::slice::from_ref(&stats), Some(60));
        assert!(alone.starts_with("name        web\nstate       dozing\n") && alone.lines().count() == 18, "{alone}");
        let two = super::stats(&[stats.clone(), stats], Some(60));
        assert!(two.lines().all(|line| line.chars().count() <= 60), "{two}");
        assert!(two.starts_with("NAME  STATE    PRIVATE"), "{two}");
    }

    #[test]
    fn images_and_events_are_aligned() {
        let image = StoredImage {
            name: Some("debian".to_owned()),
            digest: "sha256:0123456789abcdef0123".to_owned(),
            bytes: 120 << 20,
            layers: 1,
            created: "2026-01-01T00:00:00Z".parse().unwrap(),
            used_by: vec!["db".to_owned(), "web".to_owned()],
        };
        let expected = "\
NAME    DIGEST             SIZE  LAYERS  STORED  USED BY
debian  0123456789ab  120.0 MiB       1  1d ago  db, web
";
        assert_eq!(images(std::slice::from_ref(&image), None, now()), expected);
        let narrow = images(&[image], Some(40), now());
        assert!(narrow.lines().all(|line| line.chars().count() <= 40) && narrow.contains("db, web"), "{narrow}");
        let happened = Event {
            seq: 9,
            at: now(),
            app: "web".to_owned(),
            kind: "woken".to_owned(),
            message: "woken by \u{1b}[31mtcp 80".to_owned(),
            fields: BTreeMap::new(),
        };
        let line = event(&happened);
        assert_eq!(line, "2026-01-02T00:00:00.000Z  web               woken           woken by \u{fffd}[31mtcp 80\n");
    }

    #[test]
    fn a_status_fits_a_line() {
        let mut running = status("web", State::Running);
        running.ports.push("*:8080->80/tcp".to_owned());
        assert_eq!(status_line(&running), "web is running, on *:8080->80/tcp\n");
        assert!(slept_line(&status("web", State::Warm), Level::Dozing).contains("nothing was done"));
        assert_eq!(slept_line(&status("web", State::Warm), Level::Warm), "web is warm\n");
        assert_eq!(status_line(&status("web", State::Stopped)), "web is stopped\n");
    }
}
