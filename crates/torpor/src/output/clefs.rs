//! Clefs of a class, and their numbers.

use torpor_clef::{ClefStatus, Stats};

use super::units::size;
use super::{Cells, Narrow, safe, table_within};

/// What makes the lines narrower at a terminal.
const STEPS: [Narrow; 2] = [Narrow::Cut("KEY", 20), Narrow::Drop("SIZE")];

/// One line for each Clef.
pub(crate) fn clefs(clefs: &[ClefStatus], most: Option<usize>) -> String {
    let state = |awake| if awake { "awake" } else { "asleep" };
    let row =
        |clef: &ClefStatus| vec![safe(&clef.key.to_string()), state(clef.awake).to_owned(), size(Some(clef.bytes))];
    let rows: Vec<Cells> = clefs.iter().map(row).collect();
    table_within(most, &["KEY", "STATE", ">SIZE"], &rows, &STEPS)
}

/// One line for each number.
pub(crate) fn clef_stats(stats: Stats) -> String {
    let Stats { clefs, awake, log_bytes, needed_bytes } = stats;
    let (log, needed) = (size(Some(log_bytes)), size(Some(needed_bytes)));
    format!("stored   {clefs}\nawake    {awake}\non disk  {log}, of which {needed} are needed\n")
}
