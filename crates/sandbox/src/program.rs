//! Becoming a program of the app: everything that happens once paths of the app are resolved.
//!
//! The app chooses where its working directory, its program and the program's interpreter lead: to `/proc/self/fd/N`, for
//! example. So all descriptors are closed first ([`become_program`]) but the program's own standard ones and the pipes to the
//! set-up process: what is only marked to be closed by `execve` is still open while `execve` looks for the program. The
//! working directory is resolved without such links all the same; the program's path is the kernel's to resolve, which finds
//! nothing of the machine's behind them.

use std::convert::Infallible;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use torpor_linux::spawn::{close_on_exec_from, execve, keep_only, reset_signals};

use crate::child::{exit, fail};
use crate::confine::{Confinement, confine};
use crate::error::{Doing, SetupError};
use crate::inside::{is_null_device, open_inside, take_stdio};
use crate::spec::Program;
use crate::terminal::NewTerminal;

const NULL: &str = "/dev/null";

/// A program and how it is confined.
pub(crate) struct Becoming {
    pub(crate) program: Program,
    /// Its whole environment.
    pub(crate) environment: Vec<String>,
    pub(crate) confinement: Confinement,
}

/// Where the program reads and writes.
pub(crate) enum Stdio {
    /// Standard input, output and error.
    Files([OwnedFd; 3]),
    /// Made in the sandbox, by the process itself.
    Terminal(NewTerminal),
}

/// What stays open until the process is the program.
pub(crate) struct Open {
    pub(crate) stdio: Stdio,
    /// How it fares; closed by `execve`.
    pub(crate) report: OwnedFd,
    /// The initial process waits here before it starts.
    pub(crate) gate: Option<Gate>,
}

/// Pipes of a byte each.
pub(crate) struct Gate {
    /// Says that the process is ready.
    pub(crate) ready: OwnedFd,
    /// Lets it go.
    pub(crate) go: OwnedFd,
}

impl Open {
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let stdio: Vec<BorrowedFd<'_>> = match &self.stdio {
            Stdio::Files(files) => files.iter().map(AsFd::as_fd).collect(),
            Stdio::Terminal(terminal) => vec![terminal.channel.as_fd()],
        };
        let gate = self.gate.iter().flat_map(|gate| [gate.ready.as_fd(), gate.go.as_fd()]);
        stdio.into_iter().chain([self.report.as_fd()]).chain(gate).collect()
    }
}

/// Goes from a process in the app's namespaces and cgroups to its program, or says why it does not.
pub(crate) fn become_program(becoming: Becoming, open: Open) -> ! {
    keep_only(open, Open::descriptors, move |open, closed| {
        let Open { stdio, report, gate } = open;
        let prepared = closed
            .doing(|| "closing descriptors".to_owned())
            .and_then(|()| prepare(&becoming, stdio))
            .and_then(|()| gate.map_or(Ok(()), Gate::pass));
        let error = match prepared {
            Ok(()) => execute(&becoming.program.command, &becoming.environment, becoming.confinement.seccomp),
            Err(error) => error,
        };
        never(report, &error)
    })
}

fn never(report: OwnedFd, error: &SetupError) -> Infallible {
    fail(report, error)
}

fn prepare(becoming: &Becoming, stdio: Stdio) -> Result<(), SetupError> {
    rustix::process::setsid().doing(|| "making a session".to_owned())?;
    match stdio {
        Stdio::Files([input, output, errors]) => {
            take_stdio(&[own_null(input)?, own_null(output)?, own_null(errors)?])?;
        }
        Stdio::Terminal(terminal) => terminal.take()?,
    }
    enter_directory(&becoming.program.cwd)?;
    confine(&becoming.confinement, &becoming.program.user)
}

impl Gate {
    fn pass(self) -> Result<(), SetupError> {
        rustix::io::write(&self.ready, b"!").doing(|| "reporting".to_owned())?;
        let mut word = [0];
        match rustix::io::read(&self.go, &mut word).doing(|| "waiting to start".to_owned())? {
            // Nobody is left to say so.
            0 => exit(1),
            _ => Ok(()),
        }
    }
}

/// The app's null device in the place of the machine's, whose owner and mode root inside could change without a user
/// namespace; any other file as it is.
fn own_null(file: OwnedFd) -> Result<OwnedFd, SetupError> {
    let examining = || "examining standard input and output".to_owned();
    if !is_null_device(&file).doing(examining)? {
        return Ok(file);
    }
    let flags = rustix::fs::fcntl_getfl(&file).doing(examining)? & (OFlags::RWMODE | OFlags::APPEND | OFlags::NONBLOCK);
    let opening = || format!("opening {NULL}");
    // What the app has put there instead may be a FIFO.
    let own = open_inside(Path::new(NULL), flags | OFlags::NONBLOCK | OFlags::NOCTTY).doing(opening)?;
    if !is_null_device(&own).doing(opening)? {
        return Err(SetupError::Target { path: NULL.to_owned(), found: "not the null device".to_owned() });
    }
    rustix::fs::fcntl_setfl(&own, flags).doing(opening)?;
    Ok(own)
}

/// Makes a directory of the app's the working directory.
fn enter_directory(path: &Path) -> Result<(), SetupError> {
    let failed =
        |errno: Errno| SetupError::WorkingDirectory { path: path.display().to_string(), errno: errno.raw_os_error() };
    let leads = || SetupError::WorkingDirectoryLeads { path: path.display().to_string() };
    let directory = open_inside(path, OFlags::PATH | OFlags::DIRECTORY).map_err(|errno| match errno {
        Errno::LOOP => leads(),
        errno => failed(errno),
    })?;
    rustix::process::fchdir(&directory).map_err(failed)?;
    // The kernel itself, whose answer begins with `(unreachable)` for what is not below the root; libc would hide that.
    let place = rustix::process::getcwd(Vec::new()).map_err(failed)?;
    if place.to_bytes().starts_with(b"/") { Ok(()) } else { Err(leads()) }
}

fn c_string(word: &str) -> Result<CString, SetupError> {
    CString::new(word).map_err(|_| SetupError::System { doing: format!("passing `{word:?}`"), errno: libc::EINVAL })
}

fn c_strings(words: &[String]) -> Result<Vec<CString>, SetupError> {
    words.iter().map(|word| c_string(word)).collect()
}

/// Becomes `command` with `environment`, with default signals and no descriptor beyond 2. Returns only the error.
fn execute(command: &[String], environment: &[String], filtered: bool) -> SetupError {
    let attempt = || -> Result<SetupError, SetupError> {
        close_on_exec_from(3).doing(|| "closing descriptors".to_owned())?;
        reset_signals(false).doing(|| "resetting signals".to_owned())?;
        let (arguments, words) = (c_strings(command)?, c_strings(environment)?);
        let program = command.first().map(String::as_str).unwrap_or_default();
        let refused = |path: &str| filtered && is_32_bit(path);
        if program.contains('/') {
            if refused(program) {
                return Ok(SetupError::Program32 { program: program.to_owned() });
            }
            let error = execve(&c_string(program)?, &arguments, &words);
            return Ok(failure(program, program, &error, None));
        }
        let path = environment.iter().find_map(|word| word.strip_prefix("PATH=")).unwrap_or_default();
        let mut passed_over = None;
        for directory in path.split(':') {
            let candidate = format!("{}/{program}", if directory.is_empty() { "." } else { directory });
            if refused(&candidate) {
                passed_over.get_or_insert(SetupError::Program32 { program: candidate });
                continue;
            }
            let error = execve(&c_string(&candidate)?, &arguments, &words);
            let failure = failure(program, &candidate, &error, Some(path));
            if !matches!(failure, SetupError::ProgramNotFound { .. }) {
                // As execvp does: a file that may not be executed is passed over, but remembered.
                passed_over.get_or_insert(failure);
            }
        }
        let nowhere = SetupError::ProgramNotFound { program: program.to_owned(), searched: Some(path.to_owned()) };
        Ok(passed_over.unwrap_or(nowhere))
    };
    attempt().unwrap_or_else(|error| error)
}

/// Whether it is an ELF file for 32 bits, all of whose system calls the filter refuses: it would end by a signal without a word.
fn is_32_bit(path: &str) -> bool {
    const BEGINNING: [u8; 5] = *b"\x7fELF\x01";
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else { return false };
    let mut found = [0; BEGINNING.len()];
    rustix::io::read(&file, &mut found).is_ok() && found == BEGINNING
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
