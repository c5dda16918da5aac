//! Threads for requests of the API that may block for as long as a client or a disk takes: archives, layers, logs, commands.
//!
//! They are apart from the threads on which apps start, wake, sleep and end. However many requests there are and whatever they wait for,
//! a wake finds a thread. When the worker is dropped, what is still running is left to the end of the process: as after a kill, the
//! next start removes it.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};

/// The pool of these threads. Its runtime runs no tasks.
#[derive(Debug)]
pub(crate) struct RequestThreads(Option<Runtime>, Handle);

impl RequestThreads {
    pub(crate) fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().thread_name("torpor-request").build()?;
        let handle = runtime.handle().clone();
        Ok(Self(Some(runtime), handle))
    }

    /// Where work that may block is spawned.
    pub(crate) fn handle(&self) -> &Handle {
        &self.1
    }
}

impl Drop for RequestThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::Barrier;

    use super::*;

    #[tokio::test]
    async fn requests_that_block_leave_threads_for_apps() {
        /// Threads of a pool by default, as the daemon has it.
        const POOL: usize = 512;
        let requests = RequestThreads::new().unwrap();
        let (here, held) = (Arc::new(Barrier::new(POOL + 1)), Arc::new(Barrier::new(POOL + 1)));
        for _ in 0..POOL {
            let (here, held) = (here.clone(), held.clone());
            requests.handle().spawn_blocking(move || {
                here.wait();
                held.wait();
            });
        }
        // Every thread of the pool is taken now, and a request waits.
        here.wait();
        let waiting = requests.handle().spawn_blocking(|| ());
        tokio::task::spawn_blocking(|| ()).await.unwrap();
        held.wait();
        waiting.await.unwrap();
    }
}
