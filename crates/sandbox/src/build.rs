//! The builder of a sandbox: a process with the machine's privileges that makes what the sandbox sees, and ends.
//!
//! It is charged to the app's cgroup, and it is in the first process's pid namespace, because a `/proc` is of the namespace
//! of whoever mounts it; its number there is one that leaves the next to the app. So all mounts are made and masked by the
//! machine's root. Last, the builder enters the user namespace and takes a copy of its mounts there, which belongs to the
//! user namespace and whose mounts are locked together. That copy and a cgroup namespace, seen from the app's groups, are
//! its product; the first process enters both.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces};
use torpor_linux::spawn::{ChildOf, Forked, fork_into};

use crate::channel::Channel;
use crate::child::{Entrances, become_root, die_with_parent, end, enter, exit, leave, namespace_of};
use crate::confine::hide_memory;
use crate::error::{Doing, SetupError};
use crate::message::Begin;
use crate::root;
use crate::spec::{ID_COUNT, SandboxSpec};

/// The builder's number inside: allowed everywhere (`pid_max` is at least 301).
const BUILDER: i32 = 300;

/// What the builder needs to know.
pub(crate) struct Site<'a> {
    pub(crate) spec: &'a SandboxSpec,
    pub(crate) begin: &'a Begin,
    /// The first process, whose namespaces these are.
    pub(crate) first: &'a OwnedFd,
    /// The user namespace; none: the machine's.
    pub(crate) user: Option<&'a OwnedFd>,
    /// The app's group in v2.
    pub(crate) group: &'a OwnedFd,
}

/// What it makes.
pub(crate) struct Rooms {
    pub(crate) mounts: OwnedFd,
    pub(crate) cgroups: OwnedFd,
}

/// Makes everything that the sandbox sees, by a process that has ended when this returns.
pub(crate) fn build(site: &Site<'_>) -> Result<Rooms, SetupError> {
    let (ours, theirs) = Channel::pair().doing(|| "making a socket pair".to_owned())?;
    // From here on, children of this process, of which there will be just one, are made in the first one's pid namespace.
    move_into_thread_name_spaces(site.first.as_fd(), ThreadNameSpaceType::PROCESS_ID)
        .doing(|| "entering the pid namespace".to_owned())?;
    let forked = fork_into(UnshareFlags::NEWNS, ChildOf::Caller, Some(site.group.as_fd()), Pid::from_raw(BUILDER));
    let Forked::Parent { pid, pidfd } = forked.doing(|| "making the builder".to_owned())? else {
        drop(ours);
        run(site, &Channel::from(theirs))
    };
    drop(theirs);
    let made = take(&ours, pid);
    end(pid, &pidfd)?;
    made
}

/// Takes what the builder has made while it waits for its end.
fn take(builder: &Channel, pid: Pid) -> Result<Rooms, SetupError> {
    let message = builder.receive::<Result<(), SetupError>>(None).doing(|| "hearing from the builder".to_owned())?;
    message.ok_or_else(|| SetupError::Protocol { what: "the builder died".to_owned() })?.body?;
    Ok(Rooms { mounts: namespace_of(pid, "mnt")?, cgroups: namespace_of(pid, "cgroup")? })
}

fn run(site: &Site<'_>, channel: &Channel) -> ! {
    let made = make(site);
    if channel.send(&made, &[]).is_ok() {
        // Until everything has been taken, or nobody is there to take it.
        let _end = channel.receive::<()>(None);
    }
    exit(0)
}

fn make(site: &Site<'_>) -> Result<(), SetupError> {
    die_with_parent()?;
    Entrances::open(&site.begin.app_tasks)?.enter()?;
    let kinds = ThreadNameSpaceType::NETWORK
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
    move_into_thread_name_spaces(site.first.as_fd(), kinds)
        .doing(|| "entering the first process's namespaces".to_owned())?;
    rustix::system::sethostname(site.spec.hostname.as_bytes()).doing(|| "setting the host name".to_owned())?;
    let mut ping_groups = root::build(site.spec, site.user.map(OwnedFd::as_fd), &site.begin.visible)?;
    let mut own = UnshareFlags::NEWCGROUP;
    if let Some(user) = site.user {
        enter(user, LinkNameSpaceType::User, "user")?;
        become_root()?;
        // A copy of the mounts, owned by the user namespace and locked together.
        own |= UnshareFlags::NEWNS;
    }
    leave(own)?;
    let last = if site.user.is_some() { ID_COUNT - 1 } else { i32::MAX.unsigned_abs() };
    ping_groups.write_all(format!("0 {last}").as_bytes()).doing(|| "letting all groups ping".to_owned())?;
    hide_memory()
}
