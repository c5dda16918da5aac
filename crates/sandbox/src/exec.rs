//! Running a further program in a sandbox.
//!
//! A fresh copy of this program makes, in the app's cgroup and pid namespace, the process that becomes the program, as a
//! child of *its* parent, the worker; reports how that fares, and ends. The new process enters the other namespaces of init
//! (by pidfd, all at once), makes its terminal there, and gives up the same privileges as the initial one did. It is not
//! dumpable until it is the program: programs of the app run beside it and could otherwise look at the worker's code and
//! descriptors.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::termios::{Winsize, tcsetwinsize};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces};
use serde::{Deserialize, Serialize};
use torpor_linux::spawn::{ChildOf, Forked, fork, fork_into};

use crate::channel::{Channel, from_file, to_file};
use crate::child::{Entrances, Report, become_root, begin_process, fail, give_stdio, open_group, outcome};
use crate::confine::Confinement;
use crate::error::{Doing, SandboxError, SetupError, While};
use crate::exec_child::ExecChild;
use crate::exec_start::{Patience, Starting};
use crate::launcher::{EXEC_COMMAND, Launcher};
use crate::message::FromSetup;
use crate::prepare::support_files;
use crate::program::{Becoming, Open, Stdio, become_program};
use crate::sandbox::Sandbox;
use crate::spec::Program;
use crate::terminal::NewTerminal;

/// Where the program reads and writes.
#[derive(Debug)]
pub enum ExecIo {
    /// Standard input, output and error.
    Files([OwnedFd; 3]),
    /// A new terminal of the sandbox, of so many columns and rows; its session's controlling one.
    Terminal(u16, u16),
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
