//! The parsers of this folder, each on the same text: for fuzzing.

use super::{credentials, exit_effects, process, signals, thread};

/// What `/proc` tells of a process and its threads.
pub fn parse(text: &str) {
    let _ = (credentials::parse(text, 1, 1), torpor_proc::smaps::parse(text), signals::parse_timers(text));
    let _ = process::parse_limits(text);
    let _ = (thread::parse_cpus(text.trim()), exit_effects::operated(text));
}
