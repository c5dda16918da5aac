//! Routes of the daemon and its machine.

use axum::extract::State;
use axum::http::StatusCode;
use torpor_api::ApiError;
use torpor_api::view::Check;
use torpor_api::wire::Version;

use super::App;
use super::extract::{Failure, carried_through};

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

/// Rests every app, removes everything that was set up on the machine, and ends the daemon.
#[utoipa::path(post, path = "/v1/teardown", tag = "system",
    responses((status = 204, description = "All is at rest; the daemon ends."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn teardown(State(hub): State<App>) -> Result<StatusCode, Failure> {
    carried_through(async move {
        hub.teardown().await?;
        // The server sees it and ends after this answer.
        hub.closing.send_replace(true);
        Ok(())
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}
