//! Starting an app, or starting it again, and seeing that it stays: a program that ends as soon as it has started is what most first attempts
//! at a description come to. Its exit status and last output are what its user needs then.

use std::io::Write;
use std::time::Duration;

use torpor_api::client::Client;
use torpor_api::spec::Restart;
use torpor_api::view::{AppStatus, Event, State};
use torpor_api::wire::{EventQuery, LogQuery};

use super::show;
use crate::failure::Failure;
use crate::output;

/// How long a program must run for its start to count as one that lasts.
const SETTLE: Duration = Duration::from_millis(500);
/// Lines of output that are shown of a program that has ended.
const LAST_LINES: usize = 10;

/// The place in the stream of events from which an app that is about to start is watched.
pub(super) struct Before(Option<u64>);

impl Before {
    pub(super) async fn now(client: &Client) -> Result<Self, Failure> {
        let mut last = client.events(&EventQuery { tail: Some(1), ..EventQuery::default() }).await?;
        Ok(Self(last.next().await?.map(|event| event.seq)))
    }

    /// Shows how a started app is, or that it has ended within [`SETTLE`].
    ///
    /// # Errors
    /// [`Failure::Ended`] where it did, other than with status 0, and its restart policy leaves it so.
    pub(super) async fn show(&self, client: &Client, status: AppStatus, json: bool) -> Result<(), Failure> {
        if !self.ended(client, &status.name).await? {
            return show(json, &status, output::status_line);
        }
        let detail = client.inspect(&status.id).await?;
        let (status, restart) = (detail.status, detail.spec.restart);
        let Some(exit) = status.last_exit.clone() else { return show(json, &status, output::status_line) };
        let lines = last_output(client, &status.id).await?;
        if json {
            show(true, &status, output::status_line)?;
        }
        // That it has ended is told before it counts as stopped.
        let stays = status.state == State::Stopped
            || match restart {
                Restart::No => true,
                Restart::OnFailure => exit.code == Some(0),
                Restart::Always => false,
            };
        let ended = Failure::Ended { app: status.name, reason: exit.reason, restarts: !stays, output: lines };
        if stays && exit.code != Some(0) {
            return Err(ended);
        }
        let mut stderr = std::io::stderr().lock();
        stderr.write_all(ended.text().as_bytes()).map_err(Failure::output)
    }

    async fn ended(&self, client: &Client, app: &str) -> Result<bool, Failure> {
        let query = EventQuery { since: self.0, app: Some(app.to_owned()), follow: true, tail: None };
        let mut events = client.events(&query).await?;
        let exited = async {
            let mut started = false;
            while let Some(Event { kind, .. }) = events.next().await? {
                // Before a restart the old program ends.
                started |= kind == torpor_api::events::STARTED;
                if started && kind == torpor_api::events::EXITED {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        tokio::time::timeout(SETTLE, exited).await.unwrap_or(Ok(false))
    }
}

async fn last_output(client: &Client, app: &str) -> Result<Vec<String>, Failure> {
    let mut lines = client.logs(app, &LogQuery { tail: Some(LAST_LINES), follow: false }).await?;
    let mut last = Vec::new();
    while let Some(line) = lines.next().await? {
        last.push(line.line);
    }
    Ok(last)
}
