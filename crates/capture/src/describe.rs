//! From what was learned of living processes, and what they answer, to their descriptions.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use torpor_image::tree::{Control, LiveProcess, Machine, PendingSignal, Shares, Switches};
use torpor_linux::uapi::signal::SIGSTOP;

use super::landlock::Bystanders;
use super::remote_state::{Answered, Subject, ask};
use super::snapshot::Snapshot;
use super::{CaptureError, CaptureOptions, Held, Look, Stopped, contexts, signals, thread};
use torpor_process::blocker::{Blocker, Place};
use torpor_process::threads::ThreadPlan;
use torpor_process::trace;

/// Describes the living ones of these processes, in their order; `None` for others, and where what is in the way makes it
/// pointless. With what threads have set, by the machine's ids. `looked` is of the living ones.
pub(super) fn lives(
    manner: &CaptureOptions<'_>,
    stopped: &[Stopped],
    looked: Vec<Snapshot>,
    plans: &[ThreadPlan],
    machine: &Machine,
    obstacles: &mut Vec<Blocker>,
) -> Result<(Vec<Option<LiveProcess>>, Vec<Control>), CaptureError> {
    // Were there processes that share memory, that would be among the obstacles.
    let apart = obstacles.is_empty();
    let alive: Vec<&trace::Process> = stopped.iter().filter_map(|process| process.alive.as_ref()).collect();
    let mut asked = Vec::with_capacity(alive.len());
    for (process, looked) in alive.iter().zip(&looked) {
        let pid = process.pid;
        let mut own = looked.obstacles.clone();
        for thread in &process.threads {
            if thread.tracee.dispatches_calls().look(pid)? {
                let what = "it handles its own system calls (PR_SET_SYSCALL_USER_DISPATCH)";
                own.push(Blocker::new(pid, Place::Thread(thread.tracee.thread()), what, ""));
            }
        }
        // Nothing is asked of a process that cannot be captured.
        asked.push(own.is_empty());
        obstacles.extend(own);
    }
    if !(manner.go_on)() {
        return Err(CaptureError::Stopped);
    }
    let bystanders = Bystanders::new(manner.view);
    let mut subjects = Vec::with_capacity(alive.len());
    for ((process, looked), _) in alive.iter().zip(&looked).zip(&asked).filter(|(_, asked)| **asked) {
        let trials = process.threads.iter().zip(&looked.statuses).map(|(thread, status)| {
            // Filters could answer in the kernel's place.
            let asked = status.seccomp == 0 || thread.tracee.is_unfiltered();
            if asked { bystanders.trial(status) } else { Ok(None) }
        });
        let trials = trials.collect::<io::Result<Vec<_>>>().look(process.pid)?;
        subjects.push(Subject { process, statuses: &looked.statuses, areas: &looked.areas, trials });
    }
    let now = Duration::from_nanos(machine.monotonic_ns);
    let mut answers = ask(&subjects, apart, now)?.into_iter();
    let describe = Describe {
        manner,
        plans: plans.iter().map(|plan| (plan.tid, plan)).collect(),
        now,
        online: thread::online().look(alive.first().map_or(0, |process| process.pid))?,
    };
    let mut looked = looked.into_iter().zip(asked);
    let mut found = Vec::with_capacity(stopped.len());
    let mut controls = Vec::new();
    for process in stopped {
        let looked = process.alive.as_ref().and_then(|process| Some((process, looked.next()?)));
        found.push(match looked {
            Some((process, (looked, true))) => match answers.next() {
                Some(answered) => {
                    controls.extend(controls_of(process, &answered));
                    Some(describe.life(process, looked, answered, obstacles)?)
                }
                None => None,
            },
            _ => None,
        });
    }
    Ok((found, controls))
}

fn controls_of(process: &trace::Process, answered: &Answered) -> Vec<Control> {
    let threads = process.threads.iter().zip(&answered.of_threads);
    let controls = threads.flat_map(|(thread, answers)| {
        let tid = thread.tracee.thread();
        answers.controls.iter().map(move |(option, arguments)| Control { tid, option: *option, arguments: *arguments })
    });
    controls.collect()
}

/// What all descriptions need.
struct Describe<'a> {
    manner: &'a CaptureOptions<'a>,
    /// By thread.
    plans: HashMap<i32, &'a ThreadPlan>,
    /// By `CLOCK_MONOTONIC`.
    now: Duration,
    /// The machine's processors.
    online: Vec<u64>,
}

impl Describe<'_> {
    fn life(
        &self,
        process: &trace::Process,
        looked: Snapshot,
        answered: Answered,
        obstacles: &mut Vec<Blocker>,
    ) -> Result<LiveProcess, CaptureError> {
        let pid = process.pid;
        let Answered { of_process: answers, of_threads, dead_rings, requests, mut policies } = answered;
        let quiet = self.manner.held == Held::SinceIdle;
        obstacles.extend(contexts::obstacles(pid, &looked.areas, &dead_rings, quiet).look(pid)?);
        obstacles.extend(requests.iter().map(|(ring, under_way)| contexts::busy(pid, *ring, under_way)));
        if answers.descriptor_table {
            obstacles.push(Blocker::new(pid, Place::Process, "it has a local descriptor table (modify_ldt)", ""));
        }
        if answers.keys {
            let what = "it has a session keyring of its own with keys (keyctl)";
            obstacles.push(Blocker::new(pid, Place::Process, what, "let it use its user's keyring"));
        }
        let umask = looked.statuses.first().map_or(0, |status| status.umask);
        let mut threads = Vec::with_capacity(process.threads.len());
        for ((thread, status), answers) in process.threads.iter().zip(looked.statuses).zip(of_threads) {
            let tid = thread.tracee.thread();
            let found = self.plans.get(&tid).and_then(|plan| thread::registers(plan, self.now));
            let Some((registers, wait)) = found else {
                let what = "it waits in a call that was interrupted before, and which one cannot be told";
                obstacles.push(Blocker::new(pid, Place::Thread(tid), what, "try again later"));
                continue;
            };
            if answers.restricted {
                let what = "it has restricted itself with Landlock, or another security module confines it";
                obstacles.push(Blocker::new(pid, Place::Thread(tid), what, "start it without that"));
            }
            let known = thread::Known { registers, wait, status, answers, online: &self.online };
            threads.push(thread::record(thread, known).look(pid)?);
        }
        let mut pending = match process.threads.first() {
            Some(leader) => signals::pending(leader, true).look(pid)?,
            None => Vec::new(),
        };
        let own = threads.iter_mut().map(|thread| &mut thread.pending);
        let stops = std::iter::once(&mut pending).chain(own).map(take_stops).fold(false, |a, b| a | b);
        let stopped_by = process.threads.first().and_then(|leader| leader.tracee.group_stop());
        let mut space = looked.space;
        space.layout.heap.1 = answers.heap_end;
        for area in &mut space.areas {
            area.advice.policy = policies.remove(&area.start).unwrap_or_default();
        }
        obstacles.extend(signals::unread_overruns(process, &answers.posix_timers, &pending));
        Ok(LiveProcess {
            space,
            threads,
            descriptors: Vec::new(),
            cwd: looked.cwd,
            root: looked.root,
            umask,
            limits: looked.limits,
            oom_score_adjustment: looked.oom_score_adjustment,
            actions: answers.actions,
            pending,
            interval_timers: answers.interval_timers,
            posix_timers: answers.posix_timers,
            dumpable: answers.dumpable,
            subreaper: answers.subreaper,
            no_huge_pages: answers.no_huge_pages,
            personality: looked.personality,
            switches: Switches { coredump_filter: looked.coredump_filter, ..answers.switches },
            stopped_by: stopped_by.or(stops.then_some(SIGSTOP)),
            terminal: None,
            shares: Shares::default(),
        })
    }
}

/// Takes `SIGSTOP` out of signals that wait: nobody can block it, so a process that has got it is as good as stopped.
fn take_stops(pending: &mut Vec<PendingSignal>) -> bool {
    let before = pending.len();
    pending.retain(|signal| !signal.info.starts_with(&SIGSTOP.to_ne_bytes()));
    pending.len() < before
}
