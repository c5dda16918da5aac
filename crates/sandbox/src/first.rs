//! The first process of a sandbox, and its child, which becomes the app.
//!
//! Everything is charged to the app's cgroup while it is built. Then the first process moves to the support group: it
//! must be able to reap and to exit while the app is frozen.

use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::process::{Gid, Uid, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use torpor_linux::spawn::{
    ChildOf, Forked, close_on_exec_from, execve_file, fork, no_address_randomisation, reset_signals,
};

use crate::confine::{Confinement, confine, give_up_everything, hide_memory};
use crate::error::{Doing, SetupError};
use crate::program::become_program;
use crate::root;
use crate::setup::{Begin, Files, Namespaces, Report, die_with_parent, enter, exit, fail, leave};
use crate::spec::{ID_COUNT, SandboxSpec};

/// Everything that the first process needs, taken over by fork.
pub(crate) struct Plan<'a> {
    pub(crate) spec: &'a SandboxSpec,
    pub(crate) begin: &'a Begin,
    pub(crate) files: &'a Files,
    pub(crate) namespaces: &'a Namespaces,
    pub(crate) confinement: Confinement,
}

/// The set-up process's ends of the pipes.
pub(crate) struct ParentEnds {
    /// How the first process fares.
    pub(crate) first: OwnedFd,
    /// One byte: the app is ready.
    pub(crate) app_ready: OwnedFd,
    /// How the app fares.
    pub(crate) app: OwnedFd,
    /// One byte, to the app: go.
    pub(crate) go: OwnedFd,
}

/// The other ends, of the first process and the app.
pub(crate) struct ChildEnds {
    first: OwnedFd,
    app_ready: OwnedFd,
    app: OwnedFd,
    go: OwnedFd,
}

/// All pipes, closed by exec.
pub(crate) fn pipes() -> Result<(ParentEnds, ChildEnds), SetupError> {
    let (first, app_ready, app, go) = (Report::new()?, Report::new()?, Report::new()?, Report::new()?);
    Ok((
        ParentEnds { first: first.reader, app_ready: app_ready.reader, app: app.reader, go: go.writer },
        ChildEnds { first: first.writer, app_ready: app_ready.writer, app: app.writer, go: go.reader },
    ))
}

/// Files of `cgroup.procs`, opened while they can be reached and with the privileges of then.
pub(crate) struct Entrances(Vec<(PathBuf, File)>);

impl Entrances {
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self, SetupError> {
        let open = |path: &PathBuf| {
            let file = File::options().write(true).open(path);
            Ok((path.clone(), file.doing(|| format!("opening {}", path.display()))?))
        };
        paths.iter().map(open).collect::<Result<_, SetupError>>().map(Self)
    }

    /// Moves the calling process in.
    pub(crate) fn enter(&mut self) -> Result<(), SetupError> {
        self.0.iter_mut().try_for_each(|(path, file)| {
            file.write_all(b"0").doing(|| format!("entering the cgroup of {}", path.display()))
        })
    }
}

/// What the first process does. Ends as init.
pub(crate) fn run(plan: &Plan<'_>, pipes: ChildEnds) -> ! {
    let made = (|| {
        die_with_parent()?;
        let mut app_groups = Entrances::open(&plan.begin.app_procs)?;
        let mut support_groups = Entrances::open(&plan.begin.support_procs)?;
        app_groups.enter()?;
        build(plan)?;
        support_groups.enter()?;
        let forked = fork(UnshareFlags::empty(), ChildOf::Caller).doing(|| "making the app's process".to_owned())?;
        Ok((forked, app_groups))
    })();
    match made {
        Err(error) => fail(pipes.first, &error),
        Ok((Forked::Child, mut app_groups)) => {
            drop(pipes.first);
            let error = become_app(plan, &mut app_groups, &pipes.app_ready, &pipes.go);
            fail(pipes.app, &error)
        }
        Ok((Forked::Parent { pid, .. }, _)) => {
            let error = become_init(&plan.files.status, &plan.files.init, pid.as_raw_nonzero().get());
            fail(pipes.first, &error)
        }
    }
}

fn build(plan: &Plan<'_>) -> Result<(), SetupError> {
    let namespaces = plan.namespaces;
    enter(&namespaces.net, LinkNameSpaceType::Network, "network")?;
    enter(&namespaces.ipc, LinkNameSpaceType::InterProcessCommunication, "ipc")?;
    enter(&namespaces.uts, LinkNameSpaceType::HostNameAndNISDomainName, "uts")?;
    // The daemon may be protected from the kernel's killer; its apps are not.
    std::fs::write("/proc/self/oom_score_adj", "0").doing(|| "setting oom_score_adj".to_owned())?;
    leave(UnshareFlags::NEWCGROUP)?;
    rustix::system::sethostname(plan.spec.hostname.as_bytes()).doing(|| "setting the host name".to_owned())?;
    let mut ping_groups = root::build(plan.spec, namespaces.user.as_ref().map(OwnedFd::as_fd), &plan.begin.visible)?;
    if let Some(user) = &namespaces.user {
        enter(user, LinkNameSpaceType::User, "user")?;
        become_root()?;
        // A copy of the mounts, owned by the user namespace and locked together.
        leave(UnshareFlags::NEWNS)?;
    }
    let last = if plan.spec.ids.is_some() { ID_COUNT - 1 } else { i32::MAX.unsigned_abs() };
    ping_groups.write_all(format!("0 {last}").as_bytes()).doing(|| "letting all groups ping".to_owned())?;
    hide_memory()
}

/// Becomes root of the user namespace that this process has entered.
pub(crate) fn become_root() -> Result<(), SetupError> {
    set_thread_groups(&[]).doing(|| "leaving the machine's groups".to_owned())?;
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).doing(|| "becoming the root group".to_owned())?;
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).doing(|| "becoming root".to_owned())?;
    hide_memory()
}

/// Makes `stdio` this process's standard input, output and error.
pub(crate) fn take_stdio(stdio: &[OwnedFd; 3]) -> Result<(), SetupError> {
    let [input, output, errors] = stdio;
    rustix::stdio::dup2_stdin(input)
        .and_then(|()| rustix::stdio::dup2_stdout(output))
        .and_then(|()| rustix::stdio::dup2_stderr(errors))
        .doing(|| "taking standard input and output".to_owned())
}

fn become_app(plan: &Plan<'_>, groups: &mut Entrances, ready: &OwnedFd, go: &OwnedFd) -> SetupError {
    let program = &plan.spec.program;
    let prepared = (|| {
        groups.enter()?;
        rustix::process::setsid().doing(|| "making a session".to_owned())?;
        take_stdio(&plan.files.stdio)?;
        rustix::process::chdir(&program.cwd).map_err(|error| SetupError::WorkingDirectory {
            path: program.cwd.display().to_string(),
            errno: error.raw_os_error(),
        })?;
        confine(&plan.confinement, &program.user)?;
        rustix::io::write(ready, b"!").doing(|| "reporting".to_owned())?;
        let mut word = [0];
        match rustix::io::read(go, &mut word).doing(|| "waiting to start".to_owned())? {
            // Nobody is left to say so.
            0 => exit(1),
            _ => Ok(()),
        }
    })();
    match prepared {
        Ok(()) => become_program(&program.command, &program.environment(&plan.spec.hostname, false)),
        Err(error) => error,
    }
}

/// Becomes init: no privileges, every signal blocked, the status file as its only descriptor.
fn become_init(status: &OwnedFd, image: &OwnedFd, initial: i32) -> SetupError {
    let prepared = (|| {
        rustix::stdio::dup2_stdin(status).doing(|| "taking the status file".to_owned())?;
        close_on_exec_from(1).doing(|| "closing descriptors".to_owned())?;
        rustix::process::setsid().doing(|| "making a session".to_owned())?;
        set_parent_process_death_signal(None).doing(|| "leaving the set-up process".to_owned())?;
        reset_signals(true).doing(|| "blocking signals".to_owned())?;
        give_up_everything()?;
        no_address_randomisation().doing(|| "fixing init's addresses".to_owned())
    })();
    if let Err(error) = prepared {
        return error;
    }
    let number = CString::new(initial.to_string()).unwrap_or_default();
    let arguments = [c"init".to_owned(), number];
    let error = execve_file(image, &arguments, &[]);
    SetupError::System { doing: "starting init".to_owned(), errno: error.raw_os_error().unwrap_or(libc::EIO) }
}
