//! The memory manager: which dozing apps go warm because memory is short.
//!
//! ```text
//! memory in use > high watermark, or apps > limit        in use <= low watermark, and apps <= 9/10 of the limit
//!        └──▶ short ── the one that sleeps longest goes warm, then the next ──▶ ┘ (or nobody is left who could)
//! ```
//! Thinking is pure ([`Short::next`], [`choose`]). One task does it ([`manage`]): it looks every few seconds, and at once
//! when the kernel tells of stalls for memory (`/proc/pressure/memory`), only while apps doze that could go warm; otherwise it
//! waits and costs nothing. It orders one app at a time and waits for its end. The app's own state machine has the last word: what
//! is stale by then (it woke, it was refused a moment ago) is not done.
//!
//! Going warm takes memory first where an app cannot be lazy: all of it comes back for the complete image. Such an app is left dozing
//! if its image is larger than half of what is available; better a high watermark than none.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot};
use torpor_lifecycle::Millis;
use torpor_linux::meminfo::Memory;
use torpor_linux::probe::{Outcome, Probe};
use torpor_sandbox::cgroup::Hierarchies;

use crate::clock;
use crate::config::{MemoryConfig, WorkerConfig};

/// Between two looks while apps doze.
const LOOK: Duration = Duration::from_secs(5);
/// How long one app may take to go warm before the next is asked.
const ONE_APP: Duration = Duration::from_secs(60);
/// Of the limit for apps, what they have to come down to, in tenths.
const LIMIT_TENTHS: u64 = 9;
/// What an app's image may be of the memory that is available: one part in so many.
const IMAGE_PART: u64 = 2;
/// Where the kernel tells of stalls.
const PRESSURE: &str = "/proc/pressure/memory";
/// That some task waited for memory for 100 ms of 2 s. Shorter windows are for the privileged alone.
const STALL: &str = "some 100000 2000000";

/// When an app fell asleep; the second part tells those of one moment apart.
type Place = (SystemTime, u64);

/// The way to an app that dozes.
pub(crate) trait Demote: Debug + Send + Sync {
    /// Asks it to go warm; false: it is not there, or has too much to do. `done` is dropped when it has, or does not.
    fn demote(&self, done: oneshot::Sender<()>) -> bool;
}

/// An app that dozes and could go warm.
#[derive(Clone, Debug)]
pub(crate) struct Dozer {
    /// Since when it sleeps.
    pub(crate) since: SystemTime,
    /// Not before: it has to doze so long, or was refused a moment ago.
    pub(crate) from: Millis,
    /// What going warm brings back for a moment.
    pub(crate) bytes: u64,
    /// The way to it.
    pub(crate) app: Arc<dyn Demote>,
}

#[derive(Debug, Default)]
struct Entries {
    entered: u64,
    dozers: BTreeMap<Place, Dozer>,
}

/// All that doze and could go warm.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dozers(Arc<(Mutex<Entries>, Notify)>);

/// An app's entry: it counts until this is dropped.
#[derive(Debug)]
pub(crate) struct Dozing {
    all: Dozers,
    place: Place,
}

impl Dozers {
    fn lock(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enter(&self, dozer: Dozer) -> Dozing {
        let mut entries = self.lock();
        entries.entered += 1;
        let place = (dozer.since, entries.entered);
        entries.dozers.insert(place, dozer);
        drop(entries);
        self.0.1.notify_one();
        Dozing { all: self.clone(), place }
    }

    fn is_empty(&self) -> bool {
        self.lock().dozers.is_empty()
    }

    /// Waits until there is one.
    async fn some(&self) {
        while self.is_empty() {
            self.0.1.notified().await;
        }
    }
}

impl Drop for Dozing {
    fn drop(&mut self) {
        self.all.lock().dozers.remove(&self.place);
    }
}

/// What the machine and its apps use, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    total: u64,
    available: u64,
    /// Of all apps; none: it is not known, or nobody asks.
    apps: Option<u64>,
}

/// What is short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Short {
    machine: bool,
    apps: bool,
}

impl Short {
    /// What is short now: it begins above the high mark and ends at the low one.
    fn next(self, seen: &Seen, config: &MemoryConfig) -> Self {
        let used = seen.total.saturating_sub(seen.available);
        let high = config.high.of(seen.total);
        let low = config.low.of(seen.total).min(high);
        let over_limit = |limit: u64, apps: u64| {
            let least = if self.apps { limit / 10 * LIMIT_TENTHS } else { limit };
            apps > least
        };
        Self {
            machine: used > if self.machine { low } else { high },
            apps: config.limit_bytes.zip(seen.apps).is_some_and(|(limit, apps)| over_limit(limit, apps)),
        }
    }

    const fn any(self) -> bool {
        self.machine || self.apps
    }
}

/// Who goes warm next: of those that may and were not asked already, the one that sleeps longest.
fn choose(
    dozers: &BTreeMap<Place, Dozer>,
    asked: &BTreeSet<Place>,
    available: u64,
    now: Millis,
) -> Option<(Place, Arc<dyn Demote>)> {
    let may = |place: &Place, dozer: &Dozer| {
        dozer.from <= now && dozer.bytes <= available / IMAGE_PART && !asked.contains(place)
    };
    dozers.iter().find(|(place, dozer)| may(place, dozer)).map(|(place, dozer)| (*place, dozer.app.clone()))
}

/// The task. Ends with the worker.
pub(crate) async fn manage(dozers: &Dozers, config: &WorkerConfig, hierarchies: &Hierarchies) {
    let mut apps_counted = config.memory.limit_bytes.is_some();
    if apps_counted && let Err(error) = hierarchies.count_memory() {
        let error = torpor_api::error::chain(&error);
        tracing::warn!(error, "the memory of apps cannot be counted, so `limit` of `[memory]` has no effect");
        apps_counted = false;
    }
    let counted = apps_counted.then_some(hierarchies);
    loop {
        dozers.some().await;
        let stalls = match stalls() {
            Ok(stalls) => Some(stalls),
            Err(error) => {
                tracing::debug!(%error, "the kernel tells of no stalls for memory");
                None
            }
        };
        let mut short = Short::default();
        while !dozers.is_empty() {
            short = match relieve(dozers, config, counted, short).await {
                Ok(short) => short,
                Err(error) => {
                    tracing::warn!(%error, "reading how much memory is in use");
                    short
                }
            };
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = stalled(stalls.as_ref()) => {}
                // Another one that could be asked.
                () = dozers.0.1.notified(), if short.any() => {}
            }
        }
    }
}

/// Sends apps warm until nothing is short any more, or nobody is left who could; says what is short then.
async fn relieve(
    dozers: &Dozers,
    config: &WorkerConfig,
    counted: Option<&Hierarchies>,
    before: Short,
) -> io::Result<Short> {
    let mut short = before;
    let mut asked = BTreeSet::new();
    loop {
        let seen = look(counted, &config.instance)?;
        let now_short = short.next(&seen, &config.memory);
        if now_short != short {
            let (used, total) = ((seen.total - seen.available) >> 20, seen.total >> 20);
            let Short { machine, apps } = now_short;
            tracing::info!(
                machine,
                apps,
                used_mib = used,
                total_mib = total,
                apps_bytes = seen.apps,
                "short of memory"
            );
        }
        short = now_short;
        if !short.any() {
            return Ok(short);
        }
        let chosen = choose(&dozers.lock().dozers, &asked, seen.available, clock::now());
        let Some((place, app)) = chosen else { return Ok(short) };
        asked.insert(place);
        let (done, ended) = oneshot::channel();
        if app.demote(done) && tokio::time::timeout(ONE_APP, ended).await.is_err() {
            tracing::warn!("an app has not gone warm in time; asking the next");
        }
    }
}

fn look(counted: Option<&Hierarchies>, instance: &str) -> io::Result<Seen> {
    let apps = if let Some(hierarchies) = counted {
        let bytes = hierarchies.memory_bytes(instance);
        bytes.map_err(|error| io::Error::other(torpor_api::error::chain(&error)))?
    } else {
        None
    };
    let Memory { total, available } = Memory::now()?;
    Ok(Seen { total, available, apps })
}

/// Has the kernel tell of stalls.
fn stalls() -> io::Result<AsyncFd<OwnedFd>> {
    let mut file = File::options().read(true).write(true).open(PRESSURE)?;
    // With the zero at the end, as psi(7) has it.
    file.write_all(format!("{STALL}\0").as_bytes())?;
    torpor_linux::readable::register_priority(file.into())
}

/// Whether the kernel tells of stalls.
pub(crate) fn probe() -> Probe {
    let meaning = "memory that runs short is noticed within some seconds, not at once: boot with psi=1, or with a kernel that \
                   has CONFIG_PSI";
    match File::options().read(true).write(true).open(PRESSURE) {
        Ok(_) => Probe::new("stalls for memory", Outcome::Ok, PRESSURE, meaning),
        Err(error) => Probe::new("stalls for memory", Outcome::Degraded, format!("{PRESSURE}: {error}"), meaning),
    }
}

/// Waits for a stall; for ever where the kernel tells of none.
async fn stalled(stalls: Option<&AsyncFd<OwnedFd>>) {
    if let Some(stalls) = stalls
        && let Ok(mut ready) = stalls.ready(Interest::PRIORITY).await
    {
        return ready.clear_ready();
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use torpor_api::units::{Amount, Bytes};

    use super::*;

    const CONFIG: MemoryConfig = MemoryConfig {
        high: Amount::Percent(90),
        low: Amount::Percent(80),
        limit_bytes: Some(500),
        min_dozing: Duration::ZERO,
    };

    fn seen(used: u64, apps: Option<u64>) -> Seen {
        Seen { total: 1_000, available: 1_000 - used, apps }
    }

    #[test]
    fn short_from_the_high_mark_down_to_the_low_one() {
        let mut short = Short::default();
        for (used, machine) in
            [(0, false), (900, false), (901, true), (850, true), (801, true), (800, false), (850, false), (1_000, true)]
        {
            short = short.next(&seen(used, None), &CONFIG);
            assert_eq!(short, Short { machine, apps: false }, "{used}");
        }
    }

    #[test]
    fn the_limit_for_apps_stands_beside_the_marks() {
        let mut short = Short::default();
        for (apps, over) in [(500, false), (501, true), (451, true), (450, false), (460, false)] {
            // Between the marks: never short for having been short of the other.
            short = short.next(&seen(850, Some(apps)), &CONFIG);
            assert_eq!(short, Short { machine: false, apps: over }, "{apps}");
        }
        let none = MemoryConfig { limit_bytes: None, ..CONFIG };
        assert!(!Short::default().next(&seen(0, Some(u64::MAX)), &none).any());
        assert!(!Short::default().next(&seen(0, None), &CONFIG).any(), "what is not counted is not too much");
    }

    #[test]
    fn marks_of_two_kinds_are_compared_on_the_machine() {
        let config = MemoryConfig { low: Amount::Size(Bytes(950)), ..CONFIG };
        let short = Short::default().next(&seen(910, None), &config);
        assert!(short.machine);
        assert!(!short.next(&seen(900, None), &config).machine, "a low mark above the high one is the high one");
    }

    /// One that is never asked.
    #[derive(Debug)]
    struct Busy;

    impl Demote for Busy {
        fn demote(&self, _done: oneshot::Sender<()>) -> bool {
            false
        }
    }

    fn dozer(second: u64, from: u64, bytes: u64) -> Dozer {
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        Dozer { since, from: Millis(from), bytes, app: Arc::new(Busy) }
    }

    #[test]
    fn the_one_that_sleeps_longest_of_those_that_may() {
        let dozers = Dozers::default();
        let enter = |second, from, bytes| dozers.enter(dozer(second, from, bytes));
        let late = enter(9, 0, 10);
        let early = enter(3, 0, 10);
        let refused = enter(1, 1_000, 10);
        let large = enter(2, 0, 60);
        let mut asked = BTreeSet::new();
        let mut next = |available, now| {
            let (place, _) = choose(&dozers.lock().dozers, &asked, available, Millis(now))?;
            asked.insert(place);
            Some(place)
        };
        assert_eq!(next(119, 999), Some(early.place));
        assert_eq!(next(119, 999), Some(late.place));
        assert_eq!(next(119, 999), None, "each is asked once");
        assert_eq!(next(119, 1_000), Some(refused.place));
        assert_eq!(next(120, 1_000), Some(large.place), "half of what is available");
    }

    #[tokio::test]
    async fn nobody_is_waited_for_and_an_entry_ends_the_wait() {
        let dozers = Dozers::default();
        drop(dozers.enter(dozer(1, 0, 0)));
        assert!(dozers.is_empty());
        let waits = tokio::time::timeout(Duration::from_millis(20), dozers.some()).await;
        assert!(waits.is_err(), "one that has left is nobody");
        let (all, waiting) = (dozers.clone(), tokio::spawn(async move { dozers.some().await }));
        let _entry = all.enter(dozer(1, 0, 0));
        tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn the_kernel_takes_the_trigger_where_it_has_one() {
        match std::fs::metadata(PRESSURE) {
            Ok(_) => {
                let stalls = stalls().unwrap();
                let stalled = tokio::time::timeout(Duration::from_millis(10), stalled(Some(&stalls))).await;
                // This machine may be short of memory in this very moment.
                let _ = stalled;
            }
            Err(error) => eprintln!("SKIPPED: no {PRESSURE}: {error}"),
        }
    }
}
