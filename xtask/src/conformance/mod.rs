//! The conformance suite under Torpor (plain processes, and apps) and under CRIU: a table on standard output and in
//! `docs/compatibility.md`.
//!
//! Columns can be renewed one by one: what each found last, and of which commit, is kept in `target/bench/conformance.json`.
//! The document is written once all columns are known for every program of the suite.

mod apps;
mod cell;
mod results;

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use torpor_testkit::conformance::{Between, Criu, Engine, Mode, Program, Torpor, captured, pools, programs};

use self::cell::cell;
use self::results::{Cells, Measured, Results};
use crate::bench::{criu_binary, machine, release_binary};
use crate::error::{Error, run as run_command};

/// Run the conformance programs under Torpor and CRIU; needs root. Renews columns of the table in docs/compatibility.md
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only these programs; nothing is written
    programs: Vec<String>,
    /// Only these columns; the others stay as they were found last
    #[arg(long, value_delimiter = ',', default_values_t = Column::ALL)]
    columns: Vec<Column>,
    /// Leave plain processes running instead of restoring them; nothing is written
    #[arg(long)]
    leave_running: bool,
    /// Run nothing, and make the table of what was found last
    #[arg(long)]
    table: bool,
    /// Plain processes at once
    #[arg(long, default_value_t = 4)]
    jobs: usize,
    /// Daemons at once, each with a batch of apps
    #[arg(long, default_value_t = 2)]
    daemons: usize,
}

/// A way of going through capture and restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Column {
    /// `torpor checkpoint` and `torpor restore`
    Plain,
    /// As an app that goes warm, with its open files parked
    Parked,
    /// As an app that goes warm before a power cut: only its image and its files are left
    Lost,
    /// CRIU on this kernel
    Criu,
}

impl Column {
    const ALL: [Self; 4] = [Self::Plain, Self::Parked, Self::Lost, Self::Criu];

    /// Its heading.
    const fn heading(self) -> &'static str {
        match self {
            Self::Plain => "plain process",
            Self::Parked => "app, warm",
            Self::Lost => "app, power cut",
            Self::Criu => "CRIU",
        }
    }
}

impl std::fmt::Display for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_possible_value().map_or(Err(std::fmt::Error), |value| f.write_str(value.get_name()))
    }
}

pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let chosen = choose(&options.programs)?;
    let mut results = Results::load()?;
    if options.table {
        return results.write_document(&programs());
    }
    let _pools = pools(&chosen)?;
    for column in Column::ALL.into_iter().filter(|column| options.columns.contains(column)) {
        let mut with = String::new();
        let cells = match column {
            Column::Plain => engine(column, &chosen, &Torpor { program: release_binary()? }, options)?,
            Column::Parked => apps::cells(column, &chosen, Between::Nothing, options.daemons)?,
            Column::Lost => apps::cells(column, &chosen, Between::PowerCut, options.daemons)?,
            Column::Criu => {
                let program = criu_binary()?;
                with = version(&program)?;
                engine(column, &chosen, &Criu { program }, options)?
            }
        };
        println!("{}: {}", column.heading(), results::summary(&cells));
        if options.programs.is_empty() && !options.leave_running {
            results.columns.insert(column, Measured { kernel: kernel()?, with, commit: machine::commit()?, cells });
            results.save()?;
        }
    }
    if options.programs.is_empty() && !options.leave_running { results.write_document(&chosen) } else { Ok(()) }
}

fn kernel() -> Result<String, Error> {
    let path = "/proc/sys/kernel/osrelease";
    Ok(std::fs::read_to_string(path).map_err(Error::file("read", path))?.trim().to_owned())
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

/// Every program as a plain process.
fn engine(
    column: Column,
    programs: &[Program],
    engine: &(dyn Engine + Sync),
    options: &Options,
) -> Result<Cells, Error> {
    let mode = if options.leave_running { Mode::LeftRunning } else { Mode::Restored };
    beside(programs, options.jobs, |program| {
        let verdict = captured(program, engine, mode)?;
        println!("{:<32}{:<8}{verdict}", program.name, column.to_string());
        Ok(vec![(program.name.to_owned(), cell(&verdict))])
    })
}

/// `work` on every one of `items`, `jobs` at a time.
fn beside<T: Sync>(
    items: &[T],
    jobs: usize,
    work: impl Fn(&T) -> Result<Vec<(String, String)>, Error> + Sync,
) -> Result<Cells, Error> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Cells::new());
    let one = || -> Result<(), Error> {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            let cells = work(item)?;
            done.lock().expect("a panic elsewhere ends all").extend(cells);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(one)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    Ok(done.into_inner().expect("no worker has panicked"))
}
