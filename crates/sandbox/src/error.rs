//! How sandboxes fail: [`SandboxError`] in the worker, [`SetupError`] across the processes that set one up.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why a sandbox could not be made, used or removed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are the operands of the message")]
pub enum SandboxError {
    /// A name that cannot be a directory's or host's.
    #[error("{what} `{name}` does not fit: use letters, digits, `-` and `_`, at most 64 of them")]
    Name { what: &'static str, name: String },
    /// More layers than the kernel stacks.
    #[error("{count} layers are more than overlayfs takes ({most})")]
    Layers { count: usize, most: usize },
    /// Relative, with `..`, or the root where that cannot be.
    #[error("path `{}` does not fit: it must be absolute, without `..`, and a mount point may not be `/`", path.display())]
    Path { path: PathBuf },
    /// A range of ids that holds the machine's root or does not fit in 32 bits.
    #[error("user ids from {base} on cannot be a user namespace's range")]
    Ids { base: u32 },
    /// A limit that cannot be.
    #[error("limit {value} is too low for {what}")]
    Limit { what: &'static str, value: u64 },
    /// An unknown capability.
    #[error("`{name}` is not a capability: write for example CAP_NET_RAW or NET_RAW")]
    Capability { name: String },
    /// An empty command.
    #[error("no program to run: neither the command nor the image names one")]
    NoProgram,
    /// Something that cannot be a C string.
    #[error("`{word:?}` contains a zero byte")]
    ZeroByte { word: String },
    /// An environment word without a name.
    #[error("environment `{word}` is not NAME=value")]
    Environment { word: String },
    /// An id that cannot be an initial process's.
    #[error("{id} cannot be the id of an initial process inside")]
    Initial { id: i32 },
    /// A user or group outside the user namespace.
    #[error("user or group id {id} is beyond {most}, the last one of the sandbox")]
    User { id: u32, most: u32 },
    /// A step in one of the set-up processes failed.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The set-up process ended without a word.
    #[error("the set-up process of sandbox {id} died ({status})")]
    SetupDied { id: String, status: ExitStatus },
    /// The set-up process hangs.
    #[error("the set-up process of sandbox {id} gave no answer within {} s", after.as_secs())]
    SetupSilent { id: String, after: Duration },
    /// The set-up process says something unexpected.
    #[error("the set-up process of sandbox {id} sent an answer that does not fit: {what}")]
    SetupAnswer { id: String, what: &'static str },
    /// Another sandbox of that id lives.
    #[error("sandbox {id} has processes already: destroy it first")]
    InUse { id: String },
    /// A command that has not begun in its time; it was killed.
    #[error("the command has not begun within {:.1} s, and was killed: {held}", after.as_secs_f64())]
    ExecSilent { id: String, after: Duration, held: String },
    /// Nobody wants the command any more; it was killed.
    #[error("the start of the command was given up")]
    ExecGivenUp { id: String },
    /// Killed processes that do not end, and what holds them.
    #[error("processes of sandbox {id} are still there {} s after they were killed: {held}", after.as_secs())]
    StillThere { id: String, after: Duration, held: String },
    /// The processes of a record are gone.
    #[error("init of sandbox {id} (pid {pid}) is no longer there")]
    Gone { id: String, pid: i32 },
    /// Its init is of a version that ends with the initial process, come what may.
    #[error("sandbox {id} was made by an older version: its init cannot be without processes, start the app anew")]
    Outdated { id: String },
    /// A cgroup refuses.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A system call or file operation failed.
    #[error("{doing}")]
    Io {
        doing: String,
        #[source]
        source: io::Error,
    },
}

impl SandboxError {
    /// Where the program itself cannot be run: the exit status that a shell gives for this.
    pub fn exit_status(&self) -> Option<i32> {
        match self {
            Self::Setup(SetupError::ProgramNotFound { .. }) => Some(127),
            Self::Setup(
                SetupError::NotExecutable { .. } | SetupError::NoInterpreter { .. } | SetupError::Program32 { .. },
            ) => Some(126),
            _ => None,
        }
    }
}

/// Why a cgroup operation failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are the operands of the message")]
pub enum CgroupError {
    /// The processes did not all freeze in time.
    #[error("cgroup {} did not freeze within {} ms", path.display(), after.as_millis())]
    NotFrozen { path: PathBuf, after: Duration },
    /// The processes did not all end in time.
    #[error("cgroup {} still has processes {} ms after they were killed", path.display(), after.as_millis())]
    NotEmpty { path: PathBuf, after: Duration },
    /// What keeps a group from being removed does not go away.
    #[error("cgroup {} is still in use after {} s: {users}", path.display(), after.as_secs())]
    InUse { path: PathBuf, users: String, after: Duration },
    /// A limit was asked for that no controller here can enforce.
    #[error("the {limit} limit cannot be enforced: {why}")]
    NoController { limit: &'static str, why: String },
    /// The kernel lacks cgroup v2.
    #[error("cgroup v2 cannot be mounted at {}", path.display())]
    NoVersion2 {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A control file holds something unexpected.
    #[error("cgroup file {} holds `{text}`", path.display())]
    Content { path: PathBuf, text: String },
    /// A control file or directory refuses.
    #[error("{doing} {}", path.display())]
    File {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl CgroupError {
    /// Whether it says that the group is not there (any more).
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::File { source, .. }
            if matches!(source.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)))
    }
}

/// Why a step in a set-up process failed; travels to the worker as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are the operands of the message")]
pub enum SetupError {
    /// A program for 32 bits, while the filter is on.
    #[error("`{program}` is a 32-bit program, and the system-call filter allows 64-bit programs only")]
    Program32 { program: String },
    /// The program is nowhere.
    #[error("program `{program}` not found{}", searched.as_ref().map(|path| format!(" in PATH ({path})")).unwrap_or_default())]
    ProgramNotFound { program: String, searched: Option<String> },
    /// The program is there and cannot be executed.
    #[error("program `{program}` cannot be executed: {}", reason(*errno))]
    NotExecutable { program: String, errno: i32 },
    /// A dynamic program or a script whose interpreter the image lacks.
    #[error(
        "program `{program}` is there, but its loader or interpreter is not (a dynamic program needs its libraries)"
    )]
    NoInterpreter { program: String },
    /// The file system of a layer or volume cannot be seen with other owners.
    #[error(
        "the file system of {path}, or one that is mounted below it, does not allow id-mapped mounts, which a user namespace \
         needs: use ext4, xfs, btrfs or another that does, name a directory without mounts, or turn the app's user namespace off"
    )]
    NoIdMapping { path: String },
    /// A mount point of the image that is not what it must be.
    #[error("`{path}` in the app's files is {found}: nothing can be put there")]
    Target { path: String, found: String },
    /// A path inside leads through a symbolic link that others may have put there.
    #[error(
        "`{path}` in the app's files: `{link}` is a symbolic link on what is mounted at `{mount}`, and who may write there decides \
         where it leads; replace the link with a directory or file, or choose a path that does not lead through it"
    )]
    LinkOnMount { path: String, link: String, mount: String },
    /// A volume's path leads through a symbolic link.
    #[error(
        "volume {path}: part of this path is a symbolic link, and who may write where the link lies decides which directory \
         the app gets; give the path that it leads to"
    )]
    VolumeLink { path: String },
    /// The working directory.
    #[error("working directory `{path}`: {}", reason(*errno))]
    WorkingDirectory { path: String, errno: i32 },
    /// A working directory that leads through a magic link of `/proc`, or that the app's root does not reach.
    #[error(
        "working directory `{path}` is refused: it leads through a link of /proc to an open file or another process, round \
         in a circle, or out of the app's files; choose a directory of the app's own"
    )]
    WorkingDirectoryLeads { path: String },
    /// A system call failed.
    #[error("{doing}: {}", reason(*errno))]
    System { doing: String, errno: i32 },
    /// A system call failed and the kernel explained itself.
    #[error("{doing}: {} (kernel: {log})", reason(*errno))]
    Kernel { doing: String, errno: i32, log: String },
    /// A process was killed as soon as it was made.
    #[error("a process was killed as soon as it was made in its cgroup")]
    Killed,
    /// A message between the set-up processes does not fit.
    #[error("the set-up processes lost each other: {what}")]
    Protocol { what: String },
}

fn reason(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_lowercase(),
        None => text,
    }
}

/// Turns the error of a system call into one that says what was being done.
pub(crate) trait Doing<T> {
    /// With `doing`, as `mounting /proc`.
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, SetupError>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, SetupError> {
        self.map_err(|error| {
            let error: io::Error = error.into();
            SetupError::System { doing: doing(), errno: error.raw_os_error().unwrap_or(libc::EIO) }
        })
    }
}

/// The same for errors of the worker's side.
pub(crate) trait While<T> {
    /// With `doing`, as `reading the status file /run/…`.
    fn whilst(self, doing: impl FnOnce() -> String) -> Result<T, SandboxError>;
}

impl<T, E: Into<io::Error>> While<T> for Result<T, E> {
    fn whilst(self, doing: impl FnOnce() -> String) -> Result<T, SandboxError> {
        self.map_err(|error| SandboxError::Io { doing: doing(), source: error.into() })
    }
}
