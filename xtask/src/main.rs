//! Developer commands: `cargo xtask bench`, `cargo xtask conformance`, `cargo xtask fuzz`, `cargo xtask test`,
//! `cargo xtask tidy`.
#![forbid(unsafe_code)]

mod bench;
mod conformance;
mod error;
mod fuzz;
mod test;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Developer commands.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::Options),
    Conformance(conformance::Options),
    Fuzz(fuzz::Options),
    Test(test::Options),
    Tidy(tidy::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Bench(options) => bench::run(&options),
        Command::Conformance(options) => conformance::run(&options),
        Command::Fuzz(options) => fuzz::run(&options).map_err(error::Error::from),
        Command::Test(options) => test::run(&options),
        Command::Tidy(args) => return tidy::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {}", error::chain(&error));
            ExitCode::FAILURE
        }
    }
}
