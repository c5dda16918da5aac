//! `torpor exec`: a command in a sandbox, with pipes or a terminal to whoever asked.
//!
//! ```text
//! asked ─▶ awake ─▶ the command runs ─▶ it has ended: its status
//!   │ the time-out   │ the time-out: SIGTERM to its session ─▶ GRACE: SIGKILL ─▶ reaped
//!   ▼                └─────────────────────────────────────────────▶ `Timeout`, at the latest KILLED_WITHIN after the SIGKILL
//! `Timeout`; the wake goes on
//! ```
//! A process of the command that has made a session of its own (a daemon) is not in reach of the time-out. The session counts for the
//! app, which does not sleep meanwhile, until the command has been reaped.
//!
//! When the client leaves, the command is hung up: by the kernel if it has a terminal, otherwise by SIGHUP and SIGCONT to its session.
//! A command that ignores SIGHUP goes on.
//!
//! Each step owns what the steps before it have made: [`Granted`], the session at the app's task, and [`ExecChild`], the process.
//! Dropping them ends the session and kills and reaps the process. So the request's future can be dropped at any time, and is when
//! its client leaves: a start that is under way on its thread is given up then, and what it still makes is dropped.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{mpsc, oneshot};
use torpor_api::error::{ApiError, ErrorKind, chain};
use torpor_api::units::Span;
use torpor_api::worker::{AppRecord, ExecRequest, ExecSession};
use torpor_sandbox::{
    Before, EXEC_DEADLINE, ExecChild, ExecIo, Patience, Program, Sandbox, SandboxError, exec_within, resize_terminal,
};

use crate::app::{AppHandle, Order};
use crate::shared::Shared;

/// Changes of the terminal's size that may wait.
const RESIZES: usize = 8;
/// Between SIGTERM and SIGKILL at a command's time-out; the documents name it.
const GRACE: Duration = Duration::from_secs(2);
/// How long the end of killed processes is waited for before whoever asked is answered.
const KILLED_WITHIN: Duration = Duration::from_secs(1);
/// Between two looks at what is left of a killed session.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const SIGHUP: i32 = 1;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGCONT: i32 = 18;

/// A session that the app's task has granted: it keeps the app awake until this is dropped.
#[derive(Debug)]
pub(crate) struct Granted {
    orders: mpsc::Sender<Order>,
    runtime: tokio::runtime::Handle,
}

impl Granted {
    /// To be called once for each session that was granted, on a thread of the runtime.
    pub(crate) fn by(app: &AppHandle) -> Self {
        Self { orders: app.orders.clone(), runtime: tokio::runtime::Handle::current() }
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        // Where nobody takes orders any more, the worker is shutting down.
        if let Err(mpsc::error::TrySendError::Full(order)) = self.orders.try_send(Order::ExecEnded) {
            let orders = self.orders.clone();
            self.runtime.spawn(async move { orders.send(order).await });
        }
    }
}

/// When a command is ended, and what is said then.
#[derive(Clone, Debug)]
pub(crate) struct TimeOut {
    pub(crate) at: Instant,
    /// Of which app, and how long it might have taken.
    pub(crate) app: String,
    pub(crate) within: Span,
}

impl TimeOut {
    fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// The answer to whoever asked; `what` has happened.
    pub(crate) fn error(&self, what: &str) -> ApiError {
        let Self { app, within, .. } = self;
        ApiError::new(ErrorKind::Timeout, format!("{app}: {what} within {within}"))
    }
}

/// Starts a command in an awake sandbox. Where the future is dropped before, the start is given up.
pub(crate) async fn run(
    shared: Arc<Shared>,
    record: Arc<AppRecord>,
    sandbox: Arc<Sandbox>,
    request: ExecRequest,
    time_out: Option<TimeOut>,
    granted: Granted,
) -> Result<ExecSession, ApiError> {
    let name = record.spec.name.clone();
    // Hung up when `wanted` is dropped.
    let (given_up, wanted) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|error| ApiError::internal(&io::Error::from(error)))?;
    let threads = shared.requests.handle().clone();
    let starting = threads.spawn_blocking(move || {
        let within = time_out.as_ref().map_or(EXEC_DEADLINE, |time_out| time_out.left().min(EXEC_DEADLINE));
        let patience = Patience { within, given_up: Some(given_up.as_fd()) };
        let started = start(&shared, &record, &sandbox, request, patience);
        let (child, ends) = started.map_err(|error| match &time_out {
            Some(time_out) if time_out.left().is_zero() => {
                time_out.error("the command had not begun").with_hint(error.message)
            }
            _ => error.with_hint(format!("in {name}")),
        })?;
        Ok((Command { child, sandbox, time_out, granted, left: None }, ends))
    });
    let started = starting.await.map_err(|error| ApiError::internal(&error))?;
    drop(wanted);
    let (command, ends) = started?;
    session(command, ends).map_err(|error| ApiError::internal(&error))
}

/// A command that runs. What is dropped first stands first.
struct Command {
    child: ExecChild,
    sandbox: Arc<Sandbox>,
    time_out: Option<TimeOut>,
    #[expect(dead_code, reason = "its drop ends the session")]
    granted: Granted,
    /// Hung up when the client leaves a command that has no terminal.
    left: Option<OwnedFd>,
}

impl Command {
    /// Waits for its end: its status, or why it was ended. Where it does not end even then, `held_up` is told before.
    fn wait(&self, held_up: impl FnOnce(ApiError)) -> Result<Result<i32, ApiError>, SandboxError> {
        let in_time = self.ends_in_time()?;
        let late = self.time_out.as_ref().filter(|_| !in_time);
        let ended = late.map(|time_out| self.end(time_out)).transpose()?;
        if let Some(error) = &ended
            && !self.child.ends_within(Duration::ZERO)?
        {
            held_up(error.clone());
        }
        let status = self.child.wait()?;
        Ok(ended.map_or(Ok(status.shell()), Err))
    }

    /// Waits for its end: false at its time-out. When the client leaves, its session is hung up.
    fn ends_in_time(&self) -> Result<bool, SandboxError> {
        let mut left = self.left.as_ref();
        loop {
            let within = self.time_out.as_ref().map(TimeOut::left);
            match self.child.ends_before(left.map(OwnedFd::as_fd), within)? {
                Before::Ended => return Ok(true),
                Before::TimeOut => return Ok(false),
                Before::Other => {
                    left = None;
                    for signal in [SIGHUP, SIGCONT] {
                        self.child.signal_session(self.sandbox.cgroup(), signal)?;
                    }
                }
            }
        }
    }

    /// Ends its session at its time-out.
    fn end(&self, time_out: &TimeOut) -> Result<ApiError, SandboxError> {
        let cgroup = self.sandbox.cgroup();
        self.child.signal_session(cgroup, SIGTERM)?;
        let obeyed = self.child.ends_within(GRACE)?;
        // Also those that outlive it. One that was made meanwhile is found by the next look.
        let kill_until = Instant::now() + KILLED_WITHIN;
        while self.child.signal_session(cgroup, SIGKILL)? > 0 && Instant::now() < kill_until {
            std::thread::sleep(LOOK_AGAIN);
        }
        let what = match (obeyed, self.child.ends_within(Duration::ZERO)?) {
            (true, _) => "the command had not ended, and was ended,",
            (false, true) => "the command had not ended, and was killed,",
            (false, false) => "the command had not ended; it was killed, and is held up in a call; it was to end",
        };
        Ok(time_out.error(what))
    }
}

/// Our ends.
enum Ends {
    Pipes { input: OwnedFd, output: OwnedFd, errors: OwnedFd },
    Terminal(OwnedFd),
}

fn start(
    shared: &Shared,
    record: &AppRecord,
    sandbox: &Sandbox,
    request: ExecRequest,
    patience: Patience<'_>,
) -> Result<(ExecChild, Ends), ApiError> {
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
    let fails = |error: SandboxError| {
        let exit_status = error.exit_status();
        let kind =
            if matches!(error, SandboxError::ExecSilent { .. }) { ErrorKind::Timeout } else { ErrorKind::Invalid };
        ApiError { exit_status, ..ApiError::new(kind, chain(&error)) }
    };
    if let Some((columns, rows)) = request.terminal {
        let io = ExecIo::Terminal(columns, rows);
        let mut child = exec_within(&shared.launcher, sandbox, &program, io, patience).map_err(fails)?;
        let terminal = child.take_terminal().ok_or_else(|| internal(io::ErrorKind::NotFound.into()))?;
        return Ok((child, Ends::Terminal(terminal)));
    }
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| internal(error.into()));
    let ((in_read, input), (output, out_write), (errors, err_write)) = (pipe()?, pipe()?, pipe()?);
    let io = ExecIo::Files([in_read, out_write, err_write]);
    let child = exec_within(&shared.launcher, sandbox, &program, io, patience).map_err(fails)?;
    Ok((child, Ends::Pipes { input, output, errors }))
}

fn session(mut command: Command, ends: Ends) -> io::Result<ExecSession> {
    let (tell, status) = match &ends {
        // The kernel hangs up a terminal.
        Ends::Terminal(_) => oneshot::channel(),
        Ends::Pipes { .. } => {
            let (left, here) = pipe_with(PipeFlags::CLOEXEC)?;
            command.left = Some(left);
            watched(here)
        }
    };
    let (resize, resizes) = mpsc::channel(RESIZES);
    let session = match ends {
        Ends::Pipes { input, output, errors } => ExecSession {
            input: Box::pin(sender(input)?),
            output: Box::pin(receiver(output)?),
            errors: Box::pin(receiver(errors)?),
            status,
            resize,
        },
        Ends::Terminal(terminal) => {
            let reading = Master::new(terminal.try_clone()?)?;
            follow_size(terminal.try_clone()?, resizes);
            ExecSession {
                input: Box::pin(Master::new(terminal)?),
                output: Box::pin(reading),
                errors: Box::pin(tokio::io::empty()),
                status,
                resize,
            }
        }
    };
    // A process's end is waited for on a thread: it may be days away, but sessions are few.
    std::thread::Builder::new().name("exec-wait".to_owned()).spawn(move || {
        let mut tell = Some(tell);
        let ended_with = command.wait(|error| drop(tell.take().map(|tell| tell.send(Err(error)))));
        // First the app's task: whoever asked may want it to sleep next.
        drop(command);
        match (ended_with, tell) {
            // Whoever asked may have gone.
            (Ok(status), Some(tell)) => drop(tell.send(status)),
            (Ok(_), None) => {}
            (Err(error), _) => tracing::warn!(error = %chain(&error), "waiting for an exec session"),
        }
    })?;
    Ok(session)
}

/// The exit status of a command, or why it was ended.
type Status = Result<i32, ApiError>;

/// A channel for a command's status; `here` is closed when nobody waits for it any more.
fn watched(here: OwnedFd) -> (oneshot::Sender<Status>, oneshot::Receiver<Status>) {
    let (tell, mut told) = oneshot::channel();
    let (mut pass_on, status) = oneshot::channel();
    tokio::spawn(async move {
        let told = tokio::select! {
            told = &mut told => told,
            () = pass_on.closed() => return drop(here),
        };
        if let Ok(status) = told {
            // Whoever asked may have gone.
            drop(pass_on.send(status));
        }
    });
    (tell, status)
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
