//! Passes a request on to the control socket, and its answers back: what runs in a sandbox on behalf of a command.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::MOST_LINE_BYTES;

/// How long a host that has just been started may take to listen.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// Passes one line on to the host, and all that it answers back.
///
/// # Errors
/// Where the host does not listen, or a stream breaks.
pub fn relay(socket: &Path, input: impl Read, output: &mut impl Write) -> io::Result<()> {
    let mut input = BufReader::new(input.take(MOST_LINE_BYTES as u64));
    let mut stream = connect(socket)?;
    // In pieces: a line can be as large as a copy of a Clef.
    loop {
        let piece = input.fill_buf()?;
        let end = piece.iter().position(|byte| *byte == b'\n').map(|place| place + 1);
        let len = end.unwrap_or(piece.len());
        stream.write_all(&piece[..len])?;
        input.consume(len);
        if end.is_some() || len == 0 {
            break;
        }
    }
    io::copy(&mut stream, output)?;
    output.flush()
}

fn connect(socket: &Path) -> io::Result<UnixStream> {
    let begin = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
                    && begin.elapsed() < PATIENCE =>
            {
                thread::sleep(PAUSE);
            }
            connected => return connected,
        }
    }
}
