//! Every parser of a text that the kernel shows under `/proc`, for fuzzing: what such a text holds is shaped by programs too, by the
//! names of their files, threads and mappings.

use torpor_proc::{self as proc, mounts};
use torpor_process::view::IdMap;
use torpor_process::{aio, timers, view, wait};

/// Reads `text` as each kind of text is read.
#[doc(hidden)]
pub fn read_texts(text: &str) {
    torpor_descriptors::texts::parse(text);
    torpor_capture::texts::parse(text);
    let _ = (proc::stat::parse(text), mounts::parse_all(text), wait::since::last_ran(text));
    let _ = (aio::in_flight(text), timers::parenthesised(text), timers::parse_posix_timers(text));
    if let Some(map) = IdMap::parse(text) {
        let _ = [0, 1, u32::MAX].map(|id| map.inside(id));
    }
    for key in ["NSpid", "PPid", "it_value", "Seccomp", "voluntary_ctxt_switches"] {
        let _ = (view::pair(text, key), proc::field(text, key).map(timers::parenthesised));
    }
}
