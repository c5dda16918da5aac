//! Memory of states that are idle, and of Clefs that sleep.

use std::time::Instant;

use torpor_clef::{Note, Store};
use torpor_lua::Image;

use super::options::Options;
use super::programs::{COUNTER, EMPTY, message, reserved};
use super::{ASLEEP, RUNNING, TORPOR};
use crate::bench::samples::Samples;
use crate::error::Error;

const GIB: f64 = (1_u64 << 30) as f64;
/// Records between two commits.
const BATCH: usize = 1000;
/// What is stored for each sleeping Clef: what is in it takes no memory, so it can be small.
const PAYLOAD: [u8; 64] = [0; 64];

/// Bytes of memory of this process: its pages, shared ones in part, and its page tables.
fn used_bytes() -> Result<f64, Error> {
    let number = |path: &'static str, name: &str| -> Result<f64, Error> {
        let text = torpor_proc::read(path).map_err(Error::file("read", path))?;
        let what = || Error::Missing { what: format!("{name} in {path}"), hint: "the kernel does not tell it" };
        torpor_proc::number(&text, name).ok_or_else(what)
    };
    Ok((number("/proc/self/smaps_rollup", "Pss")? + number("/proc/self/status", "VmPTE")?) * 1024.0)
}

/// States that have run an empty program and answered once, and of which a snapshot was taken.
pub(super) fn idle(options: &Options, samples: &mut Samples) -> Result<(), Error> {
    let count = options.runs(20_000, 1000);
    let windows = reserved(count as u32)?;
    let mut states = Vec::with_capacity(count);
    let before = used_bytes()?;
    for number in 0..count {
        let mut state = EMPTY.started(&windows, number as u32, &[])?;
        state.whole();
        message(&mut state, number)?;
        states.push(state);
    }
    let each = (used_bytes()? - before) / count as f64;
    samples.add(EMPTY.name, TORPOR, RUNNING, "idle_per_gib", "1/GiB", (GIB / each).floor());
    samples.add(EMPTY.name, TORPOR, RUNNING, "idle_bytes", "bytes", each);
    Ok(())
}

/// Keys in a store, of which nobody is awake.
pub(super) fn sleeping(options: &Options, samples: &mut Samples) -> Result<(), Error> {
    let dir = super::disk_directory()?;
    let count = options.runs(1_000_000, 20_000);
    let (note, image) = (Note::default(), Image::from_bytes(PAYLOAD.to_vec()));
    let mut store = Store::open(dir.path())?;
    let before = used_bytes()?;
    for number in 0..count {
        store.put(format!("user{number:08}").as_bytes(), &note, &image, None)?;
        if number % BATCH == BATCH - 1 {
            store.commit()?;
        }
    }
    store.commit()?;
    let each = (used_bytes()? - before) / count as f64;
    samples.add(COUNTER.name, TORPOR, ASLEEP, "sleeping_bytes", "bytes", each);
    samples.add(COUNTER.name, TORPOR, ASLEEP, "sleeping_keys", "keys", store.len() as f64);
    drop(store);
    let begun = Instant::now();
    let store = Store::open(dir.path())?;
    samples.add(COUNTER.name, TORPOR, ASLEEP, "open", "ms", begun.elapsed().as_secs_f64() * 1000.0);
    drop(store);
    Ok(())
}
