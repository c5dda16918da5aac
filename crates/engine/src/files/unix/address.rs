//! Names of unix sockets: bound again where they were, or where nobody sees it.
//!
//! The name that a socket shows is what was given to `bind`, whatever has become of the file since. A socket whose file is still
//! there gets it anew at its place; others are bound in a directory of ours that is the root of the binding thread.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{FileType, Gid, Mode, Uid, chmod, chown, fstat, mkdir, unlink};
use rustix::io::Errno;
use rustix::process::{chdir, chroot, fchdir};
use rustix::thread::{CapabilitiesSecureBits, set_capabilities_secure_bits, set_thread_res_gid, set_thread_res_uid};
use torpor_image::tree::{PathState, UnixSocket};
use torpor_linux::restorer::as_process;
use torpor_linux::{socket, thread};

use super::super::MakeError;
use super::super::path::{self, Root};

const FAMILY: u16 = 1;
/// Bytes of the longest name, with the zero behind it.
const NAME_BYTES: usize = 108;

/// A name, for people.
pub(super) fn text(socket: &UnixSocket) -> String {
    match socket.name.split_first() {
        None => "a unix socket without a name".to_owned(),
        Some((0, rest)) => format!("unix socket @{}", String::from_utf8_lossy(rest)),
        Some(_) => format!("unix socket {}", String::from_utf8_lossy(&socket.name)),
    }
}

/// A `sockaddr_un`.
pub(super) fn address(name: &[u8]) -> rustix::io::Result<Vec<u8>> {
    if name.len() > NAME_BYTES {
        return Err(Errno::NAMETOOLONG);
    }
    let mut address = FAMILY.to_ne_bytes().to_vec();
    address.extend_from_slice(name);
    if name.first().is_some_and(|byte| *byte != 0) && name.len() < NAME_BYTES {
        address.push(0);
    }
    Ok(address)
}

/// Where to connect to reach a bound socket of ours, wherever its file is; the descriptor keeps that true.
pub(super) fn reach(fd: impl AsFd, name: &[u8]) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    match socket::unix_file(fd)? {
        None => Ok((address(name)?, None)),
        Some(file) => {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            Ok((address(path.as_bytes())?, Some(file)))
        }
    }
}

/// Does something in a thread of its own, whose directories are its own.
fn aside<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let done = scope.spawn(work).join();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Does something as this process, user and group, so that a peer sees them (`SO_PEERCRED`); all capabilities are kept. Where
/// there is such a process it is ours that is seen.
pub(super) fn as_peer<T: Send>(
    who: Option<(i32, u32, u32)>,
    mut work: impl FnMut() -> io::Result<T> + Send,
) -> io::Result<T> {
    let Some((pid, user, group)) = who.filter(|(pid, ..)| *pid > 0) else { return as_user(who, work) };
    let done = as_process(pid, || {
        take_user(user, group)?;
        work()
    });
    match done {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => as_user(who, work),
        done => done?,
    }
}

/// Makes the calling thread's effective user and group these.
fn take_user(user: u32, group: u32) -> io::Result<()> {
    set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
    set_thread_res_gid(None, Gid::from_raw(group), None)?;
    Ok(set_thread_res_uid(None, Uid::from_raw(user), None)?)
}

/// As [`as_peer`], as the process that we are.
pub(super) fn as_user<T: Send>(
    who: Option<(i32, u32, u32)>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let Some((user, group)) = who.map(|(_, user, group)| (user, group)).filter(|who| *who != own) else {
        return work();
    };
    aside(|| {
        take_user(user, group)?;
        work()
    })
}

/// How names of scratch directories begin; the process's id follows.
const SCRATCH: &str = ".torpor-sockets-";

/// A directory for sockets that nobody is to see, removed in the end.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    directory: Option<PathBuf>,
    /// Where the tree's paths begin, if not at our own root.
    root: Option<OwnedFd>,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Scratch {
    pub(super) fn new(root: Root<'_>) -> io::Result<Self> {
        let root = match root {
            Root::Own => None,
            Root::At(directory) => Some(directory.try_clone_to_owned()?),
        };
        Ok(Self { directory: None, root })
    }

    fn directory(&mut self) -> io::Result<PathBuf> {
        if let Some(directory) = &self.directory {
            return Ok(directory.clone());
        }
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("{SCRATCH}{}-{n}", std::process::id()));
        mkdir(&directory, Mode::RWXU)?;
        self.directory = Some(directory.clone());
        Ok(directory)
    }

    /// Binds where nobody sees it; abstract names are what they are.
    pub(super) fn bind(&mut self, fd: &OwnedFd, name: &[u8]) -> io::Result<()> {
        let address = address(name)?;
        if name.first().is_none_or(|byte| *byte == 0) {
            return socket::bind(fd, &address);
        }
        let directory = self.directory()?;
        let parts = path::path_of(name).components().filter(|part| matches!(part, Component::Normal(_)));
        let place: PathBuf =
            std::iter::once(directory.as_path().as_os_str()).chain(parts.map(|part| part.as_os_str())).collect();
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        // Bound there before, and closed.
        let _ = fs::remove_file(&place);
        aside(|| {
            thread::own_directories()?;
            chroot(&directory)?;
            chdir("/")?;
            socket::bind(fd, &address)
        })
    }

    /// Binds a socket to its name.
    pub(super) fn bind_named(&mut self, fd: &OwnedFd, socket: &UnixSocket) -> Result<(), MakeError> {
        let name = text(socket);
        match &socket.path {
            _ if socket.name.is_empty() => Ok(()),
            Some(state) => bind_at(fd, &socket.name, state, &name, self.root.as_ref()),
            None => self.bind(fd, &socket.name).map_err(MakeError::at("binding", name)),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(directory) = &self.directory {
            // A directory that stays is empty but for dead sockets.
            let _ = fs::remove_dir_all(directory);
        }
    }
}

/// Scratch directories whose makers have ended without removing them.
pub(crate) fn left_over() -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(std::env::temp_dir())? {
        let entry = entry?;
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.strip_prefix(SCRATCH)?.split('-').next()?.parse::<u32>().ok());
        if maker.is_some_and(|maker| !Path::new(&format!("/proc/{maker}")).exists()) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Binds to a file anew below `root`, or our own root.
fn bind_at(fd: &OwnedFd, name: &[u8], state: &PathState, shown: &str, root: Option<&OwnedFd>) -> Result<(), MakeError> {
    let bound = aside(|| {
        thread::own_directories()?;
        if let Some(root) = root {
            fchdir(root)?;
            chroot(".")?;
        }
        Ok(bind_anew(fd, name, state, shown))
    });
    bound.map_err(MakeError::at("binding", shown))?
}

/// In a thread whose directories are its own: the old file goes, the new one gets its mode and owner.
fn bind_anew(fd: &OwnedFd, name: &[u8], state: &PathState, shown: &str) -> Result<(), MakeError> {
    let changed = |how| MakeError::Changed { path: path::text(state), how };
    let place = path::path_of(&state.path);
    let base = state.path.strip_suffix(name).ok_or_else(|| changed("it was moved since it was bound"))?;
    let before = match path::open_name(&state.path) {
        Ok(file) => {
            let stat = fstat(&file).map_err(MakeError::at("looking at", shown))?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Socket || !state.is_inode(stat.st_ino) {
                return Err(changed("it is another file"));
            }
            unlink(place).map_err(MakeError::at("removing", shown))?;
            Some(stat)
        }
        Err(Errno::NOENT) => None,
        Err(error) => return Err(MakeError::at("opening", shown)(error)),
    };
    let bound = address(name).map_err(io::Error::from).and_then(|address| {
        if !base.is_empty() {
            chdir(std::ffi::OsStr::from_bytes(base))?;
        }
        socket::bind(fd, &address)
    });
    bound.map_err(MakeError::at("binding", shown))?;
    if let Some(stat) = before {
        let (user, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        chown(place, Some(user), Some(group)).map_err(MakeError::at("giving its owner to", shown))?;
    }
    chmod(place, Mode::from_raw_mode(state.mode & 0o7777)).map_err(MakeError::at("setting the mode of", shown))
}

#[cfg(test)]
pub(in crate::files) fn as_user_for_tests<T: Send>(user: u32, group: u32, work: impl FnOnce() -> T + Send) -> T {
    as_user(Some((0, user, group)), || Ok(work())).unwrap()
}
