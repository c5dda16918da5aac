//! Asking stopped processes and their threads what the kernel tells only them.
//!
//! Many processes are asked at once: each makes its calls while the others are given theirs, so that nobody waits for a
//! single one to be woken and to answer. Of each process one thread asks at a time (see [`super::trampoline`]).

use std::collections::HashMap;
use std::time::Duration;

use torpor_image::tree::MemoryPolicy;

use super::contexts;
use super::credentials::Status;
use super::landlock::Trial;
use super::policy;
use super::remote::{BegunAsk, Remote};
use super::requests::{self, Busy};
use super::signals::{AskedOfProcess, AskedOfThread, OfProcess, OfThread};
use torpor_proc::maps::Area;
use torpor_process::trace::{Process, TraceError};

/// Processes that are asked at once. Each has a descriptor open meanwhile.
const AT_ONCE: usize = 64;

/// Who is asked.
pub(super) struct Subject<'a> {
    pub(super) process: &'a Process,
    /// Of its threads.
    pub(super) statuses: &'a [Status],
    pub(super) areas: &'a [Area],
    /// Of its threads.
    pub(super) trials: Vec<Option<Trial>>,
}

impl Subject<'_> {
    fn trial(&self, n: usize) -> Option<Trial> {
        self.trials.get(n).copied().flatten()
    }
}

/// What a process and its threads have answered.
pub(super) struct Answered {
    pub(super) of_process: OfProcess,
    pub(super) of_threads: Vec<OfThread>,
    /// See [`contexts::dead`].
    pub(super) dead_rings: Vec<(u64, u64)>,
    /// See [`requests::under_way`].
    pub(super) requests: Vec<Busy>,
    /// See [`policy::of_areas`].
    pub(super) policies: HashMap<u64, MemoryPolicy>,
}

/// Asks them all; the answers are in their order. `apart`: no two of them share memory, where the calls stand. What is left of
/// timers is as of `since`, by `CLOCK_MONOTONIC`.
pub(super) fn ask(subjects: &[Subject<'_>], apart: bool, since: Duration) -> Result<Vec<Answered>, TraceError> {
    let mut found = Vec::with_capacity(subjects.len());
    for some in subjects.chunks(if apart { AT_ONCE } else { 1 }) {
        let mut remotes = Vec::with_capacity(some.len());
        let answers = answers(some, &mut remotes, since);
        // Whatever went wrong, each gets everything back.
        let begun: Vec<_> = remotes.iter().map(Remote::unmap).collect();
        let ended: Vec<_> = remotes.into_iter().zip(begun).map(|(remote, begun)| remote.end(begun)).collect();
        found.extend(answers?);
        ended.into_iter().collect::<Result<(), _>>()?;
    }
    Ok(found)
}

fn answers<'a>(
    subjects: &[Subject<'a>],
    remotes: &mut Vec<Remote<'a>>,
    since: Duration,
) -> Result<Vec<Answered>, TraceError> {
    for Subject { process, statuses, areas, .. } in subjects {
        remotes.push(Remote::new(process, statuses, areas)?);
    }
    let begun = remotes.iter().map(Remote::map).collect::<Result<Vec<_>, _>>()?;
    for (remote, begun) in remotes.iter_mut().zip(begun) {
        remote.mapped(&begun)?;
    }
    let begin = |(remote, subject): (&Remote<'a>, &Subject<'a>)| {
        let mut list = remote.questions();
        let asked = AskedOfProcess::ask(&mut list, subject.trial(0));
        Ok((remote.begin_ask(0, list)?, asked))
    };
    let begun = remotes.iter().zip(subjects).map(begin).collect::<Result<Vec<_>, TraceError>>()?;
    let mut found = Vec::with_capacity(remotes.len());
    for (remote, (begun, asked)) in remotes.iter().zip(begun) {
        let (of_process, first) = asked.answered(remote, &remote.answers(begun)?, since)?;
        let (dead_rings, requests, policies) = (Vec::new(), Vec::new(), HashMap::new());
        found.push(Answered { of_process, of_threads: vec![first], dead_rings, requests, policies });
    }
    let most = subjects.iter().map(|subject| subject.process.threads.len()).max().unwrap_or(0);
    for n in 1..most {
        let begin =
            |(remote, subject): (&Remote<'a>, &Subject<'a>)| -> Result<Option<(BegunAsk, AskedOfThread)>, TraceError> {
                if n >= remote.process.threads.len() {
                    return Ok(None);
                }
                let mut list = remote.questions();
                let asked = AskedOfThread::ask(&mut list, subject.trial(n));
                Ok(Some((remote.begin_ask(n, list)?, asked)))
            };
        let begun = remotes.iter().zip(subjects).map(begin).collect::<Result<Vec<_>, _>>()?;
        for ((remote, begun), found) in remotes.iter().zip(begun).zip(&mut found) {
            if let Some((begun, asked)) = begun {
                found.of_threads.push(asked.answered(&remote.answers(begun)?)?);
            }
        }
    }
    for ((remote, subject), found) in remotes.iter().zip(subjects).zip(&mut found) {
        found.policies = policy::of_areas(remote, subject.areas)?;
        found.dead_rings = contexts::dead(remote, subject.areas)?;
        found.requests = requests::under_way(remote, subject.areas, &found.dead_rings)?;
    }
    Ok(found)
}
