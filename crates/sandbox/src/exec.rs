//! Running a further program in a sandbox.
//!
//! A fresh copy of this program makes, in the app's cgroup and pid namespace, the process that becomes the program, as a
//! child of *its* parent, the worker; reports how that fares, and ends. The new process enters the other namespaces of init
//! (by pidfd, all at once), makes its terminal there, and gives up the same privileges as the initial one did. It is not
//! dumpable until it is the program: programs of the app run beside it and could otherwise look at the worker's code and
//! descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, WaitId, WaitIdOptions, getsid, waitid};
use rustix::termios::{Winsize, tcsetwinsize};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces};
use serde::{Deserialize, Serialize};
use torpor_linux::spawn::{ChildOf, Forked, fork, fork_into};

use crate::cgroup::Cgroup;
use crate::channel::{Channel, from_file, to_file};
use crate::confine::Confinement;
use crate::error::{Doing, SandboxError, SetupError, While};
use crate::first::{Entrances, become_root};
use crate::launcher::{EXEC_COMMAND, Launcher};
use crate::prepare::support_files;
use crate::process::{ExitStatus, first_readable, open, wait_for_end};
use crate::program::{Becoming, Open, Stdio, become_program};
use crate::sandbox::{Sandbox, deliver};
use crate::setup::{FromSetup, Report, begin_process, fail, give_stdio, open_group, outcome};
use crate::spec::Program;
use crate::starting::{Patience, Starting};
use crate::terminal::NewTerminal;

/// Where the program reads and writes.
#[derive(Debug)]
pub enum ExecIo {
    /// Standard input, output and error.
    Files([OwnedFd; 3]),
    /// A new terminal of the sandbox, of so many columns and rows; its session's controlling one.
    Terminal(u16, u16),
}

/// A program in a sandbox, a child of this process. Dropped before it has been waited for, it is killed and reaped.
#[derive(Debug)]
pub struct ExecChild {
    pid: i32,
    pidfd: OwnedFd,
    terminal: Option<OwnedFd>,
}

/// What [`ExecChild::ends_before`] has waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// The command has ended.
    Ended,
    /// The other descriptor is readable or hung up.
    Other,
    /// Neither in time.
    TimeOut,
}

/// The first message to the exec process.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    program: Program,
    hostname: String,
    confinement: Confinement,
    /// The user namespace's first id; none: there is no user namespace.
    base: Option<u32>,
    /// The sandbox has a time namespace.
    clocks: bool,
    /// What the exec process enters of the support group.
    support_files: Vec<PathBuf>,
    /// The app's group in v2.
    core: PathBuf,
    /// `tasks` of its groups in v1.
    tasks: Vec<PathBuf>,
    terminal: Option<(u16, u16)>,
}

/// Starts `program` in a sandbox that is awake; returns once it runs.
///
/// # Errors
/// As [`exec_within`].
pub fn exec(launcher: &Launcher, sandbox: &Sandbox, program: &Program, io: ExecIo) -> Result<ExecChild, SandboxError> {
    exec_within(launcher, sandbox, program, io, Patience::default())
}

/// The same, unless it is given up before.
///
/// # Errors
/// Why it does not run; nothing is left of it then. `ExecSilent`: it has not begun in its time. `ExecGivenUp`: nobody wants it.
pub fn exec_within(
    launcher: &Launcher,
    sandbox: &Sandbox,
    program: &Program,
    io: ExecIo,
    patience: Patience<'_>,
) -> Result<ExecChild, SandboxError> {
    let record = sandbox.record();
    program.check(record.ids.is_some())?;
    let (stdio, terminal) = match io {
        ExecIo::Files(stdio) => (Some(stdio), None),
        ExecIo::Terminal(columns, rows) => (None, Some((columns, rows))),
    };
    let order = Order {
        program: program.clone(),
        hostname: record.hostname.clone(),
        confinement: record.confinement.clone(),
        base: record.ids.map(|ids| ids.base),
        clocks: record.clocks.is_some(),
        support_files: support_files(launcher, &record.cgroup_parent)?,
        core: sandbox.cgroup().core().to_owned(),
        tasks: sandbox.cgroup().tasks_files(),
        terminal,
    };
    let file = to_file(&order).whilst(|| "writing the order to memory".to_owned())?;
    let starting = Starting::begin(&record.id, || launcher.spawn(EXEC_COMMAND))?;
    let mut files = vec![file.as_fd(), sandbox.pidfd()];
    files.extend(stdio.iter().flatten().map(AsFd::as_fd));
    // An exec process that has died is reported by the answer that does not come.
    let _dead = starting.channel().send(&(), &files);
    starting.finish(patience)
}

impl ExecChild {
    pub(crate) const fn new(pid: i32, pidfd: OwnedFd, terminal: Option<OwnedFd>) -> Self {
        Self { pid, pidfd, terminal }
    }

    /// Kills and reaps it; where it does not end in this time, a thread of its own reaps it when it does.
    pub(crate) fn end(self, within: Duration) {
        // What cannot be signalled has ended, and what cannot be waited for is left to the drop.
        let _ = self.signal(libc::SIGKILL).and_then(|()| self.ends_within(within));
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Readable once it has ended.
    pub fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// The worker's side of its terminal, if it has one; once.
    pub fn take_terminal(&mut self) -> Option<OwnedFd> {
        self.terminal.take()
    }

    /// Waits for its end. Once only: afterwards the process is forgotten.
    ///
    /// # Errors
    /// When it has been waited for before.
    pub fn wait(&self) -> Result<ExitStatus, SandboxError> {
        let doing = || format!("waiting for process {}", self.pid);
        loop {
            match waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED) {
                Ok(Some(status)) => return Ok(ExitStatus::from_waitid(&status)),
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).whilst(doing),
            }
        }
    }

    /// Whether it ends within so long; it must still be waited for.
    ///
    /// # Errors
    /// What `poll` says.
    pub fn ends_within(&self, within: Duration) -> Result<bool, SandboxError> {
        wait_for_end(&self.pidfd, Some(within)).whilst(|| format!("waiting for process {}", self.pid))
    }

    /// Waits for its end or until `other` is readable or hung up, at most so long; none waits without end. Ended, it must still be
    /// waited for.
    ///
    /// # Errors
    /// What `poll` says.
    pub fn ends_before(&self, other: Option<BorrowedFd<'_>>, within: Option<Duration>) -> Result<Before, SandboxError> {
        let fds: Vec<_> = [self.pidfd.as_fd()].into_iter().chain(other).collect();
        let first = first_readable(&fds, within).whilst(|| format!("waiting for process {}", self.pid))?;
        Ok(match first {
            Some(0) => Before::Ended,
            Some(_) => Before::Other,
            None => Before::TimeOut,
        })
    }

    /// Sends a signal to every process of `cgroup` that is in its session, itself among them; how many there are. Its own end does not
    /// end its session: call it before [`ExecChild::wait`], until then its number is no other session's.
    ///
    /// # Errors
    /// When the processes of the group cannot be listed, or one not be signalled.
    pub fn signal_session(&self, cgroup: &Cgroup, signal: i32) -> Result<usize, SandboxError> {
        let mut reached = 0;
        for pid in cgroup.processes()? {
            // First the descriptor: if it is still of the session afterwards, it is the process that was looked at.
            let Some(pidfd) = open(pid).whilst(|| format!("opening process {pid}"))? else { continue };
            let session = Pid::from_raw(pid).map(|pid| getsid(Some(pid)));
            if matches!(session, Some(Ok(session)) if session.as_raw_nonzero().get() == self.pid) {
                deliver(pidfd.as_fd(), signal, pid)?;
                reached += 1;
            }
        }
        Ok(reached)
    }

    /// Sends it a signal. Fine if it has ended.
    ///
    /// # Errors
    /// For a number that is no signal.
    pub fn signal(&self, signal: i32) -> Result<(), SandboxError> {
        deliver(self.pidfd.as_fd(), signal, self.pid)
    }
}

impl Drop for ExecChild {
    /// A command whose owner has gone is killed. It is reaped whatever happens: nobody else can, and its sandbox would not end.
    fn drop(&mut self) {
        let reap = |pidfd: &OwnedFd, options| waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | options);
        match self.signal(libc::SIGKILL).map(|()| reap(&self.pidfd, WaitIdOptions::NOHANG)) {
            // It has not ended yet.
            Ok(Ok(None)) => {}
            // Now, or before.
            Ok(Ok(Some(_)) | Err(_)) => return,
            Err(error) => tracing::error!(%error, pid = self.pid, "ending a command"),
        }
        let pid = self.pid;
        let reaping = self.pidfd.try_clone().and_then(|pidfd| {
            let thread = std::thread::Builder::new().name("exec-reap".to_owned());
            thread.spawn(move || while let Err(rustix::io::Errno::INTR) = reap(&pidfd, WaitIdOptions::empty()) {})
        });
        if let Err(error) = reaping {
            tracing::error!(%error, pid, "reaping a command: its app cannot end before the daemon does");
        }
    }
}

/// Gives a terminal another size.
///
/// # Errors
/// When `terminal` is none.
pub fn resize_terminal(terminal: impl AsFd, columns: u16, rows: u16) -> Result<(), SandboxError> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).whilst(|| format!("resizing a terminal to {columns}x{rows}"))
}

/// The exec process: what the binary runs for its hidden subcommand. Talks to the worker over standard input. Must be
/// called before the process makes any thread.
pub fn exec_main() -> ! {
    let channel = match begin_process() {
        Ok(channel) => channel,
        Err(error) => {
            tracing::error!(%error, "the exec process cannot begin");
            std::process::exit(1)
        }
    };
    let answer = match run(&channel) {
        Ok(()) => FromSetup::Started,
        Err(error) => FromSetup::Failed(error),
    };
    // Only a worker that has gone does not take it: the program then loses its reader and nobody else.
    let taken = channel.send(&answer, &[]);
    std::process::exit(i32::from(taken.is_err()))
}

fn run(channel: &Channel) -> Result<(), SetupError> {
    let lost = || SetupError::Protocol { what: "the worker sent no order".to_owned() };
    let message = channel.receive::<()>(None).doing(|| "reading the order".to_owned())?.ok_or_else(lost)?;
    let mut descriptors = message.descriptors.into_iter();
    let order: Order = from_file(descriptors.next().ok_or_else(lost)?).doing(|| "reading the order".to_owned())?;
    let init = descriptors.next().ok_or_else(lost)?;
    let stdio = match order.terminal {
        Some(_) => None,
        None => {
            let mut stdio: [OwnedFd; 3] = descriptors.collect::<Vec<_>>().try_into().map_err(|_| lost())?;
            give_stdio(&mut stdio, order.base.unwrap_or(0) + order.program.user.uid)?;
            Some(stdio)
        }
    };
    std::fs::write("/proc/self/oom_score_adj", "0").doing(|| "setting oom_score_adj".to_owned())?;
    order.confinement.allow_files()?;
    Entrances::open(&order.support_files)?.enter()?;
    let group = open_group(&order.core)?;
    move_into_thread_name_spaces(init.as_fd(), ThreadNameSpaceType::PROCESS_ID)
        .doing(|| "entering the pid namespace".to_owned())?;
    let report = Report::new()?;
    let forked = fork_into(UnshareFlags::empty(), ChildOf::Parent, Some(group.as_fd()), None);
    let (forked, late) = match forked {
        // An app that has as many processes as it may still gets this one: moving is not limited.
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
            (fork(UnshareFlags::empty(), ChildOf::Parent), Some(order.core.join("cgroup.procs")))
        }
        forked => (forked, None),
    };
    let Forked::Parent { pid, pidfd } = forked.doing(|| "making the process".to_owned())? else {
        become_it(&order, late.as_slice(), &init, stdio, report.writer)
    };
    drop((report.writer, stdio));
    let made = FromSetup::Made { pid: pid.as_raw_nonzero().get() };
    channel.send(&made, &[pidfd.as_fd()]).doing(|| "telling the worker".to_owned())?;
    outcome(report.reader)
}

/// Enters all namespaces of init but the pid namespace, in which this process already is.
fn enter_sandbox(init: &OwnedFd, user: bool, clocks: bool) -> Result<(), SetupError> {
    let mut kinds = ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::CONTROL_GROUP
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
        | ThreadNameSpaceType::NETWORK;
    kinds.set(ThreadNameSpaceType::USER, user);
    kinds.set(ThreadNameSpaceType::TIME, clocks);
    move_into_thread_name_spaces(init.as_fd(), kinds).doing(|| "entering the sandbox".to_owned())?;
    if user { become_root() } else { crate::confine::hide_memory() }
}

/// The new process, until it is the program. `late` is where it enters the app's group in v2, if it was not made there.
fn become_it(order: &Order, late: &[PathBuf], init: &OwnedFd, stdio: Option<[OwnedFd; 3]>, report: OwnedFd) -> ! {
    let prepared = (|| {
        Entrances::open(&order.tasks)?.enter()?;
        Entrances::open(late)?.enter()?;
        enter_sandbox(init, order.base.is_some(), order.clocks)?;
        match (stdio, order.terminal) {
            (Some(stdio), _) => Ok(Stdio::Files(stdio)),
            (None, Some((columns, rows))) => {
                let channel = Channel::from_standard_input().doing(|| "taking the channel to the worker".to_owned())?;
                Ok(Stdio::Terminal(NewTerminal { columns, rows, owner: order.program.user.uid, channel }))
            }
            (None, None) => Err(SetupError::Protocol { what: "nowhere to write".to_owned() }),
        }
    })();
    match prepared {
        Ok(stdio) => {
            let program = order.program.clone();
            let environment = program.environment(&order.hostname, order.terminal.is_some());
            let becoming = Becoming { program, environment, confinement: order.confinement.clone() };
            become_program(becoming, Open { stdio, report, gate: None })
        }
        Err(error) => fail(report, &error),
    }
}
