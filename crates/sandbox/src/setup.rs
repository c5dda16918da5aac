//! The set-up process: a fresh, single-threaded copy of this program that makes a sandbox and ends.
//!
//! ```text
//! worker ──spec, stdio──▶ set-up ─┬─ first    pid 1 in new namespaces, all of the user namespace's: waits, becomes init
//!        ◀─Ready, pidfds─         │    └─ app  gives up privileges, waits for Go, becomes the program
//!        ──Go──────────▶          └─ builder  the machine's root: mounts everything, /proc of first's pid namespace too;
//!        ◀─Started or Failed─                 leaves a locked copy of it to first, and ends before app is made
//! ```
//!
//! Everything of the sandbox belongs to its user namespace, so that whoever brings processes back from inside of it may
//! choose their ids; but what is mounted was mounted, and locked, by the machine's root.
//!
//! The user namespace itself belongs to the app's first id, not to the machine's root ([`Owner`]): the kernel charges inotify
//! instances, queued signals, message queues and the like to the namespace's owner as well, with a limit for each user.
//!
//! `builder` says how it went; `first` reports on one pipe, `app` on another; both close on exec, so their end without a
//! word is success. If the worker goes away before `Started`, or anything fails, the set-up process kills `builder` and
//! `first`, and the kernel everything below it. If the set-up process is killed, `first` and `builder` see the end of the
//! sockets on which they wait, or are killed with it while they work (parent-death signal), and `app` sees the end of the
//! pipe on which it waits. In every case the namespaces end with their processes, and with them all mounts; directories
//! and cgroups are the worker's to remove.
//!
//! Processes enter v2 groups by being made in them, and v1 groups by `tasks` while they have one thread: `cgroup.procs`
//! makes its writer wait for all processors, some 20 ms for each hierarchy (where the worker's group has been killed once,
//! the set-up process moves in this way all the same: [`Launcher::makes_in_groups`](crate::Launcher::makes_in_groups)). A sandbox without processes
//! ([`Empty`]) is made in the same way, without `app`.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{FileType, Gid, Mode, OFlags, Uid};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, pidfd_open, set_parent_process_death_signal, waitid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use serde::{Deserialize, Serialize};
use torpor_linux::spawn::{ChildOf, Forked, close_on_exec_from, fork, fork_into, unshare};

use crate::build::{Site, build, namespace_of};
use crate::channel::{Channel, from_file};
use crate::confine::{Confinement, hide_memory};
use crate::error::{Doing, SetupError};
use crate::first::{self, Entrances};
use crate::mounts::{clone_host, map_ids};
use crate::owner::Owner;
use crate::spec::{Clocks, ID_COUNT, IdRange, SandboxSpec};

/// The first message to the set-up process; with it come [`Files`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// `tasks` of the app's v1 groups.
    pub(crate) app_tasks: Vec<PathBuf>,
    /// What of the support group the set-up process enters: `tasks` in v1; `cgroup.procs` in v2 where it could not make
    /// processes in groups otherwise.
    pub(crate) support_files: Vec<PathBuf>,
    /// The app's own group in v2.
    pub(crate) core: PathBuf,
    /// The support group in v2.
    pub(crate) support: PathBuf,
    /// What the app sees of its groups.
    pub(crate) visible: Vec<(String, PathBuf)>,
    /// There is no program to start.
    pub(crate) empty: Option<Empty>,
}

/// A sandbox whose processes come later.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Empty {
    /// What the initial process will be called inside.
    pub(crate) initial: i32,
    /// A time namespace, which init holds.
    pub(crate) clocks: Option<Clocks>,
}

/// What a set-up process is asked to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Make a sandbox.
    SetUp(Begin),
    /// Try whether a directory can be seen with other owners; `Started` if so.
    TryIdMapping(PathBuf),
    /// Try whether a process made in this v2 group lives; `Started` if so, `Killed` if not.
    TryGroup(PathBuf),
}

/// What the worker says to its set-up process later.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum ToSetup {
    /// Let the program start.
    Go,
}

/// What the set-up process says to the worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum FromSetup {
    /// The app waits to become its program. Comes with pidfds of init and, where there is one, of the app.
    Ready {
        /// Init, as the set-up process's pid namespace numbers it.
        init: i32,
        /// The app's initial process.
        initial: Option<i32>,
    },
    /// `exec` has made its process, a child of the worker. Comes with its pidfd.
    Made {
        /// As the worker's pid namespace numbers it.
        pid: i32,
    },
    /// The process that `exec` has made has a terminal. Comes with the worker's side of it; before or after `Made`.
    Terminal,
    /// The program runs.
    Started,
    /// It does not, and all processes are gone.
    Failed(SetupError),
}

/// The descriptors that come with [`Begin`], in this order.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) spec: OwnedFd,
    pub(crate) stdio: [OwnedFd; 3],
    pub(crate) status: OwnedFd,
    pub(crate) init: OwnedFd,
    /// What init holds as descriptors 1 and 2: the reading ends of the app's output.
    pub(crate) output: Option<[OwnedFd; 2]>,
}

impl Files {
    fn new(mut descriptors: Vec<OwnedFd>) -> Option<Self> {
        const ALWAYS: usize = 6;
        let output = descriptors.split_off(ALWAYS.min(descriptors.len()));
        let output = if output.is_empty() { None } else { Some(output.try_into().ok()?) };
        let [spec, stdin, stdout, stderr, status, init]: [OwnedFd; ALWAYS] = descriptors.try_into().ok()?;
        Some(Self { spec, stdio: [stdin, stdout, stderr], status, init, output })
    }
}

/// A pipe whose reader learns how its writer fared: an error in JSON, or its end without a word.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) reader: OwnedFd,
    pub(crate) writer: OwnedFd,
}

impl Report {
    pub(crate) fn new() -> Result<Self, SetupError> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).doing(|| "making a pipe".to_owned())?;
        Ok(Self { reader, writer })
    }
}

/// Says `error` on a report pipe and ends the process.
pub(crate) fn fail(writer: OwnedFd, error: &SetupError) -> ! {
    // If nobody reads, nobody wants to know; the status says that it failed.
    if let Ok(text) = serde_json::to_vec(error) {
        let _unread = File::from(writer).write_all(&text);
    }
    exit(1)
}

/// Ends a forked process. Nothing is registered to run at its end: the set-up process writes no output.
pub(crate) fn exit(status: i32) -> ! {
    std::process::exit(status)
}

/// Reads a report pipe to its end.
pub(crate) fn outcome(reader: OwnedFd) -> Result<(), SetupError> {
    let mut text = Vec::new();
    File::from(reader).read_to_end(&mut text).doing(|| "reading a report".to_owned())?;
    if text.is_empty() {
        return Ok(());
    }
    Err(serde_json::from_slice(&text).unwrap_or_else(|_| SetupError::Protocol {
        what: format!("a report of {} bytes that is no error", text.len()),
    }))
}

/// What a process of its own does at the very start: no memory to look at, no descriptor to leak, no session keyring of the
/// worker's. That of the programs is made here, by the machine's root, whose quota of keys is the largest.
pub(crate) fn begin_process() -> Result<Channel, SetupError> {
    hide_memory()?;
    close_on_exec_from(3).doing(|| "closing inherited descriptors".to_owned())?;
    torpor_linux::keyring::join_new_session().doing(|| "making a session keyring".to_owned())?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Channel::from_standard_input().doing(|| "taking the channel to the worker".to_owned())
}

/// The set-up process of a sandbox: what the binary runs for its hidden subcommand. Talks to the worker over standard
/// input. Must be called before the process makes any thread.
pub fn setup_main() -> ! {
    let channel = match begin_process() {
        Ok(channel) => channel,
        Err(error) => {
            tracing::error!(%error, "the set-up process cannot begin");
            std::process::exit(1)
        }
    };
    let answer = match set_up(&channel) {
        Ok(()) => FromSetup::Started,
        Err(error) => FromSetup::Failed(error),
    };
    // Only a worker that has gone does not take it, and then everything has been undone already.
    let taken = channel.send(&answer, &[]);
    std::process::exit(i32::from(taken.is_err()))
}

fn set_up(channel: &Channel) -> Result<(), SetupError> {
    let lost = |what: &str| SetupError::Protocol { what: what.to_owned() };
    let message = channel.receive::<Request>(None).doing(|| "reading what to make".to_owned())?;
    let message = message.ok_or_else(|| lost("the worker said nothing"))?;
    let begin = match message.body {
        Request::SetUp(begin) => begin,
        Request::TryIdMapping(directory) => return try_id_mapping(&directory),
        Request::TryGroup(group) => return try_group(&group),
    };
    let mut files = Files::new(message.descriptors).ok_or_else(|| lost("the worker sent other descriptors"))?;
    let spec_file = files.spec.as_fd().try_clone_to_owned().doing(|| "taking the spec".to_owned())?;
    let spec: SandboxSpec = from_file(spec_file).doing(|| "reading the spec".to_owned())?;
    Entrances::open(&begin.support_files)?.enter()?;
    give_stdio(&mut files.stdio, spec.ids.map_or(0, |ids| ids.base) + spec.program.user.uid)?;
    // The daemon may be protected from the kernel's killer; its apps are not.
    std::fs::write("/proc/self/oom_score_adj", "0").doing(|| "setting oom_score_adj".to_owned())?;

    let confinement = Confinement::of(&spec).map_err(|error| SetupError::Protocol { what: error.to_string() })?;
    confinement.allow_files()?;
    let (core, support) = (open_group(&begin.core)?, open_group(&begin.support)?);
    let groups = Entrances::open(if begin.empty.is_some() { &[] } else { &begin.app_tasks })?;
    let plan = first::Plan { spec: &spec, begin: &begin, files: &files, core: &core, groups, confinement };
    let (link, theirs) = Channel::pair().doing(|| "making a socket pair".to_owned())?;
    let (ends, child_ends) = first::pipes()?;
    let mut kinds =
        UnshareFlags::NEWPID | UnshareFlags::NEWNET | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS | UnshareFlags::NEWNS;
    kinds.set(UnshareFlags::NEWUSER, spec.ids.is_some());
    let owner = spec.ids.map(Owner::assume).transpose()?;
    let forked = fork_into(kinds, ChildOf::Caller, Some(support.as_fd()), None);
    if matches!(forked, Ok(Forked::Child)) {
        drop((ends, link));
        first::run(&plan, child_ends, theirs.into());
    }
    let again_root = owner.map_or(Ok(()), Owner::leave);
    let Forked::Parent { pid, pidfd } = forked.doing(|| format!("making the first process and {kinds:?}"))? else {
        unreachable!("the child does not return")
    };
    drop((child_ends, theirs));
    let started = again_root.and_then(|()| furnish(&plan, &link, pid, &pidfd)).and_then(|()| match begin.empty {
        None => await_start(channel, &begin, pid, pidfd.as_fd(), ends),
        Some(_) => await_init(channel, pid, pidfd.as_fd(), ends),
    });
    if started.is_err() {
        end(pid, &pidfd)?;
    }
    started
}

/// Opens the directory of a group in v2, to make processes in it.
pub(crate) fn open_group(path: &std::path::Path) -> Result<OwnedFd, SetupError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).doing(|| format!("opening {}", path.display()))
}

/// Has everything built that the first process is to see, and hands it over.
fn furnish(plan: &first::Plan<'_>, link: &Channel, first: Pid, pidfd: &OwnedFd) -> Result<(), SetupError> {
    let user = match plan.spec.ids {
        Some(ids) => {
            write_maps(first, ids)?;
            Some(namespace_of(first, "user")?)
        }
        None => None,
    };
    let site = Site { spec: plan.spec, begin: plan.begin, first: pidfd, user: user.as_ref(), group: plan.core };
    let rooms = build(&site)?;
    // A first process that has died is reported by the pipes that end.
    let _dead = link.send(&(), &[rooms.mounts.as_fd(), rooms.cgroups.as_fd()]);
    Ok(())
}

/// Sees `directory` with other owners, for a moment, mounted nowhere.
fn try_id_mapping(directory: &std::path::Path) -> Result<(), SetupError> {
    let user = user_namespace(IdRange { base: ID_COUNT })?;
    map_ids(&clone_host(directory, false)?, user.as_fd(), false, directory)
}

/// Makes a process in `group`, for a moment.
fn try_group(group: &std::path::Path) -> Result<(), SetupError> {
    let directory = open_group(group)?;
    let forked = fork_into(UnshareFlags::empty(), ChildOf::Caller, Some(directory.as_fd()), None);
    let Forked::Parent { pidfd, .. } = forked.doing(|| format!("making a process in {}", group.display()))? else {
        exit(0)
    };
    let ended = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED).doing(|| "waiting for it".to_owned())?;
    if ended.is_some_and(|status| status.exit_status() == Some(0)) { Ok(()) } else { Err(SetupError::Killed) }
}

/// From a living first process to a running program.
fn await_start(
    channel: &Channel,
    begin: &Begin,
    init: Pid,
    pidfd: BorrowedFd<'_>,
    ends: first::ParentEnds,
) -> Result<(), SetupError> {
    // First becomes init: its pipe ends without a word. An app that failed has a better reason than init, though.
    outcome(ends.first)?;
    let mut ready = [0];
    let read = rustix::io::read(&ends.app_ready, &mut ready).doing(|| "waiting for the app".to_owned())?;
    if read == 0 {
        outcome(ends.app)?;
        return Err(SetupError::Protocol { what: "the app's process died before it was ready".to_owned() });
    }
    let initial = only_process(&begin.core)?;
    let app = pidfd_open(initial, rustix::process::PidfdFlags::empty()).doing(|| "opening the app".to_owned())?;
    let initial = Some(initial.as_raw_nonzero().get());
    let ready = FromSetup::Ready { init: init.as_raw_nonzero().get(), initial };
    channel.send(&ready, &[pidfd, app.as_fd()]).doing(|| "telling the worker".to_owned())?;
    await_go(channel)?;
    rustix::io::write(&ends.go, b"!").doing(|| "letting the app go".to_owned())?;
    outcome(ends.app)
}

/// From a living first process to an init that waits for processes.
fn await_init(channel: &Channel, init: Pid, pidfd: BorrowedFd<'_>, ends: first::ParentEnds) -> Result<(), SetupError> {
    outcome(ends.first)?;
    let ready = FromSetup::Ready { init: init.as_raw_nonzero().get(), initial: None };
    channel.send(&ready, &[pidfd]).doing(|| "telling the worker".to_owned())?;
    await_go(channel)
}

fn await_go(channel: &Channel) -> Result<(), SetupError> {
    let go = channel.receive::<ToSetup>(None).doing(|| "waiting for the worker".to_owned())?;
    let gone = || SetupError::Protocol { what: "the worker went away before the start".to_owned() };
    go.map(drop).ok_or_else(gone)
}

/// The app's process as this process's pid namespace numbers it: the only one in its cgroup.
fn only_process(core: &std::path::Path) -> Result<Pid, SetupError> {
    let path = core.join("cgroup.procs");
    let text = std::fs::read_to_string(&path).doing(|| format!("reading {}", path.display()))?;
    let mut pids = text.lines().map(|line| line.parse().ok().and_then(Pid::from_raw));
    match (pids.next(), pids.next()) {
        (Some(Some(pid)), None) => Ok(pid),
        _ => {
            Err(SetupError::Protocol { what: format!("{} has not one process but `{}`", path.display(), text.trim()) })
        }
    }
}

/// Kills a child, with the first process its pid namespace, too, and waits for its end.
pub(crate) fn end(pid: Pid, pidfd: &OwnedFd) -> Result<(), SetupError> {
    match rustix::process::pidfd_send_signal(pidfd, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => return Err(error).doing(|| format!("killing process {}", pid.as_raw_nonzero())),
    }
    waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)
        .doing(|| format!("waiting for process {}", pid.as_raw_nonzero()))
        .map(drop)
}

/// Gives pipes to the app's user, so that it can open `/dev/stdout` again.
pub(crate) fn give_stdio(stdio: &mut [OwnedFd; 3], owner: u32) -> Result<(), SetupError> {
    for file in stdio {
        let stat = rustix::fs::fstat(&*file).doing(|| "examining standard input and output".to_owned())?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Fifo {
            rustix::fs::fchown(&*file, Some(Uid::from_raw(owner)), None::<Gid>)
                .doing(|| "giving standard input and output to the app".to_owned())?;
        }
    }
    Ok(())
}

/// Says which of the machine's ids a process's new user namespace has.
fn write_maps(process: Pid, ids: IdRange) -> Result<(), SetupError> {
    ["uid_map", "gid_map"].iter().try_for_each(|name| {
        let path = format!("/proc/{}/{name}", process.as_raw_nonzero());
        std::fs::write(&path, format!("0 {} {ID_COUNT}\n", ids.base)).doing(|| format!("writing {path}"))
    })
}

/// Makes a user namespace, by a process that ends at once. It belongs to the machine's root: nobody runs in it.
fn user_namespace(ids: IdRange) -> Result<OwnedFd, SetupError> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).doing(|| "making a pipe".to_owned())?;
    let forked = fork(UnshareFlags::NEWUSER, ChildOf::Caller).doing(|| "making a user namespace".to_owned())?;
    let Forked::Parent { pid, pidfd } = forked else {
        // Waits until its parent has what it wants, or is gone.
        drop(writer);
        let _end_of_file = rustix::io::read(&reader, &mut [0]);
        exit(0);
    };
    drop(reader);
    let made = write_maps(pid, ids).and_then(|()| namespace_of(pid, "user"));
    drop(writer);
    end(pid, &pidfd)?;
    made
}

/// Enters a namespace made before.
pub(crate) fn enter(namespace: &OwnedFd, kind: LinkNameSpaceType, name: &str) -> Result<(), SetupError> {
    move_into_link_name_space(namespace.as_fd(), Some(kind)).doing(|| format!("entering the {name} namespace"))
}

/// Makes the calling process die with its parent.
pub(crate) fn die_with_parent() -> Result<(), SetupError> {
    set_parent_process_death_signal(Some(Signal::KILL)).doing(|| "setting the parent-death signal".to_owned())
}

/// New namespaces for the calling process.
pub(crate) fn leave(kinds: UnshareFlags) -> Result<(), SetupError> {
    unshare(kinds).doing(|| format!("making namespaces {kinds:?}"))
}
