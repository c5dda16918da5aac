//! The abortable part: freeze, stop, watch, copy, sync, commit.

use std::cell::OnceCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use torpor_image::{HEADER_BYTES, Header, LoadingPart, Region, State, checksum};

use super::blockers::pins;
use super::error::{Failure, Stop};
use super::{Captured, Drops, Sleep, events};
use crate::lazy::{LazyProgram, loading_of_missing};
use crate::target::Phase;
use crate::watch::{Waiting, Watch};
use torpor_pager::Owner;
use torpor_pages::absent::Missing;
use torpor_pages::copy::{Copier, CopyError};
use torpor_pages::droppable::Droppable;
use torpor_pages::parts::Expected;
use torpor_pages::scan::Selection;
use torpor_pages::sink::PageSink;
use torpor_pages::source::Stored;
use torpor_proc::gone;
use torpor_proc::maps::{Contexts, Flags, areas};
use torpor_process::step::Step;
use torpor_process::threads::{Began, ThreadPlan, WaitHistory};
use torpor_process::trace::{Process, install_park_loop, stop_all};
use torpor_process::wait::since::now;
use torpor_process::wait::sources::waits;
use torpor_store::Durability;

impl Sleep<'_> {
    /// The abortable part, up to and with the commit.
    pub(super) fn capture(&mut self) -> Result<Captured, Stop> {
        let pids = self.target.freezer.processes().map_err(Failure::Look)?;
        let (began, flags) = prepare(&pids, self.request.memories, self.contexts())?;
        let file = match self.lazy {
            Some(lazy) => {
                let file = self.image.begin_behind(lazy.image())?;
                // The same again will take little time, while it is frozen.
                self.missing_now(lazy, &file)?;
                file
            }
            None => self.image.begin_doze()?,
        };
        self.reached(Step::Prepared)?;

        self.frozen = true;
        self.target.freezer.freeze().map_err(Failure::Freeze)?;
        self.reached(Step::Frozen)?;

        let mut pids = self.target.freezer.processes().map_err(Failure::Look)?;
        pids.sort_unstable();
        if pids.is_empty() {
            return Err(Stop::Aborted("it has ended".to_owned()));
        }
        self.processes = stop_all(&pids)?;
        let at = now();
        for process in &mut self.processes {
            for thread in &mut process.threads {
                let plan = ThreadPlan::of(process.pid, thread, &began, self.request.memories);
                self.plans.push(plan);
                // Put right at once: should we die here, the app goes on properly.
                plan.prepare_quietly(thread, at)?;
            }
        }
        self.reached(Step::Stopped)?;

        // One that job control has stopped does nothing, wherever it was stopped.
        let threads = self.processes.iter().flat_map(|process| &process.threads);
        let mut running = self.plans.iter().zip(threads).filter(|(_, thread)| thread.tracee.group_stop().is_none());
        if let Some((plan, _)) = running.find(|(plan, _)| plan.at_work()) {
            let (pid, tid) = (plan.pid, plan.tid);
            return Err(Stop::Aborted(format!(
                "thread {tid} of process {pid} ({}) is at work",
                torpor_proc::name(pid)
            )));
        }
        let watch = Watch::build(&self.waiting(), self.request.single_sockets)?;
        self.reached(Step::Watched)?;

        let captured = self.copy(&flags, watch, file)?;
        self.commit(captured)
    }

    fn waiting(&self) -> Vec<Waiting> {
        let mut waiting: Vec<Waiting> = Vec::with_capacity(self.processes.len());
        for plan in &self.plans {
            // A call that was not interrupted has just ended: nothing is waited for.
            let number = plan.interrupted.map(|interrupted| interrupted.number);
            let found = waits(number, &plan.registers, &torpor_process::threads::RemoteMemory(plan.pid));
            if waiting.last().is_none_or(|process| process.pid != plan.pid) {
                waiting.push(Waiting::new(plan.pid));
            }
            if let Some(process) = waiting.last_mut() {
                process.add(found);
            }
        }
        waiting
    }

    /// Copies all memory into the image and writes it out.
    fn copy(&mut self, flags: &[(i32, Flags)], watch: Watch, file: Arc<File>) -> Result<Captured, Stop> {
        let missing = match self.lazy {
            Some(lazy) => self.missing_now(lazy, &file)?,
            None => Vec::new(),
        };
        let image = self.image.partial()?;
        let stop = OnceCell::new();
        let go_on = || self.check_events(&watch).map_err(|by| stop.set(by)).is_ok();
        let mut copier = Copier::new(PageSink::new(&file, image.pages_at()), Selection::Exclusive, &go_on);
        let mut memories = Vec::with_capacity(self.processes.len());
        let mut park_addresses = Vec::with_capacity(self.processes.len());
        let mut spaces: Vec<i32> = Vec::new();
        for process in &self.processes {
            let areas = areas(process.pid).map_err(Failure::Look)?;
            if torpor_process::aio::used(&areas) {
                self.drain(process.pid)?;
            }
            let park_address = install_park_loop(process.pid, &areas)?;
            park_addresses.push(park_address);
            memories.push(if shares_with(process.pid, &spaces)? {
                Droppable::default()
            } else {
                spaces.push(process.pid);
                let none = Flags::default();
                let flags = match self.lazy {
                    // Those from before the freeze may be of a program that has been replaced.
                    Some(_) => &Flags::read(process.pid, self.contexts()).map_err(Failure::Look)?,
                    None => flags.iter().find(|(pid, _)| *pid == process.pid).map_or(&none, |(_, flags)| flags),
                };
                Droppable::of(process.pid, areas, flags, self.contexts())?
            });
        }
        let missing = self.by_process(missing, &memories)?;
        let loading = match copy_memories(&mut memories, self.request.expected, &mut copier) {
            Err(CopyError::Stopped) => {
                drop(copier);
                return Err(stop.into_inner().unwrap_or_else(|| CopyError::Stopped.into()));
            }
            other => other?,
        };
        let loading = [loading_of_missing(self.request.expected, &missing), loading].concat();
        let mut state = State { loading, ..State::default() };
        let mut drops = Vec::new();
        let mut kept_pages = 0;
        for ((process, memory), park_address) in self.processes.iter().zip(memories).zip(park_addresses) {
            let named = Missing { file: &file, regions: &missing };
            let copied = memory.finish((!missing.is_empty()).then_some(named))?;
            kept_pages += copied.kept_pages;
            drops.push(Drops { ranges: copied.drop, anonymous: copied.anonymous });
            state.processes.push(self.process_state(process, park_address, copied.regions));
        }
        let pages_end = copier.finish()?;
        let encoded = state.encode();
        let header = Header {
            app: self.target.app,
            epoch: self.target.epoch,
            generation: self.request.image.generation(),
            boot: self.target.boot,
            pages_bytes: pages_end - HEADER_BYTES,
            state_bytes: encoded.len() as u64,
            state_checksum: checksum(&encoded),
            ..Header::default()
        };
        let written = file.write_all_at(&encoded, pages_end).and_then(|()| image.finish(&header));
        written.map_err(|error| self.image.failed(error))?;
        self.reached(Step::Copied)?;

        self.sync(file, &watch)?;
        self.reached(Step::Synced)?;
        let stored = state.processes.iter().flat_map(|process| &process.regions).filter_map(Stored::of);
        let image_bytes = HEADER_BYTES + stored.map(|stored| stored.bytes).sum::<u64>() + encoded.len() as u64;
        let kept_bytes = kept_pages * torpor_image::PAGE;
        Ok(Captured { state, drops, watch, image_bytes, kept_bytes })
    }

    /// Whose contexts its memory may be registered with.
    const fn contexts(&self) -> Contexts {
        if self.lazy.is_some() { Contexts::Pagers } else { Contexts::Programs }
    }

    /// What it misses now, by process.
    fn missing_now(&mut self, lazy: &dyn LazyProgram, file: &File) -> Result<Vec<(Owner, Vec<Region>)>, Stop> {
        // Its memory comes back then, and it can be tried again.
        let parts = lazy.missing().map_err(|error| Stop::Aborted(format!("what it misses is not known: {error}")))?;
        Ok(self.names.regions(file, &parts)?)
    }

    /// Finds the processes that miss pages among those that were stopped. A process may have ended, or have executed another program,
    /// while another one goes on with its address space: then the pages are not its own, and must come back first.
    fn by_process(
        &self,
        missing: Vec<(Owner, Vec<Region>)>,
        memories: &[Droppable],
    ) -> Result<Vec<(i32, Vec<Region>)>, Stop> {
        for (Owner { pid, start_ticks }, regions) in &missing {
            let is_it = |process: &Process| (process.pid, process.start_ticks) == (*pid, *start_ticks);
            let memory = self.processes.iter().zip(memories).find(|(process, _)| is_it(process));
            let misses = |region: &Region| {
                memory.is_some_and(|(_, memory)| memory.misses(&(region.start..region.start + region.bytes())))
            };
            if let Some(region) = regions.iter().find(|region| !misses(region)) {
                if let Some(lazy) = self.lazy {
                    lazy.bring_back();
                }
                let at = region.start;
                return Err(Stop::Aborted(format!("memory of process {pid} at {at:#x} is not back yet")));
            }
        }
        Ok(missing.into_iter().map(|(owner, regions)| (owner.pid, regions)).collect())
    }

    /// Sees to it that no disk I/O of the program's is under way, and that no thread waits for some that is over.
    fn drain(&self, pid: i32) -> Result<(), Stop> {
        if !torpor_process::aio::drained().map_err(Failure::Look)? {
            return Err(Stop::Aborted(format!("disk I/O under way (io_submit, process {pid})")));
        }
        for plan in self.plans.iter().filter(|plan| plan.pid == pid) {
            let Some(context) = plan.waits_for_disk() else { continue };
            if torpor_process::aio::answered(&torpor_process::threads::RemoteMemory(pid), context)
                .map_err(Failure::Look)?
            {
                let tid = plan.tid;
                return Err(Stop::Aborted(format!("disk I/O that thread {tid} of process {pid} waits for has ended")));
            }
        }
        Ok(())
    }

    fn process_state(&self, process: &Process, park_address: u64, regions: Vec<Region>) -> torpor_image::Process {
        let threads = process.threads.iter().map(|thread| {
            let tid = thread.tracee.thread();
            let wait = self.plans.iter().find(|plan| plan.tid == tid).and_then(ThreadPlan::deadline);
            torpor_image::Thread {
                tid,
                registers: *thread.registers.words(),
                signal_mask: thread.signal_mask,
                wait: wait.map(|deadline| torpor_image::Wait {
                    deadline_ns: deadline.at.as_nanos() as u64,
                    total_ns: deadline.total.as_nanos() as u64,
                }),
            }
        });
        torpor_image::Process {
            pid: process.pid,
            start_ticks: process.start_ticks,
            park_address,
            regions,
            threads: threads.collect(),
        }
    }

    /// Waits until the image is on disk, but no longer than until something happens.
    fn sync(&self, file: Arc<File>, watch: &Watch) -> Result<(), Stop> {
        let happened = events::sync(file, events::Extent::File, watch, self.request.abort);
        given_up(happened.map_err(|error| self.image.failed(error))?)
    }

    fn check_events(&self, watch: &Watch) -> Result<(), Stop> {
        given_up(events::happened(watch, self.request.abort).map_err(Failure::Look)?)
    }

    /// Makes the image current. The last look at the descriptors comes just before.
    fn commit(&mut self, captured: Captured) -> Result<Captured, Stop> {
        self.image.commit(Durability::Processes)?;
        self.check_events(&captured.watch)?;
        let phase = Phase::Dropping { generation: self.request.image.generation() };
        self.journaled = true;
        self.target.journal.record(phase).map_err(Failure::Journal)?;
        Ok(captured)
    }
}

/// What has happened ends it.
fn given_up(by: Option<String>) -> Result<(), Stop> {
    by.map_or(Ok(()), |by| Err(Stop::Aborted(by)))
}

/// What can be known while the app still runs.
fn prepare(pids: &[i32], memories: &WaitHistory, contexts: Contexts) -> Result<(Began, Vec<(i32, Flags)>), Stop> {
    let mut flags = Vec::with_capacity(pids.len());
    for pid in pids {
        // One that ends while it is looked at is not there to fall asleep.
        match Flags::read(*pid, contexts).and_then(|flags| Ok((flags, pins(*pid, contexts)?))) {
            Ok((found, pins)) => {
                flags.push((*pid, found));
                if let Some(why) = pins.into_iter().next() {
                    return Err(Stop::Refused(why));
                }
            }
            Err(error) if gone(&error) => {}
            Err(error) => return Err(Failure::Look(error).into()),
        }
    }
    Ok((Began::take(pids, memories).map_err(Failure::Look)?, flags))
}

/// Copies all memory, what a wake needs first at the front; says where that lies.
fn copy_memories(
    memories: &mut [Droppable],
    expected: &[Expected],
    copier: &mut Copier<'_>,
) -> Result<Vec<LoadingPart>, CopyError> {
    let mut loading = Vec::new();
    memories.iter_mut().filter(|memory| !memory.is_empty()).try_for_each(|memory| memory.copy_eager(copier))?;
    for Expected { cause, ranges } in expected {
        let start = copier.sink().offset;
        for of_process in ranges.chunk_by(|(a, _), (b, _)| a == b) {
            let memory = memories.iter_mut().find(|memory| memory.pid() == of_process[0].0 && !memory.is_empty());
            if let Some(memory) = memory {
                memory.copy_first(of_process.iter().map(|(_, range)| range), copier)?;
            }
        }
        loading.push(LoadingPart { cause: cause.clone(), start, end: copier.sink().offset });
    }
    memories.iter_mut().filter(|memory| !memory.is_empty()).try_for_each(|memory| memory.copy_rest(copier))?;
    Ok(loading)
}

/// The process has the address space of one of `others`.
fn shares_with(pid: i32, others: &[i32]) -> Result<bool, Failure> {
    for other in others {
        if torpor_linux::kcmp::address_spaces(pid, *other).map_err(Failure::Look)?.is_eq() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_end_while_they_are_looked_at_are_passed_over() {
        for _ in 0..300 {
            let mut child = std::process::Command::new("true").spawn().unwrap();
            let pid = child.id() as i32;
            let reaper = std::thread::spawn(move || child.wait());
            while !reaper.is_finished() {
                if let Err(Stop::Failed(error)) = prepare(&[pid], &WaitHistory::default(), Contexts::Programs) {
                    panic!("{error:?}");
                }
            }
            assert!(reaper.join().unwrap().unwrap().success());
        }
    }
}
