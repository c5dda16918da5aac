//! `torpor exec`: a command in a sandbox, with pipes or a terminal to whoever asked.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{mpsc, oneshot};
use torpor_api::error::{ApiError, ErrorKind, chain};
use torpor_api::worker::{AppRecord, ExecRequest, ExecSession};
use torpor_sandbox::{ExecChild, ExecIo, Program, Sandbox, resize_terminal};

use crate::shared::Shared;

/// Changes of the terminal's size that may wait.
const RESIZES: usize = 8;

type Ended = Box<dyn FnOnce() + Send>;

/// Runs a command in an awake sandbox. `ended` is called once it has ended, if this succeeds.
pub(crate) async fn run(
    shared: Arc<Shared>,
    record: Arc<AppRecord>,
    sandbox: Arc<Sandbox>,
    request: ExecRequest,
    ended: Ended,
) -> Result<ExecSession, ApiError> {
    let name = record.spec.name.clone();
    let started = tokio::task::spawn_blocking(move || start(&shared, &record, &sandbox, request)).await;
    let started = started.map_err(|error| ApiError::internal(&error))?;
    let Started { child, ends } = started.map_err(|error| error.with_hint(format!("in {name}")))?;
    session(child, ends, ended).map_err(|error| ApiError::internal(&error))
}

/// Our ends.
enum Ends {
    Pipes { input: OwnedFd, output: OwnedFd, errors: OwnedFd },
    Terminal(OwnedFd),
}

struct Started {
    child: ExecChild,
    ends: Ends,
}

fn start(shared: &Shared, record: &AppRecord, sandbox: &Sandbox, request: ExecRequest) -> Result<Started, ApiError> {
    let internal = |error: io::Error| ApiError::internal(&error);
    let invalid = |error: &dyn std::error::Error| ApiError::new(ErrorKind::Invalid, error.to_string());
    let user_name = request.user.as_deref().or(record.spec.user.as_deref());
    let user_name = user_name.or(record.resolved.defaults.user.as_deref()).unwrap_or_default();
    let user = shared.find_user(&record.resolved.layers, user_name).map_err(|error| invalid(&error))?;
    let mut env = record.resolved.defaults.env.clone();
    let added = record.spec.env.iter().chain(&request.env);
    env.extend(added.map(|(name, value)| format!("{name}={value}")));
    let workdir = request.workdir.clone().map(Into::into).or_else(|| record.spec.workdir.clone());
    let workdir = workdir.or_else(|| record.resolved.defaults.workdir.as_ref().map(Into::into));
    let program = Program {
        command: request.command,
        env,
        user,
        cwd: workdir.filter(|path| !path.as_os_str().is_empty()).unwrap_or_else(|| "/".into()),
    };
    let fails = |error: torpor_sandbox::SandboxError| {
        let exit_status = error.exit_status();
        ApiError { exit_status, ..ApiError::new(ErrorKind::Invalid, chain(&error)) }
    };
    if let Some((columns, rows)) = request.terminal {
        let io = ExecIo::Terminal(columns, rows);
        let mut child = torpor_sandbox::exec(&shared.launcher, sandbox, &program, io).map_err(fails)?;
        let terminal = child.take_terminal().ok_or_else(|| internal(io::ErrorKind::NotFound.into()))?;
        return Ok(Started { child, ends: Ends::Terminal(terminal) });
    }
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| internal(error.into()));
    let ((in_read, input), (output, out_write), (errors, err_write)) = (pipe()?, pipe()?, pipe()?);
    let io = ExecIo::Files([in_read, out_write, err_write]);
    let child = torpor_sandbox::exec(&shared.launcher, sandbox, &program, io).map_err(fails)?;
    Ok(Started { child, ends: Ends::Pipes { input, output, errors } })
}

fn session(child: ExecChild, ends: Ends, ended: Ended) -> io::Result<ExecSession> {
    let (tell, status) = oneshot::channel();
    let (resize, resizes) = mpsc::channel(RESIZES);
    // A process's end is waited for on a thread: it may be days away, but sessions are few.
    let waiting = std::thread::Builder::new().name("exec-wait".to_owned());
    waiting.spawn({
        let runtime = tokio::runtime::Handle::current();
        move || {
            let _in_runtime = runtime.enter();
            let ended_with = child.wait();
            ended();
            match ended_with {
                // Whoever asked may have gone.
                Ok(status) => drop(tell.send(status.shell())),
                Err(error) => tracing::warn!(error = %chain(&error), "waiting for an exec session"),
            }
        }
    })?;
    match ends {
        Ends::Pipes { input, output, errors } => Ok(ExecSession {
            input: Box::pin(sender(input)?),
            output: Box::pin(receiver(output)?),
            errors: Box::pin(receiver(errors)?),
            status,
            resize,
        }),
        Ends::Terminal(terminal) => {
            let reading = Master::new(terminal.try_clone()?)?;
            follow_size(terminal.try_clone()?, resizes);
            Ok(ExecSession {
                input: Box::pin(Master::new(terminal)?),
                output: Box::pin(reading),
                errors: Box::pin(tokio::io::empty()),
                status,
                resize,
            })
        }
    }
}

/// Our side of a terminal. It closes when it is dropped, with no read under way that would keep it open: so whoever still has
/// the other side is hung up when the client has gone.
struct Master(AsyncFd<OwnedFd>);

impl Master {
    fn new(terminal: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&terminal, true)?;
        torpor_linux::readable::register_both(terminal).map(Self)
    }
}

impl AsyncRead for Master {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(context))?;
            let read = ready.try_io(|terminal| Ok(rustix::io::read(terminal, into.initialize_unfilled())?));
            match read {
                Ok(Ok(bytes)) => {
                    into.advance(bytes);
                    return Poll::Ready(Ok(()));
                }
                // Nobody has the other side open any more.
                Ok(Err(error)) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => return Poll::Ready(Ok(())),
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for Master {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.0.poll_write_ready(context))?;
            if let Ok(written) = ready.try_io(|terminal| Ok(rustix::io::write(terminal, bytes)?)) {
                return Poll::Ready(written);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn sender(pipe: OwnedFd) -> io::Result<tokio::net::unix::pipe::Sender> {
    rustix::io::ioctl_fionbio(&pipe, true)?;
    tokio::net::unix::pipe::Sender::from_owned_fd(pipe)
}

fn receiver(pipe: OwnedFd) -> io::Result<tokio::net::unix::pipe::Receiver> {
    rustix::io::ioctl_fionbio(&pipe, true)?;
    tokio::net::unix::pipe::Receiver::from_owned_fd(pipe)
}

fn follow_size(terminal: OwnedFd, mut resizes: mpsc::Receiver<(u16, u16)>) {
    tokio::spawn(async move {
        while let Some((columns, rows)) = resizes.recv().await {
            if let Err(error) = resize_terminal(terminal.as_fd(), columns, rows) {
                tracing::debug!(error = %chain(&error), "resizing a terminal");
                return;
            }
        }
    });
}
