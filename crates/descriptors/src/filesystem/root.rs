//! Where the paths of a tree begin.

use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Stat, openat2};

use super::opener;

/// Where the tree's paths begin.
#[derive(Clone, Copy, Debug)]
pub enum Root<'a> {
    /// At our own root.
    Own,
    /// At this directory, from which nothing leads out.
    At(BorrowedFd<'a>),
}

impl Root<'_> {
    /// Opens a path that holds no symbolic links; an app's without the machine's capabilities ([`opener`]).
    pub fn open(self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        let open = |directory: BorrowedFd<'_>, within| {
            openat2(directory, path_of(path), flags, Mode::empty(), ResolveFlags::NO_SYMLINKS | within)
        };
        match self {
            Self::Own => open(CWD, ResolveFlags::empty()),
            Self::At(root) => {
                let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
                if flags.contains(OFlags::PATH) { open(root, within) } else { opener::as_app(|| open(root, within))? }
            }
        }
    }

    /// Why an app could not have opened a file so, if this is an app's root.
    pub fn forbids(self, stat: &Stat, flags: OFlags) -> Option<&'static str> {
        let forbidden = matches!(self, Self::At(_)) && opener::is_forbidden(stat, flags);
        forbidden.then_some("its programs may not open it")
    }

    /// Opens a path to look at it.
    pub(crate) fn look(self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        self.open(path, OFlags::PATH | OFlags::NOFOLLOW)
    }
}

pub(crate) fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}
