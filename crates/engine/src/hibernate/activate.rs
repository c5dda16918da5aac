//! While it dozes: what is in the way, and memory back in place. And how it is given up later: it runs.

use std::fs::File;
use std::sync::Arc;

use super::{HibernateError, Hibernating};
use crate::lazy::{LazyApp, LazyWay, Loading, PagerThread};
use crate::recover::RecoverError;
use crate::sleep::events::{self, Extent};
use crate::sleep::{Failure, SleepError, Stop, carried, remove_image};
use crate::target::Phase;
use crate::wake::{WakeError, bring_first, open};
use torpor_capture::{CaptureError, Examined, Member, examine, family, without_leaders};
use torpor_pages::refill::refill;
use torpor_pages::source::ImageFile;
use torpor_process::blocker::Blocker;
use torpor_process::step::Step;
use torpor_process::threads::{WaitHistory, let_go};
use torpor_process::trace::{Process, stop_all};
use torpor_process::view::View;

/// An error with its causes, for people.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

/// Nothing was touched.
fn dozes(error: &dyn std::error::Error) -> HibernateError {
    HibernateError::Dozing(vec![chain(error)])
}

impl Hibernating<'_> {
    /// Looks for what is in the way; touches nothing. Or gives what has happened meanwhile.
    pub(super) fn examine(&mut self) -> Result<Result<Vec<Member>, String>, HibernateError> {
        let mut pids = self.target.freezer.processes().map_err(|error| dozes(&error))?;
        pids.sort_unstable();
        if !self.asleep.state.processes.iter().map(|process| process.pid).eq(pids.iter().copied()) {
            return Err(HibernateError::Dozing(vec!["its processes are not those that fell asleep".to_owned()]));
        }
        let mut obstacles = Vec::new();
        let family = family(self.request.home, &pids, &mut obstacles).map_err(|error| dozes(&error))?;
        let view = View::of(self.request.home, &all(&family)).map_err(|error| dozes(&error))?;
        obstacles.extend(without_leaders(&family).map_err(|error| dozes(&error))?);
        let happened = match self.heeding(|go_on| examine(&view, &family, go_on)) {
            (Err(CaptureError::Stopped), by) => Some(by.unwrap_or_else(|| "asked to".to_owned())),
            (examined, _) => {
                let Examined { obstacles: found, kept } = examined.map_err(|error| dozes(&error))?;
                obstacles.extend(found);
                if !obstacles.is_empty() {
                    return Err(HibernateError::Dozing(Blocker::lines(&obstacles)));
                }
                self.request.parking.has_room(kept).map_err(|error| dozes(&Failure::Park(error)))?;
                None
            }
        };
        self.reached(Step::Examined).map_err(|fault| dozes(&fault))?;
        Ok(happened.map_or(Ok(family), Err))
    }

    /// Sees to it that the app's files are on disk, which takes long where much was written: while it dozes nobody waits for it.
    /// Gives what has happened meanwhile.
    pub(super) fn sync_files(&self) -> Result<Option<String>, HibernateError> {
        let synced = File::open(self.request.image.store().folder()).and_then(|folder| {
            events::sync(Arc::new(folder), Extent::FileSystem, &self.asleep.watch, self.request.abort)
        });
        synced.map_err(|error| dozes(&error))
    }

    /// Brings memory back, or the part of it that must be there. It stays frozen.
    pub(super) fn activate(&mut self) -> Result<(), HibernateError> {
        let lazy = match self.bring_back() {
            Ok(lazy) => lazy,
            Err(error) if error.is_lost() => return Err(HibernateError::Lost(Box::new(RecoverError::Image(error)))),
            Err(error) => return Err(dozes(&error)),
        };
        self.reached(Step::Resident).map_err(|fault| dozes(&fault))?;
        self.missing = lazy.as_ref().map(|(_, app)| app.missing());
        let recorded = self.target.journal.record(self.phase_awake());
        if let Err(error) = recorded {
            self.missing = None;
            return Err(dozes(&Failure::Journal(error)));
        }
        // From here on somebody serves what we touch.
        if let Some((pager, app)) = lazy {
            // Its thread ends only with an app: were it gone, the next worker would serve it.
            let _ = pager.serve(app);
        }
        Ok(())
    }

    /// What the journal says of it while it counts as awake.
    const fn phase_awake(&self) -> Phase {
        match self.missing {
            Some(_) => Phase::Lazy { generation: self.asleep.image.generation() },
            None => Phase::Awake,
        }
    }

    /// Brings back all of its memory; where it can be lazy, only what must be there first.
    fn bring_back(&self) -> Result<Option<(PagerThread, LazyApp)>, WakeError> {
        let image = open(self.target, &self.asleep.image)?;
        if let (Some(pagers), Some(contexts)) = (self.request.pagers, &self.asleep.contexts)
            && contexts.may_be_lazy()
        {
            let way = LazyWay { pagers, cause: "", sample: None };
            if let Some(lazy) = bring_first(&image, self.asleep, contexts, way, &Loading::default())? {
                return Ok(Some(lazy));
            }
        }
        let pages = ImageFile::through_cache(image.file());
        refill(&pages, &self.asleep.state.processes, self.asleep.contexts()).map_err(WakeError::Refill)?;
        Ok(None)
    }

    /// Lets it run, as if it had just been woken.
    pub(super) fn give_up(&mut self, stop: Stop) -> SleepError {
        let at = self.at();
        stop.told(at, self.undo())
    }

    fn undo(&mut self) -> Result<(), Failure> {
        if self.journaled {
            // Before anything of it runs: no image must be put under a program that has run on.
            self.target.journal.record(self.phase_awake()).map_err(Failure::Journal)?;
        }
        // Nor after a power cut.
        let removed = self.image.remove_committed().and_then(|()| {
            let store = self.request.image.store();
            let is_named = self.at() >= Step::FilesParked;
            let synced = if is_named { store.sync() } else { Ok(()) };
            synced.map_err(|error| Failure::Image(store.folder().to_owned(), error))
        });
        let released = self.held().and_then(|held| Ok(let_go(held, &self.asleep.plans)?));
        // Whatever fails from here on, it is thawed.
        let thawed = self.target.freezer.thaw().map_err(Failure::Freeze);
        let unparked = if self.parked { self.request.parking.park(&[]).map_err(Failure::Park) } else { Ok(()) };
        removed?;
        self.image.remove()?;
        if self.missing.is_none() {
            remove_image(&self.asleep.image)?;
        }
        thawed?;
        unparked?;
        let let_go_on = released?.undo().map_err(Failure::Look)?;
        let timers = self.asleep.memories.timers.clone();
        let mut memories = WaitHistory { waits: carried(&self.asleep.plans), timers, ..WaitHistory::default() };
        memories.let_go_on(let_go_on);
        self.memories = Some(memories);
        Ok(())
    }

    /// Its processes, held; those that were not held yet are, so that their time-outs can be put right.
    fn held(&mut self) -> Result<Vec<Process>, Failure> {
        let held: Vec<Process> = std::mem::take(&mut self.stopped).into_iter().filter_map(|one| one.alive).collect();
        if !held.is_empty() {
            return Ok(held);
        }
        let pids: Vec<i32> = self.asleep.state.processes.iter().map(|process| process.pid).collect();
        Ok(stop_all(&pids)?)
    }
}

/// The machine's ids of a family.
pub(super) fn all(family: &[Member]) -> Vec<i32> {
    family.iter().map(|member| member.pid).collect()
}

/// Why collecting ended; `by` says what it was given up for.
pub(super) fn why(error: CaptureError, by: Option<String>) -> Stop {
    match error {
        CaptureError::Stopped => Stop::Aborted(by.unwrap_or_else(|| "asked to".to_owned())),
        CaptureError::Refused(obstacles) => Stop::Refused(Blocker::lines(&obstacles).join("; ")),
        CaptureError::Trace(error) => Failure::Trace(error).into(),
        error => Stop::Failed(Failure::Collect(Box::new(error))),
    }
}
