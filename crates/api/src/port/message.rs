//! Requests and answers.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::archive::Manifest;
use crate::record::{AppRecord, LeftAlone, Resolved};
use crate::spec::Source;
use crate::view::{AppImage, AppStatus, Check, Explanation, Level, PutAway, Stats, StoredImage};
use crate::worker::{ExecRequest, Import, LogRequest};

/// An archive that is being imported, numbered by the client that sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UploadId(pub u64);

/// What a hub asks of a worker: one variant for each method of [`WorkerPort`](crate::worker::WorkerPort), which says what it does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the methods of WorkerPort have the documentation of variants and fields")]
pub enum WorkerRequest {
    ReservedIndexes,
    /// Reports of progress come back before the answer.
    Resolve {
        source: Source,
    },
    Found,
    RemoveUnknown {
        id: String,
    },
    Expect {
        apps: Vec<AppRecord>,
        left_alone: Vec<LeftAlone>,
    },
    Adopt {
        app: Box<AppRecord>,
    },
    Start {
        id: String,
    },
    Stop {
        id: String,
        grace: Duration,
    },
    Sleep {
        id: String,
        level: Level,
    },
    Wake {
        id: String,
    },
    Pin {
        id: String,
        pinned: bool,
    },
    Remove {
        id: String,
    },
    Status {
        id: String,
    },
    Explain {
        id: String,
    },
    Stats {
        id: String,
    },
    AppImages {
        id: String,
    },
    /// The archive follows the answer.
    Export {
        id: String,
        sleep: bool,
    },
    /// The archive follows the request. The worker keeps what is behind the layers for `ImportApp`, until it is told that the upload is
    /// abandoned.
    ImportLayers {
        upload: UploadId,
        manifest: Box<Manifest>,
    },
    ImportApp {
        id: String,
        upload: UploadId,
        import: Import,
    },
    RemoveAppImages {
        id: String,
    },
    /// Input and output of the command follow.
    Exec {
        id: String,
        request: ExecRequest,
    },
    /// Lines follow the answer.
    Logs {
        id: String,
        request: LogRequest,
    },
    /// Events follow the answer: all that happen after it.
    Events,
    /// Reports of progress come back before the answer.
    StoreImage {
        name: String,
        source: Source,
    },
    Images,
    RemoveImage {
        name: String,
    },
    Doctor,
    /// Reports of progress come back before the answer.
    Teardown {
        discard: bool,
    },
}

/// What a worker answers, by what is in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerAnswer {
    /// Done; there is nothing else to say.
    Done,
    /// To `ReservedIndexes`.
    Indexes(Vec<RangeInclusive<u32>>),
    /// To `Found`.
    Ids(BTreeSet<String>),
    /// To `Resolve`, `StoreImage` and `ImportLayers`.
    Resolved(Resolved),
    /// To `Status`.
    Status(Box<AppStatus>),
    /// To `Explain`.
    Explanation(Box<Explanation>),
    /// To `Stats`.
    Stats(Box<Stats>),
    /// To `AppImages` and `RemoveAppImages`.
    AppImages(Vec<AppImage>),
    /// To `ImportApp`: what was lowered.
    Lowered(Vec<String>),
    /// To `Images`.
    Images(Vec<StoredImage>),
    /// To `Doctor`.
    Checks(Vec<Check>),
    /// To `Teardown`.
    PutAway(Vec<PutAway>),
    /// To `Export`, `Exec`, `Logs` and `Events`: a stream follows.
    Stream,
}

/// What a hub tells a worker and does not wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerNotice {
    /// Nobody will ask for the rest of this upload, if the worker has one.
    Abandon(UploadId),
}
