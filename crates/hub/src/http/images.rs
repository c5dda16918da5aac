//! Routes of stored images.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use torpor_api::ApiError;
use torpor_api::view::StoredImage;
use torpor_api::wire::{ImageRequest, NDJSON, ProgressQuery, WorkLine};

use super::App;
use super::extract::{Failure, Json, Named, Params, carried_through};
use super::{apps, streams};
use crate::hub::Hub;

/// Stored images.
#[utoipa::path(get, path = "/v1/images", tag = "images", operation_id = "list_images",
    responses((status = 200, body = Vec<StoredImage>, description = "Their names and sizes."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn list(State(hub): State<App>) -> Result<axum::Json<Vec<StoredImage>>, Failure> {
    Ok(axum::Json(hub.images().await?))
}

/// Stores files under a name, from a directory, an archive or a registry.
#[utoipa::path(post, path = "/v1/images", tag = "images", operation_id = "store_image",
    params(ProgressQuery), request_body = ImageRequest,
    responses((status = 201, body = String, description = "Stored under this name."),
        (status = 200, content_type = NDJSON, body = WorkLine, description = "With `progress`: how far it is, then its end."),
        (status = "default", body = ApiError, description = "Why not; nothing was left behind.")))]
pub(super) async fn store(
    State(hub): State<App>,
    Params(query): Params<ProgressQuery>,
    Json(request): Json<ImageRequest>,
) -> Result<Response, Failure> {
    Hub::check_image(&request)?;
    let lines =
        streams::work(move |reports| async move { hub.store_image(request, reports).await.map(WorkLine::Stored) });
    if query.progress {
        return Ok(streams::ndjson(lines));
    }
    match streams::quiet(lines).await? {
        WorkLine::Stored(name) => Ok((StatusCode::CREATED, axum::Json(name)).into_response()),
        line => Err(apps::unexpected(&line)),
    }
}

/// Removes a stored image that no app names. Slashes in the name are written `%2F`.
#[utoipa::path(delete, path = "/v1/images/{name}", tag = "images", operation_id = "remove_image",
    params(("name" = String, Path, description = "Its name.")),
    responses((status = 204, description = "Removed."), (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn remove(State(hub): State<App>, Named(name): Named) -> Result<StatusCode, Failure> {
    carried_through(async move { hub.remove_image(&name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
