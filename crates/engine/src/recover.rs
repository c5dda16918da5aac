//! After a crash of the worker: bringing an app to a known state by its journal.
//!
//! | journal    | what may have happened                              | what is done                                |
//! |------------|-----------------------------------------------------|---------------------------------------------|
//! | `Awake`    | nothing; or frozen before the commit; or all but thawed | put interrupted calls right, thaw       |
//! | `Dropping` | any part of its memory is gone                      | refill, registers from the image, thaw      |
//! | `Dozing`   | all is in place; or a wake was begun                | leave it asleep                             |
//! | `Lazy`     | it runs, or all but thawed; pages may be missing    | serve these, then as `Awake`                |

use std::os::unix::fs::FileExt;
use std::time::Duration;

use torpor_image::{FormatError, State};
use torpor_linux::registers::Registers;

use crate::lazy::{Contexts, LazyLost, Pagers, ParkedContexts, taken_over};
use crate::sleep::{Asleep, Failure, Target};
use crate::target::Phase;
use crate::wake::{WakeError, open, open_consumed};
use crate::warm::Warm;
use crate::watch::Watch;
use torpor_pages::refill::refill;
use torpor_pages::source::ImageFile;
use torpor_process::threads::{Began, ThreadPlan, WaitHistory, let_go};
use torpor_process::trace::{Process, stop_all};
use torpor_process::userfault::left_behind;
use torpor_process::wait::restart::PriorWait;
use torpor_store::{Image, Lease, Store};

/// State behind the pages of an image at most; more is taken for damage.
const MAX_STATE_BYTES: u64 = 256 << 20;

/// What was made of it.
#[derive(Debug)]
pub enum Recovered {
    /// It runs.
    Running,
    /// It runs, and a pager brings the rest of its memory.
    Lazy,
    /// It dozes on.
    Dozing(Box<Asleep>),
    /// It is warm: nothing is left of its processes.
    Warm(Warm),
}

/// Why it could not be brought to a known state. It stays frozen.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// Its image cannot be used: its memory is lost.
    #[error(transparent)]
    Image(#[from] WakeError),
    /// It has run with a part of its memory missing, and that cannot be had any more.
    #[error(transparent)]
    Lazy(#[from] LazyLost),
    /// Something failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// What an earlier worker has parked of an app.
#[derive(Debug, Default)]
pub struct ParkedByWorker {
    /// Its epoll descriptor with its sources.
    pub watch: Option<Watch>,
    /// Its userfaultfd contexts with their ledger.
    pub contexts: Option<ParkedContexts>,
}

/// Brings an app to a known state. Its images are in `images`.
pub fn recover(
    target: &Target<'_>,
    phase: Phase,
    images: &Store,
    found: ParkedByWorker,
    pagers: &dyn Pagers,
) -> Result<Recovered, RecoverError> {
    let ParkedByWorker { watch, contexts } = found;
    match phase {
        Phase::Awake => {
            carry_on(target)?;
            Ok(Recovered::Running)
        }
        Phase::Dropping { generation } => {
            let (state, lease) = read_state(target, &images.image(generation))?;
            bring_back(target, &lease, &state, None)?;
            Ok(Recovered::Running)
        }
        Phase::Dozing { generation, wake_at } => {
            let (state, lease) = read_state(target, &images.image(generation))?;
            target.freezer.freeze().map_err(Failure::Freeze)?;
            let contexts = contexts.and_then(|parked| Contexts::from_parked(parked.records, parked.descriptors));
            // A wake that was begun may have left memory registered with them.
            contexts.iter().for_each(Contexts::unregister);
            match watch {
                Some(watch) => {
                    let asleep = Asleep { contexts, ..asleep(state, watch, wake_at, lease.image())? };
                    Ok(Recovered::Dozing(Box::new(asleep)))
                }
                None => {
                    // Nobody knows what happened meanwhile.
                    bring_back(target, &lease, &state, contexts.as_ref())?;
                    Ok(Recovered::Running)
                }
            }
        }
        Phase::Lazy { generation } => {
            let contexts = contexts.ok_or(LazyLost::Unparked)?;
            let image = images.image(generation);
            // Processes that were built again have consumed their image, and their contexts say what they miss.
            let (state, lease) = if contexts.records.iter().any(|record| record.missing.is_some()) {
                (None, open_consumed(target, &image)?)
            } else {
                let (state, lease) = read_state(target, &image)?;
                (Some(state), lease)
            };
            let file = lease.file().try_clone().map_err(|error| Failure::Image(image.path().to_owned(), error))?;
            let app = taken_over(state.as_ref(), file, contexts)?;
            let pager = pagers.thread().map_err(Failure::Pager)?;
            pager.serve(app).map_err(Failure::Pager)?;
            carry_on(target)?;
            Ok(Recovered::Lazy)
        }
        Phase::Ending { generation, wake_at } | Phase::Warm { generation, wake_at } => {
            target.freezer.end_processes().map_err(Failure::End)?;
            target.journal.record(Phase::Warm { generation, wake_at }).map_err(Failure::Journal)?;
            let image = images.image(generation);
            let image_bytes = bytes(&image)?;
            Ok(Recovered::Warm(Warm { image, image_bytes, wake_at, warnings: Vec::new() }))
        }
    }
}

fn asleep(state: State, watch: Watch, wake_at: Option<Duration>, image: &Image) -> Result<Asleep, Failure> {
    let memories = memories(&state);
    let plans = plans(&state, &memories);
    let image_bytes = bytes(image)?;
    Ok(Asleep {
        state,
        watch,
        wake_at,
        image: image.clone(),
        image_bytes,
        kept_bytes: 0,
        memories,
        plans,
        contexts: None,
    })
}

/// Length of an image's file.
fn bytes(image: &Image) -> Result<u64, Failure> {
    let info = image.info().map_err(|error| Failure::Image(image.path().to_owned(), error))?;
    Ok(info.bytes)
}

/// Thaws an app whose memory is complete; threads that were interrupted go on. One that is not frozen runs already.
fn carry_on(target: &Target<'_>) -> Result<(), Failure> {
    if !target.freezer.is_freezing().map_err(Failure::Freeze)? {
        return Ok(());
    }
    target.freezer.freeze().map_err(Failure::Freeze)?;
    let pids = target.freezer.processes().map_err(Failure::Look)?;
    let processes = stop_all(&pids)?;
    let began = Began::just_now();
    let memories = WaitHistory::default();
    let plans: Vec<ThreadPlan> = processes
        .iter()
        .flat_map(|process| process.threads.iter().map(move |thread| (process.pid, thread)))
        .map(|(pid, thread)| ThreadPlan::of(pid, thread, &began, &memories))
        .collect();
    let changes = let_go(processes, &plans)?;
    target.freezer.thaw().map_err(Failure::Freeze)?;
    changes.undo().map_err(Failure::Look)?;
    Ok(())
}

/// Memory and registers from the image, then thaws.
fn bring_back(
    target: &Target<'_>,
    image: &Lease,
    state: &State,
    contexts: Option<&Contexts>,
) -> Result<(), RecoverError> {
    target.freezer.freeze().map_err(Failure::Freeze)?;
    let pids: Vec<i32> = state.processes.iter().map(|process| process.pid).collect();
    let mut processes = stop_all(&pids).map_err(Failure::from)?;
    for (process, saved) in processes.iter_mut().zip(&state.processes) {
        if process.start_ticks != saved.start_ticks {
            let error = FormatError::Invalid("its processes are not the ones that live now");
            return Err(WakeError::Damaged(image.image().path().to_owned(), error).into());
        }
        for thread in &mut process.threads {
            let Some(saved) = saved.threads.iter().find(|saved| saved.tid == thread.tracee.thread()) else { continue };
            thread.registers = Registers::from_words(saved.registers);
            thread.signal_mask = saved.signal_mask;
        }
    }
    remove_left_behind(target, &processes, state)?;
    let pages = ImageFile::through_cache(image.file());
    let contexts = contexts.map_or(&[][..], |contexts| &contexts.contexts);
    refill(&pages, &state.processes, contexts).map_err(WakeError::Refill)?;
    target.journal.record(Phase::Awake).map_err(Failure::Journal)?;
    let changes = let_go(processes, &plans(state, &memories(state))).map_err(Failure::from)?;
    target.freezer.thaw().map_err(Failure::Freeze)?;
    changes.undo().map_err(Failure::Look)?;
    Ok(())
}

/// The earlier worker may have been killed while it made contexts in the processes, which are frozen. They are frozen again behind that.
fn remove_left_behind(target: &Target<'_>, processes: &[Process], state: &State) -> Result<(), Failure> {
    let mut left = Vec::new();
    for (process, saved) in processes.iter().zip(&state.processes) {
        let found = left_behind(process.pid).map_err(Failure::Look)?;
        left.extend(found.map(|found| (process, saved.park_address, found)));
    }
    if left.is_empty() {
        return Ok(());
    }
    // No thread may run on meanwhile. Registers and masks are those of the image.
    for (process, saved) in processes.iter().zip(&state.processes) {
        process.park(saved.park_address)?;
    }
    target.freezer.thaw().map_err(Failure::Freeze)?;
    for (process, park_address, found) in left {
        tracing::debug!(pid = process.pid, ?found, "what was left behind is removed");
        found.remove(process, park_address)?;
    }
    target.freezer.freeze().map_err(Failure::Freeze)
}

/// What the image says of the threads' waits.
fn memories(state: &State) -> WaitHistory {
    let mut memories = WaitHistory::default();
    for thread in state.processes.iter().flat_map(|process| &process.threads) {
        let registers = Registers::from_words(thread.registers);
        let (Some(number), Some(wait)) = (registers.call(), thread.wait) else { continue };
        let carried = PriorWait {
            number,
            instruction: registers.instruction(),
            stack: registers.stack(),
            deadline: Some(Duration::from_nanos(wait.deadline_ns)),
            total: Duration::from_nanos(wait.total_ns),
            unmoved: true,
            given: None,
        };
        memories.waits.insert(thread.tid, carried);
    }
    memories
}

fn plans(state: &State, memories: &WaitHistory) -> Vec<ThreadPlan> {
    let threads = state.processes.iter().flat_map(|p| p.threads.iter().map(move |thread| (p.pid, thread)));
    threads.map(|(pid, thread)| ThreadPlan::from_image(pid, thread, memories)).collect()
}

/// The state in an image, which stays open.
fn read_state(target: &Target<'_>, image: &Image) -> Result<(State, Lease), WakeError> {
    let damaged = |error| WakeError::Damaged(image.path().to_owned(), error);
    let lease = open(target, image)?;
    let header = lease.header();
    if header.state_bytes > MAX_STATE_BYTES {
        return Err(damaged(FormatError::Invalid("length of its state")));
    }
    let mut bytes = vec![0; header.state_bytes as usize];
    let read = lease.file().read_exact_at(&mut bytes, header.state_offset());
    read.map_err(|error| WakeError::Image(image.path().to_owned(), error))?;
    let state = State::decode(&bytes, header).map_err(damaged)?;
    Ok((state, lease))
}
