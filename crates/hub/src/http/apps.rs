//! Routes of apps.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use torpor_api::spec::AppSpec;
use torpor_api::units::Span;
use torpor_api::view::{AppDetail, AppImage, AppStatus, Explanation, Stats};
use torpor_api::wire::{CreateQuery, NDJSON, RemoveQuery, SleepQuery, StopQuery, WaitQuery, WorkLine};
use torpor_api::{ApiError, ErrorKind};

use super::App;
use super::extract::{Failure, Json, Named, Params, carried_through};
use super::streams;

/// All apps by name.
#[utoipa::path(get, path = "/v1/apps", tag = "apps",
    responses((status = 200, body = Vec<AppStatus>, description = "Their states."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn list(State(hub): State<App>) -> Result<axum::Json<Vec<AppStatus>>, Failure> {
    Ok(axum::Json(hub.statuses().await?))
}

/// Makes and starts an app.
///
/// The body is an app's description; keys that it leaves out have their defaults, those of `idle` the daemon's own.
#[utoipa::path(post, path = "/v1/apps", tag = "apps", params(CreateQuery), request_body = AppSpec,
    responses((status = 201, body = AppStatus, description = "Made and running."),
        (status = 200, content_type = NDJSON, body = WorkLine, description = "With `progress`: how far it is, then its end."),
        (status = "default", body = ApiError, description = "Why not; nothing was left behind.")))]
pub(super) async fn create(
    State(hub): State<App>,
    Params(query): Params<CreateQuery>,
    Json(document): Json<Value>,
) -> Result<Response, Failure> {
    let prepared = hub.prepare(document).await?;
    let name = prepared.name().to_owned();
    let lines = streams::work(move |reports| async move {
        hub.create(prepared, reports).await.map(|status| WorkLine::Done(Box::new(status)))
    });
    let late = query.timeout.map(|within| (within, not_within(&name, "the start", within)));
    let lines = streams::within(lines, late);
    if query.progress {
        return Ok(streams::ndjson(lines));
    }
    match streams::quiet(lines).await? {
        WorkLine::Done(status) => Ok((StatusCode::CREATED, axum::Json(*status)).into_response()),
        line => Err(unexpected(&line)),
    }
}

pub(super) fn unexpected(line: &WorkLine) -> Failure {
    Failure(ApiError::new(ErrorKind::Internal, format!("the work ended with {line:?}")))
}

/// All about one app.
#[utoipa::path(get, path = "/v1/apps/{name}", tag = "apps", params(("name" = String, Path, description = "Name or id.")),
    responses((status = 200, body = AppDetail, description = "Its state and description."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn inspect(State(hub): State<App>, Named(app): Named) -> Result<axum::Json<AppDetail>, Failure> {
    Ok(axum::Json(hub.detail(&app).await?))
}

/// Removes an app and all its files.
#[utoipa::path(delete, path = "/v1/apps/{name}", tag = "apps",
    params(("name" = String, Path, description = "Name or id."), RemoveQuery),
    responses((status = 204, description = "Removed."), (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn remove(
    State(hub): State<App>,
    Named(app): Named,
    Params(query): Params<RemoveQuery>,
) -> Result<StatusCode, Failure> {
    let (asked, named) = (hub.clone(), app.clone());
    let removal = carried_through(async move { hub.remove(&app, query.force).await });
    match tokio::time::timeout(MOMENT.0, removal).await {
        Ok(removed) => removed.map(|()| StatusCode::NO_CONTENT),
        Err(_) => Err(late(&asked, &named, "the removal", MOMENT).await.into()),
    }
}

type Changed = Result<axum::Json<AppStatus>, Failure>;

/// How long the words for why a change is late may take.
const EXPLAINED_WITHIN: std::time::Duration = std::time::Duration::from_secs(3);
/// How long an answer that takes a moment may take.
const MOMENT: Span = Span::from_secs(60);

/// Makes a change and answers within this time; behind that it goes on by itself.
async fn change<F>(hub: App, app: String, within: Span, doing: &str, run: impl FnOnce(App, String) -> F) -> Changed
where
    F: Future<Output = Result<AppStatus, ApiError>> + Send + 'static,
{
    let (asked, named) = (hub.clone(), app.clone());
    match tokio::time::timeout(within.0, carried_through(run(hub, app))).await {
        Ok(done) => done.map(axum::Json),
        Err(_) => Err(late(&asked, &named, doing, within).await.into()),
    }
}

/// As [`not_within`], with where the app is.
async fn late(hub: &App, app: &str, doing: &str, within: Span) -> ApiError {
    let error = not_within(&torpor_api::validate::shown(app), doing, within);
    match tokio::time::timeout(EXPLAINED_WITHIN, hub.explain(app)).await {
        Ok(Ok(explained)) => ApiError { message: format!("{} ({})", error.message, explained.why), ..error },
        _ => error,
    }
}

/// The answer where a change takes longer than its client waits.
fn not_within(name: &str, doing: &str, within: Span) -> ApiError {
    let message = format!("{name}: {doing} has not come to its end within {within} and goes on");
    ApiError::new(ErrorKind::Timeout, message).with_hint(format!("torpor explain {name} says where it is"))
}

/// Starts a stopped app.
#[utoipa::path(post, path = "/v1/apps/{name}/start", tag = "apps", params(("name" = String, Path, description = "Name or id."), WaitQuery),
    responses((status = 200, body = AppStatus, description = "Running."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn start(State(hub): State<App>, Named(app): Named, Params(query): Params<WaitQuery>) -> Changed {
    let within = query.timeout.unwrap_or(WaitQuery::DEFAULT_TIMEOUT);
    change(hub, app, within, "the start", |hub, app| async move { hub.start(&app).await }).await
}

/// Asks an app to end, and kills it after `grace`.
#[utoipa::path(post, path = "/v1/apps/{name}/stop", tag = "apps",
    params(("name" = String, Path, description = "Name or id."), StopQuery),
    responses((status = 200, body = AppStatus, description = "Stopped."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn stop(State(hub): State<App>, Named(app): Named, Params(query): Params<StopQuery>) -> Changed {
    let (grace, within) = grace(query)?;
    change(hub, app, within, "the stop", move |hub, app| async move { hub.stop(&app, grace.0).await }).await
}

/// Stops an app if it runs, and starts it.
#[utoipa::path(post, path = "/v1/apps/{name}/restart", tag = "apps",
    params(("name" = String, Path, description = "Name or id."), StopQuery),
    responses((status = 200, body = AppStatus, description = "Running."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn restart(State(hub): State<App>, Named(app): Named, Params(query): Params<StopQuery>) -> Changed {
    let (grace, within) = grace(query)?;
    change(hub, app, within, "the restart", move |hub, app| async move { hub.restart(&app, grace.0).await }).await
}

/// The grace, and the time for the answer.
fn grace(query: StopQuery) -> Result<(Span, Span), Failure> {
    let grace = query.grace.unwrap_or(StopQuery::DEFAULT_GRACE);
    if grace > StopQuery::LONGEST_GRACE {
        let message = format!("a grace of {grace} is longer than {}", StopQuery::LONGEST_GRACE);
        return Err(ApiError::new(ErrorKind::Invalid, message).into());
    }
    let within = query.timeout.unwrap_or(Span(grace.0 + WaitQuery::DEFAULT_TIMEOUT.0));
    Ok((grace, within))
}

/// Puts an app to sleep.
#[utoipa::path(post, path = "/v1/apps/{name}/sleep", tag = "apps",
    params(("name" = String, Path, description = "Name or id."), SleepQuery),
    responses((status = 200, body = AppStatus, description = "Asleep, so deep or deeper."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn sleep(State(hub): State<App>, Named(app): Named, Params(query): Params<SleepQuery>) -> Changed {
    let (level, within) = (query.level.unwrap_or_default(), query.timeout.unwrap_or(SleepQuery::DEFAULT_TIMEOUT));
    change(hub, app, within, "falling asleep", move |hub, app| async move { hub.sleep(&app, level).await }).await
}

/// Wakes an app.
#[utoipa::path(post, path = "/v1/apps/{name}/wake", tag = "apps", params(("name" = String, Path, description = "Name or id."), WaitQuery),
    responses((status = 200, body = AppStatus, description = "Running."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn wake(State(hub): State<App>, Named(app): Named, Params(query): Params<WaitQuery>) -> Changed {
    let within = query.timeout.unwrap_or(WaitQuery::DEFAULT_TIMEOUT);
    change(hub, app, within, "the wake", |hub, app| async move { hub.wake(&app).await }).await
}

/// Keeps an app awake.
#[utoipa::path(post, path = "/v1/apps/{name}/pin", tag = "apps", params(("name" = String, Path, description = "Name or id.")),
    responses((status = 200, body = AppStatus, description = "Pinned."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn pin(State(hub): State<App>, Named(app): Named) -> Changed {
    change(hub, app, MOMENT, "the pin", |hub, app| async move { hub.pin(&app, true).await }).await
}

/// No longer keeps an app awake.
#[utoipa::path(post, path = "/v1/apps/{name}/unpin", tag = "apps", params(("name" = String, Path, description = "Name or id.")),
    responses((status = 200, body = AppStatus, description = "No longer pinned."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn unpin(State(hub): State<App>, Named(app): Named) -> Changed {
    change(hub, app, MOMENT, "the end of the pin", |hub, app| async move { hub.pin(&app, false).await }).await
}

/// What an app costs, measured from the kernel.
#[utoipa::path(get, path = "/v1/apps/{name}/stats", tag = "apps", params(("name" = String, Path, description = "Name or id.")),
    responses((status = 200, body = Stats, description = "Numbers."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn stats(State(hub): State<App>, Named(app): Named) -> Result<axum::Json<Stats>, Failure> {
    Ok(axum::Json(hub.stats(&app).await?))
}

/// What all apps cost.
#[utoipa::path(get, path = "/v1/stats", tag = "apps",
    responses((status = 200, body = Vec<Stats>, description = "Numbers by app."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn all_stats(State(hub): State<App>) -> Result<axum::Json<Vec<Stats>>, Failure> {
    Ok(axum::Json(hub.all_stats().await?))
}

/// Why an app is where it is, and what its last sleeps and wakes took.
#[utoipa::path(get, path = "/v1/apps/{name}/explain", tag = "apps", params(("name" = String, Path, description = "Name or id.")),
    responses((status = 200, body = Explanation, description = "In words and numbers."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn explain(State(hub): State<App>, Named(app): Named) -> Result<axum::Json<Explanation>, Failure> {
    Ok(axum::Json(hub.explain(&app).await?))
}

/// Images of the processes of all apps.
#[utoipa::path(get, path = "/v1/app-images", tag = "apps",
    responses((status = 200, body = Vec<AppImage>, description = "By app; those that run and have none are not there."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn all_images(State(hub): State<App>) -> Result<axum::Json<Vec<AppImage>>, Failure> {
    Ok(axum::Json(hub.app_images().await?))
}

/// Removes the images of an app's processes that nothing uses: those that were set aside.
#[utoipa::path(delete, path = "/v1/apps/{name}/images", tag = "apps",
    params(("name" = String, Path, description = "Name or id.")),
    responses((status = 200, body = Vec<AppImage>, description = "Removed."),
        (status = "default", body = ApiError, description = "Why not: the image of a sleeping app is never removed.")))]
pub(super) async fn remove_images(
    State(hub): State<App>,
    Named(app): Named,
) -> Result<axum::Json<Vec<AppImage>>, Failure> {
    carried_through(async move { hub.remove_app_images(&app).await }).await.map(axum::Json)
}
