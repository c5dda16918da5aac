//! Answers that go on: one JSON value a line, until the work is done, the client leaves, or the hub closes.

use std::convert::Infallible;
use std::future::ready;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use futures_util::{StreamExt, stream};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use torpor_api::units::Span;
use torpor_api::wire::{EventQuery, LogQuery, NDJSON, WorkLine};
use torpor_api::worker::{LogRequest, Progress};
use torpor_api::{ApiError, view, worker};
use tracing::error;

use super::App;
use super::extract::{Failure, Named, Params};

/// Progress reports that may wait for a slow client; the work then waits too.
const REPORTS: usize = 32;

/// A stream of values as an answer.
pub(super) fn ndjson<T: Serialize>(values: impl Stream<Item = T> + Send + 'static) -> Response {
    let lines = values.map(|value| match serde_json::to_vec(&value) {
        Ok(mut line) => {
            line.push(b'\n');
            Some(Bytes::from(line))
        }
        Err(problem) => {
            error!(error = %problem, "cannot write a line of a stream");
            None
        }
    });
    let lines = lines.take_while(|line| ready(line.is_some())).filter_map(ready).map(Ok::<_, Infallible>);
    ([(CONTENT_TYPE, NDJSON)], Body::from_stream(lines)).into_response()
}

/// Runs long work in its own task; the lines that report it, the last of them its result.
pub(super) fn work<F>(run: impl FnOnce(mpsc::Sender<Progress>) -> F) -> impl Stream<Item = WorkLine> + Send + 'static
where
    F: Future<Output = Result<WorkLine, ApiError>> + Send + 'static,
{
    let (reports, received) = mpsc::channel(REPORTS);
    let task = tokio::spawn(run(reports));
    let end = async move {
        match task.await {
            Ok(Ok(line)) => line,
            Ok(Err(problem)) => WorkLine::Error(problem),
            Err(problem) => WorkLine::Error(ApiError::internal(&problem)),
        }
    };
    ReceiverStream::new(received).map(WorkLine::Progress).chain(stream::once(end))
}

/// Passes the lines of an operation on. If the operation takes longer than the limit, the stream ends with the error; the operation
/// itself continues.
pub(super) fn within(
    lines: impl Stream<Item = WorkLine> + Send + 'static,
    late: Option<(Span, ApiError)>,
) -> impl Stream<Item = WorkLine> + Send + 'static {
    let state = (Box::pin(lines), late.map(|(within, error)| (Box::pin(tokio::time::sleep(within.0)), error)), false);
    stream::unfold(state, |(mut lines, late, passed)| async move {
        if passed {
            return None;
        }
        match late {
            None => lines.next().await.map(|line| (line, (lines, None, false))),
            Some((mut passes, error)) => tokio::select! {
                biased;
                line = lines.next() => line.map(|line| (line, (lines, Some((passes, error)), false))),
                () = &mut passes => Some((WorkLine::Error(error), (lines, None, true))),
            },
        }
    })
}

/// Runs long work whose client does not want to hear of progress, and waits for its end.
pub(super) async fn quiet(lines: impl Stream<Item = WorkLine> + Send) -> Result<WorkLine, Failure> {
    let mut lines = std::pin::pin!(lines.skip_while(|line| ready(matches!(line, WorkLine::Progress(_)))));
    match lines.next().await {
        Some(WorkLine::Error(problem)) => Err(Failure(problem)),
        Some(line) => Ok(line),
        None => Err(Failure(ApiError::new(torpor_api::ErrorKind::Internal, "the work ended without a result"))),
    }
}

/// What an app wrote, oldest first.
#[utoipa::path(get, path = "/v1/apps/{name}/logs", tag = "apps",
    params(("name" = String, Path, description = "Name or id."), LogQuery),
    responses((status = 200, content_type = NDJSON, body = worker::LogLine, description = "One line of output a line."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn logs(
    State(hub): State<App>,
    Named(app): Named,
    Params(query): Params<LogQuery>,
) -> Result<Response, Failure> {
    let lines = hub.logs(&app, LogRequest { tail: query.tail, follow: query.follow }).await?;
    Ok(ndjson(lines.take_until(hub.closed())))
}

/// What happened, oldest first.
#[utoipa::path(get, path = "/v1/events", tag = "system", params(EventQuery),
    responses((status = 200, content_type = NDJSON, body = view::Event, description = "One event a line."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn events(State(hub): State<App>, Params(query): Params<EventQuery>) -> Result<Response, Failure> {
    let events = hub.read_events(query).await?;
    Ok(ndjson(events.take_until(hub.closed())))
}
