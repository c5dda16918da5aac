//! Names of unix sockets: bound again where they were, or where nobody sees it.
//!
//! The name that a socket shows is what was given to `bind`, whatever has become of the file since. So all are bound in a
//! directory of ours ([`Private`]) that is the root of the binding thread. A socket whose file is still there is made in a
//! directory beside it, and its file is renamed to the old one's place.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid, fstat, unlinkat};
use rustix::io::Errno;
use rustix::process::{chroot, fchdir};
use rustix::thread::{CapabilitiesSecureBits, set_capabilities_secure_bits, set_thread_res_gid, set_thread_res_uid};
use torpor_image::tree::{PathState, UnixSocket};
use torpor_linux::restorer::as_process;
use torpor_linux::{socket, thread};

use crate::contract::error::RestoreFileError;
use crate::filesystem;
use crate::filesystem::private::Private;
use crate::filesystem::{Root, private};

const FAMILY: u16 = 1;
/// Bytes of the longest name, with the zero behind it.
const NAME_BYTES: usize = 108;

/// A name, for people.
pub(crate) fn text(socket: &UnixSocket) -> String {
    match socket.name.split_first() {
        None => "a unix socket without a name".to_owned(),
        Some((0, rest)) => format!("unix socket @{}", String::from_utf8_lossy(rest)),
        Some(_) => format!("unix socket {}", String::from_utf8_lossy(&socket.name)),
    }
}

/// A `sockaddr_un`.
pub(crate) fn address(name: &[u8]) -> rustix::io::Result<Vec<u8>> {
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
pub(crate) fn reach(fd: impl AsFd, name: &[u8]) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
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
pub(crate) fn as_peer<T: Send>(
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
pub(crate) fn as_user<T: Send>(
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
pub(crate) struct Scratch {
    directory: Option<Private>,
    /// Where the tree's paths begin, if not at our own root.
    root: Option<OwnedFd>,
}

impl Scratch {
    pub(crate) fn new(root: Root<'_>) -> io::Result<Self> {
        let root = match root {
            Root::Own => None,
            Root::At(directory) => Some(directory.try_clone_to_owned()?),
        };
        Ok(Self { directory: None, root })
    }

    fn directory(&mut self) -> io::Result<&mut Private> {
        let directory = match self.directory.take() {
            Some(directory) => directory,
            None => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let above = rustix::fs::open(std::env::temp_dir(), flags, Mode::empty())?;
                Private::with_prefix(above, SCRATCH)?
            }
        };
        Ok(self.directory.insert(directory))
    }

    /// Binds where nobody sees it; abstract names are what they are.
    pub(crate) fn bind(&mut self, fd: &OwnedFd, name: &[u8]) -> io::Result<()> {
        if name.first().is_none_or(|byte| *byte == 0) {
            return socket::bind(fd, &address(name)?);
        }
        let directory = self.directory()?;
        let place = directory.make_above(filesystem::path_of(name))?;
        // Bound there before, and closed.
        match unlinkat(directory.directory(), &place, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        bind_in(fd, name, directory, &place)
    }

    /// Binds a socket to its name.
    pub(crate) fn bind_named(&mut self, fd: &OwnedFd, socket: &UnixSocket) -> Result<(), RestoreFileError> {
        let name = text(socket);
        match &socket.path {
            _ if socket.name.is_empty() => Ok(()),
            Some(state) => {
                let root = self.root.as_ref().map_or(Root::Own, |root| Root::At(root.as_fd()));
                bind_at(fd, &socket.name, state, &name, root)
            }
            None => self.bind(fd, &socket.name).map_err(RestoreFileError::at("binding", name)),
        }
    }
}

/// Scratch directories whose makers have ended without removing them.
pub fn left_over() -> io::Result<Vec<PathBuf>> {
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

/// Binds with a directory of ours as the root of the binding thread; `place` is the name from there.
fn bind_in(fd: &OwnedFd, name: &[u8], directory: &mut Private, place: &Path) -> io::Result<()> {
    let address = address(name)?;
    directory.holds(place);
    let root = directory.directory();
    aside(|| {
        thread::own_directories()?;
        fchdir(root)?;
        chroot(".")?;
        socket::bind(fd, &address)
    })
}

/// Binds to a file anew. The new one gets its owner and mode where nobody else reaches it, and then the place of the old one.
fn bind_at(fd: &OwnedFd, name: &[u8], state: &PathState, shown: &str, root: Root<'_>) -> Result<(), RestoreFileError> {
    let changed = |how| RestoreFileError::Changed { path: filesystem::text(state), how };
    if !state.path.ends_with(name) {
        return Err(changed("it was moved since it was bound"));
    }
    let whole = filesystem::path_of(&state.path);
    let (Some(above), Some(own)) = (whole.parent(), whole.file_name()) else {
        return Err(RestoreFileError::at("opening", shown)(Errno::INVAL));
    };
    let above = root.open(above.as_os_str().as_bytes(), OFlags::PATH | OFlags::DIRECTORY);
    let above = above.map_err(RestoreFileError::at("opening the directory of", shown))?;
    let before = match private::at(&above, own) {
        Ok(file) => Some(fstat(&file).map_err(RestoreFileError::at("looking at", shown))?),
        Err(Errno::NOENT) => None,
        Err(error) => return Err(RestoreFileError::at("opening", shown)(error)),
    };
    if before
        .is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::Socket || !state.is_inode(stat.st_ino))
    {
        return Err(changed("it is another file"));
    }
    let owner = before.map(|stat| (stat.st_uid, stat.st_gid));
    let bound = Private::new(above).map_err(io::Error::from).and_then(|mut directory| {
        let place = directory.make_above(filesystem::path_of(name))?;
        bind_in(fd, name, &mut directory, &place)?;
        let file = private::just_made(directory.directory(), &place, FileType::Socket)?;
        private::set_owner_and_mode(&file, owner, state.mode)?;
        directory.hand_over(&place, own, before.is_some())?;
        Ok(directory.remove()?)
    });
    bound.map_err(RestoreFileError::at("binding", shown))
}

#[cfg(test)]
pub(crate) fn as_user_for_tests<T: Send>(user: u32, group: u32, work: impl FnOnce() -> T + Send) -> T {
    as_user(Some((0, user, group)), || Ok(work())).unwrap()
}
