//! What the short-lived processes have in common in which sandboxes and commands are made: how they begin, enter groups and
//! namespaces, report and end.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Gid, Mode, OFlags, Uid};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, set_parent_process_death_signal, waitid};
use rustix::thread::{
    LinkNameSpaceType, UnshareFlags, move_into_link_name_space, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use torpor_linux::spawn::{close_on_exec_from, unshare};

use crate::channel::Channel;
use crate::confine::hide_memory;
use crate::error::{Doing, SetupError};

/// What a process of its own does at the very start: no memory to look at, no descriptor to leak, no session keyring of the
/// worker's. That of the programs is made here, by the machine's root, whose quota of keys is the largest.
pub(crate) fn begin_process() -> Result<Channel, SetupError> {
    hide_memory()?;
    close_on_exec_from(3).doing(|| "closing inherited descriptors".to_owned())?;
    torpor_linux::keyring::join_new_session().doing(|| "making a session keyring".to_owned())?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Channel::from_standard_input().doing(|| "taking the channel to the worker".to_owned())
}

/// A pipe whose reader learns how its writer fared: an error in JSON, or its end without a word.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) reader: OwnedFd,
    pub(crate) writer: OwnedFd,
}

impl Report {
    pub(crate) fn new() -> Result<Self, SetupError> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).doing(|| "making a pipe".to_owned())?;
        Ok(Self { reader, writer })
    }
}

/// Says `error` on a report pipe and ends the process.
pub(crate) fn fail(writer: OwnedFd, error: &SetupError) -> ! {
    // If nobody reads, nobody wants to know; the status says that it failed.
    if let Ok(text) = serde_json::to_vec(error) {
        let _unread = File::from(writer).write_all(&text);
    }
    exit(1)
}

/// Ends a forked process. Nothing is registered to run at its end: the set-up process writes no output.
pub(crate) fn exit(status: i32) -> ! {
    std::process::exit(status)
}

/// Reads a report pipe to its end.
pub(crate) fn outcome(reader: OwnedFd) -> Result<(), SetupError> {
    let mut text = Vec::new();
    File::from(reader).read_to_end(&mut text).doing(|| "reading a report".to_owned())?;
    if text.is_empty() {
        return Ok(());
    }
    Err(serde_json::from_slice(&text).unwrap_or_else(|_| SetupError::Protocol {
        what: format!("a report of {} bytes that is no error", text.len()),
    }))
}

/// Files `tasks` or `cgroup.procs`, opened while they can be reached and with the privileges of then.
pub(crate) struct Entrances(Vec<(PathBuf, File)>);

impl Entrances {
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self, SetupError> {
        let open = |path: &PathBuf| {
            let file = File::options().write(true).open(path);
            Ok((path.clone(), file.doing(|| format!("opening {}", path.display()))?))
        };
        paths.iter().map(open).collect::<Result<_, SetupError>>().map(Self)
    }

    /// Moves the calling process, of one thread, in.
    pub(crate) fn enter(&self) -> Result<(), SetupError> {
        self.0.iter().try_for_each(|(path, file)| {
            (&*file).write_all(b"0").doing(|| format!("entering the cgroup of {}", path.display()))
        })
    }
}

/// Opens the directory of a group in v2, to make processes in it.
pub(crate) fn open_group(path: &Path) -> Result<OwnedFd, SetupError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).doing(|| format!("opening {}", path.display()))
}

/// Gives pipes to the app's user, so that it can open `/dev/stdout` again.
pub(crate) fn give_stdio(stdio: &mut [OwnedFd; 3], owner: u32) -> Result<(), SetupError> {
    for file in stdio {
        let stat = rustix::fs::fstat(&*file).doing(|| "examining standard input and output".to_owned())?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Fifo {
            rustix::fs::fchown(&*file, Some(Uid::from_raw(owner)), None::<Gid>)
                .doing(|| "giving standard input and output to the app".to_owned())?;
        }
    }
    Ok(())
}

/// Opens a namespace of a process.
pub(crate) fn namespace_of(pid: Pid, name: &str) -> Result<OwnedFd, SetupError> {
    let path = format!("/proc/{}/ns/{name}", pid.as_raw_nonzero());
    rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).doing(|| format!("opening {path}"))
}

/// Enters a namespace made before.
pub(crate) fn enter(namespace: &OwnedFd, kind: LinkNameSpaceType, name: &str) -> Result<(), SetupError> {
    move_into_link_name_space(namespace.as_fd(), Some(kind)).doing(|| format!("entering the {name} namespace"))
}

/// Makes the calling process die with its parent.
pub(crate) fn die_with_parent() -> Result<(), SetupError> {
    set_parent_process_death_signal(Some(Signal::KILL)).doing(|| "setting the parent-death signal".to_owned())
}

/// New namespaces for the calling process.
pub(crate) fn leave(kinds: UnshareFlags) -> Result<(), SetupError> {
    unshare(kinds).doing(|| format!("making namespaces {kinds:?}"))
}

/// Becomes root of the user namespace that this process has entered.
pub(crate) fn become_root() -> Result<(), SetupError> {
    set_thread_groups(&[]).doing(|| "leaving the machine's groups".to_owned())?;
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).doing(|| "becoming the root group".to_owned())?;
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).doing(|| "becoming root".to_owned())?;
    hide_memory()
}

/// Kills a child, with the first process its pid namespace, too, and waits for its end.
pub(crate) fn end(pid: Pid, pidfd: &OwnedFd) -> Result<(), SetupError> {
    match rustix::process::pidfd_send_signal(pidfd, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => return Err(error).doing(|| format!("killing process {}", pid.as_raw_nonzero())),
    }
    waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)
        .doing(|| format!("waiting for process {}", pid.as_raw_nonzero()))
        .map(drop)
}
