//! Work that blocks, on a thread for it.

/// Runs what blocks on a thread for it.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        // The runtime ends, and with it whoever waits.
        Err(error) if error.is_cancelled() => std::future::pending().await,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}
