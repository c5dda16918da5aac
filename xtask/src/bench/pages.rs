//! Pages of `docs/benchmarks/`, which `--docs` writes: what was measured, where, the medians side by side, and every row.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use super::chart::{Bar, Group, chart, number};
use super::report::{Report, Row};
use crate::error::Error;

/// Where the pages are, from the root of the repository.
const PAGES: &str = "docs/benchmarks";

/// What a page says about its benchmark.
struct About {
    name: &'static str,
    title: &'static str,
    text: &'static str,
    command: &'static str,
    tables: &'static [Table],
}

/// Medians of one metric: a line for each program, a column for each subject at a level.
struct Table {
    heading: &'static str,
    metric: &'static str,
    /// The values are divided by this.
    per: f64,
    columns: &'static [(&'static str, &'static str, &'static str)],
}

const FIRST_BYTE: &[(&str, &str, &str)] = &[
    ("never slept", "never-slept", "running"),
    ("dozing", "torpor", "dozing"),
    ("warm", "torpor", "warm"),
    ("after a reboot", "torpor", "rebooted"),
    ("CRIU", "criu", "image"),
    ("runc + CRIU", "runc+criu", "image"),
    ("cold start", "cold-start", "stopped"),
];
const TREES: &[(&str, &str, &str)] =
    &[("Torpor", "torpor", "image"), ("CRIU", "criu", "image"), ("runc + CRIU", "runc+criu", "image")];
const ASLEEP: &[(&str, &str, &str)] = &[("dozing", "torpor", "dozing"), ("warm", "torpor", "warm")];

const ABOUT: [About; 5] = [
    About {
        name: "wake",
        title: "Time to the first byte",
        text: "A client sends a request to a sleeping app and measures the time to the first byte of the answer. The machine is idle for \
               the same time before each request, for all subjects. Every peer restores the same program with the same state. \
               *Never slept* is the same app, kept awake. *Cold start* starts the program from the beginning, without its state.",
        command: "cargo xtask bench wake --docs",
        tables: &[
            Table { heading: "Time to the first byte, ms", metric: "first_byte", per: 1000.0, columns: FIRST_BYTE },
            Table {
                heading: "The same with the image read from disk, ms",
                metric: "first_byte_uncached",
                per: 1000.0,
                columns: ASLEEP,
            },
            Table { heading: "Private memory awake, kB", metric: "private_before", per: 1.0, columns: ASLEEP },
            Table { heading: "Private memory asleep, kB", metric: "private_asleep", per: 1.0, columns: ASLEEP },
        ],
    },
    About {
        name: "noisy",
        title: "Wakes beside apps that write without end",
        text: "The time to the first byte of a sleeping lighttpd, first alone and then beside apps that write to their standard output as \
               fast as they can.",
        command: "cargo xtask bench noisy --docs",
        tables: &[Table {
            heading: "Time to the first byte, ms",
            metric: "first_byte",
            per: 1000.0,
            columns: &[
                ("dozing, alone", "alone", "dozing"),
                ("dozing, beside writers", "beside-writers", "dozing"),
                ("warm, alone", "alone", "warm"),
                ("warm, beside writers", "beside-writers", "warm"),
            ],
        }],
    },
    About {
        name: "density",
        title: "Memory of many dozing apps",
        text: "The memory that each further dozing lighttpd costs, everything counted, and the CPU time of the daemon while all sleep.",
        command: "cargo xtask bench density --docs",
        tables: &[],
    },
    About {
        name: "density-warm",
        title: "Memory of many warm apps",
        text: "The memory that each further warm lighttpd costs, everything counted, the CPU time of the daemon while all sleep, and the \
               time until all are there again after a reboot.",
        command: "cargo xtask bench density --level warm --docs",
        tables: &[],
    },
    About {
        name: "trees",
        title: "Checkpoint and restore of process trees",
        text: "`torpor checkpoint` and `torpor restore` of plain process trees beside CRIU, and beside runc + CRIU with the same tree in a \
               container. *Durable* includes the time to sync the image, which Torpor's checkpoint always does.",
        command: "cargo xtask bench trees --docs",
        tables: &[
            Table { heading: "Checkpoint, ms", metric: "checkpoint", per: 1.0, columns: TREES },
            Table { heading: "Checkpoint, durable, ms", metric: "durable", per: 1.0, columns: TREES },
            Table { heading: "Restore, ms", metric: "restore", per: 1.0, columns: TREES },
        ],
    },
];

/// Writes the page of a result, and its chart if it has one.
pub(crate) fn write(name: &str, report: &Report) -> Result<(), Error> {
    let Some(about) = ABOUT.iter().find(|about| about.name == name) else { return Ok(()) };
    let directory = PathBuf::from(PAGES);
    fs::create_dir_all(&directory).map_err(Error::file("make the directory", &directory))?;
    let chart = (name == "wake").then(|| wakes(report));
    if let Some(svg) = &chart {
        put(&directory.join(format!("{name}.svg")), svg)?;
    }
    put(&directory.join(format!("{name}.md")), &page(about, report, chart.is_some()))
}

fn put(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(Error::file("write", path))?;
    println!("written to {}", path.display());
    Ok(())
}

fn page(about: &About, report: &Report, chart: bool) -> String {
    let mut text = format!("# {}\n\n{}\n\n", about.title, about.text);
    let _ = writeln!(text, "Written by `{}` on {}, at commit {}.\n", about.command, report.machine, report.commit);
    if chart {
        let _ = writeln!(text, "![{}]({}.svg)\n", about.title, about.name);
    }
    for table in about.tables {
        text.push_str(&medians(table, &report.rows));
    }
    let _ = writeln!(text, "## Every row\n\n```\n{}```", report.table());
    text
}

/// A table of medians, without columns that nobody was measured for.
fn medians(table: &Table, rows: &[Row]) -> String {
    let find = |program: &str, (_, subject, level): &(&str, &str, &str)| {
        let found = rows.iter().find(|row| {
            (row.program.as_str(), row.subject.as_str(), row.level.as_str(), row.metric.as_str())
                == (program, subject, level, table.metric)
        });
        found.map(|row| row.median / table.per)
    };
    let mut programs: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.metric == table.metric) {
        if !programs.contains(&row.program.as_str()) {
            programs.push(&row.program);
        }
    }
    let columns: Vec<_> =
        table.columns.iter().filter(|column| programs.iter().any(|program| find(program, column).is_some())).collect();
    if columns.is_empty() {
        return String::new();
    }
    let headings: Vec<&str> = columns.iter().map(|(heading, _, _)| *heading).collect();
    let mut text =
        format!("## {}\n\n| | {} |\n|---|{}\n", table.heading, headings.join(" | "), "---|".repeat(columns.len()));
    for program in programs {
        let cells: Vec<String> =
            columns.iter().map(|column| find(program, column).map_or_else(String::new, number)).collect();
        let _ = writeln!(text, "| {program} | {} |", cells.join(" | "));
    }
    text.push('\n');
    text
}

/// Times to the first byte beside the peers', by program.
fn wakes(report: &Report) -> String {
    let mut groups: Vec<Group> = Vec::new();
    for row in report.rows.iter().filter(|row| row.metric == "first_byte") {
        let column = FIRST_BYTE
            .iter()
            .find(|(_, subject, level)| (row.subject.as_str(), row.level.as_str()) == (subject, level));
        let Some((label, subject, _)) = column else { continue };
        if !groups.iter().any(|group| group.heading == row.program) {
            groups.push(Group { heading: row.program.clone(), bars: Vec::new() });
        }
        let ours = *subject == "torpor";
        let label = if ours { format!("Torpor, {label}") } else { (*label).to_owned() };
        let bar = Bar { label, value: row.median / 1000.0, ours };
        groups.iter_mut().filter(|group| group.heading == row.program).for_each(|group| group.bars.push(bar.clone()));
    }
    chart("Time to the first byte of an answer (logarithmic, medians)", "ms", &groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(program: &str, subject: &str, level: &str, median: f64) -> Row {
        Row {
            program: program.to_owned(),
            subject: subject.to_owned(),
            level: level.to_owned(),
            metric: "first_byte".to_owned(),
            unit: "us".to_owned(),
            median,
            p95: median,
            p99: median,
            runs: 1,
        }
    }

    #[test]
    fn a_page_has_a_line_for_each_program_and_no_empty_column() {
        let rows = vec![row("lighttpd", "torpor", "dozing", 1300.0), row("redis", "criu", "image", 53_000.0)];
        let table = medians(&ABOUT[0].tables[0], &rows);
        assert_eq!(
            table,
            "## Time to the first byte, ms\n\n| | dozing | CRIU |\n|---|---|---|\n| lighttpd | 1.3 |  |\n| redis |  | 53 |\n\n"
        );
        assert_eq!(medians(&ABOUT[0].tables[1], &rows), "");
    }
}
