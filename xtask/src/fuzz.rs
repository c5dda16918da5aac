//! `cargo xtask fuzz`: searches with coverage for bytes that a target cannot read.
//!
//! The instrumentation is LLVM's, which stable Rust can be told to put in; the fuzzer is libFuzzer, built from `libfuzzer-sys`. What it
//! keeps lies in `target/fuzz/corpus`, findings in `target/fuzz/findings`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;

/// Search for bytes that a target cannot read: panics, time-outs, memory
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The target; without it each in turn
    target: Option<String>,
    /// How long, for each target: 30s, 10m, 8h
    #[arg(long = "for", default_value = "1m", value_parser = duration)]
    time: Duration,
}

/// Why fuzzing ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FuzzError {
    /// A program cannot be run.
    #[error("cannot run {0}")]
    Run(&'static str, #[source] std::io::Error),
    /// A directory cannot be read or made.
    #[error("cannot use {}", .0.display())]
    Directory(PathBuf, #[source] std::io::Error),
    /// The fuzzer does not build.
    #[error("the fuzzer does not build")]
    Build,
    /// There is no such target.
    #[error("there is no target {0}; see crates/fuzz/src/lib.rs")]
    Target(String),
    /// Something was found.
    #[error("{target}: a finding is in {}; mend it, and put the file into crates/fuzz/corpus/{target}", place.display())]
    Finding { target: String, place: PathBuf },
}

/// Coverage of our own crates as libFuzzer reads it, on every edge, and comparisons.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Clink-dead-code";
/// Bytes of the longest input.
const LONGEST: u32 = 32 << 10;
/// Seconds for one input.
const PATIENCE: u32 = 10;

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let seconds = match unit {
        "s" | "" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err("a time is 30s, 10m or 8h".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "a time is 30s, 10m or 8h".to_owned())?;
    Ok(Duration::from_secs(number.saturating_mul(seconds)))
}

fn names(path: &Path) -> Result<Vec<String>, FuzzError> {
    let wrong = |error| FuzzError::Directory(path.to_owned(), error);
    let entries = fs::read_dir(path).map_err(wrong)?.collect::<std::io::Result<Vec<_>>>().map_err(wrong)?;
    let mut names: Vec<String> = entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

pub(crate) fn run(options: &Options) -> Result<(), FuzzError> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let corpora = root.join("crates/fuzz/corpus");
    let all = names(&corpora)?;
    let targets = match &options.target {
        None => all,
        Some(target) if all.contains(target) => vec![target.clone()],
        Some(target) => return Err(FuzzError::Target(target.clone())),
    };
    let place = root.join("target/fuzz");
    // With a target named, build scripts and macros are not instrumented; by the wrapper, neither are the crates of others.
    let host = "x86_64-unknown-linux-gnu";
    let built = Command::new("cargo")
        .args(["build", "--package", "torpor-fuzz", "--features", "libfuzzer", "--target", host, "--target-dir"])
        .arg(&place)
        .env("RUSTC_WORKSPACE_WRAPPER", root.join("scripts/instrument.sh"))
        .env("TORPOR_FUZZ_FLAGS", FLAGS)
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        .current_dir(root)
        .status()
        .map_err(|error| FuzzError::Run("cargo", error))?;
    if !built.success() {
        return Err(FuzzError::Build);
    }
    for target in targets {
        let (grown, findings) = (place.join("corpus").join(&target), place.join("findings").join(&target));
        for directory in [&grown, &findings] {
            fs::create_dir_all(directory).map_err(|error| FuzzError::Directory(directory.clone(), error))?;
        }
        let status = Command::new(place.join(host).join("debug/torpor-fuzz"))
            .arg(&grown)
            .arg(corpora.join(&target))
            .arg(format!("-max_total_time={}", options.time.as_secs()))
            .arg(format!("-max_len={LONGEST}"))
            .arg(format!("-timeout={PATIENCE}"))
            .arg(format!("-artifact_prefix={}/", findings.display()))
            .args(["-print_final_stats=1", "-verbosity=0"])
            .env("TORPOR_FUZZ_TARGET", &target)
            .status()
            .map_err(|error| FuzzError::Run("the fuzzer", error))?;
        if !status.success() {
            return Err(FuzzError::Finding { target, place: findings });
        }
        println!("{target}: nothing found; {} inputs kept", names(&grown)?.len());
    }
    Ok(())
}
