//! The daemon's own log: lines on standard error, as text or JSON. An event is one line, whatever names and paths of apps it holds.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{Config, LogFormat};

/// The netlink library warns of every answer that nobody waits for any more.
const QUIET: &str = "netlink_proto=error";

/// Begins to log; the configuration's directives were checked when it was read.
pub(super) fn start(config: &Config) {
    let filter = EnvFilter::new(format!("{QUIET},{}", config.log.level));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr()).with_target(false);
    match config.log.format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Text => builder.with_ansi(io::stderr().is_terminal()).init(),
    }
}

fn stderr() -> impl for<'a> MakeWriter<'a> + Send + Sync + 'static {
    || OneLine(io::stderr())
}

/// Writes each event, which comes in one piece, as one line: a newline within it would let an app write lines of its own.
struct OneLine<W>(W);

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let (text, end) = event.strip_suffix(b"\n").map_or((event, &b""[..]), |text| (text, b"\n"));
        if text.contains(&b'\n') {
            let line = text.split(|byte| *byte == b'\n').collect::<Vec<_>>().join(&b"\\n"[..]);
            self.0.write_all(&[&line, end].concat())?;
        } else {
            self.0.write_all(event)?;
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let mut log = OneLine(Vec::new());
        log.write_all(b"an app called x\nERROR forged\n").unwrap();
        log.write_all(b"plain\n").unwrap();
        assert_eq!(String::from_utf8(log.0).unwrap(), "an app called x\\nERROR forged\nplain\n");
    }
}
