//! The first process of a sandbox, and its child, which becomes the app.
//!
//! Until the builder is done it waits, in namespaces of its own but with the machine's mounts. With what the builder has
//! made come both into the sandbox. The first process is in the support group from its beginning: it must be able to reap
//! and to exit while the app is frozen. Its child is made in the app's group, which only the machine's root may: so before
//! either has become root of the user namespace.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::set_parent_process_death_signal;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use torpor_linux::spawn::{
    ChildOf, Forked, close_on_exec_from, execve_file, fork_into, no_address_randomisation, reset_signals,
};

use crate::build::Rooms;
use crate::channel::Channel;
use crate::child::{Entrances, Report, become_root, die_with_parent, enter, exit, fail, leave};
use crate::confine::{Confinement, give_up_everything, hide_memory};
use crate::deposit;
use crate::error::{Doing, SetupError};
use crate::message::{Begin, Files};
use crate::program::{Becoming, Gate, Open, Stdio, become_program};
use crate::spec::{Clocks, SandboxSpec};

/// The offsets of the time namespace that this process's next program gets.
const CLOCKS: &str = "/proc/self/timens_offsets";
const NANOSECONDS: i64 = 1_000_000_000;

/// Everything that the first process needs, taken over by fork.
pub(crate) struct Plan<'a> {
    pub(crate) spec: &'a SandboxSpec,
    pub(crate) begin: &'a Begin,
    pub(crate) files: &'a Files,
    /// The app's group in v2.
    pub(crate) core: &'a OwnedFd,
    /// The app's groups in v1, opened by the set-up process: the kernel looks at the opener's effective user, which is the
    /// machine's root there only.
    pub(crate) groups: Entrances,
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

/// What the first process does. Ends as init.
pub(crate) fn run(plan: &Plan<'_>, pipes: ChildEnds, link: Channel) -> ! {
    let made = (|| {
        die_with_parent()?;
        let rooms = await_rooms(&link)?;
        if let Some(empty) = plan.begin.empty {
            empty.clocks.map_or(Ok(()), |clocks| set_clocks(&clocks))?;
            return Ok((rooms, None, empty.initial));
        }
        let forked = fork_into(UnshareFlags::empty(), ChildOf::Caller, Some(plan.core.as_fd()), None);
        match forked.doing(|| "making the app's process".to_owned())? {
            Forked::Child => Ok((rooms, Some(()), 0)),
            Forked::Parent { pid, .. } => Ok((rooms, None, pid.as_raw_nonzero().get())),
        }
    })();
    // Of this, both processes have a copy.
    drop(link);
    match made {
        Err(error) => fail(pipes.first, &error),
        Ok((rooms, Some(()), _)) => become_app(plan, &rooms, pipes),
        Ok((rooms, None, initial)) => {
            let error = become_init(plan, &rooms, initial);
            fail(pipes.first, &error)
        }
    }
}

/// Waits until the builder is done. If nobody is left to say so, there is nobody to tell either.
fn await_rooms(link: &Channel) -> Result<Rooms, SetupError> {
    let Some(message) = link.receive::<()>(None).doing(|| "waiting for the builder".to_owned())? else { exit(1) };
    let [mounts, cgroups]: [OwnedFd; 2] = message
        .descriptors
        .try_into()
        .map_err(|_| SetupError::Protocol { what: "the builder's work did not come".to_owned() })?;
    Ok(Rooms { mounts, cgroups })
}

/// A time namespace for whoever this process becomes by exec. Needs the machine's `/proc`, and its root's id.
fn set_clocks(clocks: &Clocks) -> Result<(), SetupError> {
    leave(UnshareFlags::NEWTIME)?;
    let line = |clock: &str, offset: i64| {
        format!("{clock} {} {}\n", offset.div_euclid(NANOSECONDS), offset.rem_euclid(NANOSECONDS))
    };
    let offsets = line("monotonic", clocks.monotonic_ns) + &line("boottime", clocks.boottime_ns);
    std::fs::write(CLOCKS, offsets).doing(|| format!("writing {CLOCKS}"))
}

/// Enters what the builder has made, as root of the user namespace, where there is one.
fn come_in(plan: &Plan<'_>, rooms: &Rooms) -> Result<(), SetupError> {
    enter(&rooms.cgroups, LinkNameSpaceType::ControlGroup, "cgroup")?;
    enter(&rooms.mounts, LinkNameSpaceType::Mount, "mount")?;
    if plan.spec.ids.is_some() { become_root() } else { hide_memory() }
}

fn become_app(plan: &Plan<'_>, rooms: &Rooms, pipes: ChildEnds) -> ! {
    let ChildEnds { first, app_ready, app, go } = pipes;
    drop(first);
    let prepared = (|| {
        plan.groups.enter()?;
        come_in(plan, rooms)?;
        let [input, output, errors] = plan.files.stdio.each_ref().map(OwnedFd::try_clone);
        let stdio = input.and_then(|input| Ok([input, output?, errors?]));
        stdio.doing(|| "copying standard input and output".to_owned())
    })();
    match prepared {
        Ok(stdio) => {
            let program = plan.spec.program.clone();
            let environment = program.environment(&plan.spec.hostname, false);
            let becoming = Becoming { program, environment, confinement: plan.confinement.clone() };
            let gate = Some(Gate { ready: app_ready, go });
            become_program(becoming, Open { stdio: Stdio::Files(stdio), report: app, gate })
        }
        Err(error) => fail(app, &error),
    }
}

/// Becomes init: no privileges, every signal blocked, no descriptors but the status file, the reading ends of the output, and those of
/// [`deposit`].
fn become_init(plan: &Plan<'_>, rooms: &Rooms, initial: i32) -> SetupError {
    let prepared = (|| {
        come_in(plan, rooms)?;
        rustix::stdio::dup2_stdin(&plan.files.status).doing(|| "taking the status file".to_owned())?;
        let used = match &plan.files.output {
            Some([output, errors]) => {
                rustix::stdio::dup2_stdout(output)
                    .and_then(|()| rustix::stdio::dup2_stderr(errors))
                    .doing(|| "taking the reading ends of the output".to_owned())?;
                3
            }
            None => 1,
        };
        close_on_exec_from(used).doing(|| "closing descriptors".to_owned())?;
        deposit::open_in_init().doing(|| "making the socket for what init holds".to_owned())?;
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
    let error = execve_file(&plan.files.init, &arguments, &[]);
    SetupError::System { doing: "starting init".to_owned(), errno: error.raw_os_error().unwrap_or(libc::EIO) }
}
