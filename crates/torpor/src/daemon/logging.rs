//! The daemon's own log: lines on standard error, as text or JSON.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{Config, LogFormat};

/// Begins to log; the configuration's directives were checked when it was read.
pub(super) fn start(config: &Config) {
    let filter = EnvFilter::new(&config.log.level);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr()).with_target(false);
    match config.log.format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).init(),
    }
}

fn stderr() -> impl for<'a> MakeWriter<'a> + Send + Sync + 'static {
    std::io::stderr
}
