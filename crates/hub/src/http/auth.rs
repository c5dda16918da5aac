//! The bearer token on TCP: every request needs it, compared in constant time, never logged. A connection without it is
//! closed after the answer.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONNECTION, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;
use torpor_api::token::Token;
use torpor_api::{ApiError, ErrorKind};

use crate::tcp_clients::{AUTHENTICATED, TcpClient};

/// Lets a request pass that carries the token.
pub(crate) async fn check(State(token): State<Token>, request: Request, next: Next) -> Response {
    if bearer(&request).is_some_and(|given| bool::from(given.ct_eq(token.expose().as_bytes()))) {
        let client = request.extensions().get::<Arc<TcpClient>>();
        if client.is_none_or(|client| client.authenticate()) {
            return next.run(request).await;
        }
        let error = ApiError::new(ErrorKind::Conflict, format!("{AUTHENTICATED} clients are connected already"))
            .with_hint("close some of them, and try again");
        return closing((StatusCode::SERVICE_UNAVAILABLE, axum::Json(error)).into_response());
    }
    let error = ApiError::new(ErrorKind::Invalid, "the token is missing or wrong")
        .with_hint("give the daemon's token file with --token-file or TORPOR_TOKEN_FILE");
    let mut response = (StatusCode::UNAUTHORIZED, axum::Json(error)).into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    closing(response)
}

/// The connection ends with this answer.
fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

fn bearer(request: &Request) -> Option<&[u8]> {
    let value = request.headers().get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}
