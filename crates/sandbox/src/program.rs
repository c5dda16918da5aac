//! Becoming a program: search in `PATH`, `execve`, and saying exactly why it did not work.

use std::ffi::CString;
use std::io;

use torpor_linux::spawn::{close_on_exec_from, execve, reset_signals};

use crate::error::{Doing, SetupError};

fn c_string(word: &str) -> Result<CString, SetupError> {
    CString::new(word).map_err(|_| SetupError::System { doing: format!("passing `{word:?}`"), errno: libc::EINVAL })
}

fn c_strings(words: &[String]) -> Result<Vec<CString>, SetupError> {
    words.iter().map(|word| c_string(word)).collect()
}

/// Becomes `command` with `environment`, with default signals and no descriptor beyond 2. Returns only the error.
pub(crate) fn become_program(command: &[String], environment: &[String]) -> SetupError {
    let attempt = || -> Result<SetupError, SetupError> {
        close_on_exec_from(3).doing(|| "closing descriptors".to_owned())?;
        reset_signals(false).doing(|| "resetting signals".to_owned())?;
        let (arguments, words) = (c_strings(command)?, c_strings(environment)?);
        let program = command.first().map(String::as_str).unwrap_or_default();
        if program.contains('/') {
            let error = execve(&c_string(program)?, &arguments, &words);
            return Ok(failure(program, program, &error, None));
        }
        let path = environment.iter().find_map(|word| word.strip_prefix("PATH=")).unwrap_or_default();
        let mut refused = None;
        for directory in path.split(':') {
            let candidate = format!("{}/{program}", if directory.is_empty() { "." } else { directory });
            let error = execve(&c_string(&candidate)?, &arguments, &words);
            let failure = failure(program, &candidate, &error, Some(path));
            if !matches!(failure, SetupError::ProgramNotFound { .. }) {
                // As execvp does: a file that may not be executed is passed over, but remembered.
                refused.get_or_insert(failure);
            }
        }
        let nowhere = SetupError::ProgramNotFound { program: program.to_owned(), searched: Some(path.to_owned()) };
        Ok(refused.unwrap_or(nowhere))
    };
    attempt().unwrap_or_else(|error| error)
}

fn failure(program: &str, path: &str, error: &io::Error, searched: Option<&str>) -> SetupError {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    match errno {
        // The kernel answers ENOENT for a missing interpreter, too.
        libc::ENOENT if rustix::fs::stat(path).is_ok() => SetupError::NoInterpreter { program: path.to_owned() },
        libc::ENOENT | libc::ENOTDIR => {
            SetupError::ProgramNotFound { program: program.to_owned(), searched: searched.map(str::to_owned) }
        }
        _ => SetupError::NotExecutable { program: path.to_owned(), errno },
    }
}
