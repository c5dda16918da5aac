//! From a message to its answer with the state on disk: within the process, of one state alone, and of 64 with one commit.

use std::sync::Arc;
use std::time::Instant;

use torpor_clef::{Chain, Note, Store};
use torpor_lua::{State, Windows};

use super::options::Options;
use super::programs::{COUNTER, message, reserved};
use super::{DURABLE, TORPOR, us};
use crate::bench::samples::Samples;
use crate::error::Error;

/// States whose changes share a commit.
const TOGETHER: u32 = 64;
/// Times of the steps.
#[derive(Default)]
struct Steps {
    call: Vec<f64>,
    changes: Vec<f64>,
    put: Vec<f64>,
    commit: Vec<f64>,
}

struct Clef {
    key: Vec<u8>,
    state: State,
    /// What leads to it in the store.
    chain: Chain,
    messages: usize,
}

impl Clef {
    fn new(windows: &Arc<Windows>, number: u32) -> Result<Self, Error> {
        let state = COUNTER.started(windows, number, &[])?;
        Ok(Self { key: format!("user{number}").into_bytes(), state, chain: Chain::default(), messages: 0 })
    }

    /// A message, and what it has changed, without a commit.
    fn answer(&mut self, store: &mut Store, steps: &mut Steps) -> Result<(), Error> {
        let begun = Instant::now();
        message(&mut self.state, self.messages)?;
        let called = us(begun);
        let is_whole = self.chain.wants_whole(self.state.used_bytes());
        let image = if is_whole { self.state.whole() } else { self.state.changes() };
        let captured = us(begun);
        let (note, chain) = (Note::default(), Some(&self.chain));
        self.chain = if is_whole {
            store.put(&self.key, &note, &image, chain)?
        } else {
            store.put_changes(&self.key, &note, &image, chain)?.unwrap_or_default()
        };
        let put = us(begun);
        self.messages += 1;
        steps.call.push(called);
        steps.changes.push(captured - called);
        steps.put.push(put - captured);
        Ok(())
    }
}

fn commit(store: &mut Store, steps: &mut Steps) -> Result<(), Error> {
    let begun = Instant::now();
    store.commit()?;
    steps.commit.push(us(begun));
    Ok(())
}

pub(super) fn run(options: &Options, samples: &mut Samples) -> Result<(), Error> {
    let dir = super::disk_directory()?;
    let mut store = Store::open(dir.path())?;
    let windows = reserved(TOGETHER + 1)?;
    let mut alone = Clef::new(&windows, TOGETHER)?;
    let (mut times, mut steps) = (Vec::new(), Steps::default());
    for _ in 0..options.runs(2000, 50) {
        let begun = Instant::now();
        alone.answer(&mut store, &mut steps)?;
        commit(&mut store, &mut steps)?;
        times.push(us(begun));
    }
    add(samples, "durable_reply", &times, &steps);
    let mut clefs = (0..TOGETHER).map(|number| Clef::new(&windows, number)).collect::<Result<Vec<_>, _>>()?;
    let (mut times, mut steps) = (Vec::new(), Steps::default());
    for _ in 0..options.runs(500, 20) {
        let begun = Instant::now();
        clefs.iter_mut().try_for_each(|clef| clef.answer(&mut store, &mut steps))?;
        commit(&mut store, &mut steps)?;
        times.push(us(begun) / f64::from(TOGETHER));
    }
    steps.commit.iter_mut().for_each(|time| *time /= f64::from(TOGETHER));
    add(samples, "durable_reply_64", &times, &steps);
    Ok(())
}

fn add(samples: &mut Samples, metric: &str, times: &[f64], steps: &Steps) {
    let Steps { call, changes, put, commit } = steps;
    samples.add_all((COUNTER.name, TORPOR, DURABLE, metric, "us"), times);
    for (step, times) in [("call", call), ("changes", changes), ("put", put), ("commit", commit)] {
        samples.add_all((COUNTER.name, TORPOR, DURABLE, &format!("{metric}_{step}"), "us"), times);
    }
}
