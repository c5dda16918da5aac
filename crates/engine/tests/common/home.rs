//! What an app lives in, without a sandbox: namespaces with an init of their own, and a cgroup.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use torpor_engine::{
    Faults, Freezer, Phase, RestoreStep, ResumeError, ResumeOutcome, ResumeRequest, SandboxHandle, Target, Timings,
    resume,
};
use torpor_store::{Image, Store};
use torpor_testkit::namespaces::Namespaces;

use super::freezer::{CgroupFreezer, OwnCgroup};
use super::journal::MemoryJournal;
use super::{boot, process, start_ticks};

/// Namespaces with an init that only reaps, and a cgroup.
pub struct TestHome {
    namespaces: Namespaces,
    pub home: SandboxHandle,
    pub cgroup: OwnCgroup,
}

impl TestHome {
    /// For an app whose initial process has this id.
    pub fn new(initial: i32) -> Self {
        let namespaces = Namespaces::new().unwrap();
        let cgroup = OwnCgroup::new();
        let home = home(namespaces.init(), initial, &cgroup);
        Self { namespaces, home, cgroup }
    }

    /// Builds the processes of an image here.
    pub fn resume(&self, image: &Image, given: BTreeMap<u32, OwnedFd>, faults: &dyn Faults) -> Outcome {
        self.resume_by(&*self.cgroup, image, given, faults)
    }

    /// The same; this one freezes and thaws them.
    pub fn resume_by(
        &self,
        freezer: &dyn Freezer,
        image: &Image,
        given: BTreeMap<u32, OwnedFd>,
        faults: &dyn Faults,
    ) -> Outcome {
        let journal = MemoryJournal::new(WARM);
        let target =
            Target { app: 0, epoch: torpor_image::Epoch::FIRST, boot: boot(), freezer, journal: &journal, faults };
        let given: BTreeMap<_, _> = given.into_iter().map(|(id, fd)| (id, fd.into())).collect();
        let (given, give_up) = (Box::new(move || Ok(given)), Box::new(|| {}));
        let request = ResumeRequest { home: &self.home, image, given, give_up, lazy: None };
        let (result, timings) = resume(&target, request);
        Outcome { result, timings, phase: journal.phase() }
    }

    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty() && self.cgroup.processes().unwrap().is_empty()
    }
}

/// The home in these namespaces and this cgroup.
pub fn home(init_pid: i32, initial: i32, cgroup: &CgroupFreezer<'_>) -> SandboxHandle {
    SandboxHandle {
        init: pidfd_open(Pid::from_raw(init_pid).unwrap(), PidfdFlags::empty()).unwrap(),
        init_pid,
        init_start_ticks: start_ticks(init_pid),
        initial,
        cgroup: cgroup.path().to_owned(),
        tasks: Vec::new(),
        user_namespace: None,
        time_namespace: false,
    }
}

pub const WARM: Phase = Phase::Warm { generation: 0, wake_at: None };

/// What has come of building an app's processes.
pub struct Outcome {
    pub result: Result<ResumeOutcome, ResumeError>,
    pub timings: Timings<RestoreStep>,
    pub phase: Phase,
}

/// The image, in `directory`, of a program that leads its session and gives itself this name; and its process id.
pub fn image_of(command: &Command, name: &str, directory: &Path) -> (Image, i32) {
    let mut session = Command::new("setsid");
    session.arg(command.get_program()).args(command.get_args());
    let mut child = process::start(&session, name);
    let pid = child.id() as i32;
    let captured = process::capture(&mut child, directory).image;
    (Store::of_checkpoint(captured.parent().unwrap()).image(0), pid)
}
