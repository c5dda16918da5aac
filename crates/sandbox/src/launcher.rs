//! What all sandboxes of a worker share: the program that sets them up, their init, the cgroup hierarchies.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{MemfdFlags, Mode, SealFlags};
use torpor_linux::mount::{MountChange, change_mount};
use torpor_linux::spawn::SANDBOX_INIT;

use crate::cgroup::{Hierarchies, make_group, remove_group};
use crate::channel::Channel;
use crate::error::{Doing, SandboxError, SetupError, While};
use crate::message::{FromSetup, Request};
use crate::mounts::clone_host;

/// The hidden subcommand that must call [`setup_main`](crate::setup_main).
pub const SETUP_COMMAND: &str = "sandbox-setup";
/// The hidden subcommand that must call [`exec_main`](crate::exec_main).
pub const EXEC_COMMAND: &str = "sandbox-exec";

/// How long a set-up process may take for one answer.
pub(crate) const ANSWER_DEADLINE: Duration = Duration::from_secs(60);

/// For the names of groups in which processes are made to try it.
static PROBES: AtomicU32 = AtomicU32::new(0);

/// Made once per worker.
#[derive(Debug)]
pub struct Launcher {
    /// This program's file, through a read-only mount of its own: a hostile image whose program is a script with the
    /// interpreter `/proc/self/exe` gets hold of it, and cannot write to it. It also stays the same when the file is replaced.
    program: OwnedFd,
    /// Init's executable, in memory.
    init: OwnedFd,
    hierarchies: Hierarchies,
    /// Whether processes can be made in v2 groups from where this process is; none: not tried yet.
    into_groups: Mutex<Option<bool>>,
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
        Ok(Self {
            program,
            init: init_image().whilst(|| "writing init to memory".to_owned())?,
            hierarchies,
            into_groups: Mutex::new(None),
        })
    }

    /// The machine's cgroup hierarchies.
    pub fn hierarchies(&self) -> &Hierarchies {
        &self.hierarchies
    }

    pub(crate) fn init(&self) -> &OwnedFd {
        &self.init
    }

    /// Whether a process that is made in another v2 group from where this process is (`CLONE_INTO_CGROUP`) lives. Not if this
    /// process's group has ever been killed by `cgroup.kill`: the kernel (6.14, and what has its correction) then takes the
    /// new process for one that was being made at that time. Tried once, with a group for the purpose.
    ///
    /// # Errors
    /// When it cannot be tried.
    pub fn makes_in_groups(&self) -> Result<bool, SandboxError> {
        let mut known = self.into_groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = *known {
            return Ok(known);
        }
        // Tests have several launchers in one process.
        let number = PROBES.fetch_add(1, Ordering::Relaxed);
        let group = self.hierarchies.core().join(format!("torpor-probe-{}-{number}", std::process::id()));
        make_group(&group)?;
        let tried = self.try_group(&group);
        remove_group(&group)?;
        let tried = tried?;
        *known = Some(tried);
        Ok(tried)
    }

    fn try_group(&self, group: &Path) -> Result<bool, SandboxError> {
        let (channel, mut child) = self.spawn(SETUP_COMMAND)?;
        let request = Request::TryGroup(group.to_owned());
        channel.send(&request, &[]).whilst(|| "asking a set-up process".to_owned())?;
        let answered = answer(&channel, &mut child, "probe");
        child.wait().whilst(|| "waiting for a set-up process".to_owned())?;
        match answered?.0 {
            FromSetup::Started => Ok(true),
            FromSetup::Failed(SetupError::Killed) => Ok(false),
            FromSetup::Failed(error) => Err(error.into()),
            _ => Err(SandboxError::SetupAnswer { id: "probe".to_owned(), what: "not tried" }),
        }
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

/// Ends a set-up process, if it has not ended.
pub(crate) fn reap(setup: &mut Child, id: &str) {
    // Killing a child that has ended and not been waited for does nothing.
    if let Err(error) = setup.kill().and_then(|()| setup.wait().map(drop)) {
        tracing::warn!(id, %error, "ending a set-up process");
    }
}

/// The next answer of a set-up process, and the descriptors that came with it.
pub(crate) fn answer(
    channel: &Channel,
    setup: &mut Child,
    id: &str,
) -> Result<(FromSetup, Vec<OwnedFd>), SandboxError> {
    match channel.receive(Some(ANSWER_DEADLINE)) {
        Ok(Some(message)) => Ok((message.body, message.descriptors)),
        Ok(None) => {
            let status = setup.wait().whilst(|| format!("waiting for the set-up process of {id}"))?;
            Err(SandboxError::SetupDied { id: id.to_owned(), status })
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            reap(setup, id);
            Err(SandboxError::SetupSilent { id: id.to_owned(), after: ANSWER_DEADLINE })
        }
        Err(error) => Err(error).whilst(|| format!("hearing from the set-up process of {id}")),
    }
}

/// Init's executable: sealed, and readable by nobody without privileges. The kernel keeps the memory of processes whose
/// executable cannot be read from everyone in their user namespace.
fn init_image() -> io::Result<OwnedFd> {
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
