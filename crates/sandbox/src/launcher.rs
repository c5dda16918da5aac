//! What all sandboxes of a worker share: the program that sets them up, their init, the cgroup hierarchies.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::{MemfdFlags, Mode, SealFlags};
use torpor_linux::mount::{MountChange, change_mount};
use torpor_linux::spawn::SANDBOX_INIT;

use crate::cgroup::Hierarchies;
use crate::channel::Channel;
use crate::error::{Doing, SandboxError, While};
use crate::mounts::clone_host;

/// The hidden subcommand that must call [`setup_main`](crate::setup_main).
pub const SETUP_COMMAND: &str = "sandbox-setup";
/// The hidden subcommand that must call [`exec_main`](crate::exec_main).
pub const EXEC_COMMAND: &str = "sandbox-exec";

/// Made once per worker.
#[derive(Debug)]
pub struct Launcher {
    /// This program's file, through a read-only mount of its own: a hostile image whose program is a script with the
    /// interpreter `/proc/self/exe` gets hold of it, and cannot write to it. It also stays the same when the file is replaced.
    program: OwnedFd,
    /// Init's executable, in memory.
    init: OwnedFd,
    hierarchies: Hierarchies,
}

impl Launcher {
    /// For a binary that handles [`SETUP_COMMAND`] and [`EXEC_COMMAND`] before it makes any thread.
    ///
    /// # Errors
    /// When the binary cannot be opened, or without root's privileges.
    pub fn new(binary: &Path, hierarchies: Hierarchies) -> Result<Self, SandboxError> {
        let program = clone_host(binary, false)?;
        let change = MountChange { read_only: true, no_suid: true, ..MountChange::default() };
        change_mount(&program, change).doing(|| format!("protecting {}", binary.display()))?;
        Ok(Self { program, init: init_image().whilst(|| "writing init to memory".to_owned())?, hierarchies })
    }

    /// The machine's cgroup hierarchies.
    pub fn hierarchies(&self) -> &Hierarchies {
        &self.hierarchies
    }

    pub(crate) fn init(&self) -> &OwnedFd {
        &self.init
    }

    /// Starts a fresh copy of this program with one end of a channel.
    pub(crate) fn spawn(&self, command: &str) -> Result<(Channel, Child), SandboxError> {
        let (ours, theirs) = Channel::pair().whilst(|| "making a socket pair".to_owned())?;
        let child = Command::new(format!("/proc/self/fd/{}", self.program.as_raw_fd()))
            .arg0("torpor")
            .arg(command)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .whilst(|| format!("starting `torpor {command}`"))?;
        Ok((ours, child))
    }
}

/// Init's executable: sealed, and readable by nobody without privileges. The kernel keeps the memory of processes whose
/// executable cannot be read from everyone in their user namespace.
fn init_image() -> std::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = match rustix::fs::memfd_create(c"torpor-init", flags | MemfdFlags::EXEC) {
        // Kernels before 6.3 do not know the flag and make it executable anyway.
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(c"torpor-init", flags)?,
        other => other?,
    };
    let mut file = File::from(memory);
    file.write_all(SANDBOX_INIT)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o111))?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    Ok(file.into())
}
