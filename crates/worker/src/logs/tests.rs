use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;

use futures_util::StreamExt;

use super::*;

fn config(file_bytes: u64, files: u32) -> LogConfig {
    LogConfig { file_bytes, files, bytes_per_second: 0 }
}

/// A stream of an app, and the time as its reader sees it.
struct Writer {
    log: Arc<Log>,
    lines: Lines,
    now: Moment,
}

impl Writer {
    fn new(folder: &Path, config: LogConfig) -> Self {
        Self { log: Arc::new(Log::new(folder, config, 0)), lines: Lines::default(), now: Moment::now() }
    }

    /// Whether it was kept.
    fn say(&mut self, text: &str) -> bool {
        let input = text.as_bytes();
        self.log.take(Stream::Out, &mut self.lines, input, self.now, &mut Vec::new()).is_none()
    }

    fn pass(&mut self, time: Duration) {
        self.now.at += time;
    }

    async fn lines(&self, tail: Option<usize>) -> Vec<String> {
        let read = self.log.read(&LogRequest { tail, follow: false }).unwrap();
        read.map(|line| if line.stream == "out" { line.line } else { format!("[{}] {}", line.stream, line.line) })
            .collect()
            .await
    }
}

#[tokio::test]
async fn lines_are_kept_rotated_and_read_from_either_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(folder.path(), config(400, 3));
    for n in 0..40 {
        assert!(writer.say(&format!("line {n}\n")));
    }
    let all = writer.lines(None).await;
    assert!(all.len() < 40 && all.len() > 15, "{}", all.len());
    assert_eq!(all.last().unwrap(), "line 39");
    for tail in [0, 1, 2, 10, all.len() - 1, all.len(), 1000] {
        let expected = &all[all.len().saturating_sub(tail)..];
        assert_eq!(writer.lines(Some(tail)).await, expected, "the last {tail}");
    }
    // One buffer that fills more than one file.
    let many: String = (40..60).map(|n| format!("line {n}\n")).collect();
    assert!(writer.say(&many));
    let all = writer.lines(None).await;
    let first: usize = all[0].strip_prefix("line ").unwrap().parse().unwrap();
    assert_eq!(all, (first..60).map(|n| format!("line {n}")).collect::<Vec<_>>());
    let sizes: Vec<u64> =
        ["log", "log.1", "log.2"].map(|name| fs::metadata(folder.path().join(name)).unwrap().len()).into();
    assert!(sizes.iter().all(|size| *size <= 400), "{sizes:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    writer.log.remove().unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    assert!(writer.lines(None).await.is_empty());
}

#[tokio::test]
async fn a_line_longer_than_a_file_has_one_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(folder.path(), config(100, 3));
    let long = "x".repeat(500);
    assert!(writer.say(&format!("short\n{long}\nlast\n")));
    assert_eq!(writer.lines(None).await, ["short", &long, "last"]);
}

#[tokio::test]
async fn a_follower_goes_from_file_to_file_and_says_what_it_missed() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(folder.path(), config(400, 3));
    let mut followed = writer.log.read(&LogRequest { tail: None, follow: true }).unwrap();
    // Before there is any file, and through several.
    for n in 0..100 {
        writer.say(&format!("line {n}\n"));
        assert_eq!(followed.next().await.unwrap().line, format!("line {n}"));
    }
    // It waits while more is written than is kept: the file that it has open is read to its end, others are gone.
    for n in 100..200 {
        writer.say(&format!("line {n}\n"));
    }
    let mut before = 99;
    let note = loop {
        let line = followed.next().await.unwrap();
        if line.stream == "torpor" {
            break line.line;
        }
        before += 1;
        assert_eq!(line.line, format!("line {before}"));
    };
    assert!(note.contains("missing") && before < 199, "{note}");
    let first: u64 = followed.next().await.unwrap().line.strip_prefix("line ").unwrap().parse().unwrap();
    assert!(first > before + 1);
    for n in first + 1..200 {
        assert_eq!(followed.next().await.unwrap().line, format!("line {n}"));
    }
    // A reader that is not a follower has its files open.
    let mut read = writer.log.read(&LogRequest::default()).unwrap();
    for n in 200..300 {
        writer.say(&format!("line {n}\n"));
    }
    for n in first..200 {
        assert_eq!(read.next().await.unwrap().line, format!("line {n}"));
    }
    assert_eq!(read.next().await, None);
    writer.log.remove().unwrap();
    while followed.next().await.is_some() {}
}

#[tokio::test]
async fn beyond_its_rate_lines_are_dropped_counted_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let limited = LogConfig { bytes_per_second: 5000, ..config(1 << 20, 2) };
    let mut writer = Writer::new(folder.path(), limited);
    // Ten seconds' worth at once, in lines of 50 bytes.
    let text = "y".repeat(50 - "2026-01-02T03:04:05.678Z out ".len() - 1) + "\n";
    assert!(writer.say(&text.repeat(1000)));
    assert!(!writer.say(&(text.repeat(9) + "begun")));
    assert!(!writer.say(" and ended\n"));
    assert_eq!(writer.log.dropped_lines(), 10);
    writer.pass(PAUSE - Duration::from_millis(1));
    assert!(!writer.say(&text));
    assert_eq!(writer.log.settle(writer.now), Some(writer.now.at + Duration::from_millis(1)));
    assert_eq!(writer.log.dropped_lines(), 11);
    assert_eq!(writer.lines(None).await.len(), 1000);
    // A quiet app is told of when the pause is over.
    writer.pass(Duration::from_millis(1));
    assert_eq!(writer.log.settle(writer.now), None);
    assert!(writer.say("again\n"));
    let bytes = 10 * text.len() + "begun and ended\n".len();
    let note = format!("[torpor] 11 lines ({bytes} bytes) dropped: more than 5000/s (`logs.rate`)");
    assert_eq!(writer.lines(Some(2)).await, [note.as_str(), "again"]);
    assert_eq!(writer.log.dropped_lines(), 11);
    // Within a second no more than a second's worth.
    writer.pass(Duration::from_secs(1));
    assert!(writer.say(&text.repeat(100)) && !writer.say(&text.repeat(100)));
}

#[tokio::test]
async fn while_a_file_cannot_be_written_lines_are_dropped_and_then_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    symlink("/dev/full", &path).unwrap();
    let mut writer = Writer::new(folder.path(), config(1 << 20, 2));
    assert!(!writer.say("one\ntwo\nthr"));
    assert!(!writer.say("ee\nfour\n"));
    writer.pass(PAUSE);
    assert!(!writer.say("five\n"));
    assert_eq!(writer.log.dropped_lines(), 5);
    fs::remove_file(&path).unwrap();
    // Half a line of somebody who had no room for it.
    fs::write(&path, "2026-01-02T03:04:05.678Z out before\n2026-01-02T03:04:05.678Z out ha").unwrap();
    writer.pass(PAUSE);
    assert!(writer.say("six\n"));
    let lines = writer.lines(None).await;
    assert_eq!((lines[0].as_str(), lines[1].as_str(), lines.last().unwrap().as_str()), ("before", "ha", "six"));
    assert!(lines[2].starts_with("[torpor] 5 lines (") && lines[2].contains("No space left on device"), "{lines:?}");
    assert_eq!(lines.len(), 4);
}

fn pipe() -> ([std::os::fd::OwnedFd; 2], [File; 2]) {
    let ((out, out_end), (err, err_end)) = (rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap());
    ([out, err], [out_end.into(), err_end.into()])
}

#[tokio::test(flavor = "multi_thread")]
async fn pipes_are_read_to_their_end_with_long_and_unfinished_lines() {
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(Log::new(folder.path(), config(1 << 20, 2), 0));
    let pump = Pump::start().unwrap();
    let (pipes, [mut out, mut err]) = pipe();
    let mut reading = pump.read(pipes, &log).unwrap();
    err.write_all(b"of errors").unwrap();
    drop(err);
    let text = format!("first\n{}\nlast", "x".repeat(3 * lines::LINE_BYTES));
    tokio::task::spawn_blocking(move || out.write_all(text.as_bytes())).await.unwrap().unwrap();
    reading.ended().await;
    let all: Vec<LogLine> = log.read(&LogRequest::default()).unwrap().collect().await;
    let (errors, out): (Vec<&LogLine>, Vec<&LogLine>) = all.iter().partition(|line| line.stream == "err");
    assert_eq!((errors.len(), errors[0].line.as_str()), (1, "of errors"));
    assert_eq!((out[0].line.as_str(), out.last().unwrap().line.as_str()), ("first", "last"));
    assert_eq!(out.iter().map(|line| line.line.len()).sum::<usize>(), 5 + 3 * lines::LINE_BYTES + 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orderly_end_keeps_a_line_that_has_begun() {
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(Log::new(folder.path(), config(1 << 20, 2), 0));
    let pump = Pump::start().unwrap();
    let (pipes, [mut out, _err]) = pipe();
    let reading = pump.read(pipes, &log).unwrap();
    out.write_all(b"password: ").unwrap();
    drop(reading);
    drop(pump);
    let all: Vec<LogLine> = log.read(&LogRequest::default()).unwrap().collect().await;
    assert_eq!(all[0].line, "password: ");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_writes_without_end_keeps_no_other_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let limited = LogConfig { bytes_per_second: 100_000, ..config(1 << 20, 2) };
    let (noisy, quiet) = (place("noisy"), place("quiet"));
    let noisy = Arc::new(Log::new(&noisy, limited, 0));
    let quiet = Arc::new(Log::new(&quiet, limited, 0));
    let pump = Pump::start().unwrap();
    let (pipes, ends) = pipe();
    let noise = pump.read(pipes, &noisy).unwrap();
    let writing = ends.map(|mut end| {
        std::thread::spawn(move || {
            let text = b"y\n".repeat(4096);
            // Until nobody reads any more.
            while end.write_all(&text).is_ok() {}
        })
    });
    let (pipes, [mut out, _err]) = pipe();
    let _reading = pump.read(pipes, &quiet).unwrap();
    let mut followed = quiet.read(&LogRequest { tail: None, follow: true }).unwrap();
    let mut round = 0;
    while noisy.dropped_lines() == 0 || round < 20 {
        writeln!(out, "line {round}").unwrap();
        assert_eq!(followed.next().await.unwrap().line, format!("line {round}"));
        round += 1;
    }
    assert_eq!(quiet.dropped_lines(), 0);
    drop((noise, pump));
    writing.into_iter().for_each(|thread| thread.join().unwrap());
}
