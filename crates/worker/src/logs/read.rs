//! Reading a log back: buffer by buffer, so that neither the log's length nor a slow client costs memory.
//!
//! A reader has a place: a file, by its sequence number, and an offset at the beginning of a line. It reads whole lines only;
//! what a write has not finished is read again later. The files that are there when it begins are open from then on, so that
//! rotation takes nothing from it. A follower then goes from file to file; where it is so slow that the next one has been
//! removed, it says so in a line of its own.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use jiff::Timestamp;
use tokio::runtime::Handle;
use torpor_api::worker::{BoxStream, LogLine, LogRequest};

use super::file::whole_lines;
use super::{Log, Stream};

/// Read at once; longer than any line.
const READ_BYTES: usize = 64 << 10;

/// A file with what is to be read of it.
#[derive(Debug)]
struct Part {
    sequence: i64,
    file: File,
    offset: u64,
    /// None: as far as it goes.
    end: Option<u64>,
}

/// What reading led to.
enum Step {
    Lines(VecDeque<LogLine>),
    /// Nothing new.
    Wait,
    End,
}

/// A place in a log.
pub(super) struct Reader {
    log: Arc<Log>,
    parts: VecDeque<Part>,
    /// Sequence number of the file after them.
    next: i64,
    follow: bool,
    lines: VecDeque<LogLine>,
    /// Whose threads it reads on: those that it was opened on.
    threads: Handle,
}

impl Reader {
    pub(super) fn open(log: Arc<Log>, request: &LogRequest) -> io::Result<Self> {
        let (files, current) = {
            // While nothing is written or rotated: lengths are those of whole lines.
            let state = log.state();
            let opened = state.files.open_from(i64::MIN)?.into_iter();
            let length = |(sequence, file): (i64, File)| Ok((sequence, file.metadata()?.len(), file));
            (opened.map(length).collect::<io::Result<Vec<_>>>()?, state.files.sequence())
        };
        let next = files.last().map_or(current, |(sequence, ..)| sequence + 1);
        let mut parts = VecDeque::new();
        let mut left = request.tail;
        for (sequence, end, file) in files.into_iter().rev() {
            let offset = match &mut left {
                None => 0,
                Some(0) if !parts.is_empty() => break,
                Some(left) => tail(&file, end, left)?,
            };
            let end = if request.follow { None } else { Some(end) };
            parts.push_front(Part { sequence, file, offset, end });
        }
        let threads = Handle::current();
        Ok(Self { log, parts, next, follow: request.follow, lines: VecDeque::new(), threads })
    }

    /// One buffer's lines. May block.
    fn step(&mut self) -> io::Result<Step> {
        loop {
            let last = self.follow && self.parts.len() == 1;
            let Some(part) = self.parts.front_mut() else {
                match self.open_next()? {
                    Some(step) => return Ok(step),
                    None => continue,
                }
            };
            let mut lines = part.read()?;
            if lines.is_empty() && last {
                if self.log.state().files.sequence() == part.sequence {
                    return Ok(self.nothing_new());
                }
                // It is not written to any more; what came before that is still to be read.
                lines = part.read()?;
            }
            if !lines.is_empty() {
                return Ok(Step::Lines(lines));
            }
            self.parts.pop_front();
        }
    }

    fn nothing_new(&self) -> Step {
        if !self.follow || self.log.removed.load(Ordering::Relaxed) { Step::End } else { Step::Wait }
    }

    /// Opens the files after those that were read; gives what there is to say instead or before.
    fn open_next(&mut self) -> io::Result<Option<Step>> {
        if !self.follow {
            return Ok(Some(Step::End));
        }
        let files = self.log.state().files.open_from(self.next)?;
        let (Some((first, _)), Some((last, _))) = (files.first(), files.last()) else {
            return Ok(Some(self.nothing_new()));
        };
        let missed = *first != self.next;
        self.next = last + 1;
        self.parts = files.into_iter().map(|(sequence, file)| Part { sequence, file, offset: 0, end: None }).collect();
        let note = || LogLine {
            at: Timestamp::now(),
            stream: Stream::Torpor.name().to_owned(),
            line: "lines are missing here: their file was removed by rotation before it was read".to_owned(),
        };
        Ok(missed.then(|| Step::Lines(VecDeque::from([note()]))))
    }

    /// The lines, as they are wanted. An error ends it.
    pub(super) fn stream(self) -> BoxStream<LogLine> {
        Box::pin(futures_util::stream::unfold(self, |mut reader| async move {
            loop {
                if let Some(line) = reader.lines.pop_front() {
                    return Some((line, reader));
                }
                let log = reader.log.clone();
                let changed = log.changed.notified();
                tokio::pin!(changed);
                // From here on no change is missed.
                changed.as_mut().enable();
                let threads = reader.threads.clone();
                let step = threads.spawn_blocking(move || {
                    let step = reader.step();
                    (reader, step)
                });
                let (back, step) = step.await.ok()?;
                reader = back;
                match step {
                    Ok(Step::Lines(lines)) => reader.lines = lines,
                    Ok(Step::Wait) => changed.await,
                    Ok(Step::End) => return None,
                    Err(error) => {
                        tracing::warn!(%error, "reading an app's log");
                        return None;
                    }
                }
            }
        }))
    }
}

impl Part {
    /// The lines of the next buffer; none at the end, as far as it has come.
    fn read(&mut self) -> io::Result<VecDeque<LogLine>> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let left = self.end.map_or(u64::MAX, |end| end.saturating_sub(self.offset));
            let most = READ_BYTES.min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = self.file.read_at(&mut buffer[..most], self.offset)?;
            let whole = match whole_lines(&buffer[..read]) {
                // No line is so long: a damaged file.
                0 if read == READ_BYTES => read,
                whole => whole,
            };
            self.offset += whole as u64;
            let text = String::from_utf8_lossy(&buffer[..whole]);
            let lines: VecDeque<LogLine> = text.split_terminator('\n').filter_map(parse).collect();
            if whole == 0 || !lines.is_empty() {
                return Ok(lines);
            }
        }
    }
}

/// Where the last `left` lines of the first `end` bytes begin. Takes those that are there from `left`.
fn tail(file: &File, end: u64, left: &mut usize) -> io::Result<u64> {
    let mut buffer = vec![0; READ_BYTES];
    let mut place = end;
    // The end of the last line does not begin another.
    let mut wanted = left.saturating_add(1);
    while place > 0 {
        let from = place.saturating_sub(READ_BYTES as u64);
        let part = &mut buffer[..(place - from) as usize];
        file.read_exact_at(part, from)?;
        for at in (0..part.len()).rev().filter(|at| part[*at] == b'\n') {
            wanted -= 1;
            if wanted == 0 {
                *left = 0;
                return Ok(from + at as u64 + 1);
            }
        }
        place = from;
    }
    // Its first line has no end before it.
    *left = wanted.saturating_sub(1);
    Ok(0)
}

fn parse(text: &str) -> Option<LogLine> {
    let (at, rest) = text.split_once(' ')?;
    let (stream, line) = rest.split_once(' ')?;
    Some(LogLine { at: at.parse().ok()?, stream: stream.to_owned(), line: line.to_owned() })
}
