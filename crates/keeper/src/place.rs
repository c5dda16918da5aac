//! The listening socket of the keeper, and the lock files beside it.
//!
//! The socket can be removed while the keeper runs, for example by a program that cleans `/run`. Then no client can reach the keeper, and
//! because the keeper still holds the lock, no other keeper can start. Therefore the keeper watches the directory with inotify, and binds
//! the socket again when its name is missing or leads to another file. Before it binds, it checks that it still holds the lock file of
//! this name; if that file was removed as well, it takes the lock again, and does not bind if another keeper has it. If inotify is not
//! available (`fs.inotify.max_user_instances`), the keeper does not notice the removal, and the next start replaces it ([`crate::hidden`]).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::error::Error;
use crate::limits::CLIENTS;

/// What changes names in the directory.
const CHANGES: WatchFlags =
    WatchFlags::CREATE.union(WatchFlags::DELETE).union(WatchFlags::MOVED_FROM).union(WatchFlags::MOVED_TO);
/// Room for some events of inotify(7), at least one.
const EVENTS_BYTES: usize = 4096;

/// The path of the lock beside `socket`.
pub(crate) fn beside(socket: &Path, suffix: &str) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Opens (and makes) a lock file, without locking it. Does not wait for the other end of a FIFO in its place.
pub(crate) fn open_lock(path: &Path) -> Result<File, Error> {
    let failed = |source| Error::File { step: "open the lock", path: path.to_owned(), source };
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = file.map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")));
    }
    Ok(file)
}

/// Takes the lock of the keeper of `socket` and writes our process id into it.
pub(crate) fn lock(socket: &Path) -> Result<File, Error> {
    let path = beside(socket, ".lock");
    let mut file = open_lock(&path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(Error::Taken { path: socket.to_owned() }),
        Err(errno) => return Err(Error::File { step: "lock", path, source: errno.into() }),
    }
    let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(|source| Error::File { step: "write the lock", path, source })?;
    Ok(file)
}

/// Waits until no other process starts or kills a keeper of `path`; none does as long as the value lives.
pub(crate) fn take_turns(path: &Path) -> Result<File, Error> {
    let lock_path = beside(path, ".start");
    let lock = open_lock(&lock_path)?;
    retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockExclusive)).map_err(|errno| Error::File {
        step: "lock",
        path: lock_path,
        source: errno.into(),
    })?;
    Ok(lock)
}

type Id = (u64, u64);

fn id(metadata: &fs::Metadata) -> Id {
    (metadata.dev(), metadata.ino())
}

/// Device and inode of the file at `path`; `None` if there is no file.
fn named(path: &Path) -> Option<Id> {
    path.symlink_metadata().ok().as_ref().map(id)
}

/// A bound socket and what its name leads to.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) listener: OwnedFd,
    id: Option<Id>,
}

/// The keeper's socket and lock.
#[derive(Debug)]
pub(crate) struct Place {
    socket: PathBuf,
    lock: File,
    pub(crate) bound: Bound,
    /// Readable when a name in the directory has changed.
    pub(crate) watch: Option<OwnedFd>,
}

impl Place {
    /// Listens on `socket`, whose `lock` is held.
    pub(crate) fn listen(socket: PathBuf, lock: File) -> Result<Self, Error> {
        let watch = watch(&socket).inspect_err(|errno| {
            tracing::warn!(%errno, "the directory of the socket cannot be watched; a socket that is removed stays away");
        });
        let bound = bind(&socket)?;
        Ok(Self { socket, lock, bound, watch: watch.ok() })
    }

    /// Whether the socket's name still leads to it. Forgets what has been reported until now.
    pub(crate) fn is_named(&self) -> bool {
        let mut events = [0; EVENTS_BYTES];
        if let Some(watch) = &self.watch {
            // It does not block; an error other than EAGAIN would come again with the next change.
            while rustix::io::read(watch, &mut events).is_ok_and(|count| count > 0) {}
        }
        self.bound.id.is_some() && named(&self.socket) == self.bound.id
    }

    /// Binds a new socket to the name, after the old one has lost it.
    ///
    /// # Errors
    /// [`Error::Taken`] where another keeper has the lock by now.
    pub(crate) fn bind_again(&mut self) -> Result<Bound, Error> {
        let held = self.lock.metadata().ok().as_ref().map(id);
        if held.is_none() || named(&beside(&self.socket, ".lock")) != held {
            self.lock = lock(&self.socket)?;
        }
        bind(&self.socket)
    }

    /// Removes the socket.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        match fs::remove_file(&self.socket) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(Error::File { step: "remove", path: self.socket.clone(), source })
            }
            _ => Ok(()),
        }
    }
}

fn watch(socket: &Path) -> Result<OwnedFd, Errno> {
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&watch, socket.parent().unwrap_or(Path::new("/")), CHANGES)?;
    Ok(watch)
}

/// Listens on `socket`, in place of what a keeper before left there. The lock is held, so nobody else does.
fn bind(socket: &Path) -> Result<Bound, Error> {
    let failed = |step| move |errno: Errno| Error::File { step, path: socket.to_owned(), source: errno.into() };
    remove_stale(socket).map_err(|source| Error::File { step: "replace", path: socket.to_owned(), source })?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(failed("make the socket"))?;
    let address = SocketAddrUnix::new(socket).map_err(failed("use as a socket"))?;
    // The umask makes its mode 0600 from the first moment.
    rustix::net::bind(&listener, &address).map_err(failed("bind"))?;
    rustix::net::listen(&listener, CLIENTS as i32).map_err(failed("listen on"))?;
    Ok(Bound { listener, id: named(socket) })
}

/// Removes the socket that a keeper before left; anything but a socket stays and is an error.
fn remove_stale(socket: &Path) -> io::Result<()> {
    match fs::symlink_metadata(socket) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if found.file_type().is_socket() => fs::remove_file(socket),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is not a socket")),
    }
}
