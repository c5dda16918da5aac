//! `torpor ps`: one line for each app, at most [`WIDTH`] columns wide unless the user chooses the columns, at a terminal also no wider
//! than that.
//!
//! Names are never cut, because people and scripts copy them. Where a line would be too wide, the longest ports lose
//! their end, then the remarks on states. At a terminal, columns are left out before the rest of a cell says nothing.

use clap::ValueEnum;
use jiff::Timestamp;
use torpor_api::view::{AppStatus, DiskUse, State};

use super::tables::{disk, state};
use super::units::{since, size};
use super::{Cells, Narrow, list, safe, table, table_within};

/// The widest line without a choice of columns, in characters.
const WIDTH: usize = 100;
/// What makes the lines narrower where no terminal shows them: all columns stay.
const STEPS: [Narrow; 2] = [Narrow::Cut("PORTS", 10), Narrow::Cut("STATE", 10)];
/// What makes them narrower at a terminal.
const STEPS_AT_TERMINAL: [Narrow; 9] = [
    Narrow::Cut("PORTS", 16),
    Narrow::Cut("STATE", 24),
    Narrow::Drop("RESTARTS"),
    Narrow::Drop("SLEEPS"),
    Narrow::Cut("PORTS", 10),
    Narrow::Cut("STATE", 14),
    Narrow::Drop("MEMORY"),
    Narrow::Drop("FOR"),
    Narrow::Drop("PORTS"),
];

/// One column of `torpor ps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Column {
    /// Name of the app
    Name,
    /// Unique id
    Id,
    /// State, and how it ended if it does not run
    State,
    /// How long it has been in that state
    For,
    /// Resident private memory of its processes
    Memory,
    /// What its own files take on disk, of what they may
    Disk,
    /// Sleeps since it was created
    Sleeps,
    /// Automatic restarts since the last start by hand
    Restarts,
    /// Published ports
    Ports,
    /// Its own addresses
    Addresses,
    /// Process id of its initial process
    Pid,
}

/// The columns that are shown without a choice.
const DEFAULT: [Column; 7] =
    [Column::Name, Column::State, Column::For, Column::Memory, Column::Sleeps, Column::Restarts, Column::Ports];

impl Column {
    /// Its head; `>` makes it flush right.
    fn head(self) -> &'static str {
        match self {
            Self::Name => "NAME",
            Self::Id => "ID",
            Self::State => "STATE",
            Self::For => ">FOR",
            Self::Memory => ">MEMORY",
            Self::Disk => "DISK",
            Self::Sleeps => ">SLEEPS",
            Self::Restarts => ">RESTARTS",
            Self::Ports => "PORTS",
            Self::Addresses => "ADDRESSES",
            Self::Pid => ">PID",
        }
    }

    fn cell(self, app: &AppStatus, now: Timestamp) -> String {
        match self {
            Self::Name => app.name.clone(),
            Self::Id => app.id.clone(),
            Self::State => format!("{}{}", state(app.state), remark(app)),
            Self::For => since(app.since, now),
            Self::Memory => size(app.memory_bytes),
            Self::Disk => disk(app.disk),
            Self::Sleeps => app.sleeps.to_string(),
            Self::Restarts => app.restarts.to_string(),
            Self::Ports => list(&app.ports),
            Self::Addresses => list(&app.addresses),
            Self::Pid => app.pid.map_or("-".to_owned(), |pid| pid.to_string()),
        }
    }
}

/// What belongs to a state: a disk limit that it has passed, why an app does not run, and a pin.
fn remark(app: &AppStatus) -> String {
    let rests = matches!(app.state, State::Stopped | State::Restarting);
    match (&app.stop_reason, app.pinned) {
        _ if app.disk.is_some_and(DiskUse::is_over) => " (over its disk limit)".to_owned(),
        (Some(reason), _) if rests => format!(" ({})", safe(reason)),
        (_, true) => " (pinned)".to_owned(),
        (_, false) => String::new(),
    }
}

/// `torpor ps`; `columns` are those that the user chose, if any, and `terminal` is the width of the terminal, if there is one.
pub(crate) fn ps(apps: &[AppStatus], columns: Option<&[Column]>, terminal: Option<usize>, now: Timestamp) -> String {
    let shown = columns.unwrap_or(&DEFAULT);
    let rows: Vec<Cells> = apps.iter().map(|app| shown.iter().map(|column| column.cell(app, now)).collect()).collect();
    let heads: Vec<&str> = shown.iter().map(|column| column.head()).collect();
    match (columns, terminal) {
        (Some(_), _) => table(&heads, &rows),
        (None, None) => table_within(Some(WIDTH), &heads, &rows, &STEPS),
        (None, Some(columns)) => table_within(Some(columns.min(WIDTH)), &heads, &rows, &STEPS_AT_TERMINAL),
    }
}

#[cfg(test)]
mod tests {
    use torpor_api::view::DiskBy;

    use super::*;

    fn now() -> Timestamp {
        "2026-01-02T00:00:00Z".parse().unwrap()
    }

    fn status(name: &str, state: State) -> AppStatus {
        AppStatus {
            memory_bytes: Some(2_500_000),
            ports: vec!["*:8080->80/tcp".to_owned()],
            ..crate::output::tests::status(name, state)
        }
    }

    #[test]
    fn an_app_above_its_disk_limit_is_marked() {
        let mut over = status("full", State::Running);
        over.disk = Some(DiskUse { bytes: Some(2), limit_bytes: 1, by: DiskBy::Accounting });
        assert!(ps(&[over], None, None, now()).contains("running (over its disk limit)"));
    }

    #[test]
    fn columns_are_aligned() {
        let mut pinned = status("database", State::Running);
        pinned.pinned = true;
        pinned.ports.clear();
        pinned.memory_bytes = None;
        let mut ended = status("job", State::Stopped);
        ended.stop_reason = Some("exited with status 7".to_owned());
        ended.memory_bytes = None;
        ended.ports.clear();
        let text = ps(&[status("web", State::Dozing), pinned, ended], None, None, now());
        let expected = "\
NAME      STATE                           FOR   MEMORY  SLEEPS  RESTARTS  PORTS
web       dozing                           2m  2.4 MiB      12         0  *:8080->80/tcp
database  running (pinned)                 2m        -      12         0  -
job       stopped (exited with status 7)   2m        -      12         0  -
";
        assert_eq!(text, expected);
        assert_eq!(ps(&[], None, None, now()), "NAME  STATE  FOR  MEMORY  SLEEPS  RESTARTS  PORTS\n");
    }

    #[test]
    fn lines_without_a_choice_fit() {
        let mut many = status("a-name-of-forty-characters-and-not-a-few", State::Stopped);
        many.stop_reason = Some("could not be started: there is no program `/usr/sbin/lighttpd`\nin it".to_owned());
        many.ports = vec!["127.0.0.1:8080->80/tcp".to_owned(), "[::1]:8080->80/tcp".to_owned()];
        let text = ps(&[many.clone(), status("web", State::Dozing)], None, None, now());
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains(&many.name) && text.contains('…'), "{text}");
        let narrow = ps(&[many.clone(), status("web", State::Dozing)], None, Some(60), now());
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
        assert!(
            narrow.starts_with("NAME") && narrow.contains(&many.name) && narrow.contains("stopped (coul"),
            "{narrow}"
        );
        let few = ps(&[status("web", State::Dozing)], None, Some(50), now());
        assert_eq!(few.lines().next().unwrap(), "NAME  STATE   FOR   MEMORY  SLEEPS  PORTS");
        // Nothing is cut of what the user chose.
        let chosen = ps(&[many], Some(&[Column::Ports, Column::Addresses]), Some(60), now());
        assert!(chosen.contains("[::1]:8080->80/tcp") && chosen.starts_with("PORTS"), "{chosen}");
    }

    #[test]
    fn who_was_stopped_by_request_did_not_end_by_a_signal() {
        let mut app = status("web", State::Stopped);
        app.stop_reason = Some("by request".to_owned());
        let exit =
            torpor_api::view::Exit { code: None, signal: Some(15), reason: "ended by signal 15".to_owned(), at: now() };
        app.last_exit = Some(exit);
        assert!(ps(&[app], None, None, now()).contains("stopped (by request)"));
    }
}
