//! What `clef dev` and the host of a deployed class share: requests are answered until somebody asks for the end.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use torpor_clef::{Clefs, Frames, Key, KeyPattern, TcpLimits, serve, serve_tcp};

use crate::failure::Failure;

/// How long requests that have come are answered after the end was asked for.
const END: Duration = Duration::from_secs(5);

/// Runs something on a runtime of this thread.
pub(super) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Failure::Terminal { what: "start the command's runtime", source })?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

/// A directory that only its owner can look into.
pub(super) fn made(folder: PathBuf) -> Result<PathBuf, Failure> {
    use std::os::unix::fs::DirBuilderExt;
    if folder.exists() && !folder.is_dir() {
        return Err(Failure::Usage(format!("{} is not a directory: states are kept in one", folder.display())));
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|source| Failure::Write { path: folder.clone(), source })?;
    Ok(folder)
}

/// Lets this process have as many connections as it may.
pub(super) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // With fewer, connections wait until others are closed.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Answers requests and takes TCP connections until Ctrl-C or SIGTERM, and puts all Clefs to sleep.
pub(super) async fn until_stopped(
    listener: TcpListener,
    tcp: Option<(TcpListener, Frames)>,
    clefs: &Clefs,
    key: KeyPattern,
) -> Result<(), Failure> {
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let until = async move { drop(ended.await) };
    if let Some((listener, frames)) = tcp {
        let how = (frames, TcpLimits::default());
        // It ends with the runtime.
        tokio::spawn(serve_tcp(listener, clefs.clone(), key.clone(), how, std::future::pending()));
    }
    let serving = tokio::spawn(serve(listener, clefs.clone(), key, until));
    stopped().await.map_err(|source| Failure::Terminal { what: "wait for signals", source })?;
    drop(end);
    // Connections that stay open do not hold it up.
    let _ = tokio::time::timeout(END, serving).await;
    clefs.end().await.map_err(Failure::Clef)
}

/// Writes what a Clef says: each line behind its key, so that no program writes one in the name of another Clef or of the host.
pub(super) fn write_lines(mut to: impl Write, key: &[u8], text: &str) {
    let lines = lines(&Key(key.to_vec()), text);
    // Where nobody takes the output, a Clef goes on.
    let _ = to.write_all(lines.as_bytes()).and_then(|()| to.flush());
}

fn lines(key: &Key, text: &str) -> String {
    let mut lines = String::new();
    for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        lines.push_str(&format!("{key}: "));
        for char in line.chars() {
            match char.is_control() && char != '\t' {
                true => lines.extend(char.escape_default()),
                false => lines.push(char),
            }
        }
        lines.push('\n');
    }
    lines
}

/// Waits for Ctrl-C or SIGTERM.
async fn stopped() -> io::Result<()> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_its_key() {
        for (text, written) in [
            ("a\tb", "k%0A: a\tb\n"),
            ("", "k%0A: \n"),
            ("a\n\nother: b\n", "k%0A: a\nk%0A: \nk%0A: other: b\n"),
            ("a\rb\x1b[2J\u{9b}", "k%0A: a\\rb\\u{1b}[2J\\u{9b}\n"),
        ] {
            assert_eq!(lines(&Key(b"k\n".to_vec()), text), written);
        }
    }
}
