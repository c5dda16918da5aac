//! The keeper's life: where it ends before its time, or is killed because it does not answer, a new one is started, and every app's task
//! parks again what it still holds. What the old one alone held is lost: the open files of warm apps, whose sandboxes are then
//! made again from their images, as after a reboot.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::Notify;
use torpor_api::error::chain;
use torpor_keeper::{Client, Error};

use crate::keeper::OpenKeeperError;
use crate::shared::Shared;

/// Between two tries to start a new one.
const AGAIN: Duration = Duration::from_secs(1);

/// Readable when the keeper has ended; `None`: it has already.
fn process(keeper: &Client) -> Result<Option<OwnedFd>, Error> {
    let found = || keeper.ping().map(|info| info.pid);
    let pid = match found() {
        Ok(pid) => pid,
        Err(Error::NotRunning { .. } | Error::Closed { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(fd) = Pid::from_raw(pid.cast_signed()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return Ok(None);
    };
    // Had it ended meanwhile, the number could be another's.
    Ok(found().is_ok_and(|again| again == pid).then_some(fd))
}

/// Looks after the keeper as long as the worker lives.
pub(crate) async fn look_after(shared: Arc<Shared>) {
    let silent = Arc::new(Notify::new());
    let told = silent.clone();
    shared.keeper.when_silent(move || told.notify_one());
    loop {
        let keeper = shared.clone();
        match tokio::task::spawn_blocking(move || process(&keeper.keeper)).await {
            Ok(Ok(Some(process))) => {
                if let Err(error) = ended(process, &silent, &shared).await {
                    tracing::error!(%error, "watching the keeper");
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
            }
            Ok(Ok(None)) => {}
            Ok(Err(error)) => {
                tracing::error!(error = %chain(&error), "asking the keeper");
                end_silent(&shared).await;
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            Err(_) => return,
        }
        let starting = shared.clone();
        match tokio::task::spawn_blocking(move || start(&starting)).await {
            Ok(Ok(true)) => {
                tracing::error!("the keeper has ended; a new one is there, and what only the old one held is lost");
                shared.services.keeper_life.lost();
            }
            // It is not wanted any more.
            Ok(Ok(false)) | Err(_) => return,
            Ok(Err(error)) => {
                tracing::error!(error = %chain(&error), "starting a new keeper");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// Waits for its end, which it gets here where it does not answer.
async fn ended(process: OwnedFd, silent: &Notify, shared: &Arc<Shared>) -> io::Result<()> {
    let process = torpor_linux::readable::register(process)?;
    loop {
        tokio::select! {
            ended = process.readable() => return ended.map(drop),
            () = silent.notified() => end_silent(shared).await,
        }
    }
}

/// Kills the keeper if it still does not answer.
async fn end_silent(shared: &Arc<Shared>) {
    let path = shared.keeper.path().to_owned();
    if let Ok(Err(error)) = tokio::task::spawn_blocking(move || Client::end_silent(&path)).await {
        tracing::error!(error = %chain(&error), "killing a keeper that does not answer");
    }
}

/// Starts a new one; `false`: none is wanted.
fn start(shared: &Shared) -> Result<bool, OpenKeeperError> {
    let wanted = shared.services.keeper_life.wanted();
    if *wanted {
        // The worker's own client connects to it by itself.
        crate::keeper::open(&shared.config, shared.launcher.hierarchies())?;
        crate::network::park_guard(&shared.keeper, &shared.network);
    }
    Ok(*wanted)
}
