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
//! ([`Empty`](crate::message::Empty)) is made in the same way, without `app`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitId, WaitIdOptions, pidfd_open, waitid};
use rustix::thread::UnshareFlags;
use torpor_linux::spawn::{ChildOf, Forked, fork, fork_into};

use crate::build::{Site, build};
use crate::channel::{Channel, from_file};
use crate::child::{Entrances, begin_process, end, exit, give_stdio, namespace_of, open_group, outcome};
use crate::confine::Confinement;
use crate::error::{Doing, SetupError};
use crate::first;
use crate::message::{Begin, Files, FromSetup, Request, ToSetup};
use crate::mounts::{clone_host, map_ids};
use crate::owner::Owner;
use crate::spec::{ID_COUNT, IdRange, SandboxSpec};

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
