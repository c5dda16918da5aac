//! System V semaphores and message queues of an app, and the names of its machine: they are its namespaces', and are there as
//! long as its home is. Into a home that was made anew they are put with their ids. Shared memory goes with the processes' open files,
//! but what an attempt before has left of it goes here, too.
//!
//! Semaphores are only taken as long as nobody has operated on them: what `SEM_UNDO` promises cannot be seen, and such an app
//! does not go warm (`exit_effects.rs`). Who did the last operation, and when, is not kept.

use std::io;

use rustix::io::Errno;
use rustix::system::{setdomainname, sethostname, uname};
use torpor_image::tree::{IpcObject, MessageQueue, NamespaceState, SemaphoreSet};
use torpor_linux::ipc::{self, About};
use torpor_linux::shm;

use crate::contract::EachRestored;
use crate::contract::error::RestoreFileError;
use torpor_proc as proc;
use torpor_process::view::View;

pub(crate) const SEGMENTS: &str = "/proc/sysvipc/shm";
const SEMAPHORES: &str = "/proc/sysvipc/sem";
const QUEUES: &str = "/proc/sysvipc/msg";

/// Takes them; ids of users are the machine's still.
pub fn take(view: &View, found: &mut NamespaceState) -> io::Result<()> {
    if !view.in_sandbox() {
        return Ok(());
    }
    view.within(|| {
        let machine = uname();
        found.host_name = machine.nodename().to_bytes().to_vec();
        found.domain_name = machine.domainname().to_bytes().to_vec();
        for id in ids(SEMAPHORES)? {
            let (about, values) = ipc::semaphores(id)?;
            found.semaphores.push(SemaphoreSet { object: object(id, about), values });
        }
        for id in ids(QUEUES)? {
            let (about, most_bytes, messages) = ipc::queue(id)?;
            found.queues.push(MessageQueue { object: object(id, about), most_bytes, messages });
        }
        Ok(())
    })?
}

/// Ids of System V objects, by the kernel's list of them in the namespace of the calling thread: `key id …`.
pub(crate) fn ids(path: &str) -> io::Result<Vec<i32>> {
    let text = match proc::read(path) {
        Ok(text) => text,
        // A kernel without them.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    listed(&text).ok_or_else(|| proc::unexpected(path))
}

/// The second column of each line but the first.
pub(crate) fn listed(text: &str) -> Option<Vec<i32>> {
    text.lines().skip(1).map(|line| line.split_ascii_whitespace().nth(1)?.parse().ok()).collect()
}

const fn object(id: i32, about: About) -> IpcObject {
    let ((user, group), (maker, makers)) = (about.owner, about.maker);
    IpcObject { key: about.key, id, mode: about.mode, owners: [user, group, maker, makers] }
}

const fn about(object: &IpcObject) -> About {
    let [user, group, maker, makers] = object.owners;
    About { key: object.key, mode: object.mode, owner: (user, group), maker: (maker, makers) }
}

/// Whether there is anything to put into a new home.
pub fn has_any(found: &NamespaceState) -> bool {
    let named = !found.host_name.is_empty() || !found.domain_name.is_empty();
    named || !found.semaphores.is_empty() || !found.queues.is_empty()
}

/// Puts them into the namespaces of the calling thread, where only an attempt before may have left anything. Owners are the machine's.
/// `each_made` is told of each.
pub fn restore(found: &NamespaceState, each_made: EachRestored<'_>) -> Result<(), RestoreFileError> {
    let looking = |what: &'static str| RestoreFileError::at("looking for", what);
    let removed = |result: io::Result<()>| match result {
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(()),
        other => other,
    };
    for id in ids(SEGMENTS).map_err(looking("shared memory"))? {
        removed(shm::remove(id)).map_err(RestoreFileError::at("removing", format!("System V shared memory {id}")))?;
    }
    for id in ids(SEMAPHORES).map_err(looking("semaphores"))? {
        removed(ipc::remove_semaphores(id)).map_err(RestoreFileError::at("removing", semaphores(id)))?;
    }
    for id in ids(QUEUES).map_err(looking("message queues"))? {
        removed(ipc::remove_queue(id)).map_err(RestoreFileError::at("removing", queue(id)))?;
    }
    for set in &found.semaphores {
        let id = set.object.id;
        ipc::make_semaphores(id, about(&set.object), &set.values)
            .map_err(RestoreFileError::at("making", semaphores(id)))?;
        each_made()?;
    }
    for one in &found.queues {
        let id = one.object.id;
        let made = ipc::make_queue(id, about(&one.object), one.most_bytes, &one.messages);
        made.map_err(RestoreFileError::at("making", queue(id)))?;
        each_made()?;
    }
    let now = uname();
    if !found.host_name.is_empty() && now.nodename().to_bytes() != found.host_name {
        sethostname(&found.host_name).map_err(RestoreFileError::at("setting", "the host name"))?;
    }
    if !found.domain_name.is_empty() && now.domainname().to_bytes() != found.domain_name {
        setdomainname(&found.domain_name).map_err(RestoreFileError::at("setting", "the domain name"))?;
    }
    Ok(())
}

fn semaphores(id: i32) -> String {
    format!("System V semaphores {id}")
}

fn queue(id: i32) -> String {
    format!("System V message queue {id}")
}
