//! The keeper's process: arguments, detachment, start-up, end.
//!
//! ```text
//! starter ─ spawn ─▶ keeper --detach … ─ spawn ─▶ keeper …   (child of init once the first has ended)
//!    ▲                                               │ cgroup, lock, socket, limits
//!    └───────────── one byte, or a complaint ────────┘ over the pipe that is its standard output
//! ```
//!
//! The first process only makes a session and the second one, so that the keeper is nobody's child and nobody has to
//! reap it. A starter that dies meanwhile is not missed: the keeper's byte goes nowhere and the keeper stays.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{Error, UsageError};
use crate::limits::OWN_FDS;
use crate::place::{self, Place};
use crate::server::Server;

/// The byte that says "I listen".
pub(crate) const READY: u8 = b'R';

/// The argument that asks for detachment.
pub(crate) const DETACH: &str = "--detach";
/// What `ps` shows.
const NAME: &str = "torpor-keeper";

/// The arguments of `torpor keeper`, after those two words.
#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    socket: PathBuf,
    cgroup_procs: Vec<PathBuf>,
    log: Option<PathBuf>,
    detach: bool,
}

impl Arguments {
    fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, UsageError> {
        let mut parsed = Self::default();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let mut path = |name| args.next().map(PathBuf::from).ok_or(UsageError::Value(name));
            match arg.to_str() {
                Some("--socket") => parsed.socket = path("--socket")?,
                Some("--cgroup-procs") => parsed.cgroup_procs.push(path("--cgroup-procs")?),
                Some("--log") => parsed.log = Some(path("--log")?),
                Some(DETACH) => parsed.detach = true,
                _ => return Err(UsageError::Unknown(arg.to_string_lossy().into_owned())),
            }
        }
        if parsed.socket.as_os_str().is_empty() {
            return Err(UsageError::NoSocket);
        }
        Ok(parsed)
    }
}

/// Runs `torpor keeper` with the arguments after those two words: `--socket PATH`, `--cgroup-procs FILE` (any number:
/// files that its process id is written to), `--log FILE` (standard error), and `--detach` (what
/// [`crate::Client::connect_or_spawn`] uses: leaves the session, runs this process's own command line again without it,
/// and comes back at once).
///
/// Returns when a client has asked for the shutdown. The caller must then exit, which closes the parked descriptors. Standard output gets
/// one byte `R` once the keeper listens, or the error in words, and is `/dev/null` from then on.
///
/// # Errors
/// When the keeper cannot start ([`Error::Taken`] where another one serves the socket), or the kernel fails it.
pub fn run(args: impl IntoIterator<Item = OsString>) -> Result<(), Error> {
    let outcome = Arguments::parse(args)
        .map_err(Error::from)
        .and_then(|arguments| if arguments.detach { detach(&arguments) } else { serve(&arguments) });
    if let Err(error) = &outcome {
        complain(error);
    }
    outcome
}

/// Tells a waiting starter what went wrong. Nobody may be waiting: then there is nobody to tell.
fn complain(error: &Error) {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    let mut out = io::stdout();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        tracing::debug!(%error, "nobody waits for the keeper's start");
    }
}

fn detach(arguments: &Arguments) -> Result<(), Error> {
    rustix::process::setsid().map_err(|errno| Error::Kernel { step: "make a session", source: errno.into() })?;
    let stderr = match &arguments.log {
        None => Stdio::null(),
        Some(path) => OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            // Does not wait for a reader of a FIFO in its place.
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(path)
            .map_err(|source| Error::File { step: "open the log", path: path.clone(), source })?
            .into(),
    };
    Command::new("/proc/self/exe")
        .args(std::env::args_os().skip(1).filter(|arg| arg != DETACH))
        .stdin(Stdio::null())
        .stderr(stderr)
        .spawn()
        .map_err(|source| Error::Kernel { step: "start the detached keeper", source })?;
    Ok(())
}

fn serve(arguments: &Arguments) -> Result<(), Error> {
    let socket = std::path::absolute(&arguments.socket).map_err(|source| Error::File {
        step: "find",
        path: arguments.socket.clone(),
        source,
    })?;
    for file in &arguments.cgroup_procs {
        fs::write(file, std::process::id().to_string()).map_err(|source| Error::File {
            step: "move the keeper by",
            path: file.clone(),
            source,
        })?;
    }
    // It was executed as `/proc/self/exe`. Only what `ps` shows depends on it.
    let _ = fs::write("/proc/self/comm", NAME);
    rustix::process::umask(Mode::from_raw_mode(0o177));
    std::env::set_current_dir("/").map_err(|source| Error::File { step: "change to", path: "/".into(), source })?;
    let lock = place::lock(&socket)?;
    protect_from_oom();
    let fds_limit = raise_open_files()?;
    let place = Place::listen(socket, lock)?;
    // Never dropped: what it holds is closed by the end of this process, which waits for no lingering socket.
    let mut server = ManuallyDrop::new(Server::new(place, fds_limit)?);
    report_ready()?;
    let last = server.serve()?;
    server.place().remove()?;
    // Last of all: its closing tells the client that everything else is done.
    drop(OwnedFd::from(last));
    Ok(())
}

/// Asks the kernel to kill others first. Without `CAP_SYS_RESOURCE` it refuses; the keeper then lives as it is.
fn protect_from_oom() {
    if let Err(error) = fs::write("/proc/self/oom_score_adj", "-1000") {
        tracing::info!(%error, "the keeper's oom score stays as it was inherited");
    }
}

/// Raises the open-file limit as far as allowed; how many descriptors may be parked.
fn raise_open_files() -> Result<usize, Error> {
    let system = fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse::<u64>().ok());
    let now = getrlimit(Resource::Nofile);
    let highest = system.map(|limit| Rlimit { current: Some(limit), maximum: Some(limit) });
    let raised = highest.is_some_and(|limit| setrlimit(Resource::Nofile, limit).is_ok());
    if !raised {
        setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum })
            .map_err(|errno| Error::Kernel { step: "raise the open-file limit", source: errno.into() })?;
    }
    let open = getrlimit(Resource::Nofile).current.or(system).unwrap_or(u64::MAX);
    Ok(usize::try_from(open).unwrap_or(usize::MAX).saturating_sub(OWN_FDS))
}

fn report_ready() -> Result<(), Error> {
    match rustix::io::write(rustix::stdio::stdout(), &[READY]) {
        Ok(_) => {}
        // The starter died, or gave no output: the keeper is as useful to the next one.
        Err(errno) => tracing::debug!(%errno, "nobody waits for the keeper's start"),
    }
    let null = OpenOptions::new().read(true).write(true).open("/dev/null").map_err(|source| Error::File {
        step: "open",
        path: "/dev/null".into(),
        source,
    })?;
    rustix::stdio::dup2_stdout(null.as_fd())
        .map_err(|errno| Error::Kernel { step: "let go of standard output", source: errno.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Arguments, UsageError> {
        Arguments::parse(args.iter().map(OsString::from))
    }

    #[test]
    fn every_argument_is_read() {
        let parsed =
            parse(&["--detach", "--socket", "/s", "--cgroup-procs", "/a", "--cgroup-procs", "/b", "--log", "/l"]);
        let wanted = Arguments {
            socket: "/s".into(),
            cgroup_procs: vec!["/a".into(), "/b".into()],
            log: Some("/l".into()),
            detach: true,
        };
        assert_eq!(parsed, Ok(wanted));
    }

    #[test]
    fn wrong_arguments_are_named() {
        assert_eq!(parse(&[]), Err(UsageError::NoSocket));
        assert_eq!(parse(&["--socket"]), Err(UsageError::Value("--socket")));
        assert_eq!(parse(&["--sokcet", "/s"]), Err(UsageError::Unknown("--sokcet".into())));
    }
}
