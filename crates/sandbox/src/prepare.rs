//! Making a sandbox: the worker's side of the conversation with a set-up process.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::sync::Mutex;

use crate::cgroup::{Cgroup, Hierarchies};
use crate::channel::{Channel, to_file};
use crate::confine::Confinement;
use crate::error::{CgroupError, SandboxError, While};
use crate::launcher::{Launcher, SETUP_COMMAND, answer, reap};
use crate::message::{Begin, Empty, FromSetup, Request, ToSetup};
use crate::process::{Identity, ids};
use crate::sandbox::{HeldOutput, Initial, Sandbox, SandboxRecord, depth_of, destroy_leftovers, open_netns};
use crate::spec::{Clocks, SandboxSpec};
use crate::status;

/// The lowest id of an initial process: 1 is init's.
const FIRST_INITIAL: i32 = 2;

/// A sandbox whose program has not started. Dropping it removes everything.
#[derive(Debug)]
pub struct Prepared {
    /// None once started.
    sandbox: Option<Sandbox>,
    channel: Channel,
    setup: Child,
    netns: OwnedFd,
    unenforced: Vec<CgroupError>,
}

impl Prepared {
    /// The network namespace, to be connected before the start.
    pub fn netns(&self) -> BorrowedFd<'_> {
        self.netns.as_fd()
    }

    /// What to write down before the start.
    pub fn record(&self) -> &SandboxRecord {
        &self.sandbox.as_ref().expect("only start, which consumes self, takes it").record
    }

    /// Limits that were asked for and that this machine cannot enforce.
    pub fn unenforced(&self) -> &[CgroupError] {
        &self.unenforced
    }

    /// Starts the program, if there is one; returns once it runs.
    ///
    /// # Errors
    /// Why it does not; nothing is left behind then.
    pub fn start(mut self) -> Result<Sandbox, SandboxError> {
        let id = self.record().id.clone();
        // A set-up process that has died meanwhile is reported by the answer that does not come.
        let _dead = self.channel.send(&ToSetup::Go, &[]);
        match answer(&self.channel, &mut self.setup, &id)?.0 {
            FromSetup::Started => {
                self.setup.wait().whilst(|| format!("waiting for the set-up process of {id}"))?;
                Ok(self.sandbox.take().expect("nobody else takes it"))
            }
            FromSetup::Failed(error) => Err(error.into()),
            _ => Err(SandboxError::SetupAnswer { id, what: "not the start" }),
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        let Some(sandbox) = self.sandbox.take() else { return };
        reap(&mut self.setup, &sandbox.record.id);
        if let Err(error) = sandbox.destroy() {
            tracing::warn!(id = sandbox.record.id, %error, "removing a sandbox that did not start");
        }
    }
}

impl Sandbox {
    /// Makes everything and stops just before the program starts.
    ///
    /// # Errors
    /// What could not be made; nothing is left behind then.
    pub fn prepare(
        launcher: &Launcher,
        spec: &SandboxSpec,
        stdio: [OwnedFd; 3],
        output: HeldOutput<'_>,
    ) -> Result<Prepared, SandboxError> {
        spec.check()?;
        prepare(launcher, spec, stdio, output, None)
    }

    /// Makes everything but a process of the app, for processes that come later and have ended before, perhaps before a
    /// reboot: their initial one's id inside is `initial_inside`. `clocks` makes a time namespace, in which their clocks go on
    /// from where they were; init holds it, `exec` joins it. [`Prepared::start`] then starts nothing; until
    /// [`Sandbox::processes_are_back`] the sandbox is as after [`Sandbox::end_processes`].
    ///
    /// # Errors
    /// What could not be made; nothing is left behind then.
    pub fn prepare_empty(
        launcher: &Launcher,
        spec: &SandboxSpec,
        initial_inside: i32,
        clocks: Option<Clocks>,
        output: HeldOutput<'_>,
    ) -> Result<Prepared, SandboxError> {
        spec.check()?;
        if initial_inside < FIRST_INITIAL {
            return Err(SandboxError::Initial { id: initial_inside });
        }
        let null = || File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from);
        let stdio = || Ok::<_, io::Error>([null()?, null()?, null()?]);
        let stdio = stdio().whilst(|| "opening /dev/null".to_owned())?;
        prepare(launcher, spec, stdio, output, Some(Empty { initial: initial_inside, clocks }))
    }
}

/// Makes a sandbox up to its start, with `stdio` for its program, or an empty one; its init holds `output`.
fn prepare(
    launcher: &Launcher,
    spec: &SandboxSpec,
    stdio: [OwnedFd; 3],
    output: HeldOutput<'_>,
    empty: Option<Empty>,
) -> Result<Prepared, SandboxError> {
    let status = status::take(&spec.run_dir, &spec.id)?;
    let prepared = prepare_with(launcher, spec, &stdio, output, &status, empty);
    drop(status);
    // The program's ends belong to it alone now: ours would keep its pipes open.
    drop(stdio);
    if prepared.is_err() {
        clear(launcher.hierarchies(), spec);
    }
    prepared
}

fn prepare_with(
    launcher: &Launcher,
    spec: &SandboxSpec,
    stdio: &[OwnedFd; 3],
    output: HeldOutput<'_>,
    status: &File,
    empty: Option<Empty>,
) -> Result<Prepared, SandboxError> {
    if empty.is_some() {
        status::StatusFile { run_dir: &spec.run_dir, init: None }.mark(true)?;
    }
    let place = spec.run_dir.join("root");
    if let Err(error) = fs::create_dir(&place)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error).whilst(|| format!("making {}", place.display()));
    }
    let hierarchies = launcher.hierarchies();
    let (cgroup, unenforced) =
        Cgroup::create(hierarchies, &spec.cgroup_parent, &spec.id, &spec.limits, spec.ids.is_none())?;

    let (channel, mut setup) = launcher.spawn(SETUP_COMMAND)?;
    let begin = Begin {
        app_tasks: cgroup.tasks_files(),
        support_files: support_files(launcher, &spec.cgroup_parent)?,
        core: cgroup.core().to_owned(),
        support: hierarchies.support_group(&spec.cgroup_parent),
        visible: cgroup.visible(),
        empty,
    };
    let made = (|| {
        let file = to_file(spec).whilst(|| "writing the spec to memory".to_owned())?;
        let mut files = vec![file.as_fd()];
        files.extend(stdio.iter().map(AsFd::as_fd));
        files.extend([status.as_fd(), launcher.init().as_fd()]);
        files.extend(output.into_iter().flatten());
        channel
            .send(&Request::SetUp(begin), &files)
            .whilst(|| format!("instructing the set-up process of {}", spec.id))?;
        let (record, init, initial) = take_ready(&channel, &mut setup, spec, empty)?;
        Ok((depth_of(&record.init)?, record, init, initial))
    })();
    let (depth, record, init, initial) = match made {
        Ok(made) => made,
        Err(error) => {
            reap(&mut setup, &spec.id);
            return Err(error);
        }
    };
    let netns = open_netns(&record.init);
    let sandbox = Sandbox { record, init, depth, initial: Mutex::new(initial), cgroup };
    match netns {
        Ok(netns) => Ok(Prepared { sandbox: Some(sandbox), channel, setup, netns, unenforced }),
        Err(error) => {
            reap(&mut setup, &spec.id);
            sandbox.destroy()?;
            Err(error)
        }
    }
}

/// What a set-up or exec process enters of the support group before it makes others.
pub(crate) fn support_files(launcher: &Launcher, parent: &str) -> Result<Vec<std::path::PathBuf>, SandboxError> {
    let mut files = launcher.hierarchies().support_tasks_files(parent);
    if !launcher.makes_in_groups()? {
        files.push(launcher.hierarchies().support_group(parent).join("cgroup.procs"));
    }
    Ok(files)
}

fn take_ready(
    channel: &Channel,
    setup: &mut Child,
    spec: &SandboxSpec,
    empty: Option<Empty>,
) -> Result<(SandboxRecord, OwnedFd, Option<Initial>), SandboxError> {
    let unfit = |what| SandboxError::SetupAnswer { id: spec.id.clone(), what };
    let (message, descriptors) = answer(channel, setup, &spec.id)?;
    let (init_pid, initial_pid) = match message {
        FromSetup::Ready { init, initial } => (init, initial),
        FromSetup::Failed(error) => return Err(error.into()),
        _ => return Err(unfit("not ready")),
    };
    let mut descriptors = descriptors.into_iter();
    let init = descriptors.next().ok_or_else(|| unfit("no init"))?;
    let initial = match (initial_pid, descriptors.next()) {
        (Some(pid), Some(pidfd)) => Some(Initial { pid, pidfd }),
        (None, None) => None,
        _ => return Err(unfit("other descriptors")),
    };
    // Both wait for us, so neither pid can be another's.
    let identify = |pid| {
        let found = Identity::of(pid).whilst(|| format!("identifying process {pid}"))?;
        found.ok_or_else(|| SandboxError::Gone { id: spec.id.clone(), pid })
    };
    let inside = |pid| {
        let ids = ids(pid).whilst(|| format!("reading the ids of process {pid}"))?;
        ids.and_then(|ids| ids.last().copied()).ok_or_else(|| unfit("no initial process"))
    };
    let initial_inside = match (&initial, empty) {
        (Some(initial), None) => inside(initial.pid)?,
        (None, Some(empty)) => empty.initial,
        _ => return Err(unfit("not what was asked for")),
    };
    let record = SandboxRecord {
        id: spec.id.clone(),
        cgroup_parent: spec.cgroup_parent.clone(),
        run_dir: spec.run_dir.clone(),
        hostname: spec.hostname.clone(),
        ids: spec.ids,
        init: identify(init_pid)?,
        initial: initial.as_ref().map(|initial| identify(initial.pid)).transpose()?,
        initial_inside,
        clocks: empty.and_then(|empty| empty.clocks),
        confinement: Confinement::of(spec)?,
    };
    Ok((record, init, initial))
}

/// Removes what a failed `prepare` has made; says what it could not.
fn clear(hierarchies: &Hierarchies, spec: &SandboxSpec) {
    if let Err(error) = destroy_leftovers(hierarchies, &spec.cgroup_parent, &spec.id, &spec.run_dir) {
        tracing::warn!(id = spec.id, %error, "removing a sandbox that was not made");
    }
}
