//! An app's output: read from its pipes, kept in rotated files, read back by line.
//!
//! ```text
//! app ──pipe──▶ thread `logs` ──lines──▶ Log ──one write per buffer──▶ log, log.1, …
//! (init, keeper  (pump.rs)                │                              ▲
//!  hold it, too)                          └─changed──▶ readers (read.rs) ┘
//! ```
//!
//! One thread reads the pipes of all apps, so that no app's output takes time from what else the worker does. It reads at
//! most one buffer of a pipe at a time and then goes on to the next. The reading ends are parked in the keeper and held by the
//! sandbox's init too, so that the app neither gets `SIGPIPE` nor loses lines while no worker lives; a full pipe makes it
//! wait until the next worker reads.
//!
//! Lines are *dropped*, and counted, while an app writes more than [`LogConfig::bytes_per_second`], and while the file
//! cannot be written to. For at least [`PAUSE`] nothing is kept then; after it a line of the stream `torpor` says how many
//! lines are missing and why. The pipe is read on in the meantime, at a slower pace: an app never waits for the disk, and one
//! that writes without end waits for its pipe, most of the time.
//!
//! A line of the file is `2026-01-02T03:04:05.678Z out text`; the time is that of the read. The files are the one source of
//! what is read back, also by followers: however slow they are, they cost one buffer. A crash of the worker loses what it has
//! read and not written: one buffer, and a line whose end has not come. An orderly end loses nothing.

mod file;
mod lines;
mod pump;
mod rate;
mod read;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::Notify;
use torpor_api::units::Bytes;
use torpor_api::worker::{BoxStream, LogLine, LogRequest};

use crate::config::LogConfig;
use file::{Files, Unwritten};
use lines::{Dropped, Lines};
pub(crate) use pump::{Pump, Reading};
use rate::Budget;

/// Once lines are dropped, it goes on for at least so long.
const PAUSE: Duration = Duration::from_secs(1);

/// Where lines come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
    /// Ours: what is missing of the others, and why.
    Torpor,
}

impl Stream {
    const fn name(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::Err => "err",
            Self::Torpor => "torpor",
        }
    }
}

/// A moment, by both clocks.
#[derive(Clone, Copy, Debug)]
struct Moment {
    at: Instant,
    wall: Timestamp,
}

impl Moment {
    fn now() -> Self {
        Self { at: Instant::now(), wall: Timestamp::now() }
    }
}

/// The log of one app.
#[derive(Debug)]
pub(crate) struct Log {
    state: Mutex<State>,
    /// There are new lines, or the log was removed.
    changed: Notify,
    removed: AtomicBool,
    dropped_lines: AtomicU64,
    bytes_per_second: u64,
}

#[derive(Debug)]
struct State {
    files: Files,
    budget: Budget,
    dropping: Option<Dropping>,
}

/// Lines are being dropped.
#[derive(Debug)]
struct Dropping {
    why: Why,
    until: Instant,
    so_far: Dropped,
}

#[derive(Debug)]
enum Why {
    Rate,
    Unwritable(io::Error),
}

impl Log {
    /// The log in directory `folder`, of which `dropped_lines` are missing already.
    pub(crate) fn new(folder: &Path, config: LogConfig, dropped_lines: u64) -> Self {
        let budget = Budget::new(config.bytes_per_second, Instant::now());
        Self {
            state: Mutex::new(State { files: Files::new(folder, config), budget, dropping: None }),
            changed: Notify::new(),
            removed: AtomicBool::new(false),
            dropped_lines: AtomicU64::new(dropped_lines),
            bytes_per_second: config.bytes_per_second,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lines that were dropped.
    pub(crate) fn dropped_lines(&self) -> u64 {
        self.dropped_lines.load(Ordering::Relaxed)
    }

    /// Keeps or drops the lines that `input` ends; `text` is emptied and used for them. Gives until when lines are dropped.
    fn take(
        &self,
        stream: Stream,
        lines: &mut Lines,
        mut input: &[u8],
        now: Moment,
        text: &mut Vec<u8>,
    ) -> Option<Instant> {
        let mut state = self.state();
        if let Some(until) = self.resume(&mut state, now) {
            self.dropped(&mut state, lines.discard(input));
            return Some(until);
        }
        state.budget.refill(now.at);
        let mut dropped = Dropped::default();
        text.clear();
        let prefix = format!("{:.3} {} ", now.wall, stream.name());
        while let Some(line) = lines.next(&mut input) {
            if !state.budget.spend(prefix.len() + line.len() + 1) {
                dropped = Dropped { lines: 1, bytes: line.len() as u64 + 1 };
                dropped += lines.discard(input);
                break;
            }
            text.extend_from_slice(prefix.as_bytes());
            text.extend_from_slice(&line);
            text.push(b'\n');
        }
        self.keep(&mut state, text, now);
        if dropped != Dropped::default() {
            state.dropping.get_or_insert_with(|| Dropping::new(Why::Rate, now));
            self.dropped(&mut state, dropped);
        }
        state.dropping.as_ref().map(|dropping| dropping.until)
    }

    /// Keeps what has begun of a line whose stream ends.
    fn finish(&self, stream: Stream, lines: &mut Lines, now: Moment, text: &mut Vec<u8>) {
        if let Some(mut line) = lines.end() {
            line.push(b'\n');
            self.take(stream, lines, &line, now, text);
        }
    }

    /// Writes lines of the file's form; where that fails, lines are dropped from now on.
    fn keep(&self, state: &mut State, text: &[u8], now: Moment) {
        if text.is_empty() {
            return;
        }
        if let Err(Unwritten { dropped, error }) = state.files.append(text) {
            let path = state.files.path().display();
            tracing::warn!(log = %path, %error, "an app's output cannot be kept: lines are dropped");
            state.dropping = Some(Dropping::new(Why::Unwritable(error), now));
            self.dropped(state, dropped);
        }
        self.changed.notify_waiters();
    }

    fn dropped(&self, state: &mut State, dropped: Dropped) {
        self.dropped_lines.fetch_add(dropped.lines, Ordering::Relaxed);
        if let Some(dropping) = &mut state.dropping {
            dropping.so_far += dropped;
        }
    }

    /// Keeps lines again, if it is time and the file can be written to. Gives until when lines are dropped.
    fn resume(&self, state: &mut State, now: Moment) -> Option<Instant> {
        let dropping = state.dropping.as_mut()?;
        if now.at < dropping.until {
            return Some(dropping.until);
        }
        let Dropped { lines, bytes } = dropping.so_far;
        let why = match &dropping.why {
            Why::Rate => format!("more than {}/s (`logs.rate`)", Bytes(self.bytes_per_second)),
            Why::Unwritable(error) => error.to_string(),
        };
        let note = format!("{:.3} {} {lines} lines ({bytes} bytes) dropped: {why}\n", now.wall, Stream::Torpor.name());
        match state.files.append(note.as_bytes()) {
            Ok(()) => {
                state.dropping = None;
                self.changed.notify_waiters();
                None
            }
            Err(Unwritten { error, .. }) => {
                dropping.why = Why::Unwritable(error);
                dropping.until = now.at + PAUSE;
                Some(dropping.until)
            }
        }
    }

    /// As [`Log::resume`], for a log whose app may be quiet.
    fn settle(&self, now: Moment) -> Option<Instant> {
        self.resume(&mut self.state(), now)
    }

    /// What is kept, and new lines if asked for.
    pub(crate) fn read(self: &Arc<Self>, request: &LogRequest) -> io::Result<BoxStream<LogLine>> {
        read::Reader::open(self.clone(), request).map(read::Reader::stream)
    }

    /// Removes all files; whoever follows comes to the end.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let removed = self.state().files.remove();
        self.removed.store(true, Ordering::Relaxed);
        self.changed.notify_waiters();
        removed
    }
}

impl Dropping {
    fn new(why: Why, now: Moment) -> Self {
        Self { why, until: now.at + PAUSE, so_far: Dropped::default() }
    }
}

#[cfg(test)]
mod tests;
