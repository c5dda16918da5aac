//! Words that Torpor itself calls this program with; no user does. They run before any thread and before the arguments
//! are read as a user's.

use std::process::ExitCode;

use torpor_engine::restored::{GUARD_COMMAND, PAGER_COMMAND, RestoredError, guard_main, pager_main};

use crate::commands;

/// Runs what the first argument names, if it is one of these words.
pub(crate) fn dispatch() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    match args.next()?.to_str()? {
        "keeper" => Some(match torpor_keeper::run(args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("torpor keeper: {}", torpor_api::error::chain(&error));
                ExitCode::FAILURE
            }
        }),
        GUARD_COMMAND => Some(ended(guard_main())),
        PAGER_COMMAND => {
            // It says so while the image cannot be read.
            tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::WARN).init();
            Some(ended(pager_main()))
        }
        commands::CLEF_HOST => Some(commands::clef_host_main()),
        commands::CLEF_CONTROL => Some(commands::clef_control_main()),
        torpor_sandbox::SETUP_COMMAND => torpor_sandbox::setup_main(),
        torpor_sandbox::EXEC_COMMAND => torpor_sandbox::exec_main(),
        _ => None,
    }
}

/// A process that brings memory of a restored tree has come to its end.
fn ended(result: Result<(), RestoredError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("torpor: {}", torpor_api::error::chain(&error));
            ExitCode::FAILURE
        }
    }
}
