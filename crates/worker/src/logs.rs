//! An app's output: read from its pipes, kept in rotated files, read back by line.
//!
//! The pipes' reading ends are parked in the keeper too, so that the app neither gets `SIGPIPE` nor loses lines while no
//! worker lives; a full pipe makes it wait until the next worker reads. A line of the file is
//! `2026-01-02T03:04:05.678Z out text`. Files are `log`, `log.1`, … from newest to oldest, mode 0600.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use jiff::Timestamp;
use tokio::net::unix::pipe;
use tokio::sync::broadcast;
use torpor_api::worker::{BoxStream, LogLine, LogRequest};

use crate::config::LogConfig;

/// A longer line is cut into pieces of this many bytes.
const LINE_BYTES: usize = 16 << 10;
/// Read at once.
const READ_BYTES: usize = 4 << 10;
/// Lines that a slow follower may lag behind before it misses some.
const BACKLOG: usize = 1024;

/// The log of one app.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    config: LogConfig,
    writer: Mutex<Option<Writer>>,
    /// Made for the first follower: its slots would cost an app that nobody follows 90 kB.
    news: OnceLock<broadcast::Sender<LogLine>>,
}

#[derive(Debug)]
struct Writer {
    file: File,
    bytes: u64,
}

impl Log {
    /// The log in directory `folder`.
    pub(crate) fn new(folder: &Path, config: LogConfig) -> Self {
        Self { path: folder.join("log"), config, writer: Mutex::new(None), news: OnceLock::new() }
    }

    fn numbered(&self, n: u32) -> PathBuf {
        if n == 0 { self.path.clone() } else { self.path.with_extension(n.to_string()) }
    }

    /// Keeps a line and tells followers.
    pub(crate) fn append(&self, stream: &str, line: String) -> io::Result<()> {
        let line = LogLine { at: Timestamp::now(), stream: stream.to_owned(), line };
        let text = format!("{:.3} {} {}\n", line.at, line.stream, line.line);
        let mut slot = self.writer.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let full = slot.as_ref().is_some_and(|writer| writer.bytes + text.len() as u64 > self.config.file_bytes);
        if full {
            *slot = None;
            self.rotate()?;
        }
        let writer = match slot.as_mut() {
            Some(writer) => writer,
            None => {
                let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?;
                let bytes = file.metadata()?.len();
                slot.insert(Writer { file, bytes })
            }
        };
        writer.file.write_all(text.as_bytes())?;
        writer.bytes += text.len() as u64;
        // Still locked: readers count on each line being in one place.
        if let Some(news) = self.news.get() {
            // An error only says that nobody follows any more.
            let _ = news.send(line);
        }
        Ok(())
    }

    fn rotate(&self) -> io::Result<()> {
        for n in (0..self.config.files.max(1)).rev() {
            let from = self.numbered(n);
            let result = if n + 1 >= self.config.files {
                fs::remove_file(&from)
            } else {
                fs::rename(&from, self.numbered(n + 1))
            };
            match result {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// The files that are kept, oldest first, each with its length now.
    fn files(&self) -> io::Result<Vec<(File, u64)>> {
        let mut files = Vec::new();
        for n in (0..self.config.files.max(1)).rev() {
            match File::open(self.numbered(n)) {
                Ok(file) => {
                    let bytes = file.metadata()?.len();
                    files.push((file, bytes));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(files)
    }

    /// What is kept, and new lines if asked for.
    pub(crate) fn read(&self, request: &LogRequest) -> io::Result<BoxStream<LogLine>> {
        let (news, files) = {
            // While nothing is written or rotated: each line is either in the files or among the news.
            let _quiet = self.writer.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let news = request.follow.then(|| self.news.get_or_init(|| broadcast::channel(BACKLOG).0).subscribe());
            (news, self.files()?)
        };
        let state = (kept(files, request.tail)?, news);
        Ok(Box::pin(futures_util::stream::unfold(state, |(mut kept, mut news)| async move {
            if let Some(line) = kept.pop_front() {
                return Some((line, (kept, news)));
            }
            loop {
                match news.as_mut()?.recv().await {
                    Ok(line) => return Some((line, (kept, news))),
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        })))
    }

    /// Removes all files.
    pub(crate) fn remove(&self) -> io::Result<()> {
        for n in 0..self.config.files.max(1) {
            match fs::remove_file(self.numbered(n)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Lines of files, as far as they went; only the last `tail`.
fn kept(files: Vec<(File, u64)>, tail: Option<usize>) -> io::Result<VecDeque<LogLine>> {
    let most = tail.unwrap_or(usize::MAX);
    let mut lines = VecDeque::new();
    for (file, bytes) in files {
        for line in BufReader::new(file.take(bytes)).split(b'\n') {
            lines.extend(parse(&String::from_utf8_lossy(&line?)));
            if lines.len() > most {
                lines.pop_front();
            }
        }
    }
    Ok(lines)
}

fn parse(text: &str) -> Option<LogLine> {
    let (at, rest) = text.split_once(' ')?;
    let (stream, line) = rest.split_once(' ')?;
    Some(LogLine { at: at.parse().ok()?, stream: stream.to_owned(), line: line.to_owned() })
}

/// Takes a pipe for reading.
pub(crate) fn open(pipe: OwnedFd) -> io::Result<pipe::Receiver> {
    rustix::io::ioctl_fionbio(&pipe, true)?;
    pipe::Receiver::from_owned_fd(pipe)
}

/// Reads a pipe until its end, line by line into `log`.
pub(crate) async fn pump(pipe: &pipe::Receiver, stream: &'static str, log: std::sync::Arc<Log>) -> io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        // An idle app's log costs no buffer, also where there was nothing to be read after all.
        if buffer.is_empty() {
            buffer = Vec::new();
        }
        pipe.readable().await?;
        buffer.reserve(READ_BYTES);
        let read = match pipe.try_read_buf(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            other => other?,
        };
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            log.append(stream, String::from_utf8_lossy(&buffer[..end]).into_owned())?;
            buffer.drain(..=end);
        }
        let ended = read == 0;
        if buffer.len() >= LINE_BYTES || (ended && !buffer.is_empty()) {
            log.append(stream, String::from_utf8_lossy(&buffer).into_owned())?;
            buffer.clear();
        }
        if ended {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;

    #[tokio::test]
    async fn lines_are_kept_rotated_and_followed() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::new(folder.path(), LogConfig { file_bytes: 400, files: 3 });
        for n in 0..40 {
            log.append("out", format!("line {n}")).unwrap();
        }
        let all: Vec<LogLine> = log.read(&LogRequest::default()).unwrap().collect().await;
        assert!(all.len() < 40 && all.len() > 15, "{}", all.len());
        assert_eq!(all.last().unwrap().line, "line 39");
        let tail = LogRequest { tail: Some(2), follow: true };
        let mut lines = log.read(&tail).unwrap();
        assert_eq!(lines.next().await.unwrap().line, "line 38");
        assert_eq!(lines.next().await.unwrap().line, "line 39");
        log.append("err", "more".to_owned()).unwrap();
        let more = lines.next().await.unwrap();
        assert_eq!((more.stream.as_str(), more.line.as_str()), ("err", "more"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        log.remove().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_pipe_is_read_to_its_end_with_long_and_unfinished_lines() {
        let folder = tempfile::tempdir().unwrap();
        let log = std::sync::Arc::new(Log::new(folder.path(), LogConfig { file_bytes: 1 << 20, files: 2 }));
        let (read, write) = rustix::pipe::pipe().unwrap();
        let (pipe, written) = (open(read).unwrap(), log.clone());
        let pumping = tokio::spawn(async move { pump(&pipe, "out", written).await });
        let text = format!("first\n{}\nlast", "x".repeat(3 * LINE_BYTES));
        let writing = tokio::task::spawn_blocking(move || File::from(write).write_all(text.as_bytes()));
        writing.await.unwrap().unwrap();
        pumping.await.unwrap().unwrap();
        let all: Vec<LogLine> = log.read(&LogRequest::default()).unwrap().collect().await;
        assert_eq!(all.first().unwrap().line, "first");
        assert_eq!(all.last().unwrap().line, "last");
        assert_eq!(all.iter().map(|line| line.line.len()).sum::<usize>(), 5 + 3 * LINE_BYTES + 4);
    }
}
