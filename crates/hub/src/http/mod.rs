//! The HTTP API: routes and their OpenAPI description from the same annotations.
//!
//! Errors are [`ApiError`](torpor_api::ApiError) as JSON with the status of their kind; streams are one JSON value a line. Who may call is decided
//! before this: by the Unix socket's mode, or by [`auth`] on TCP.

mod apps;
mod archives;
pub(crate) mod auth;
pub(crate) mod exec;
mod extract;
mod images;
mod streams;
mod system;

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, Uri};
use torpor_api::{ApiError, ErrorKind};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::hub::Hub;
use extract::Failure;

/// What every handler gets.
pub(crate) type App = Arc<Hub>;

#[derive(OpenApi)]
#[openapi(
    info(title = "Torpor", description = "Hosts programs that are idle most of the time."),
    components(schemas(ApiError, torpor_api::wire::WorkLine, torpor_api::spec::AppSpec)),
    tags(
        (name = "apps", description = "Programs: made, started, put to sleep, woken, removed."),
        (name = "images", description = "Stored files that apps are made from."),
        (name = "system", description = "The daemon and its machine."),
    )
)]
struct Description;

fn described() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(apps::list, apps::create))
        .routes(routes!(apps::inspect, apps::remove))
        .routes(routes!(apps::start))
        .routes(routes!(apps::stop))
        .routes(routes!(apps::restart))
        .routes(routes!(apps::sleep))
        .routes(routes!(apps::wake))
        .routes(routes!(apps::pin))
        .routes(routes!(apps::unpin))
        .routes(routes!(apps::stats))
        .routes(routes!(apps::all_stats))
        .routes(routes!(apps::explain))
        .routes(routes!(apps::all_images))
        .routes(routes!(apps::remove_images))
        .routes(routes!(archives::export))
        .routes(routes!(archives::import))
        .routes(routes!(streams::logs))
        .routes(routes!(streams::events))
        .routes(routes!(exec::exec))
        .routes(routes!(images::list, images::store))
        .routes(routes!(images::remove))
        .routes(routes!(system::version))
        .routes(routes!(system::doctor))
        .routes(routes!(system::teardown))
}

/// The description of the API, as `GET /openapi.json` serves it.
pub fn openapi() -> utoipa::openapi::OpenApi {
    described().into_openapi()
}

/// All routes.
pub(crate) fn router(hub: App) -> Router {
    let (router, _) = described().split_for_parts();
    router
        .route("/openapi.json", axum::routing::get(|| async { axum::Json(openapi()) }))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(hub)
}

async fn no_route(uri: Uri) -> Failure {
    let path = torpor_api::validate::shown(uri.path());
    ApiError::new(ErrorKind::NotFound, format!("there is nothing at {path}")).with_hint("see /openapi.json").into()
}

async fn no_method(method: Method, uri: Uri) -> Failure {
    let path = torpor_api::validate::shown(uri.path());
    ApiError::new(ErrorKind::Invalid, format!("{method} is not possible at {path}"))
        .with_hint("see /openapi.json")
        .into()
}
