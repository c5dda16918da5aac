//! Pages of a restored tree that come after its programs run (`torpor restore --lazy`), without a daemon.
//!
//! ```text
//! restore ──socket──▶ guard ──socket──▶ pager ──userfaultfd──▶ programs
//!                       ▲                 │
//!                       └─ children ──────┘
//! ```
//! Who closes the last descriptor of a userfaultfd context lets its process read zeros where pages are missing. So two processes have them, and
//! either of them may be killed. The *pager* serves page faults and fills the rest. The *guard* waits for its end, and starts another one
//! where it did not come to its end: the ledger tells that one what the programs have done meanwhile. If pages cannot be had, the guard
//! ends the programs before it closes anything. If the guard is killed, its pager goes on alone.
//!
//! A message is a word, with descriptors. The pager sends contexts of children that were forked meanwhile back to its guard; they wait in
//! the socket, and are open as long as it is.

mod guard;
mod pager;

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use torpor_linux::socket::{Sent, peek, send};
use torpor_restore::lazy::{Late, LatePages};

use crate::lazy::{ContextRecord, Contexts, LazyLost};

pub use self::guard::guard_main;
pub use self::pager::pager_main;

/// The first argument of this program as a guard.
pub const GUARD_COMMAND: &str = "restored-guard";
/// The first argument of this program as a pager.
pub const PAGER_COMMAND: &str = "restored-pager";

/// Why a guard or a pager does not go on.
#[derive(Debug, thiserror::Error)]
pub enum RestoredError {
    /// Something failed.
    #[error("bringing the rest of a restored tree's memory")]
    Failed(#[from] io::Error),
    /// It is not known what is missing.
    #[error(transparent)]
    Lost(#[from] LazyLost),
    /// Pages cannot be had.
    #[error("bringing the rest of a restored tree's memory")]
    Unserved(#[from] torpor_pager::ServeError),
    /// Its processes were ended.
    #[error("the rest of a restored tree's memory cannot be brought back: its processes were ended")]
    Ended,
}

/// The image, the records of the contexts, the ledger, the contexts.
const TREE: &[u8] = b"tree";
/// The context of a child.
const CHILD: &[u8] = b"child";
/// Whoever says so has what it was sent.
const READY: &[u8] = b"ready";
/// Bytes of a message at most.
const MOST_BYTES: usize = 16;
/// Bytes of records at most.
const MOST_RECORD_BYTES: u64 = 64 << 20;
/// How long a guard or a pager may take to begin.
const BEGINS: Duration = Duration::from_secs(10);

/// Starts a guard for trees that miss pages.
#[derive(Debug)]
pub struct Guarded {
    device: OwnedFd,
    /// Guards say on standard error what goes wrong.
    tells: bool,
}

impl Guarded {
    /// Where guards and pagers tell what is wrong, they do so on standard error.
    ///
    /// # Errors
    /// This machine has no `/dev/userfaultfd`.
    pub fn new(tells: bool) -> io::Result<Self> {
        Ok(Self { device: torpor_linux::userfault::device()?, tells })
    }
}

impl LatePages for Guarded {
    fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    fn serve(&self, image: &File, late: Vec<Late>) -> io::Result<()> {
        let contexts = Contexts::of_built(late)?;
        contexts.begin()?;
        let mut records = File::from(memfd_create("torpor-contexts", MemfdFlags::CLOEXEC)?);
        records.write_all(&contexts.encode_records())?;
        let files: Vec<BorrowedFd<'_>> =
            [image.as_fd(), records.as_fd()].into_iter().chain(contexts.descriptors()).collect();
        let (socket, theirs) = pair()?;
        send(&socket, &Sent { bytes: TREE, files: &files, ..Sent::default() })?;
        start(GUARD_COMMAND, theirs, self.tells)?;
        ready(&socket)
    }
}

/// Both ends of a connection.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Starts this program with a word; the socket is its standard input.
fn start(word: &str, socket: OwnedFd, tells: bool) -> io::Result<Child> {
    let mut command = Command::new(PathBuf::from("/proc/self/exe"));
    command.arg(word).current_dir("/").env_clear().stdin(Stdio::from(socket)).stdout(Stdio::null());
    if !tells {
        command.stderr(Stdio::null());
    }
    command.spawn()
}

/// Waits until the other end says that it is ready.
fn ready(socket: &OwnedFd) -> io::Result<()> {
    let time = Timespec { tv_sec: BEGINS.as_secs() as i64, tv_nsec: 0 };
    let waited = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&time))?;
    match take(socket)? {
        Some((word, _)) if word == READY => Ok(()),
        Some(_) => Err(io::ErrorKind::InvalidData.into()),
        None if waited == 0 => Err(io::ErrorKind::TimedOut.into()),
        None => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

fn tell_ready(socket: BorrowedFd<'_>) -> io::Result<()> {
    send(socket, &Sent { bytes: READY, ..Sent::default() }).map(drop)
}

/// Takes a message; none where nothing waits, or the other end is gone.
fn take(socket: impl AsFd) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let Some(message) = peek(&socket, MOST_BYTES)? else { return Ok(None) };
    if message.length == 0 {
        return Ok(None);
    }
    if message.cut || message.length > MOST_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    recv(&socket, &mut [0_u8; 1], RecvFlags::DONTWAIT | RecvFlags::TRUNC)?;
    Ok(Some((message.bytes, message.files)))
}

/// A tree that misses pages.
struct LateTree {
    image: File,
    records: File,
    /// The ledger, then the contexts.
    contexts: Vec<OwnedFd>,
}

impl LateTree {
    /// What a message has brought.
    fn taken(socket: impl AsFd) -> io::Result<Self> {
        let (word, files) = take(socket)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut files = files.into_iter();
        match (files.next(), files.next()) {
            (Some(image), Some(records)) if word == TREE => {
                Ok(Self { image: image.into(), records: records.into(), contexts: files.collect() })
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn files(&self) -> Vec<BorrowedFd<'_>> {
        let contexts = self.contexts.iter().map(AsFd::as_fd);
        [self.image.as_fd(), self.records.as_fd()].into_iter().chain(contexts).collect()
    }

    fn records(&mut self) -> io::Result<Vec<ContextRecord>> {
        self.records.rewind()?;
        let mut bytes = Vec::new();
        (&self.records).take(MOST_RECORD_BYTES).read_to_end(&mut bytes)?;
        ContextRecord::decode_all(&bytes)
    }
}
