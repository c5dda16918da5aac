//! What Torpor answers: the state of apps, explanations, events, numbers.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::spec::AppSpec;

/// Where an app is between running and stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// No processes; nothing to wake.
    Stopped,
    /// Its sandbox is being made.
    Starting,
    /// Running.
    Running,
    /// Being captured; a packet stops that at once.
    FallingAsleep,
    /// Frozen in place, its memory in an image.
    Dozing,
    /// Being taken from dozing to warm; a packet stops that.
    GoingWarm,
    /// Its processes have ended: an image on disk, parked descriptors, a sandbox without processes.
    Warm,
    /// As warm, but its image cannot be used as things are: `torpor explain` says why.
    #[serde(alias = "unwakeable")]
    WakeBlocked,
    /// Getting its memory, or its processes, back.
    Waking,
    /// Told to end.
    Stopping,
    /// Ended, and waiting to be started again by its restart policy.
    Restarting,
    /// The daemon has started and has not adopted it yet, or cannot: `torpor explain` says why. It may run or sleep all the while.
    Adopting,
    /// Its archive is being received. Nothing of it runs yet; `torpor rm` ends the import.
    Importing,
    /// Its row in the database cannot be read, or is lost, so nothing is done with it: its processes, files and images stay as they are.
    Unreadable,
    /// What drives it in the daemon is held up by a call that does not return. What else is shown was true before.
    NotAnswering,
}

/// How deep an app sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Frozen in place, its memory in an image.
    #[default]
    Dozing,
    /// Its processes ended, all of them in an image.
    Warm,
}

/// How the initial process ended, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Exit {
    /// Exit status, if it ended by itself.
    pub code: Option<i32>,
    /// Signal number, if a signal ended it.
    pub signal: Option<i32>,
    /// In words: `exited with status 1`, `killed by the memory limit (64 MiB)`, `its memory is lost: ...`.
    pub reason: String,
    /// When.
    #[schema(value_type = String)]
    pub at: Timestamp,
}

/// What came of an import.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Imported {
    /// The app.
    #[serde(flatten)]
    pub status: AppStatus,
    /// Limits, priorities and sizes of buffers in its image that were lowered to what a new app gets here, in words:
    /// `oom_score_adj is 0`, `the hard limit memlock is 8388608`.
    #[serde(default)]
    pub lowered: Vec<String>,
}

/// One line of `torpor ps`, and the head of `torpor inspect`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AppStatus {
    /// Unique id, never used again: 16 lower-case hexadecimal digits.
    pub id: String,
    /// Name.
    pub name: String,
    /// Where it is.
    pub state: State,
    /// Since when.
    #[schema(value_type = String)]
    pub since: Timestamp,
    /// Process id of the initial process, as the machine sees it.
    pub pid: Option<i32>,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Published ports, as `0.0.0.0:8080->80/tcp`.
    pub ports: Vec<String>,
    /// Memory of the processes' own that is resident now, from the kernel, in bytes: what sleeping gives back.
    pub memory_bytes: Option<u64>,
    /// Times it slept since it was made.
    pub sleeps: u64,
    /// How it last ended.
    pub last_exit: Option<Exit>,
    /// Why it does not run, where it is stopped or restarting: `by request`, `exited with status 1`.
    #[serde(default)]
    pub stop_reason: Option<String>,
    /// Automatic restarts since the last start by hand.
    pub restarts: u32,
    /// Kept awake by `torpor pin`.
    pub pinned: bool,
    /// What its own files take on disk, where they are limited.
    #[serde(default)]
    pub disk: Option<DiskUse>,
}

/// What an app's own files take on disk, and may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DiskUse {
    /// Bytes, as far as they are known; the highest number where files lie too deep within each other to be measured.
    pub bytes: Option<u64>,
    /// The limit, in bytes.
    pub limit_bytes: u64,
    /// Who sees to it.
    pub by: DiskBy,
}

/// How a disk limit is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DiskBy {
    /// The kernel refuses what goes beyond it.
    Quota,
    /// Its files are measured while it runs; above the limit it is not started again.
    Accounting,
}

impl DiskUse {
    /// It has more than it may have; by a quota it cannot.
    pub fn is_over(self) -> bool {
        self.by == DiskBy::Accounting && self.bytes.is_some_and(|bytes| bytes > self.limit_bytes)
    }
}

/// `torpor inspect`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AppDetail {
    /// Status.
    pub status: AppStatus,
    /// What was asked for.
    pub spec: AppSpec,
    /// When it was made.
    #[schema(value_type = String)]
    pub created: Timestamp,
    /// Digests of the layers of its root file system, lowest first.
    pub layers: Vec<String>,
}

/// A span of one sleep or wake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Phase {
    /// Which, from the fixed list in `docs/reference/phases.md`.
    #[schema(value_type = String)]
    pub name: Cow<'static, str>,
    /// How long, in microseconds.
    pub us: u64,
}

/// One sleep or one wake, measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Transition {
    /// When it began.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// Why: `idle for 30 s`, `packet for tcp 80`, `command`, `timer`, `exec`.
    pub cause: String,
    /// Phases in order.
    pub phases: Vec<Phase>,
    /// Sum, in microseconds.
    pub total_us: u64,
    /// How it ended if not as intended: `aborted: packet for tcp 80`, or the refusal's reason.
    pub outcome: Option<String>,
}

/// `torpor explain`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Explanation {
    /// Status.
    pub status: AppStatus,
    /// Why it is where it is, in a sentence.
    pub why: String,
    /// What keeps it awake now; empty if nothing does.
    pub keeps_awake: Vec<String>,
    /// When it will sleep if nothing happens.
    #[schema(value_type = Option<String>)]
    pub sleeps_at: Option<Timestamp>,
    /// What keeps it at dozing now, beside time; empty if nothing does or it does not doze.
    #[serde(default)]
    pub keeps_dozing: Vec<String>,
    /// When it will go from dozing to warm if nothing happens.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub warm_at: Option<Timestamp>,
    /// When a timer will wake it.
    #[schema(value_type = Option<String>)]
    pub wakes_at: Option<Timestamp>,
    /// Limits that it has reached since it was started, beside those of memory and disk, and what was lost by that.
    #[serde(default)]
    pub at_limits: Vec<String>,
    /// What the engine would refuse, with process and address, and what could be done.
    pub refusals: Vec<String>,
    /// What it would have lost after a reboot, if it is warm now.
    #[serde(default)]
    pub lost_by_reboot: Vec<String>,
    /// The path of the image that still holds memory of a running app; none if the app has all of its memory.
    #[serde(default)]
    pub missing_in: Option<String>,
    /// The descriptors, in words, whose events wake it.
    pub wake_sources: Vec<String>,
    /// What is known of the pages that it needs first when it wakes from dozing; none before such a wake was observed.
    #[serde(default)]
    pub working_set: Option<WorkingSet>,
    /// Last sleeps, newest first.
    pub sleeps: Vec<Transition>,
    /// Last wakes, newest first.
    pub wakes: Vec<Transition>,
}

impl Explanation {
    /// Of an app of which no more is known than its status and the reason for it.
    pub fn only(status: AppStatus, why: String) -> Self {
        Self {
            status,
            why,
            keeps_awake: Vec::new(),
            sleeps_at: None,
            keeps_dozing: Vec::new(),
            warm_at: None,
            wakes_at: None,
            at_limits: Vec::new(),
            refusals: Vec::new(),
            lost_by_reboot: Vec::new(),
            missing_in: None,
            wake_sources: Vec::new(),
            working_set: None,
            sleeps: Vec::new(),
            wakes: Vec::new(),
        }
    }
}

/// `torpor stats`: measured from the kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Stats {
    /// Name.
    pub name: String,
    /// Where it is.
    pub state: State,
    /// Processes and threads.
    pub processes: u32,
    /// Threads.
    pub threads: u32,
    /// Resident memory of the processes' own: anonymous, and changed pages of files, bytes.
    pub private_bytes: u64,
    /// Resident memory that is shared, or backed by files and can be read again, bytes.
    pub shared_bytes: u64,
    /// Page tables, bytes.
    pub page_table_bytes: u64,
    /// Kernel memory as the cgroup counts it, bytes, where it does.
    pub kernel_bytes: Option<u64>,
    /// Size of the image of a sleeping app, bytes; of a running app, the disk space of the image that still holds memory of it.
    pub image_bytes: Option<u64>,
    /// What its own files take on disk, where they are limited.
    #[serde(default)]
    pub disk: Option<DiskUse>,
    /// CPU used since start, microseconds.
    pub cpu_us: u64,
    /// Packets with meaning (no keepalives, no bare acknowledgements) since start.
    pub packets: u64,
    /// Packets of its own that were dropped since start because they would have begun a connection beyond
    /// `[network] connections_per_app`.
    #[serde(default)]
    pub refused_packets: u64,
    /// Sleeps completed.
    pub sleeps: u64,
    /// Of these, the ones that went on to warm.
    #[serde(default)]
    pub warm_sleeps: u64,
    /// Captures aborted by traffic.
    pub aborted_sleeps: u64,
    /// Wakes.
    pub wakes: u64,
    /// Lines of its output that are not in its log: it wrote more than `logs.rate`, or the disk was full.
    #[serde(default)]
    pub dropped_lines: u64,
    /// See [`Explanation::working_set`].
    #[serde(default)]
    pub working_set: Option<WorkingSet>,
}

/// Pages that an app needs first when it wakes, as its wakes have shown. They come before its program runs; all others come meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WorkingSet {
    /// Wakes that were observed since it was started.
    pub wakes: u32,
    /// Pages, for whatever cause it wakes.
    pub pages: u64,
    /// Of these, the ones that the last of these wakes was expected to need.
    pub expected: u64,
    /// Other pages that it touched before they were there.
    pub misses: u64,
    /// Of those expected pages that were watched, the ones that it touched. Only sampled wakes show this, usually for an eighth of the set.
    pub used: Option<u64>,
    /// Of those expected pages that were watched, the ones that it did not touch. As above.
    pub unused: Option<u64>,
    /// Causes for which it wakes with all of its memory, since waiting for unexpected pages took longer than reading everything.
    #[serde(default)]
    pub full: Vec<String>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Event {
    /// Position in the stream of events; grows by one.
    pub seq: u64,
    /// When.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// App's name.
    pub app: String,
    /// From the fixed list in `docs/reference/events.md`: `created`, `started`, `dozing`, `woken`, `exited` …
    pub kind: String,
    /// In words.
    pub message: String,
    /// Numbers and names that belong to it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, serde_json::Value>,
}

/// A stored image of files (`torpor images`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct StoredImage {
    /// Name, if it has one.
    pub name: Option<String>,
    /// Digest of its configuration.
    pub digest: String,
    /// Bytes unpacked.
    pub bytes: u64,
    /// Layers.
    pub layers: u32,
    /// When it was stored.
    #[schema(value_type = String)]
    pub created: Timestamp,
    /// Names of apps that use it.
    pub used_by: Vec<String>,
}

/// An image of an app's processes (`torpor image ls`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AppImage {
    /// Name of the app.
    pub app: String,
    /// The level that it was made for; absent where its header cannot be read.
    pub level: Option<Level>,
    /// Count of the app's sleeps that it was made in.
    pub generation: u64,
    /// Size of the file, bytes.
    pub bytes: u64,
    /// When it was written.
    #[schema(value_type = String)]
    pub written: Timestamp,
    /// What it is good for.
    pub standing: ImageStanding,
    /// The file, on the daemon's machine.
    pub path: String,
}

/// What an image of an app's processes is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ImageStanding {
    /// The sleeping app wakes from it: it is the only copy of its memory.
    InUse,
    /// The app is on its way into or out of it.
    Passing,
    /// Found damaged, and kept to be looked at; nothing uses it.
    SetAside,
}

/// One line of `torpor doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Check {
    /// What was looked for: `cgroup v2 freezer`.
    pub name: String,
    /// What was found.
    pub outcome: CheckOutcome,
    /// What was found, in words: a version, a path, the missing option.
    pub found: String,
    /// What follows from it, and what to do; empty where all is well.
    pub meaning: String,
}

/// What `torpor down` has done with an app that was up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PutAway {
    /// Its name.
    pub app: String,
    /// Its memory is kept in its image, and the next daemon finds it warm. Otherwise it was stopped, and starts afresh.
    pub kept: bool,
    /// Why it was stopped; empty where that was asked for.
    pub reasons: Vec<String>,
}

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CheckOutcome {
    /// There.
    Ok,
    /// Missing, in the way or left over: something works less well, or waits for somebody.
    Degraded,
    /// Missing; Torpor cannot run apps.
    Missing,
}
