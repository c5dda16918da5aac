//! What handlers take and how they refuse, with errors in our own shape.

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use torpor_api::document::DOCUMENT_BYTES;
use torpor_api::{ApiError, ErrorKind};
use tracing::error;

/// An error as an answer.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) ApiError);

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl From<crate::error::StoreError> for Failure {
    fn from(error: crate::error::StoreError) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = match self.0.kind {
            ErrorKind::Invalid => StatusCode::BAD_REQUEST,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
            ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            ErrorKind::Timeout => StatusCode::GATEWAY_TIMEOUT,
        };
        if self.0.kind == ErrorKind::Internal {
            error!(error = %self.0, "a request failed");
        }
        (status, axum::Json(self.0)).into_response()
    }
}

fn invalid(what: impl std::fmt::Display) -> Failure {
    Failure(ApiError::new(ErrorKind::Invalid, what.to_string()))
}

/// The `{name}` of a path.
pub(crate) struct Named(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(rejection) => Err(invalid(format_args!("the path is wrong: {}", rejection.body_text()))),
        }
    }
}

/// The query of a request; unknown keys are errors.
pub(crate) struct Params<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(Self(query)),
            Err(rejection) => Err(invalid(format_args!("the query is wrong: {}", rejection.body_text()))),
        }
    }
}

/// A JSON body of at most [`DOCUMENT_BYTES`].
pub(crate) struct Json<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _: &S) -> Result<Self, Failure> {
        json(request.into_body()).await.map(Self)
    }
}

/// Reads a JSON body.
pub(crate) async fn json<T: DeserializeOwned>(body: Body) -> Result<T, Failure> {
    let bytes: Bytes = axum::body::to_bytes(body, DOCUMENT_BYTES)
        .await
        .map_err(|_| invalid(format_args!("the body broke off or is longer than {DOCUMENT_BYTES} bytes")))?;
    serde_json::from_slice(&bytes).map_err(|error| invalid(format_args!("the body is wrong: {error}")))
}

/// Runs a change in a task of its own, so that a client that leaves does not stop it halfway.
pub(crate) async fn carried_through<T: Send + 'static>(
    change: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::spawn(change).await {
        Ok(result) => result.map_err(Failure),
        Err(error) => Err(Failure(ApiError::internal(&error))),
    }
}
