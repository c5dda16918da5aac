//! Tables of medians and 99th percentiles, in Markdown.

use std::fmt::Write;

use super::super::chart::number;
use super::super::samples::Row;

/// A column: heading, subject, level, and metric if it is not that of the table.
pub(super) type Column = (&'static str, &'static str, &'static str, Option<&'static str>);

/// A table of a page.
pub(super) struct Table {
    pub(super) heading: &'static str,
    pub(super) lines: Lines,
    pub(super) columns: &'static [Column],
}

/// The unit of quantities that compare two others.
const RATIO: &str = "times";

/// What the lines of a table are. Values are divided by the last number.
pub(super) enum Lines {
    /// A line for each program, of this metric.
    Programs(&'static str, f64),
    /// A line for this program, of this metric.
    Program(&'static str, &'static str, f64),
    /// A line for each of these (heading, metric), of this program, or of any.
    Metrics(Option<&'static str>, &'static [(&'static str, &'static str, f64)]),
}

/// A line: heading, program if it must be a certain one, metric, divisor.
type Line<'a> = (&'a str, Option<&'a str>, &'static str, f64);

/// The table in Markdown, without empty lines and columns; nothing if no value is known.
pub(super) fn text(table: &Table, rows: &[Row]) -> String {
    let lines: Vec<_> = lines(table, rows)
        .into_iter()
        .filter(|line| table.columns.iter().any(|column| find(rows, line, column).is_some()))
        .collect();
    let columns: Vec<_> =
        table.columns.iter().filter(|column| lines.iter().any(|line| find(rows, line, column).is_some())).collect();
    if columns.is_empty() {
        return String::new();
    }
    let headings: Vec<&str> = columns.iter().map(|(heading, ..)| *heading).collect();
    let mut text = format!("## {}\n\n", table.heading);
    let _ = writeln!(text, "| | {} |\n|---|{}", headings.join(" | "), "---|".repeat(columns.len()));
    let mut shown = Vec::new();
    for line in &lines {
        let found: Vec<_> = columns.iter().map(|column| find(rows, line, column)).collect();
        let cells: Vec<String> =
            found.iter().map(|row| row.map_or_else(String::new, |row| cell(row, line.3))).collect();
        let _ = writeln!(text, "| {} | {} |", line.0, cells.join(" | "));
        shown.extend(found.into_iter().flatten());
    }
    text + "\n" + &caption(&shown)
}

/// The row that a cell shows.
fn find<'a>(rows: &'a [Row], (_, program, metric, _): &Line<'_>, column: &Column) -> Option<&'a Row> {
    let (_, subject, level, own) = column;
    let metric = own.unwrap_or(metric);
    rows.iter().find(|row| {
        program.is_none_or(|program| row.program == program)
            && (row.metric.as_str(), row.subject.as_str(), row.level.as_str()) == (metric, *subject, *level)
    })
}

fn lines<'a>(table: &Table, rows: &'a [Row]) -> Vec<Line<'a>> {
    match table.lines {
        Lines::Metrics(program, metrics) => {
            metrics.iter().map(|(heading, metric, per)| (*heading, program, *metric, *per)).collect()
        }
        Lines::Program(program, metric, per) => vec![(program, Some(program), metric, per)],
        Lines::Programs(metric, per) => {
            let mut programs: Vec<&str> = Vec::new();
            for row in rows {
                if !programs.contains(&row.program.as_str()) {
                    programs.push(&row.program);
                }
            }
            programs.into_iter().map(|program| (program, Some(program), metric, per)).collect()
        }
    }
}

/// Median and 99th percentile; only the median of a single run or of ratios, whose percentiles say nothing.
fn cell(row: &Row, per: f64) -> String {
    let (median, p99) = (number(row.median / per), number(row.p99 / per));
    if row.runs == 1 || row.unit == RATIO { median } else { format!("{median} / {p99}") }
}

/// What the cells of a table are.
fn caption(shown: &[&Row]) -> String {
    let runs = || shown.iter().map(|row| row.runs);
    let (Some(least), Some(most)) = (runs().min(), runs().max()) else { return String::new() };
    let ratios = shown.iter().any(|row| row.unit == RATIO);
    let what = if ratios { "Ratio of the medians" } else { "Median / 99th percentile" };
    let caption = match (least, most) {
        (1, 1) => "One run each.".to_owned(),
        (least, most) if least == most => format!("{what} of {most} runs."),
        (1, most) => format!("{what} of up to {most} runs; single values are of one run."),
        (least, most) => format!("{what} of {least} to {most} runs."),
    };
    caption + "\n\n"
}

#[cfg(test)]
mod tests {
    use super::super::super::samples::tests::row;
    use super::*;

    const TABLE: Table = Table {
        heading: "Time, ms",
        lines: Lines::Programs("first_byte", 1000.0),
        columns: &[
            ("never slept", "never-slept", "running", None),
            ("dozing", "torpor", "dozing", None),
            ("CRIU", "criu", "image", None),
        ],
    };

    #[test]
    fn a_line_for_each_program_and_no_empty_column() {
        let mut one = row("redis", "criu", "image", "first_byte", 53_000.0);
        one.runs = 1;
        let rows = vec![row("lighttpd", "torpor", "dozing", "first_byte", 1300.0), one];
        assert_eq!(
            text(&TABLE, &rows),
            "## Time, ms\n\n| | dozing | CRIU |\n|---|---|---|\n| lighttpd | 1.3 / 1.3 |  |\n| redis |  | 53 |\n\n\
             Median / 99th percentile of up to 10 runs; single values are of one run.\n\n"
        );
        assert_eq!(text(&TABLE, &[]), "");
    }

    #[test]
    fn a_line_for_one_program() {
        let rows = ["redis", "lighttpd"].map(|program| row(program, "torpor", "dozing", "first_byte", 1300.0));
        let table = Table { lines: Lines::Program("lighttpd", "first_byte", 1000.0), ..TABLE };
        let text = text(&table, &rows);
        assert!(text.contains("| lighttpd | 1.3 / 1.3 |") && !text.contains("redis"), "{text}");
    }

    #[test]
    fn a_line_for_each_known_metric() {
        let lines = Lines::Metrics(None, &[("computing", "c", 1.0), ("files", "f", 1.0)]);
        let columns = &[("sandbox", "torpor", "running", None), ("other", "torpor", "running", Some("d"))];
        let table = Table { lines, columns, ..TABLE };
        let rows = vec![row("cost", "torpor", "running", "c", 2.0)];
        assert_eq!(
            text(&table, &rows),
            "## Time, ms\n\n| | sandbox |\n|---|---|\n| computing | 2 / 2 |\n\nMedian / 99th percentile of 10 runs.\n\n"
        );
        let rows = vec![row("cost", "torpor", "running", "c", 2.0), row("cost", "torpor", "running", "d", 3.0)];
        assert!(text(&table, &rows).contains("| computing | 2 / 2 | 3 / 3 |"));
    }
}
