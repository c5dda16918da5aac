//! Samples of measured quantities, and their quantiles.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, chain};

/// One measured quantity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The measured program, or the shape of the process tree.
    pub(crate) program: String,
    /// `torpor`, `never-slept`, `runc+criu`, `criu`, `criu-lazy`, `cold-start`, `plain`, `copy`; in `noisy`, `alone` or `beside-writers`; in
    /// `clefs` also `torpor-full`, `checkpoint`, `node`, `redis`.
    pub(crate) subject: String,
    /// Level of sleep before the request: `running`, `dozing`, `warm`, `rebooted`, `image` (all state on disk), `stopped`; in `clefs` also
    /// `asleep`, and `durable` or `memory`, where what has changed must be when the answer comes.
    pub(crate) level: String,
    pub(crate) metric: String,
    pub(crate) unit: String,
    pub(crate) median: f64,
    /// 95th percentile.
    pub(crate) p95: f64,
    /// 99th percentile; the maximum if there are fewer than 100 samples.
    pub(crate) p99: f64,
    /// Number of samples.
    pub(crate) runs: usize,
}

/// What a benchmark returns.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub(crate) samples: Samples,
    /// Rows that compare others, or come from another process.
    pub(crate) compared: Vec<Row>,
    /// Names and versions of peers that only this benchmark has.
    pub(crate) peers: Vec<String>,
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
    pub(super) missing: Vec<String>,
}

impl Samples {
    /// Adds a sample.
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

    /// Adds the samples of a quantity: program, subject, level, metric, unit.
    pub(crate) fn add_all(
        &mut self,
        (program, subject, level, metric, unit): (&str, &'static str, &'static str, &str, &'static str),
        values: &[f64],
    ) {
        for value in values {
            self.add(program, subject, level, metric, unit, *value);
        }
    }

    /// Reports that `what` is not measured, or not any more, because of `error`.
    pub(crate) fn missing(&mut self, what: String, error: &Error) {
        eprintln!("NOT MEASURED: {what}: {}", chain(error));
        if !self.missing.contains(&what) {
            self.missing.push(what);
        }
    }

    fn find(&self, program: &str, subject: &str, level: &str, metric: &str) -> Option<&[f64]> {
        let found = self.values.iter().find(|(key, _)| {
            (key.program.as_str(), key.subject, key.level, key.metric.as_str()) == (program, subject, level, metric)
        });
        found.map(|(_, values)| values.as_slice())
    }

    pub(super) fn rows(&self) -> Vec<Row> {
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

    /// The row `metric` in `unit`, whose quantiles are `combine` of the same quantiles of two other quantities, each given as
    /// (subject, level, metric). Subject and level of the row are those of `of`. `None` if one of the two has no samples.
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A row of ten equal samples.
    pub(crate) fn row(program: &str, subject: &str, level: &str, metric: &str, value: f64) -> Row {
        Row {
            program: program.to_owned(),
            subject: subject.to_owned(),
            level: level.to_owned(),
            metric: metric.to_owned(),
            unit: "us".to_owned(),
            median: value,
            p95: value,
            p99: value,
            runs: 10,
        }
    }

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
