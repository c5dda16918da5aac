//! The part that can be given up: hold, describe, write, park, name. Its end is the commit.

use std::time::Duration;

use torpor_image::HEADER_BYTES;
use torpor_image::tree::{SharedMemoryKind, Tree};

use super::activate::{all, why};
use super::{Captured, Hibernating};
use crate::checkpoint::{unreadable, write};
use crate::sleep::events::{self, Extent};
use crate::sleep::{Failure, Stop};
use crate::target::Phase;
use torpor_capture::{CaptureOptions, CapturedTree, Held, Member, capture_as, for_record, hold};
use torpor_descriptors::OpenFiles;
use torpor_planner::compile::compile;
use torpor_process::sandbox::clock_offsets;
use torpor_process::step::Step;
use torpor_process::threads::{Began, ThreadPlan};
use torpor_process::view::View;
use torpor_process::wait::since::now;
use torpor_store::Durability;

impl Hibernating<'_> {
    /// Everything from the journal's `Awake` to the commit.
    pub(super) fn capture(&mut self, family: &[Member]) -> Result<Captured, Stop> {
        self.reached(Step::Activated)?;
        self.check_events()?;
        let records = self.hold(family)?;
        self.target.freezer.thaw().map_err(Failure::Freeze)?;
        self.reached(Step::Attached)?;

        // It refers to what is missing, which is in the image that it dozes with.
        let file = match self.missing {
            Some(_) => self.image.begin_behind(&self.asleep.image)?,
            None => self.image.begin()?,
        };
        let Written { tree, kept, warnings, image_bytes } = self.collect(family, &records)?;
        self.reached(Step::Collected)?;
        // Memory and files belong together: both are on disk before the image counts.
        let happened = events::sync(file, Extent::FileSystem, &self.asleep.watch, self.request.abort);
        given_up(happened.map_err(|error| self.image.failed(error))?)?;
        self.reached(Step::Written)?;

        self.parked = true;
        let files: Vec<_> = kept.iter().map(|(id, fd)| (*id, std::os::fd::AsFd::as_fd(fd))).collect();
        self.request.parking.park(&files).map_err(Failure::Park)?;
        self.reached(Step::FilesParked)?;
        self.check_events()?;
        self.image.commit(Durability::PowerCuts)?;
        self.reached(Step::Named)?;
        self.commit()?;
        let segments = segments(&tree);
        Ok(Captured { image_bytes, segments, warnings, _kept: kept })
    }

    /// Holds every thread; gives what the image says of their waits.
    fn hold(&mut self, family: &[Member]) -> Result<Vec<ThreadPlan>, Stop> {
        self.stopped = hold(family).map_err(|error| why(error, None))?;
        let (began, at) = (Began::just_now(), now());
        let mut records = Vec::with_capacity(self.asleep.plans.len());
        for process in self.stopped.iter_mut().filter_map(|one| one.alive.as_mut()) {
            for thread in &mut process.threads {
                let tid = thread.tracee.thread();
                let Some(plan) = self.asleep.plans.iter().find(|plan| plan.tid == tid) else {
                    return Err(Stop::Aborted(format!("thread {tid} of process {} is new", process.pid)));
                };
                records.push(for_record(*plan, &began));
                // Put right at once: should we die here, it goes on properly.
                plan.prepare_quietly(thread, at)?;
            }
        }
        Ok(records)
    }

    /// Describes it, copies its memory and writes the image.
    fn collect(&self, family: &[Member], records: &[ThreadPlan]) -> Result<Written, Stop> {
        let image = self.image.partial()?;
        let missing = self.missing.as_deref().unwrap_or_default();
        let view = View::of(self.request.home, &all(family)).map_err(Failure::Look)?;
        let (collected, by) = self.heeding(|go_on| {
            let manner = CaptureOptions {
                view: &view,
                open_files: OpenFiles::Parked,
                held: Held::SinceIdle,
                go_on,
                lock: None,
                streamed: false,
                // The pages of its loading set are where they were.
                expected: if missing.is_empty() { self.request.expected } else { &[] },
                missing,
            };
            capture_as(&manner, &self.stopped, records, image.file(), image.pages_at())
        });
        let CapturedTree { mut tree, pages_end, kept, warnings, .. } = collected.map_err(|error| why(error, by))?;
        let captured = Duration::from_nanos(tree.machine.monotonic_ns);
        let left = self.asleep.wake_at.map(|at| at.saturating_sub(captured));
        tree.machine.wake_after_ns = left.map(|left| left.as_nanos() as u64);
        tree.namespaces.user = self.request.home.user_namespace.is_some();
        if self.request.home.time_namespace {
            tree.namespaces.time = true;
            tree.machine.clock_offsets_ns = clock_offsets(self.request.home.init_pid).map_err(Failure::Look)?;
        }
        if !missing.is_empty() {
            tree.loading.clone_from(&self.asleep.state.loading);
        }
        tree.check(&(HEADER_BYTES..pages_end)).map_err(|error| Stop::Refused(unreadable(&error)))?;
        let plan = compile(&tree).map_err(|error| Stop::Refused(error.to_string()))?;
        let owner = (self.target.app, self.target.epoch, self.request.image.generation());
        let image_bytes = write(image, &tree, &plan, pages_end, owner).map_err(|error| self.image.failed(error))?;
        Ok(Written { tree, kept, warnings, image_bytes })
    }

    /// From here on the image is the truth. It is frozen first: were we to die, nothing of it would run.
    fn commit(&mut self) -> Result<(), Stop> {
        self.target.freezer.freeze().map_err(Failure::Freeze)?;
        // The last look at what it waits for.
        self.check_events()?;
        self.journaled = true;
        let phase = Phase::Ending { generation: self.request.image.generation(), wake_at: self.asleep.wake_at };
        self.target.journal.record(phase).map_err(Failure::Journal)?;
        Ok(self.reached(Step::Ending)?)
    }

    fn check_events(&self) -> Result<(), Stop> {
        given_up(events::happened(&self.asleep.watch, self.request.abort).map_err(Failure::Look)?)
    }
}

/// An image that is written but for its name.
struct Written {
    tree: Tree,
    kept: Vec<(torpor_image::tree::FileId, torpor_linux::closer::AppFile)>,
    warnings: Vec<String>,
    image_bytes: u64,
}

/// What has happened ends it.
fn given_up(by: Option<String>) -> Result<(), Stop> {
    by.map_or(Ok(()), |by| Err(Stop::Aborted(by)))
}

/// Ids of the System V segments in a tree.
fn segments(tree: &Tree) -> Vec<i32> {
    let id = |kind: &SharedMemoryKind| match kind {
        SharedMemoryKind::SystemV { id, .. } => Some(*id),
        _ => None,
    };
    tree.memories.iter().filter_map(|memory| id(&memory.kind)).collect()
}
