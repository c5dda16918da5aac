//! The transport of a worker in the hub's own process.

use async_trait::async_trait;

use super::call::{Call, Reply, Transport};
use super::dispatcher::Dispatcher;
use super::message::WorkerNotice;
use crate::error::ApiError;

/// Passes everything as it is.
pub struct InProcess(pub Dispatcher);

#[async_trait]
impl Transport for InProcess {
    async fn call(&self, call: Call) -> Result<Reply, ApiError> {
        self.0.serve(call).await
    }

    fn notify(&self, notice: WorkerNotice) {
        self.0.notice(notice);
    }
}
