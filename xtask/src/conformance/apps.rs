//! Programs as apps: a batch to a daemon, so that one power cut does for many.

use torpor_testkit::conformance::{Apps, Between, Program};

use super::cell::cell;
use super::results::Cells;
use super::{Column, beside};
use crate::bench::release_binary;
use crate::error::Error;

pub(super) fn cells(column: Column, programs: &[Program], between: Between, daemons: usize) -> Result<Cells, Error> {
    let binary = release_binary()?;
    let judge = |batch: &Vec<Program>| {
        let verdicts = Apps::start(&binary, batch)?.judge(between)?;
        for (name, verdict) in &verdicts {
            println!("{name:<32}{:<8}{verdict}", column.to_string());
        }
        Ok(verdicts.iter().map(|(name, verdict)| ((*name).to_owned(), cell(verdict))).collect())
    };
    let [alone, batches] = Apps::batches(programs);
    let mut all = beside(&alone, 1, judge)?;
    all.extend(beside(&batches, daemons, judge)?);
    Ok(all)
}
