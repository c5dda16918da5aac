//! The conformance suite under Torpor and under CRIU: a table on standard output and in `docs/compatibility.md`, and
//! `target/bench/conformance.json`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Args;
use serde::Serialize;
use torpor_testkit::conformance::{Criu, Engine, Mode, Program, Torpor, Verdict, captured, programs};

use crate::bench::{criu_binary, machine, release_binary, results};
use crate::error::{Error, run as run_command};

/// Where the table goes, between the two lines.
const DOCUMENT: &str = "docs/compatibility.md";
const BEGIN: &str = "<!-- conformance: begin (made by `cargo xtask conformance`) -->";
const END: &str = "<!-- conformance: end -->";
/// Directory of a program, in that of its run.
const HOME: &str = "/home";
/// A reason longer than this is cut in the table.
const REASON_CHARS: usize = 140;

/// Run the conformance programs under Torpor and CRIU; needs root. Writes docs/compatibility.md and target/bench/conformance.json
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only these programs; writes neither file
    programs: Vec<String>,
    /// Only under Torpor; writes neither file
    #[arg(long)]
    without_criu: bool,
    /// Only under CRIU; writes neither file
    #[arg(long, conflicts_with = "without_criu")]
    without_torpor: bool,
    /// Leave the programs running instead of restoring them
    #[arg(long)]
    leave_running: bool,
    /// Programs at once
    #[arg(long, default_value_t = 4)]
    jobs: usize,
}

#[derive(Debug, Serialize)]
struct Report {
    machine: String,
    kernel: String,
    criu: String,
    commit: String,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    program: &'static str,
    group: &'static str,
    what: &'static str,
    torpor: Option<String>,
    criu: Option<String>,
}

pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let mut engines: Vec<Box<dyn Engine + Sync>> = Vec::new();
    if !options.without_torpor {
        engines.push(Box::new(Torpor { program: release_binary()? }));
    }
    let mut criu = String::new();
    if !options.without_criu {
        let program = criu_binary()?;
        criu = version(&program)?;
        engines.push(Box::new(Criu { program }));
    }
    let chosen = choose(&options.programs)?;
    let mode = if options.leave_running { Mode::LeftRunning } else { Mode::Restored };
    let rows = rows(&chosen, &engines, mode, options.jobs)?;
    for engine in &engines {
        println!("{}: {}", engine.name(), summary(&rows, engine.name()));
    }
    if !options.programs.is_empty() || engines.len() < 2 || options.leave_running {
        return Ok(());
    }
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").map_err(Error::file("read", "osrelease"))?;
    let report =
        Report { machine: machine::describe()?, kernel: kernel.trim().into(), criu, commit: machine::commit()?, rows };
    write(&report)
}

fn version(criu: &Path) -> Result<String, Error> {
    let said = run_command(Command::new(criu).arg("--version"))?.stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    Ok(said.lines().find_map(|line| line.strip_prefix("Version: ")).unwrap_or("of unknown version").trim().to_owned())
}

fn choose(names: &[String]) -> Result<Vec<Program>, Error> {
    let all = programs();
    if names.is_empty() {
        return Ok(all);
    }
    let find = |name: &String| Ok(torpor_testkit::conformance::program(name)?);
    names.iter().map(find).collect()
}

/// Every program under every engine; programs beside each other, engines one after the other.
fn rows(programs: &[Program], engines: &[Box<dyn Engine + Sync>], mode: Mode, jobs: usize) -> Result<Vec<Row>, Error> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || -> Result<(), Error> {
        while let Some((at, program)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, programs.get(at)?)))
        {
            let mut row =
                Row { program: program.name, group: program.group, what: program.what, torpor: None, criu: None };
            for engine in engines {
                let verdict = captured(program, engine.as_ref(), mode)?;
                println!("{:<32}{:<8}{verdict}", program.name, engine.name());
                let place = if engine.name() == "Torpor" { &mut row.torpor } else { &mut row.criu };
                *place = Some(cell(&verdict));
            }
            done.lock().expect("a panic elsewhere ends all").push((at, row));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    let mut rows = done.into_inner().expect("no worker has panicked");
    rows.sort_by_key(|(at, _)| *at);
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

/// A verdict without what changes from run to run (ids, addresses), in one line.
fn cell(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Ok => "ok".to_owned(),
        Verdict::Refused(why) => format!("refused: {}", reasons(why)),
        Verdict::Failed { stage, why } => format!("fails {stage}: {}", brief(why)),
        Verdict::Skipped(why) => format!("not on this machine: {}", brief(why)),
    }
}

/// What Torpor lists as being in the way, each once, without the process and place.
fn reasons(refusal: &str) -> String {
    let mut found: Vec<&str> = Vec::new();
    for line in refusal.lines().filter(|line| line.starts_with("  process ")) {
        let what = line.split_once("): ").or_else(|| line.split_once(": ")).map_or(line, |(_, what)| what);
        // Behind the process's name stand thread, descriptor or address.
        let what = if line.contains("), ") {
            line.split_once("), ").and_then(|(_, rest)| rest.split_once(": ")).map_or(what, |(_, what)| what)
        } else {
            what
        };
        if !found.contains(&what) {
            found.push(what);
        }
    }
    if found.is_empty() { brief(refusal) } else { brief(&found.join("; ")) }
}

/// Text in one line, without numbers and directories that are others with every run.
fn brief(text: &str) -> String {
    let words = text.split_whitespace().map(|word| match word.split_once("/var/tmp/torpor-conformance-") {
        Some((before, after)) => format!("{before}…{}", after.split_once(HOME).map_or("", |(_, rest)| rest)),
        None => word.to_owned(),
    });
    let line = steady(&words.collect::<Vec<_>>().join(" ").replace('|', "\\|"));
    if line.chars().count() <= REASON_CHARS {
        return line;
    }
    format!("{} …", line.chars().take(REASON_CHARS).collect::<String>().trim_end())
}

/// Numbers of four digits and more become `N`: ids, inodes, addresses.
fn steady(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        out.push_str(&rest[..at]);
        let number = rest[at..].strip_prefix("0x").map_or(&rest[at..], |hex| hex);
        let end = number.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(number.len());
        let (number, after) = number.split_at(end);
        if number.len() < 4 {
            out.push_str(&rest[at..rest.len() - after.len()])
        } else {
            out.push('N')
        }
        rest = after;
    }
    out + rest
}

fn summary(rows: &[Row], engine: &str) -> String {
    let cells =
        rows.iter().filter_map(|row| if engine == "Torpor" { row.torpor.as_deref() } else { row.criu.as_deref() });
    let cells: Vec<&str> = cells.collect();
    let count = |begin: &str| cells.iter().filter(|cell| cell.starts_with(begin)).count();
    format!(
        "{} of {} ok, {} refused, {} failed, {} not possible on this machine",
        count("ok"),
        cells.len(),
        count("refused"),
        count("fails"),
        count("not on")
    )
}

fn table(report: &Report) -> String {
    let mut text = format!(
        "Linux {}, CRIU {} with `{}`. Torpor: {}. CRIU: {}.\n",
        report.kernel,
        report.criu,
        Criu::OPTIONS.join(" "),
        summary(&report.rows, "Torpor"),
        summary(&report.rows, "CRIU"),
    );
    let mut group = "";
    for row in &report.rows {
        if row.group != group {
            group = row.group;
            text.push_str(&format!("\n### {group}\n\n| program | state | Torpor | CRIU |\n|---|---|---|---|\n"));
        }
        let shown = |cell: &Option<String>| cell.clone().unwrap_or_default();
        let (torpor, criu) = (shown(&row.torpor), shown(&row.criu));
        text.push_str(&format!("| `{}` | {} | {torpor} | {criu} |\n", row.program, row.what));
    }
    text
}

fn write(report: &Report) -> Result<(), Error> {
    let dir = results();
    fs::create_dir_all(&dir).map_err(Error::file("make", &dir))?;
    let path = dir.join("conformance.json");
    fs::write(&path, serde_json::to_vec_pretty(report)?).map_err(Error::file("write", &path))?;
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf).join(DOCUMENT);
    let text = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
    let Some((before, after)) =
        text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)))
    else {
        return Err(Error::Missing { what: format!("the place of the table in {DOCUMENT}"), hint: BEGIN });
    };
    let text = format!("{before}{BEGIN}\n{}\n{END}{after}", table(report));
    fs::write(&path, text).map_err(Error::file("write", &path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_come_without_what_changes() {
        let refusal = "torpor: process 7 (a) cannot be captured\n  process 7 (a), descriptor 3: an io_uring (close it)\n  \
                       process 8 (a), descriptor 3: an io_uring (close it)\n  process 8 (a): traced by 3\n";
        assert_eq!(reasons(refusal), "an io_uring (close it); traced by 3");
        assert_eq!(reasons("a | b\n c"), "a \\| b c");
    }

    #[test]
    fn what_changes_with_every_run_is_left_out() {
        let path = format!("a/var/tmp/torpor-conformance-x1{}/file (deleted)", HOME);
        assert_eq!(brief(&path), "a…/file (deleted)");
        assert_eq!(brief("socket 4ea159 of 12716 at 0x7f66 is 42"), "socket N of N at N is 42");
    }

    #[test]
    fn long_reasons_are_cut() {
        assert!(brief(&"word ".repeat(100)).ends_with('…'));
    }
}
