//! The hub's end: a worker behind a transport, with a method for each call.

use std::collections::BTreeSet;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::call::{Attachment, Call, Output, Reply, Transport};
use super::dispatcher::Dispatcher;
use super::encoded::Encoded;
use super::in_process::InProcess;
use super::message::{UploadId, WorkerAnswer, WorkerNotice, WorkerRequest};
use crate::archive::{Manifest, Reader};
use crate::error::{ApiError, ErrorKind};
use crate::record::{AppRecord, LeftAlone, Resolved};
use crate::spec::Source;
use crate::view::{AppImage, AppStatus, Check, Event, Explanation, Level, PutAway, Stats, StoredImage};
use crate::worker::{BoxStream, ExecRequest, ExecSession, Import, LogLine, LogRequest, Progress, WorkerPort};

/// A worker as a hub sees it. Each method is the call of [`WorkerPort`] with its name; any of them may also fail because the transport
/// does.
pub struct WorkerClient {
    transport: Arc<dyn Transport>,
    next_upload: AtomicU64,
}

/// An archive whose layers a worker has stored, and of which it holds the rest until this is dropped or imported.
pub struct StagedArchive {
    upload: UploadId,
    transport: Arc<dyn Transport>,
}

impl Drop for StagedArchive {
    fn drop(&mut self) {
        self.transport.notify(WorkerNotice::Abandon(self.upload));
    }
}

/// The value of an answer that has one.
macro_rules! value {
    ($reply:expr, $variant:ident) => {
        match $reply.answer {
            WorkerAnswer::$variant(value) => Ok(value),
            other => Err(unexpected(&other)),
        }
    };
}

/// The stream that follows an answer.
macro_rules! stream {
    ($reply:expr, $variant:ident) => {
        match $reply {
            Reply { output: Output::$variant(stream), .. } => Ok(stream),
            Reply { answer, .. } => Err(unexpected(&answer)),
        }
    };
}

#[expect(missing_docs, clippy::missing_errors_doc, reason = "the methods of WorkerPort have the documentation")]
impl WorkerClient {
    /// A client over this transport.
    pub fn new(transport: impl Transport) -> Self {
        Self { transport: Arc::new(transport), next_upload: AtomicU64::new(1) }
    }

    /// A client of a worker in this process.
    pub fn in_process(worker: Arc<dyn WorkerPort>) -> Self {
        Self::new(InProcess(Dispatcher::new(worker)))
    }

    /// The same, and whatever passes is encoded and decoded: for tests.
    pub fn encoded(worker: Arc<dyn WorkerPort>) -> Self {
        Self::new(Encoded(Dispatcher::new(worker)))
    }

    async fn call(&self, request: WorkerRequest) -> Result<Reply, ApiError> {
        self.transport.call(Call { request, attachment: Attachment::None }).await
    }

    async fn call_with(&self, request: WorkerRequest, attachment: Attachment) -> Result<Reply, ApiError> {
        self.transport.call(Call { request, attachment }).await
    }

    async fn order(&self, request: WorkerRequest) -> Result<(), ApiError> {
        match self.call(request).await?.answer {
            WorkerAnswer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    pub async fn reserved_indexes(&self) -> Result<Vec<RangeInclusive<u32>>, ApiError> {
        value!(self.call(WorkerRequest::ReservedIndexes).await?, Indexes)
    }

    pub async fn resolve(&self, source: &Source, progress: mpsc::Sender<Progress>) -> Result<Resolved, ApiError> {
        let request = WorkerRequest::Resolve { source: source.clone() };
        value!(self.call_with(request, Attachment::Progress(progress)).await?, Resolved)
    }

    pub async fn found(&self) -> Result<BTreeSet<String>, ApiError> {
        value!(self.call(WorkerRequest::Found).await?, Ids)
    }

    pub async fn remove_unknown(&self, id: &str) -> Result<(), ApiError> {
        self.order(WorkerRequest::RemoveUnknown { id: id.to_owned() }).await
    }

    pub async fn expect(&self, apps: Vec<AppRecord>, left_alone: Vec<LeftAlone>) -> Result<(), ApiError> {
        self.order(WorkerRequest::Expect { apps, left_alone }).await
    }

    pub async fn adopt(&self, app: AppRecord) -> Result<(), ApiError> {
        self.order(WorkerRequest::Adopt { app: Box::new(app) }).await
    }

    pub async fn start(&self, id: &str) -> Result<(), ApiError> {
        self.order(WorkerRequest::Start { id: id.to_owned() }).await
    }

    pub async fn stop(&self, id: &str, grace: Duration) -> Result<(), ApiError> {
        self.order(WorkerRequest::Stop { id: id.to_owned(), grace }).await
    }

    pub async fn sleep(&self, id: &str, level: Level) -> Result<(), ApiError> {
        self.order(WorkerRequest::Sleep { id: id.to_owned(), level }).await
    }

    pub async fn wake(&self, id: &str) -> Result<(), ApiError> {
        self.order(WorkerRequest::Wake { id: id.to_owned() }).await
    }

    pub async fn pin(&self, id: &str, pinned: bool) -> Result<(), ApiError> {
        self.order(WorkerRequest::Pin { id: id.to_owned(), pinned }).await
    }

    pub async fn remove(&self, id: &str) -> Result<(), ApiError> {
        self.order(WorkerRequest::Remove { id: id.to_owned() }).await
    }

    pub async fn status(&self, id: &str) -> Result<AppStatus, ApiError> {
        value!(self.call(WorkerRequest::Status { id: id.to_owned() }).await?, Status).map(|status| *status)
    }

    pub async fn explain(&self, id: &str) -> Result<Explanation, ApiError> {
        value!(self.call(WorkerRequest::Explain { id: id.to_owned() }).await?, Explanation).map(|explained| *explained)
    }

    pub async fn stats(&self, id: &str) -> Result<Stats, ApiError> {
        value!(self.call(WorkerRequest::Stats { id: id.to_owned() }).await?, Stats).map(|stats| *stats)
    }

    pub async fn app_images(&self, id: &str) -> Result<Vec<AppImage>, ApiError> {
        value!(self.call(WorkerRequest::AppImages { id: id.to_owned() }).await?, AppImages)
    }

    pub async fn export(&self, id: &str, sleep: bool) -> Result<BoxStream<io::Result<Bytes>>, ApiError> {
        stream!(self.call(WorkerRequest::Export { id: id.to_owned(), sleep }).await?, Archive)
    }

    /// The rest of the archive stays with the worker, for [`import_app`](Self::import_app).
    pub async fn import_layers(
        &self,
        archive: Reader,
        manifest: &Manifest,
    ) -> Result<(StagedArchive, Resolved), ApiError> {
        let upload = UploadId(self.next_upload.fetch_add(1, Ordering::Relaxed));
        // Made before the call, so that the worker forgets the archive wherever the call is given up.
        let staged = StagedArchive { upload, transport: self.transport.clone() };
        let request = WorkerRequest::ImportLayers { upload, manifest: Box::new(manifest.clone()) };
        let resolved = value!(self.call_with(request, Attachment::Archive(Box::new(archive))).await?, Resolved)?;
        Ok((staged, resolved))
    }

    pub async fn import_app(&self, id: &str, archive: StagedArchive, import: Import) -> Result<Vec<String>, ApiError> {
        let request = WorkerRequest::ImportApp { id: id.to_owned(), upload: archive.upload, import };
        value!(self.call(request).await?, Lowered)
    }

    pub async fn remove_app_images(&self, id: &str) -> Result<Vec<AppImage>, ApiError> {
        value!(self.call(WorkerRequest::RemoveAppImages { id: id.to_owned() }).await?, AppImages)
    }

    pub async fn exec(&self, id: &str, request: ExecRequest) -> Result<ExecSession, ApiError> {
        stream!(self.call(WorkerRequest::Exec { id: id.to_owned(), request }).await?, Session)
    }

    pub async fn logs(&self, id: &str, request: LogRequest) -> Result<BoxStream<LogLine>, ApiError> {
        stream!(self.call(WorkerRequest::Logs { id: id.to_owned(), request }).await?, Lines)
    }

    pub async fn events(&self) -> Result<BoxStream<Event>, ApiError> {
        stream!(self.call(WorkerRequest::Events).await?, Events)
    }

    pub async fn store_image(
        &self,
        name: &str,
        source: &Source,
        progress: mpsc::Sender<Progress>,
    ) -> Result<Resolved, ApiError> {
        let request = WorkerRequest::StoreImage { name: name.to_owned(), source: source.clone() };
        value!(self.call_with(request, Attachment::Progress(progress)).await?, Resolved)
    }

    pub async fn images(&self) -> Result<Vec<StoredImage>, ApiError> {
        value!(self.call(WorkerRequest::Images).await?, Images)
    }

    pub async fn remove_image(&self, name: &str) -> Result<(), ApiError> {
        self.order(WorkerRequest::RemoveImage { name: name.to_owned() }).await
    }

    pub async fn doctor(&self) -> Result<Vec<Check>, ApiError> {
        value!(self.call(WorkerRequest::Doctor).await?, Checks)
    }

    pub async fn teardown(&self, discard: bool, progress: mpsc::Sender<Progress>) -> Result<Vec<PutAway>, ApiError> {
        let request = WorkerRequest::Teardown { discard };
        value!(self.call_with(request, Attachment::Progress(progress)).await?, PutAway)
    }
}

fn unexpected(answer: &WorkerAnswer) -> ApiError {
    ApiError::new(ErrorKind::Internal, format!("the worker's answer does not fit the call: {answer:?}"))
}
