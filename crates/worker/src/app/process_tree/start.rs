//! Starting an app: its files, its sandbox, its network, its program.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use torpor_api::worker::AppRecord;
use torpor_engine::{Journal, Phase, WaitHistory};
use torpor_lifecycle::{Event, StartFailure};
use torpor_network::Addresses;
use torpor_sandbox::{Prepared, Sandbox, SandboxRecord};

use super::sandbox_spec::{network, sandbox_spec};
use super::start_error::StartError;
use super::texts::chain;
use super::{Message, Outcome, ProcessTree, parked};
use crate::app::deadlines::Operations;
use crate::app::operation::{Ended, Kind};
use crate::app::workload::Report;
use crate::app_files::AppFiles;
use crate::faults::SandboxStep;
use crate::shared::Shared;

/// A running sandbox with the reading ends of its output.
pub(crate) struct Started {
    pub(super) sandbox: Sandbox,
    pub(super) output: [OwnedFd; 2],
}

/// How a start ended.
pub(crate) type StartOutcome = Result<Started, StartError>;

impl ProcessTree {
    pub(super) fn begin_start(&mut self, operations: &mut Operations) {
        let (record, files, shared) = (self.record.clone(), self.files.clone(), self.shared.clone());
        let (journal, sender) = (self.journal.clone(), self.sender.clone());
        let operation = operations.begin(Kind::Start, 0);
        tokio::spawn(async move {
            // An image that was given up must not be found after a power cut: what the app writes from now on is newer.
            let own = files.clone();
            let synced = blocking(move || {
                let synced = own.images.sync().and_then(|()| journal.record(Phase::Awake));
                synced.map_err(|error| StartError::Files(own.run, error))
            });
            let result = match synced.await {
                Ok(()) => start(&record, &files, &shared).await,
                Err(error) => Err(error),
            };
            // The task waits for just this.
            let _ = sender.send(Message::Ended(operation, Box::new(Outcome::Started(result))));
        });
    }

    /// Starting it has ended.
    pub(super) async fn started(&mut self, result: StartOutcome, ended: Ended) -> Option<Report> {
        if ended != Ended::InTime {
            // Nobody waits for it any more.
            if let Ok(started) = result {
                self.take_down(Arc::new(started.sandbox)).await;
            }
            let reason = ended.given_up()?;
            self.after_exit().await;
            return Some(Event::StartFailed(reason.into()).into());
        }
        let error = match result {
            Ok(Started { sandbox, output }) => {
                // New processes: nothing of the old ones' waits is true of them.
                self.memories = WaitHistory::default();
                self.learned.forget();
                self.pump_output(output);
                let sandbox = Arc::new(sandbox);
                match self.hold_sandbox(sandbox.clone()) {
                    Ok(()) => return Some(Event::Started.into()),
                    Err(error) => {
                        self.take_down(sandbox).await;
                        StartError::Watch(error)
                    }
                }
            }
            Err(error) => error,
        };
        // Nothing of it runs.
        self.after_exit().await;
        let fault = error.fault();
        let failure = StartFailure { reason: chain(&error), status: fault.exit_status };
        Some(Report { event: Event::StartFailed(failure), entry: None, fault: Some(fault) })
    }

    /// Keeps a running sandbox and watches for its end.
    pub(super) fn hold_sandbox(&mut self, sandbox: Arc<Sandbox>) -> io::Result<()> {
        let init = sandbox.pidfd().try_clone_to_owned()?;
        self.run.init = Some(torpor_linux::readable::register(init)?);
        self.run.sandbox = Some(sandbox);
        Ok(())
    }

    pub(super) fn pump_output(&mut self, output: [OwnedFd; 2]) {
        match self.shared.output.read(output, &self.log) {
            Ok(reading) => self.run.output = Some(reading),
            Err(error) => tracing::warn!(app = self.record.spec.name, %error, "reading its output"),
        }
    }
}

async fn start(record: &Arc<AppRecord>, files: &AppFiles, shared: &Arc<Shared>) -> Result<Started, StartError> {
    let (spec, output_stdio, output) = {
        let (record, files, shared) = (record.clone(), files.clone(), shared.clone());
        blocking(move || {
            let spec = sandbox_spec(&record, &files, &shared)?;
            crate::disk::prepare(
                &shared.services.disks,
                &record.id,
                &files,
                crate::disk::limit_of(&record.spec, shared.config.disk_limit_bytes),
            )?;
            let (stdio, output) = stdio().map_err(StartError::Pipe)?;
            Ok((spec, stdio, output))
        })
        .await?
    };
    let launching = shared.clone();
    let (prepared, output) = blocking(move || {
        let held = [output[0].as_fd(), output[1].as_fd()];
        Ok((Sandbox::prepare(&launching.launcher, &spec, output_stdio, Some(held))?, output))
    })
    .await?;
    let prepared = attach(record, shared, prepared).await?;
    let (record, files, shared) = (record.clone(), files.clone(), shared.clone());
    blocking(move || {
        // Before its program runs: whatever kills us from here on, the next worker finds its processes and output.
        write_record(&files, prepared.record())?;
        if let Err(error) = parked::park_output(&shared, &record.id, [output[0].as_fd(), output[1].as_fd()]) {
            tracing::warn!(app = record.spec.name, error = %chain(&error), "parking its output");
        }
        shared.faults.made(SandboxStep::Prepared).map_err(|error| StartError::Files(files.run.clone(), error))?;
        Ok(Started { sandbox: prepared.start()?, output })
    })
    .await
}

/// Connects a sandbox that is prepared to the network.
pub(super) async fn attach(
    record: &Arc<AppRecord>,
    shared: &Arc<Shared>,
    prepared: Prepared,
) -> Result<Prepared, StartError> {
    if !record.spec.network.join.is_empty() {
        crate::network::renew_names(shared).await;
    }
    for limit in prepared.unenforced() {
        tracing::warn!(app = record.spec.name, error = %chain(limit), "a limit is not enforced");
    }
    match shared.network.attach(record.index, prepared.netns(), &network(&record.spec)).await {
        Ok(Addresses { .. }) => Ok(prepared),
        Err(error) => {
            // Dropping what was prepared takes it down again, which may block.
            blocking(move || {
                drop(prepared);
                Ok(())
            })
            .await?;
            Err(error.into())
        }
    }
}

pub(super) fn write_record(files: &AppFiles, record: &SandboxRecord) -> Result<(), StartError> {
    let path = files.sandbox_record();
    let written = serde_json::to_vec(record).map_err(io::Error::from);
    written.and_then(|record| crate::files::replace(&path, &record)).map_err(|error| StartError::Files(path, error))
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<T, StartError> {
    crate::threads::blocking(work).await
}

/// `/dev/null` and two pipes for the app; their reading ends for us.
pub(super) fn stdio() -> io::Result<([OwnedFd; 3], [OwnedFd; 2])> {
    let null = fs::File::open("/dev/null")?;
    let (out_read, out_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let (err_read, err_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    Ok(([null.into(), out_write, err_write], [out_read, err_read]))
}
