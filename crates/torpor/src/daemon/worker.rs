//! The one place that makes the worker of this process.

use std::sync::Arc;

use torpor_api::view::Check;
use torpor_api::{ApiError, ErrorKind, error::chain};
use torpor_sandbox::Labels;
use torpor_worker::{Deadlines, LogConfig, MemoryConfig, OpenError, Worker, WorkerConfig};

use crate::config::Config;

/// The worker's part of the configuration.
fn settings(config: &Config, for_teardown: bool) -> Result<WorkerConfig, ApiError> {
    let program = std::env::current_exe().map_err(|error| ApiError::internal(&error))?;
    Ok(WorkerConfig {
        instance: config.instance.clone(),
        data_dir: config.data_dir.clone(),
        run_dir: config.run_dir.clone(),
        network: config.network_config(),
        program,
        logs: LogConfig {
            file_bytes: config.logs.size.0,
            files: config.logs.files,
            bytes_per_second: config.logs.rate.0,
        },
        cached_image_bytes: config.memory.cached_images.0,
        lazy_wakes: config.wake.lazy,
        backfill: config.wake.backfill,
        wakes_at_once: config.wake.at_once.map_or_else(processors, |at_once| at_once as usize),
        memory: MemoryConfig {
            high: config.memory.high_watermark,
            low: config.memory.low_watermark,
            limit_bytes: config.memory.limit.map(|limit| limit.0),
            min_dozing: config.memory.min_dozing.0,
        },
        for_teardown,
        deadlines: Deadlines {
            wake: config.deadlines.wake.0,
            start: config.deadlines.start.0,
            sleep: config.deadlines.sleep.0,
        },
        image_limit: config.images.max_bytes,
        disk_limit_bytes: config.disk.limit.map(|limit| limit.0),
        labels: Labels {
            apparmor_profile: config.security.apparmor_profile.clone(),
            selinux_label: config.security.selinux_label.clone(),
        },
    })
}

/// Wakes that may go on at the same time where nothing is configured.
fn processors() -> usize {
    const LEAST: usize = 2;
    std::thread::available_parallelism().map_or(LEAST, |processors| processors.get().max(LEAST))
}

/// What this machine offers to a worker that need not be able to start.
pub(super) async fn doctor(config: &Config) -> Result<Vec<Check>, ApiError> {
    torpor_worker::doctor(settings(config, false)?).await
}

/// Opens the worker of this machine; `for_teardown`: only to put apps away.
pub(super) async fn open(config: &Config, for_teardown: bool) -> Result<Arc<Worker>, ApiError> {
    match Worker::open(settings(config, for_teardown)?).await {
        Ok(worker) => Ok(worker),
        Err(error @ OpenError::Running(_)) => Err(ApiError::new(ErrorKind::Conflict, chain(&error))
            .with_hint("use the one that runs, or give this one its own instance, data_dir and run_dir")),
        Err(error) => Err(ApiError::new(ErrorKind::Unsupported, format!("the worker cannot start: {}", chain(&error)))
            .with_hint("see `torpor doctor`")),
    }
}
