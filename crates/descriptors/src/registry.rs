//! What each kind of open file needs: one row for each [`FileKind`], which every other place asks.
//!
//! The match has no arm for "the others", so a kind that is added does not compile before it has its row here. Adding one is
//! described step by step in `docs/adding-a-kind.md`.

use torpor_image::tree::{FileKind, OpenFile};

/// The needs of a kind of open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// What it is called in errors, with its article.
    pub name: &'static str,
    /// Who restores it, and when.
    pub stage: Stage,
    /// The namespace, other than the mount namespace, that it belongs to for good: it must be restored in it.
    pub namespace: Option<Namespace>,
    /// Its description has ids of users and groups, which differ inside and outside of a user namespace: see
    /// [`for_each_owner`].
    pub has_owners: bool,
    /// Whether an app's is parked while the app has no processes.
    pub parking: Parking,
    /// Where the parked one is lost, as in a reboot, the image is enough to restore it.
    pub survives_reboot: bool,
    /// Nothing in its description is a number of this machine that another one would take for something else.
    pub portable: bool,
}

/// The steps in which open files are restored, in their order, and who else provides them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// First: it needs no other open file. Addresses are bound here, because a listener keeps others from its port.
    Open,
    /// It is opened through another one, which is there: a terminal through its master.
    Peer,
    /// Unix sockets, which are made in pairs and through each other.
    Connected,
    /// Watches of files, after everything that opens or binds some: the program must not be notified of that.
    Watch,
    /// One for all open files of an exited process, which they share.
    Exited,
    /// Not by the restorer: a process of the tree opens it itself, when all processes are there.
    Process,
    /// Not at all: it came from outside of the tree, and the caller gives it.
    Given,
}

/// Namespaces of a process that an open file can belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// `network_namespaces(7)`.
    Network,
}

/// Whether the open file of an app is parked while it has no processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parking {
    /// The open file itself, which stays as it is.
    Parked,
    /// Only if it is a deleted file on a disk that nobody maps: other contents are memory, which is in the image.
    UnlessMemory,
    /// It names a process, and is opened again by its process.
    Reopened,
}

/// The row of a kind.
pub const fn needs(kind: &FileKind) -> Needs {
    // What most need. A row states the differences.
    const USUAL: Needs = Needs {
        name: "a descriptor",
        stage: Stage::Open,
        namespace: None,
        has_owners: false,
        parking: Parking::Parked,
        survives_reboot: true,
        portable: true,
    };
    const SOCKET: Needs = Needs { namespace: Some(Namespace::Network), ..USUAL };
    match kind {
        FileKind::Path(_) => Needs { name: "a file", ..USUAL },
        FileKind::Handle { .. } => Needs { name: "a file found by its handle", portable: false, ..USUAL },
        FileKind::OfProcess { .. } => {
            Needs { name: "a file of /proc", stage: Stage::Process, parking: Parking::Reopened, ..USUAL }
        }
        FileKind::Pipe { .. } => Needs { name: "a pipe", ..USUAL },
        FileKind::Fifo { .. } => Needs { name: "a FIFO", ..USUAL },
        FileKind::Memory { .. } => Needs { name: "a file without a name", parking: Parking::UnlessMemory, ..USUAL },
        FileKind::Event { .. } => Needs { name: "an eventfd", ..USUAL },
        FileKind::Signal { .. } => Needs { name: "a signalfd", ..USUAL },
        FileKind::Timer { .. } => Needs { name: "a timerfd", ..USUAL },
        FileKind::Epoll { .. } => Needs { name: "an epoll descriptor", ..USUAL },
        FileKind::Inotify { .. } => Needs { name: "an inotify descriptor", stage: Stage::Watch, ..USUAL },
        FileKind::Fanotify { .. } => {
            // An app's group is restored by nobody: whoever made it would have another right to what it watches.
            let name = "a fanotify group";
            Needs { name, stage: Stage::Watch, survives_reboot: false, ..USUAL }
        }
        FileKind::Process { .. } => {
            Needs { name: "a pidfd", stage: Stage::Process, parking: Parking::Reopened, ..USUAL }
        }
        FileKind::Ended { .. } => {
            // One that was made for an app would be of another pid namespace, or take an id there that may be needed.
            Needs { name: "a pidfd of an exited process", stage: Stage::Exited, survives_reboot: false, ..USUAL }
        }
        FileKind::Master(_) => Needs { name: "a pseudo-terminal", has_owners: true, ..USUAL },
        FileKind::Slave { .. } => Needs { name: "a terminal", stage: Stage::Peer, ..USUAL },
        FileKind::Unix(_) => Needs { name: "a unix socket", stage: Stage::Connected, has_owners: true, ..SOCKET },
        FileKind::Inet(_) => Needs { name: "an internet socket", ..SOCKET },
        FileKind::Netlink { .. } => Needs { name: "a netlink socket", ..SOCKET },
        FileKind::Packet(_) => Needs { name: "a packet socket", ..SOCKET },
        FileKind::Outside { .. } => {
            Needs { name: "a descriptor from outside", stage: Stage::Given, survives_reboot: false, ..USUAL }
        }
    }
}

/// What an open file is called in errors: its path, or the name of its kind.
pub fn name(file: &OpenFile) -> String {
    let path = match &file.kind {
        FileKind::Path(state) | FileKind::Fifo { path: state, .. } | FileKind::Handle { state, .. } => &state.path,
        FileKind::OfProcess { path } => path,
        FileKind::Outside { name } => return name.clone(),
        kind => return needs(kind).name.to_owned(),
    };
    String::from_utf8_lossy(path).into_owned()
}

/// Visits every pair of a user's and a group's id in a description.
pub fn for_each_owner(kind: &mut FileKind, mut visit: impl FnMut(&mut u32, &mut u32)) {
    match kind {
        FileKind::Unix(socket) => {
            let senders = socket.queue.iter_mut().filter_map(|message| message.credentials.as_mut());
            for (_, user, group) in senders.chain(socket.peer_credentials.as_mut()) {
                visit(user, group);
            }
        }
        FileKind::Master(terminal) => visit(&mut terminal.owner.0, &mut terminal.owner.1),
        FileKind::Path(_)
        | FileKind::Handle { .. }
        | FileKind::OfProcess { .. }
        | FileKind::Pipe { .. }
        | FileKind::Fifo { .. }
        | FileKind::Memory { .. }
        | FileKind::Event { .. }
        | FileKind::Signal { .. }
        | FileKind::Timer { .. }
        | FileKind::Epoll { .. }
        | FileKind::Inotify { .. }
        | FileKind::Fanotify { .. }
        | FileKind::Process { .. }
        | FileKind::Ended { .. }
        | FileKind::Slave { .. }
        | FileKind::Inet(_)
        | FileKind::Netlink { .. }
        | FileKind::Packet(_)
        | FileKind::Outside { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_processes_open_is_not_parked() {
        for kind in [FileKind::Process { pid: 1 }, FileKind::OfProcess { path: b"/proc/1/maps".to_vec() }] {
            let needs = needs(&kind);
            assert_eq!((needs.stage, needs.parking), (Stage::Process, Parking::Reopened), "{kind:?}");
        }
        assert!(!needs(&FileKind::Outside { name: String::new() }).survives_reboot);
    }
}
