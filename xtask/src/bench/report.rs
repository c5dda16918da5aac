//! The result of a benchmark, as JSON and as a table.

use std::fmt::Write;
use std::path::PathBuf;
use std::{fs, io};

use serde::{Deserialize, Serialize};

use super::conditions::Conditions;
use super::results;
use super::samples::{Measured, Row};
use crate::error::Error;

/// A result, as in `target/bench/NAME.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    pub(crate) conditions: Conditions,
    /// What could not be measured.
    #[serde(default)]
    pub(crate) missing: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

impl Report {
    /// The rows of everything that was measured.
    pub(crate) fn new(mut conditions: Conditions, measured: Measured) -> Self {
        conditions.peers.extend(measured.peers);
        let mut rows = measured.samples.rows();
        rows.extend(measured.compared);
        Self { conditions, missing: measured.samples.missing, rows }
    }

    /// The last result of the benchmark `name`, if there is one.
    pub(crate) fn load(name: &str) -> Result<Option<Self>, Error> {
        let path = Self::path(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(serde_json::from_str(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::file("read", path)(error)),
        }
    }

    pub(crate) fn find(&self, program: &str, subject: &str, level: &str, metric: &str) -> Option<&Row> {
        self.rows.iter().find(|row| {
            (row.program.as_str(), row.subject.as_str(), row.level.as_str(), row.metric.as_str())
                == (program, subject, level, metric)
        })
    }

    fn path(name: &str) -> PathBuf {
        results().join(format!("{name}.json"))
    }

    /// Prints the table and writes the file.
    pub(crate) fn publish(&self, name: &str) -> Result<(), Error> {
        println!("{}", self.table());
        let dir = results();
        fs::create_dir_all(&dir).map_err(Error::file("make the directory", &dir))?;
        let path = Self::path(name);
        let text = serde_json::to_string_pretty(self)?;
        fs::write(&path, text + "\n").map_err(Error::file("write", &path))?;
        println!("written to {}", path.display());
        Ok(())
    }

    /// Conditions and rows as a table for terminals.
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
        let mut text = String::new();
        for (heading, value) in self.conditions.lines() {
            let _ = writeln!(text, "{heading}: {value}");
        }
        text.push('\n');
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
