//! The one place that makes the worker of this process.

use std::sync::Arc;

use torpor_api::worker::WorkerPort;
use torpor_api::{ApiError, ErrorKind};

use crate::config::Config;

/// Opens the worker of this machine.
pub(super) async fn open(_config: &Config) -> Result<Arc<dyn WorkerPort>, ApiError> {
    Err(ApiError::new(ErrorKind::Unsupported, "this build of torpor has no worker"))
}
