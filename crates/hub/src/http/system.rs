//! Routes of the daemon and its machine.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use torpor_api::ApiError;
use torpor_api::view::{Check, PutAway};
use torpor_api::wire::{TeardownQuery, Version, WorkLine};

use super::App;
use super::extract::{Failure, Params};
use super::streams;

/// Version of the daemon and of its API.
#[utoipa::path(get, path = "/v1/version", tag = "system",
    responses((status = 200, body = Version, description = "The daemon answers.")))]
pub(super) async fn version(State(hub): State<App>) -> axum::Json<Version> {
    axum::Json(Version {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        api: 1,
        instance: hub.options.instance.clone(),
        adopting: hub.adopting.left(),
    })
}

/// What this machine and kernel offer and lack.
#[utoipa::path(get, path = "/v1/doctor", tag = "system",
    responses((status = 200, body = Vec<Check>, description = "What was looked for and found."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn doctor(State(hub): State<App>) -> Result<axum::Json<Vec<Check>>, Failure> {
    Ok(axum::Json(hub.doctor().await?))
}

/// Puts every app away, removes everything that was set up on the machine, and ends the daemon.
#[utoipa::path(post, path = "/v1/teardown", tag = "system", params(TeardownQuery),
    responses((status = 200, body = Vec<PutAway>, description = "All apps that were up; the daemon ends. With `progress`: lines, the last of them with these."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn teardown(
    State(hub): State<App>,
    Params(query): Params<TeardownQuery>,
) -> Result<Response, Failure> {
    let lines = streams::work(move |reports| async move {
        let apps = hub.teardown(query.discard, reports).await?;
        // The server sees it and ends after this answer.
        hub.closing.send_replace(true);
        Ok(WorkLine::TornDown(apps))
    });
    if query.progress {
        return Ok(streams::ndjson(lines));
    }
    match streams::quiet(lines).await? {
        WorkLine::TornDown(apps) => Ok(axum::Json(apps).into_response()),
        line => Err(super::apps::unexpected(&line)),
    }
}
