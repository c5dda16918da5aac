//! The parsers of this folder, each on the same text: for fuzzing.

use super::{credentials, exit_effects, mappings, process, signals, thread};

/// What `/proc` tells of a process and its threads.
pub fn parse(text: &str) {
    let _ = (credentials::parse(text, 1, 1), mappings::parse(text), signals::parse_timers(text));
    let _ = (process::parse_limits(text), process::terminal(text), process::last_field(text));
    let _ = (thread::parse_cpus(text.trim()), exit_effects::operated(text));
}
