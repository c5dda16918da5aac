//! The worker's end: serves calls by a [`WorkerPort`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::call::{Attachment, Call, Output, Reply};
use super::message::{UploadId, WorkerAnswer, WorkerNotice, WorkerRequest};
use crate::archive::Reader;
use crate::error::{ApiError, ErrorKind};
use crate::worker::WorkerPort;

/// Serves the calls of one client.
pub struct Dispatcher {
    worker: Arc<dyn WorkerPort>,
    /// Archives whose layers are stored and of which the rest is still to be read.
    uploads: Mutex<HashMap<UploadId, Reader>>,
}

impl Dispatcher {
    /// One for a worker.
    pub fn new(worker: Arc<dyn WorkerPort>) -> Self {
        Self { worker, uploads: Mutex::default() }
    }

    fn uploads(&self) -> MutexGuard<'_, HashMap<UploadId, Reader>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of what a client tells.
    pub fn notice(&self, notice: WorkerNotice) {
        match notice {
            WorkerNotice::Abandon(upload) => drop(self.uploads().remove(&upload)),
        }
    }

    /// Serves one call.
    ///
    /// # Errors
    /// That of the worker; `Invalid` for a call without what belongs to it.
    pub async fn serve(&self, call: Call) -> Result<Reply, ApiError> {
        use WorkerRequest as Ask;
        let worker = &self.worker;
        let answer = match call.request {
            Ask::ReservedIndexes => WorkerAnswer::Indexes(worker.reserved_indexes().await?),
            Ask::Resolve { source } => {
                let Attachment::Progress(progress) = call.attachment else { return Err(missing("progress")) };
                WorkerAnswer::Resolved(worker.resolve(&source, progress).await?)
            }
            Ask::Found => WorkerAnswer::Ids(worker.found().await?),
            Ask::RemoveUnknown { id } => done(worker.remove_unknown(&id).await)?,
            Ask::Expect { apps, left_alone } => {
                worker.expect(apps, left_alone).await;
                WorkerAnswer::Done
            }
            Ask::Adopt { app } => done(worker.adopt(*app).await)?,
            Ask::Start { id } => done(worker.start(&id).await)?,
            Ask::Stop { id, grace } => done(worker.stop(&id, grace).await)?,
            Ask::Sleep { id, level } => done(worker.sleep(&id, level).await)?,
            Ask::Wake { id } => done(worker.wake(&id).await)?,
            Ask::Pin { id, pinned } => done(worker.pin(&id, pinned).await)?,
            Ask::Remove { id } => done(worker.remove(&id).await)?,
            Ask::Status { id } => WorkerAnswer::Status(Box::new(worker.status(&id).await?)),
            Ask::Explain { id } => WorkerAnswer::Explanation(Box::new(worker.explain(&id).await?)),
            Ask::Stats { id } => WorkerAnswer::Stats(Box::new(worker.stats(&id).await?)),
            Ask::AppImages { id } => WorkerAnswer::AppImages(worker.app_images(&id).await?),
            Ask::Export { id, sleep } => return Ok(Output::Archive(worker.export(&id, sleep).await?).into()),
            Ask::ImportLayers { upload, manifest } => {
                let Attachment::Archive(archive) = call.attachment else { return Err(missing("archive")) };
                let (rest, resolved) = worker.import_layers(*archive, &manifest).await?;
                self.uploads().insert(upload, rest);
                WorkerAnswer::Resolved(resolved)
            }
            Ask::ImportApp { id, upload, import } => {
                let rest = self.uploads().remove(&upload).ok_or_else(|| missing("archive"))?;
                WorkerAnswer::Lowered(worker.import_app(&id, rest, import).await?)
            }
            Ask::RemoveAppImages { id } => WorkerAnswer::AppImages(worker.remove_app_images(&id).await?),
            Ask::Exec { id, request } => return Ok(Output::Session(worker.exec(&id, request).await?).into()),
            Ask::Logs { id, request } => return Ok(Output::Lines(worker.logs(&id, request).await?).into()),
            Ask::Events => return Ok(Output::Events(worker.events()).into()),
            Ask::StoreImage { name, source } => {
                let Attachment::Progress(progress) = call.attachment else { return Err(missing("progress")) };
                WorkerAnswer::Resolved(worker.store_image(&name, &source, progress).await?)
            }
            Ask::Images => WorkerAnswer::Images(worker.images().await?),
            Ask::RemoveImage { name } => done(worker.remove_image(&name).await)?,
            Ask::Doctor => WorkerAnswer::Checks(worker.doctor().await?),
            Ask::Teardown { discard } => {
                let Attachment::Progress(progress) = call.attachment else { return Err(missing("progress")) };
                WorkerAnswer::PutAway(worker.teardown(discard, progress).await?)
            }
        };
        Ok(answer.into())
    }
}

fn done(result: Result<(), ApiError>) -> Result<WorkerAnswer, ApiError> {
    result.map(|()| WorkerAnswer::Done)
}

fn missing(what: &str) -> ApiError {
    ApiError::new(ErrorKind::Invalid, format!("a call to the worker came without its {what}"))
}
