//! The torpor command: the daemon, and everything a user asks of it.
//!
//! ```text
//!   main ─┬─ hidden words (keeper, …): straight to their crates, before any thread is started
//!         ├─ up: config ▶ worker ▶ hub ▶ serve                                   daemon
//!         └─ the rest: arguments ▶ client ▶ text or JSON on standard output      commands, output
//! ```
//! Results go to standard output, everything else to standard error. Exit codes are in [`failure`].
#![forbid(unsafe_code)]

mod cli;
mod commands;
mod config;
mod daemon;
mod failure;
mod hidden;
mod output;
mod progress;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = hidden::dispatch() {
        return code;
    }
    let code = match commands::run(cli::Cli::from_process()) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    };
    // Not by returning: a thread that waits for standard input must not hold up the end.
    std::process::exit(code);
}
