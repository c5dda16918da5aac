//! What is found out of an image while its home is being entered.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use torpor_image::tree::{FileId, FileKind, Machine, Tree};
use torpor_image::{FormatError, Needs};
use torpor_linux::closer::AppFile;

use super::adapt::Times;
use super::{Parked, ResumeError, Resuming, adapt, directory, owners};
use torpor_descriptors::Charge;
use torpor_descriptors::registry::{Stage, name, needs};
use torpor_descriptors::{Given, Removed, RestoreContext};
use torpor_pages::source::ImageFile;
use torpor_planner::plan::Plan;
use torpor_planner::staged::Staged;
use torpor_process::sandbox::SandboxHandle;
use torpor_restore::open::{self, PathError, Starters};
use torpor_restore::{
    CompileError, Loaded, RestoreError, RestoreStep, check, huge_pages, load, lower_limits, plan_again, read_ahead,
};

/// An image that was read and can be used here.
pub(super) struct Prepared {
    /// The image.
    pub(super) file: File,
    pub(super) tree: Tree,
    pub(super) plan: Plan,
    pub(super) starters: Starters,
    /// The home's root directory.
    pub(super) root: OwnedFd,
    /// Directories that had been removed.
    pub(super) removed: Removed,
    /// What the tree maps or stands in.
    pub(super) paths: Vec<OwnedFd>,
    pub(super) given: Given,
    /// Time since the capture.
    pub(super) passed: Duration,
    pub(super) same_boot: bool,
    pub(super) warnings: Vec<String>,
}

/// Reads the image, checks it, fetches what is parked.
pub(super) fn prepare(
    resuming: &mut Resuming<'_>,
    parked: &mpsc::Receiver<io::Result<Parked>>,
) -> Result<Prepared, ResumeError> {
    let (home, image) = (resuming.home, resuming.image);
    let loaded = load(image.path());
    let parked = parked.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
    let (mut given, loaded) = (parked.map_err(ResumeError::Parked)?, loaded?);
    let (about, wanted) = (&loaded.header, (resuming.target.app, resuming.target.epoch, image.generation()));
    if (about.app, about.epoch, about.generation) != wanted {
        let error = FormatError::Invalid("it belongs to another app, epoch or sleep");
        return Err(RestoreError::Format(image.path().to_owned(), error).into());
    }
    resuming.reached(RestoreStep::Read)?;

    let Loaded { file, header, mut tree, mut plan } = loaded;
    owners::to_the_machines(&mut tree, home, &given);
    if tree.namespaces.time != home.time_namespace {
        // Its home was made anew after a reboot, with clocks that go on.
        tree.namespaces.time = home.time_namespace;
        plan = plan_again(&tree, &header).map_err(RestoreError::from)?;
    }
    let root = directory(Path::new(&format!("/proc/{}/root", home.init_pid)))
        .map_err(|error| ResumeError::Sandbox("opening its root directory", error))?;
    let younger = is_younger(home.init_start_ticks, &tree.machine);
    // A home that was made since is as one after a reboot: numbers of devices and of kernel objects are others.
    let same_boot = header.boot == resuming.target.boot && !younger;
    let times = Times::of(&tree.machine, home, resuming.target.boot)
        .map_err(|error| ResumeError::Sandbox("reading its clocks", error))?;
    let passed = times.passed();
    let charge = Charge::of(home);
    let target = resuming.target;
    let piece = || target.faults.rebuilt(RestoreStep::Piece);
    let around = super::around(&root, same_boot, passed, &charge, &piece);
    if !same_boot {
        let moved = resuming.each(RestoreStep::TmpfsRestored, |made| {
            torpor_descriptors::tmpfs::restore(&tree.surroundings.tmpfs, around, &ImageFile::through_cache(&file), made)
        })?;
        moved.apply(&mut tree);
    }
    let tree = tree;
    let staged = Staged::of(&tree).ok_or(CompileError::NoNumbers).map_err(RestoreError::from)?;
    // A directory that had been removed is made for them.
    let examined = owners::as_root_inside(home, || {
        let removed = Removed::of(&tree, &given, around.root)
            .map_err(|(path, error)| RestoreError::from(PathError::of(&path, error.into())))?;
        let around = RestoreContext { removed: Some(&removed), ..around };
        let paths = examine(home, &tree, &header.needs, &staged, around)?;
        Ok::<_, RestoreError>((removed, paths))
    });
    let (removed, paths) = examined.map_err(|error| ResumeError::Sandbox("taking its owner's place", error))??;
    read_ahead::begin(&tree, &staged, &paths);
    let mut warnings = Vec::new();
    let others = others(home, &tree, &given, &mut warnings)?;
    given.extend(others);
    lower_limits(&tree, &mut plan, &mut warnings);
    adapt::to_kept_files(&mut plan, &tree, &staged, &given, home)
        .map_err(|error| ResumeError::Sandbox("looking at its mounts", error))?;
    adapt::to_the_time(&mut plan, &tree, &times);
    let starters = Starters::new(&staged, &plan)?;
    resuming.reached(RestoreStep::Checked)?;
    Ok(Prepared { file, tree, plan, starters, root, removed, paths, given, passed, same_boot, warnings })
}

/// What is in the way; opens the paths that the tree maps or stands in.
fn examine(
    home: &SandboxHandle,
    tree: &Tree,
    needs: &Needs,
    staged: &Staged<'_>,
    around: RestoreContext<'_>,
) -> Result<Vec<OwnedFd>, RestoreError> {
    let mut wrong = check::machine(needs, tree);
    wrong.extend(huge_pages::lacking(tree, |_| false));
    if tree.processes[0].pid != home.initial {
        wrong.push(format!("its initial process is {}, and not {}", tree.processes[0].pid, home.initial));
    }
    if tree.namespaces.user != home.user_namespace.is_some() {
        wrong.push("its home has another user namespace".to_owned());
    }
    match open::paths(staged, &tree.contents, around) {
        Ok(paths) if wrong.is_empty() => return Ok(paths),
        Ok(_) => {}
        Err(PathError::Changed(changed)) => wrong.extend(changed),
        Err(passing) => return Err(passing.into()),
    }
    Err(RestoreError::Refused(wrong))
}

/// What came from elsewhere and is not parked any more.
fn missing(tree: &Tree, given: &Given) -> Vec<(FileId, String)> {
    let files = (0..).zip(&tree.files).filter(|(id, _)| !given.contains_key(id));
    let missing = files.filter(|(_, file)| needs(&file.kind).stage == Stage::Given);
    missing.map(|(id, file)| (id, name(file))).collect()
}

/// For what came from elsewhere and is not parked any more.
fn others(
    home: &SandboxHandle,
    tree: &Tree,
    given: &Given,
    warnings: &mut Vec<String>,
) -> Result<Vec<(FileId, AppFile)>, ResumeError> {
    let mut found = Vec::new();
    for (id, name) in missing(tree, given) {
        let file = match opened_again(tree, given, id, &name) {
            Some(again) => again.map_err(|error| ResumeError::Sandbox("opening its output again", error))?,
            None => {
                warnings.push(format!("{name} is not there any more: the program finds it closed"));
                dead_end(home).map_err(|error| ResumeError::Sandbox("making an end without another", error))?
            }
        };
        found.push((id, file.into()));
    }
    Ok(found)
}

/// Opens what came from elsewhere as something that is there again: a program that opened `/dev/stdout` by itself has another open
/// file of the same pipe.
fn opened_again(tree: &Tree, given: &Given, id: FileId, name: &str) -> Option<io::Result<OwnedFd>> {
    if !name.starts_with("pipe:") {
        return None;
    }
    let same = |other: FileId| {
        let kind = tree.files.get(other as usize).map(|file| &file.kind);
        matches!(kind, Some(FileKind::Outside { name: there }) if there == name)
    };
    let there = given.iter().find(|(other, _)| same(**other))?.1;
    Some(torpor_descriptors::reopen(there.as_fd(), tree.files.get(id as usize)?.flags).map_err(io::Error::from))
}

/// A descriptor whose other end is closed: reading gives the end, writing fails. It is of the app's network namespace, as all its
/// sockets are.
fn dead_end(home: &SandboxHandle) -> io::Result<OwnedFd> {
    // Entering a namespace is for good: a thread of its own does it.
    std::thread::scope(|scope| {
        let made = scope.spawn(|| {
            move_into_thread_name_spaces(home.init.as_fd(), ThreadNameSpaceType::NETWORK)?;
            Ok(std::os::unix::net::UnixStream::pair()?.0.into())
        });
        made.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Whether a process has begun after the capture; only meant for one of the same boot.
const fn is_younger(start_ticks: u64, machine: &Machine) -> bool {
    /// `USER_HZ`, in which `/proc` tells times.
    const TICK_NS: u64 = 10_000_000;
    start_ticks.saturating_mul(TICK_NS) > machine.boottime_ns
}
