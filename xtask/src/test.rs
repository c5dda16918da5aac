//! `cargo xtask test`: every test program of the workspace, several at the same time.
//!
//! `cargo test` runs one program after the other. Most tests here wait (for an app to sleep, for a time-out), so several programs take
//! little longer than one, and leave time for clippy at a low priority. Each runs its own tests one by one. A test owns what it changes: its daemon has an instance and
//! addresses of its own, and whatever it changes of the machine is changed in namespaces of its own.
//!
//! Of a program that passes one line is shown, of one that fails all that it printed. The whole output is in `target/test.log`.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;
use torpor_testkit::servers::target_dir;

use crate::error::Error;
use crate::tidy;

/// Run all tests; needs root
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Run those too that are ignored by default because they take long
    #[arg(long)]
    all: bool,
    /// Test programs at the same time [default: one more than there are processors]
    #[arg(long)]
    jobs: Option<NonZeroUsize>,
    /// Run clippy meanwhile, at the lowest priority
    #[arg(long)]
    lint: bool,
    /// Only programs whose name contains this
    filter: Option<String>,
}

/// A program that takes longer is killed: no test waits without end, but one that does must not hold up the others.
const LONGEST: Duration = Duration::from_secs(30 * 60);
/// With tests that are ignored by default.
const LONGEST_OF_ALL: Duration = Duration::from_secs(4 * 60 * 60);
/// Shown of what a program printed that failed.
const LINES: usize = 300;

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    /// Package and source, as `hub tests/life.rs`.
    name: String,
    executable: PathBuf,
    directory: PathBuf,
}

/// What has come of a program.
struct Ended {
    output: String,
    status: Option<ExitStatus>,
    time: Duration,
}

#[derive(Debug, Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
    /// Programs that failed.
    programs: Vec<String>,
}

/// Builds all test programs and runs them.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let programs = build()?;
    let wanted = |program: &Program| options.filter.as_ref().is_none_or(|filter| program.name.contains(filter));
    let queue: VecDeque<Program> = programs.into_iter().filter(wanted).collect();
    let processors = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let jobs = options.jobs.unwrap_or(processors.saturating_add(1)).get();
    println!("{} test programs, {jobs} at the same time", queue.len());
    let path = target_dir().join("test.log");
    let log = File::create(&path).map_err(Error::file("make", &path))?;
    let (queue, results) = (Mutex::new(queue), Mutex::new((log, Counts::default(), Ok(()))));
    let lint = options.lint.then(|| std::thread::spawn(tidy::lint));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(program) = next(&queue) {
                    let ended = execute(&program, options.all);
                    let (log, counts, wrong) = &mut *locked(&results);
                    if let Err(error) = ended.and_then(|ended| tell(&program, &ended, log, counts)) {
                        counts.programs.push(program.name);
                        *wrong = Err(error);
                    }
                }
            });
        }
    });
    let (_, counts, wrong) = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    wrong?;
    println!("{} passed, {} failed, {} skipped; {}", counts.passed, counts.failed, counts.skipped, path.display());
    let lint = lint.map_or(Ok(()), |lint| lint.join().unwrap_or_else(|_| Err(Error::Lints("it panicked".to_owned()))));
    if !counts.programs.is_empty() {
        if let Err(error) = &lint {
            println!("{error}");
        }
        return Err(Error::Tests(counts.programs.join(", ")));
    }
    lint
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn next(queue: &Mutex<VecDeque<Program>>) -> Option<Program> {
    locked(queue).pop_front()
}

/// Builds the test programs of the workspace; those of large packages first, since they take longest.
fn build() -> Result<Vec<Program>, Error> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().map_err(Error::spawn("cargo"))?;
    if !output.status.success() {
        return Err(Error::Tests("the tests do not build".to_owned()));
    }
    let mut programs: Vec<Program> = String::from_utf8_lossy(&output.stdout).lines().filter_map(program).collect();
    let mut of_package: HashMap<PathBuf, usize> = HashMap::new();
    for program in &programs {
        *of_package.entry(program.directory.clone()).or_default() += 1;
    }
    programs.sort_by_cached_key(|program| (Reverse(of_package.get(&program.directory).copied()), program.name.clone()));
    Ok(programs)
}

/// The test program that a message of cargo names.
fn program(message: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let source = Path::new(message["target"]["src_path"].as_str()?);
    let source = source.strip_prefix(&directory).unwrap_or(source);
    let package = directory.file_name()?.to_str()?;
    Some(Program { name: format!("{package} {}", source.display()), executable, directory })
}

fn execute(program: &Program, all: bool) -> Result<Ended, Error> {
    let begun = Instant::now();
    let mut command = Command::new(&program.executable);
    command.args(["--test-threads=1", "--show-output"]).args(all.then_some("--include-ignored"));
    command.current_dir(&program.directory).env("CARGO_MANIFEST_DIR", &program.directory);
    let output = tempfile::tempfile().map_err(Error::file("make", std::env::temp_dir()))?;
    let again = || output.try_clone().map_err(Error::file("duplicate", &program.executable));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(again()?)
        .stderr(again()?)
        .spawn()
        .map_err(Error::spawn(program.name.as_str()))?;
    let longest = if all { LONGEST_OF_ALL } else { LONGEST };
    let failed = || Error::file("wait for", &program.executable);
    let in_time = ends_within(&child, longest).map_err(failed())?;
    if !in_time {
        child.kill().map_err(failed())?;
    }
    let status = child.wait().map_err(failed())?;
    let text = read(output).map_err(failed())?;
    Ok(Ended { output: text, status: in_time.then_some(status), time: begun.elapsed() })
}

fn ends_within(child: &Child, longest: Duration) -> io::Result<bool> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let deadline = Instant::now() + longest;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

fn read(mut output: File) -> io::Result<String> {
    let mut bytes = Vec::new();
    output.seek(SeekFrom::Start(0))?;
    output.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Writes a program's output to the log, counts its tests, and shows what users want to see of it.
fn tell(program: &Program, ended: &Ended, log: &mut File, counts: &mut Counts) -> Result<(), Error> {
    let Ended { output, status, time } = ended;
    let (name, seconds) = (&program.name, time.as_secs_f64());
    writeln!(log, "\n===== {name}\n{output}").map_err(Error::file("write", "test.log"))?;
    let result = output.lines().rev().find_map(|line| line.strip_prefix("test result: "));
    let count = |what: &str| result.map_or(0, |result| number_before(result, what));
    counts.passed += count(" passed");
    counts.failed += count(" failed");
    let skipped: Vec<&str> = output.lines().filter(|line| line.starts_with("SKIPPED")).collect();
    counts.skipped += skipped.len();
    skipped.iter().for_each(|line| println!("{line}"));
    if status.is_some_and(|status| status.success()) {
        println!("{name}: {} passed in {seconds:.1} s", count(" passed"));
        return Ok(());
    }
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].iter().for_each(|line| println!("{line}"));
    let why = status.map_or_else(|| "it did not end".to_owned(), |status| status.to_string());
    println!("{name}: FAILED ({why}) after {seconds:.1} s");
    counts.programs.push(name.clone());
    Ok(())
}

/// The number before ` passed`, as in `ok. 3 passed; 0 failed`.
fn number_before(result: &str, what: &str) -> usize {
    let before = result.split(what).next().unwrap_or_default();
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted() {
        let result = "ok. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.00s";
        assert_eq!((number_before(result, " passed"), number_before(result, " failed")), (12, 3));
    }

    #[test]
    fn only_test_programs_are_run() {
        let message = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/hub/Cargo.toml","profile":{"test":true},
            "target":{"src_path":"/w/crates/hub/tests/serve.rs"},"executable":"/w/target/debug/deps/serve-1"}"#;
        let found = program(message).unwrap();
        assert_eq!(
            (found.name.as_str(), found.directory.as_path()),
            ("hub tests/serve.rs", Path::new("/w/crates/hub"))
        );
        assert_eq!(program(&message.replace("\"test\":true", "\"test\":false")), None);
        assert_eq!(program("warning: unused"), None);
    }

    #[test]
    fn a_program_that_does_not_end_is_given_up() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(!ends_within(&child, Duration::from_millis(1)).unwrap());
        child.kill().unwrap();
        assert!(ends_within(&child, Duration::from_secs(60)).unwrap());
        child.wait().unwrap();
    }
}
