//! Samples, their quantiles, and the two ways they are shown.

use std::collections::BTreeMap;
use std::fs;

use serde::{Deserialize, Serialize};

use super::{machine, results};
use crate::error::Error;

/// One measured quantity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Which program was measured.
    pub(crate) program: String,
    /// `torpor`, `never-slept`, `runc+criu`, `criu`, `cold-start`, `plain`, `copy`.
    pub(crate) subject: String,
    /// Level of sleep before the request: `running`, `dozing`, `image` (all of it on disk), `stopped`.
    pub(crate) level: String,
    /// What was measured.
    pub(crate) metric: String,
    /// In what.
    pub(crate) unit: String,
    /// Middle one.
    pub(crate) median: f64,
    /// 95 of 100 are at most this.
    pub(crate) p95: f64,
    /// 99 of 100 are at most this.
    pub(crate) p99: f64,
    /// How many there are.
    pub(crate) runs: usize,
}

/// A result, as in `target/bench/NAME.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// CPU, kernel, memory.
    pub(crate) machine: String,
    /// What was measured.
    pub(crate) commit: String,
    pub(crate) rows: Vec<Row>,
}

/// What a sample belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    program: String,
    subject: &'static str,
    level: &'static str,
    metric: String,
    unit: &'static str,
}

/// Samples of all quantities, in the order in which they were first seen.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    order: Vec<Key>,
    values: BTreeMap<Key, Vec<f64>>,
}

impl Samples {
    /// Adds one.
    pub(crate) fn add(
        &mut self,
        program: &str,
        subject: &'static str,
        level: &'static str,
        metric: impl Into<String>,
        unit: &'static str,
        value: f64,
    ) {
        let key = Key { program: program.to_owned(), subject, level, metric: metric.into(), unit };
        if !self.values.contains_key(&key) {
            self.order.push(key.clone());
        }
        self.values.entry(key).or_default().push(value);
    }

    fn find(&self, program: &str, subject: &str, level: &str, metric: &str) -> Option<&[f64]> {
        let found = self.values.iter().find(|(key, _)| {
            (key.program.as_str(), key.subject, key.level, key.metric.as_str()) == (program, subject, level, metric)
        });
        found.map(|(_, values)| values.as_slice())
    }

    fn rows(&self) -> Vec<Row> {
        let row = |key: &Key| {
            let values = &self.values[key];
            Row {
                program: key.program.clone(),
                subject: key.subject.to_owned(),
                level: key.level.to_owned(),
                metric: key.metric.clone(),
                unit: key.unit.to_owned(),
                median: quantile(values, 0.5),
                p95: quantile(values, 0.95),
                p99: quantile(values, 0.99),
                runs: values.len(),
            }
        };
        self.order.iter().map(row).collect()
    }

    /// The row `metric` in `unit` that compares two others, each (subject, level, metric), quantile by quantile: what
    /// `combine` makes of them. `None` where one is missing. Subject and level are those of `of`.
    pub(crate) fn compared(
        &self,
        program: &str,
        (metric, unit): (&str, &str),
        of: (&str, &str, &str),
        to: (&str, &str, &str),
        combine: fn(f64, f64) -> f64,
    ) -> Option<Row> {
        let (a, b) = (self.find(program, of.0, of.1, of.2)?, self.find(program, to.0, to.1, to.2)?);
        let at = |q| combine(quantile(a, q), quantile(b, q));
        Some(Row {
            program: program.to_owned(),
            subject: of.0.to_owned(),
            level: of.1.to_owned(),
            metric: metric.to_owned(),
            unit: unit.to_owned(),
            median: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            runs: a.len().min(b.len()),
        })
    }
}

/// The nearest-rank quantile; 0 for no values.
fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

impl Report {
    /// Everything that was sampled, and rows that compare.
    pub(crate) fn new(samples: &Samples, compared: Vec<Row>) -> Result<Self, Error> {
        let mut rows = samples.rows();
        rows.extend(compared);
        Ok(Self { machine: machine::describe()?, commit: machine::commit()?, rows })
    }

    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        Ok(serde_json::from_str(text)?)
    }

    /// Prints the table and writes the file.
    pub(crate) fn publish(&self, name: &str) -> Result<(), Error> {
        println!("{}", self.table());
        let dir = results();
        fs::create_dir_all(&dir).map_err(Error::file("make the directory", &dir))?;
        let path = dir.join(format!("{name}.json"));
        let text = serde_json::to_string_pretty(self)?;
        fs::write(&path, text + "\n").map_err(Error::file("write", &path))?;
        println!("written to {}", path.display());
        Ok(())
    }

    /// The rows as a table for people.
    pub(crate) fn table(&self) -> String {
        let mut lines =
            vec![["PROGRAM", "SUBJECT", "LEVEL", "METRIC", "MEDIAN", "P95", "P99", "UNIT", "RUNS"].map(str::to_owned)];
        for row in &self.rows {
            lines.push([
                row.program.clone(),
                row.subject.clone(),
                row.level.clone(),
                row.metric.clone(),
                number(row.median),
                number(row.p95),
                number(row.p99),
                row.unit.clone(),
                row.runs.to_string(),
            ]);
        }
        let widths: [usize; 9] =
            std::array::from_fn(|n| lines.iter().map(|line| line[n].chars().count()).max().unwrap_or(0));
        let mut text = format!("{}\ncommit {}\n\n", self.machine, self.commit);
        for line in &lines {
            let cells = line.iter().enumerate().map(|(n, cell)| match n {
                4..=6 | 8 => format!("{cell:>width$}", width = widths[n]),
                _ => format!("{cell:<width$}", width = widths[n]),
            });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

fn number(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!([0.5, 0.95, 0.99].map(|q| quantile(&values, q)), [50.0, 95.0, 99.0]);
        assert_eq!(quantile(&[7.0], 0.99), 7.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }

    #[test]
    fn rows_keep_their_order_and_compare_by_quantile() {
        let mut samples = Samples::default();
        for n in 0..10 {
            samples.add("web", "torpor", "dozing", "first_byte", "us", 500.0 + f64::from(n));
            samples.add("web", "never-slept", "running", "first_byte", "us", 100.0);
        }
        let rows = samples.rows();
        assert_eq!(rows.iter().map(|row| row.subject.as_str()).collect::<Vec<_>>(), ["torpor", "never-slept"]);
        let asleep = ("torpor", "dozing", "first_byte");
        let awake = ("never-slept", "running", "first_byte");
        let added = samples.compared("web", ("added", "us"), asleep, awake, |a, b| a - b);
        assert_eq!(added.map(|row| (row.median, row.p99, row.runs)), Some((404.0, 409.0, 10)));
        let missing = ("criu", "image", "first_byte");
        assert!(samples.compared("web", ("times", "times"), asleep, missing, |a, b| a / b).is_none());
    }
}
