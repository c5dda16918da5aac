//! Words that Torpor itself calls this program with; no user does. They run before any thread and before the arguments
//! are read as a user's.

use std::process::ExitCode;

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
        torpor_sandbox::SETUP_COMMAND => torpor_sandbox::setup_main(),
        torpor_sandbox::EXEC_COMMAND => torpor_sandbox::exec_main(),
        _ => None,
    }
}
