//! What is remembered of an app over a restart of the worker or the machine, beside its state: how often it slept and
//! woke, how it last ended, its last sleeps and wakes.
//!
//! It is for people: nothing is decided by it, so a file that is missing or damaged only starts the counts anew. Written
//! behind each sleep, wake, start and end; never before an app runs again.

use std::io;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use torpor_api::view::Transition;
use torpor_lifecycle::{Counts, Exit, Millis, Note, SleepCause};

use super::Task;
use crate::app::history::{Entry, History};
use crate::app::workload::Workload;
use crate::app_files::AppFiles;
use crate::clock;

/// The file's contents.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HistoryFile {
    sleeps: u64,
    warm_sleeps: u64,
    aborted_sleeps: u64,
    wakes: u64,
    restarts: u32,
    dropped_lines: u64,
    last_exit: Option<(Ended, Timestamp)>,
    /// A user had requested that end.
    #[serde(rename = "end_was_asked_for")]
    stop_requested: bool,
    last_sleeps: Vec<Transition>,
    last_wakes: Vec<Transition>,
}

/// [`Exit`], in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Ended {
    Status(i32),
    Signal(i32),
    MemoryLimit(u64),
    Lost(String),
    NotRun(i32, String),
    Unknown,
}

impl From<&Exit> for Ended {
    fn from(exit: &Exit) -> Self {
        match exit {
            Exit::Status(status) => Self::Status(*status),
            Exit::Signal(signal) => Self::Signal(*signal),
            Exit::MemoryLimit(bytes) => Self::MemoryLimit(*bytes),
            Exit::Lost(reason) => Self::Lost(reason.as_ref().to_owned()),
            Exit::NotRun(status, reason) => Self::NotRun(*status, reason.as_ref().to_owned()),
            Exit::Unknown => Self::Unknown,
        }
    }
}

impl From<Ended> for Exit {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Status(status) => Self::Status(status),
            Ended::Signal(signal) => Self::Signal(signal),
            Ended::MemoryLimit(bytes) => Self::MemoryLimit(bytes),
            Ended::Lost(reason) => Self::Lost(reason.into()),
            Ended::NotRun(status, reason) => Self::NotRun(status, reason.into()),
            Ended::Unknown => Self::Unknown,
        }
    }
}

impl HistoryFile {
    /// What is known; nothing, with a warning, where the file cannot be read.
    pub(super) fn read(files: &AppFiles) -> Self {
        let path = files.past();
        let read = crate::files::read(&path).and_then(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::from));
        read.unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(path = %path.display(), %error, "what was known of the app's past is lost");
            }
            Self::default()
        })
    }

    pub(super) fn counts(&self) -> Counts {
        let Self { sleeps, warm_sleeps, aborted_sleeps, wakes, restarts, .. } = *self;
        Counts { sleeps, warm_sleeps, aborted_sleeps, wakes, restarts }
    }

    /// Lines of its output that were dropped.
    pub(super) const fn dropped_lines(&self) -> u64 {
        self.dropped_lines
    }

    /// An end before this boot is told with the time of the boot: the clock begins there.
    pub(super) fn last_exit(&self) -> Option<(Exit, Millis)> {
        self.last_exit.clone().map(|(ended, at)| (ended.into(), clock::of_wall(at)))
    }
}

/// What the task remembers of the app, beside its state.
#[derive(Debug)]
pub(super) struct Past {
    pub(super) sleeps: History,
    pub(super) wakes: History,
    /// Somebody has asked for its end: the one that is coming, or the last.
    pub(super) stop_requested: bool,
    /// Why the sleep under way began.
    sleep_cause: String,
}

impl From<HistoryFile> for Past {
    fn from(file: HistoryFile) -> Self {
        Self {
            sleeps: History::from_newest(file.last_sleeps),
            wakes: History::from_newest(file.last_wakes),
            stop_requested: file.stop_requested,
            sleep_cause: String::new(),
        }
    }
}

impl Past {
    /// It is to fall asleep, or to go warm.
    pub(super) fn sleep_begins(&mut self, cause: SleepCause) {
        self.sleep_cause = cause.to_string();
    }

    /// That has ended.
    pub(super) fn add_sleep(&mut self, entry: Entry) {
        self.sleeps.add(std::mem::take(&mut self.sleep_cause), entry);
    }

    /// A wake has ended, before which it waited for its turn.
    pub(super) fn add_wake(&mut self, cause: String, entry: Entry, waited: Option<Duration>) {
        self.wakes.add(cause, entry);
        if let Some(waited) = waited {
            self.wakes.waited(waited);
        }
    }

    /// The sleep or the wake that this note tells of.
    pub(super) fn last(&self, note: &Note) -> Option<Transition> {
        match note {
            Note::Woken(..) => self.wakes.all().into_iter().next(),
            Note::Dozing => self.sleeps.all().into_iter().next(),
            _ => None,
        }
    }
}

impl<W: Workload> Task<W> {
    /// Writes what is to be remembered, if this note changes it.
    pub(super) fn save_history(&mut self, note: &Note) {
        match note {
            Note::Started => self.past.stop_requested = false,
            Note::Stopping => self.past.stop_requested = true,
            _ => {}
        }
        let changes = matches!(
            note,
            Note::Started
                | Note::StartFailed(_)
                | Note::Dozing
                | Note::Warm
                | Note::WarmRefused(..)
                | Note::SleepAborted(_)
                | Note::SleepRefused(..)
                | Note::Woken(..)
                | Note::Exited(_)
        );
        if !changes {
            return;
        }
        let Counts { sleeps, warm_sleeps, aborted_sleeps, wakes, restarts } = self.app.counts();
        let file = HistoryFile {
            sleeps,
            warm_sleeps,
            aborted_sleeps,
            wakes,
            restarts,
            dropped_lines: self.log.dropped_lines(),
            last_exit: self.app.last_exit().map(|(exit, at)| (exit.into(), clock::wall(*at))),
            stop_requested: self.past.stop_requested,
            last_sleeps: self.past.sleeps.all(),
            last_wakes: self.past.wakes.all(),
        };
        let written = serde_json::to_vec(&file).map_err(io::Error::from);
        let written = written.and_then(|bytes| crate::files::replace(&self.files.past(), &bytes));
        if let Err(error) = written {
            tracing::warn!(app = self.record.spec.name, %error, "writing what is remembered of the app");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_survive_their_file_and_damage_starts_anew() {
        let folder = tempfile::tempdir().unwrap();
        let files = AppFiles::new(folder.path(), &folder.path().join("run"), "00ff");
        files.create().unwrap();
        assert_eq!(HistoryFile::read(&files).counts(), Counts::default());
        let exits = [
            Exit::Status(3),
            Exit::Signal(9),
            Exit::MemoryLimit(1 << 20),
            Exit::Lost("why".into()),
            Exit::NotRun(127, "why".into()),
            Exit::Unknown,
        ];
        for exit in exits {
            let at = clock::wall(clock::now());
            let past = HistoryFile {
                sleeps: 4,
                wakes: 3,
                last_exit: Some(((&exit).into(), at)),
                stop_requested: true,
                ..HistoryFile::default()
            };
            crate::files::replace(&files.past(), &serde_json::to_vec(&past).unwrap()).unwrap();
            let read = HistoryFile::read(&files);
            assert_eq!(read.counts(), Counts { sleeps: 4, wakes: 3, ..Counts::default() });
            assert!(read.stop_requested);
            let (again, when) = read.last_exit().unwrap();
            assert_eq!(again, exit);
            assert!(clock::now().0.abs_diff(when.0) < 1000, "{when:?}");
        }
        std::fs::write(files.past(), "{").unwrap();
        assert!(HistoryFile::read(&files).last_exit().is_none());
    }
}
