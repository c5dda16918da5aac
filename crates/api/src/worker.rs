//! What a worker does for a hub: the one seam between the control plane and the machine.
//!
//! A worker implements [`WorkerPort`]; a hub reaches it through [`crate::port`], in which every call is data that can travel. The hub
//! owns names and desired states ([`AppRecord`], in its database); the worker owns the actual state.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::pin::Pin;

use bytes::Bytes;
use futures_core::Stream;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::archive;
use crate::error::ApiError;
pub use crate::record::{AppRecord, Desired, Epoch, ImageDefaults, LeftAlone, Resolved, is_app_id};
use crate::spec::Source;
use crate::units::Span;
use crate::view::{AppImage, AppStatus, Check, Event, Explanation, Level, PutAway, Stats, StoredImage};

/// A boxed stream.
pub type BoxStream<T> = Pin<Box<dyn Stream<Item = T> + Send>>;

/// Progress of long work, for a terminal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Progress {
    /// What is being done: `pulling layer sha256:12ab…`.
    pub what: String,
    /// Bytes done.
    pub done_bytes: u64,
    /// Bytes in all, where known.
    pub total_bytes: Option<u64>,
}

/// A command in a running app.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment, added to the app's.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// As in the app's spec; absent: the app's own user.
    #[serde(default)]
    pub user: Option<String>,
    /// Working directory; absent: the app's own.
    #[serde(default)]
    pub workdir: Option<String>,
    /// Give it a terminal of this many columns and rows.
    #[serde(default)]
    pub terminal: Option<(u16, u16)>,
    /// End it when it has not ended so long after the worker was asked, the app's wake included: SIGTERM to every process of its session,
    /// and SIGKILL 2 s later. Absent: it may take as long as it likes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub timeout: Option<Span>,
}

/// A running `exec`: bytes go in, output and at last the status come out.
pub struct ExecSession {
    /// Standard input of the command; closing it is end of file.
    pub input: Pin<Box<dyn AsyncWrite + Send>>,
    /// Standard output (or the terminal).
    pub output: Pin<Box<dyn AsyncRead + Send>>,
    /// Standard error; empty with a terminal.
    pub errors: Pin<Box<dyn AsyncRead + Send>>,
    /// Exit status, as a shell reports it (128 + signal); or why the command was ended.
    pub status: tokio::sync::oneshot::Receiver<Result<i32, ApiError>>,
    /// New sizes of the terminal.
    pub resize: tokio::sync::mpsc::Sender<(u16, u16)>,
}

/// How an app is imported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    /// Addresses that it had where it comes from.
    pub addresses: Vec<IpAddr>,
    /// Whoever made the archive is trusted: its programs may do what the app's description alone would not let them.
    pub trust: bool,
}

/// Which lines of an app's output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRequest {
    /// Only the last so many lines; absent: all that is kept.
    pub tail: Option<usize>,
    /// Go on with new lines.
    pub follow: bool,
}

/// One line of an app's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LogLine {
    /// When it was read.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// `out` or `err`; `torpor` for a line of Torpor's own, which says what is missing of the others.
    pub stream: String,
    /// Without its line end; bytes that are not UTF-8 replaced.
    pub line: String,
}

/// What a worker does for its hub. Every call names an app by id.
#[async_trait::async_trait]
pub trait WorkerPort: Send + Sync + 'static {
    /// Indexes that a new app must not get ([`AppRecord::index`]): what belongs to them on the machine is others'.
    async fn reserved_indexes(&self) -> Result<Vec<RangeInclusive<u32>>, ApiError> {
        Ok(Vec::new())
    }
    /// Fetches and unpacks a source; reports progress while it does.
    async fn resolve(
        &self,
        source: &Source,
        progress: tokio::sync::mpsc::Sender<Progress>,
    ) -> Result<Resolved, ApiError>;
    /// Ids of all apps of which something is on the worker's machine: files, images, processes or cgroups. A worker that finds out
    /// what it has asks before [`expect`](Self::expect).
    async fn found(&self) -> Result<BTreeSet<String>, ApiError>;
    /// Ends the processes of an app that is not adopted, and removes all that it has; fine where it has nothing.
    async fn remove_unknown(&self, id: &str) -> Result<(), ApiError>;
    /// These apps exist and will be adopted: until then their layers are kept and their names are found. The others exist and are left
    /// alone. Called once, before anything else.
    async fn expect(&self, apps: Vec<AppRecord>, left_alone: Vec<LeftAlone>);
    /// Makes an app known, taking over its processes where they live on from before. Does not wait for the start.
    async fn adopt(&self, app: AppRecord) -> Result<(), ApiError>;
    /// Starts a stopped app; returns once its program runs.
    async fn start(&self, id: &str) -> Result<(), ApiError>;
    /// Asks it to end, and kills it after `grace`.
    async fn stop(&self, id: &str, grace: std::time::Duration) -> Result<(), ApiError>;
    /// Puts it to sleep now; returns once it sleeps so deep or deeper, or says why not.
    async fn sleep(&self, id: &str, level: Level) -> Result<(), ApiError>;
    /// Wakes it; returns once it runs.
    async fn wake(&self, id: &str) -> Result<(), ApiError>;
    /// Keeps it awake, or no longer.
    async fn pin(&self, id: &str, pinned: bool) -> Result<(), ApiError>;
    /// Removes a stopped app and all that belongs to it.
    async fn remove(&self, id: &str) -> Result<(), ApiError>;
    /// Where it is.
    async fn status(&self, id: &str) -> Result<AppStatus, ApiError>;
    /// Why it is there.
    async fn explain(&self, id: &str) -> Result<Explanation, ApiError>;
    /// What it costs.
    async fn stats(&self, id: &str) -> Result<Stats, ApiError>;
    /// Images of its processes.
    async fn app_images(&self, id: &str) -> Result<Vec<AppImage>, ApiError>;
    /// Sends it as an [`crate::archive`]. It must be warm; with `sleep` it is put there first. Whatever happens to it
    /// meanwhile comes first: where it wakes, the archive ends with that as its error.
    async fn export(&self, id: &str, sleep: bool) -> Result<BoxStream<io::Result<Bytes>>, ApiError>;
    /// Stores the layers at the beginning of an archive, of which only the manifest was read; what comes behind them is left
    /// to be read.
    async fn import_layers(
        &self,
        archive: archive::Reader,
        manifest: &archive::Manifest,
    ) -> Result<(archive::Reader, Resolved), ApiError>;
    /// Makes an app that was adopted and never started one that is warm, from the rest of its archive. After an error it is to
    /// be removed. Returns what was lowered to what a new app gets here, in words.
    async fn import_app(&self, id: &str, archive: archive::Reader, import: Import) -> Result<Vec<String>, ApiError>;
    /// Removes those of its images that nothing uses, and gives them; refused if there are none.
    async fn remove_app_images(&self, id: &str) -> Result<Vec<AppImage>, ApiError>;
    /// Runs a command in it, waking it first.
    async fn exec(&self, id: &str, request: ExecRequest) -> Result<ExecSession, ApiError>;
    /// Its output.
    async fn logs(&self, id: &str, request: LogRequest) -> Result<BoxStream<LogLine>, ApiError>;
    /// Everything that happens from now on.
    fn events(&self) -> BoxStream<Event>;
    /// Stores a source under a name, for `base` and [`Source::Stored`].
    async fn store_image(
        &self,
        name: &str,
        source: &Source,
        progress: tokio::sync::mpsc::Sender<Progress>,
    ) -> Result<Resolved, ApiError>;
    /// Stored images.
    async fn images(&self) -> Result<Vec<StoredImage>, ApiError>;
    /// Removes a stored image by name.
    async fn remove_image(&self, name: &str) -> Result<(), ApiError>;
    /// What this machine and kernel offer and lack.
    async fn doctor(&self) -> Result<Vec<Check>, ApiError>;
    /// Puts every app away and removes everything that was set up on the machine (`torpor down`): what can go warm does and
    /// keeps its image for the next daemon, the rest is stopped, with `discard` all of them. `progress` counts apps.
    async fn teardown(
        &self,
        discard: bool,
        progress: tokio::sync::mpsc::Sender<Progress>,
    ) -> Result<Vec<PutAway>, ApiError>;
}
