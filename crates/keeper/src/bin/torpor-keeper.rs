//! The keeper by itself, as `torpor keeper` runs it; what this crate's tests start.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    match torpor_keeper::run(std::env::args_os().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("torpor-keeper: {error}");
            ExitCode::FAILURE
        }
    }
}
