//! Snapshots of a state into memory, and restores of it with a first message (Alto, figures 2 and 3).
//!
//! A snapshot takes what the last message has changed (`torpor`), or everything (`torpor-full`). The time of the message is not in it. Of a
//! restore, everything is copied from memory to its place, and one message is answered.

use std::time::Instant;

use torpor_lua::State;

use super::options::Options;
use super::programs::{EMPTY, PAPER, Program, TEN_MEGABYTES, message, reserved};
use super::{FULL, IMAGE, TORPOR, us};
use crate::bench::samples::Samples;
use crate::error::Error;

/// Messages before those that are measured.
const WARM_UP: usize = 200;

pub(super) fn run(options: &Options, samples: &mut Samples) -> Result<(), Error> {
    for (program, runs) in [(PAPER, 5000), (EMPTY, 5000), (TEN_MEGABYTES, 500)] {
        measure(&program, options.runs(runs, 50), samples)?;
    }
    Ok(())
}

fn measure(program: &Program, runs: usize, samples: &mut Samples) -> Result<(), Error> {
    let windows = reserved(1)?;
    let mut state = program.started(&windows, 0, &[])?;
    for number in 0..WARM_UP {
        message(&mut state, number)?;
        state.changes();
    }
    let (mut changed, mut full, mut pages) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..runs {
        message(&mut state, number)?;
        let begun = Instant::now();
        let changes = state.changes();
        changed.push(us(begun));
        pages.push(changes.page_count() as f64);
    }
    for _ in 0..runs {
        let begun = Instant::now();
        let image = state.image();
        full.push(us(begun));
        drop(image);
    }
    let images = [state.whole()];
    drop(state);
    let (mut restored, mut answered) = (Vec::new(), Vec::new());
    for number in 0..runs {
        let begun = Instant::now();
        let mut state = State::restore(&windows, &images)?;
        restored.push(us(begun));
        message(&mut state, number)?;
        answered.push(us(begun));
    }
    samples.add_all((program.name, TORPOR, IMAGE, "snapshot", "us"), &changed);
    samples.add_all((program.name, FULL, IMAGE, "snapshot", "us"), &full);
    samples.add_all((program.name, TORPOR, IMAGE, "restore_first_message", "us"), &answered);
    samples.add_all((program.name, TORPOR, IMAGE, "restore", "us"), &restored);
    samples.add_all((program.name, TORPOR, IMAGE, "snapshot_pages", "pages"), &pages);
    samples.add_all((program.name, FULL, IMAGE, "snapshot_pages", "pages"), &[images[0].page_count() as f64]);
    Ok(())
}
