//! HTTP: which Clef a request is for, and its answer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{FromRequestParts, WebSocketUpgrade};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use futures_util::StreamExt;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use torpor_lua::Value;

use super::Clefs;
use super::socket::{MOST_MESSAGE_BYTES, events, run_websocket};
use crate::log::MOST_KEY_BYTES;
use crate::route::KeyPattern;

/// Bytes of the body of a request at most.
const MOST_BODY_BYTES: usize = 4 << 20;
/// How long a body may take.
const BODY_TIME: Duration = Duration::from_secs(30);
/// KiB of all bodies that are read at the same time.
static BODIES_KIB: Semaphore = Semaphore::const_new(64 << 10);
/// How long a body waits until there is room for what has come of it.
const ROOM_TIME: Duration = Duration::from_secs(5);
/// How many headers a response may have, and a request that a program sends.
pub(super) const MOST_HEADERS: usize = 100;

/// Answers requests, each by the Clef whose key `pattern` finds, until `end` is there; then until those that have come are answered.
///
/// # Errors
/// Of the listener.
pub async fn serve(
    listener: TcpListener,
    clefs: Clefs,
    pattern: KeyPattern,
    end: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let pattern = Arc::new(pattern);
    let router = Router::new().fallback(move |request: axum::extract::Request| {
        let (clefs, pattern) = (clefs.clone(), pattern.clone());
        async move { answer(&clefs, &pattern, request).await }
    });
    axum::serve(listener, router).with_graceful_shutdown(end).await
}

fn text(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text + "\n"));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// A header that says where a message ends, or what becomes of its connection: programs do not set it.
pub(super) fn is_of_connection(name: &HeaderName) -> bool {
    let name = name.as_str();
    let names = ["content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer"];
    names.contains(&name) || name.starts_with("proxy-")
}

pub(super) fn pair(name: &str, value: impl Into<Value>) -> (Value, Value) {
    (name.into(), value.into())
}

async fn answer(clefs: &Clefs, pattern: &KeyPattern, request: axum::extract::Request) -> Response<Body> {
    let (mut head, body) = request.into_parts();
    // Only a request for it is an upgrade.
    let upgrade = WebSocketUpgrade::from_request_parts(&mut head, &()).await.ok();
    let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
    // A header that is repeated names no Clef: which of them would it be?
    let header = |name: &str| {
        let mut values = head.headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none()).and_then(|value| value.to_str().ok())
    };
    // One that is repeated is one with all values, as in RFC 9110, section 5.3.
    let value = |name: &HeaderName| {
        let values: Vec<&[u8]> = head.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
        pair(name.as_str(), values.join(&b", "[..]).as_slice())
    };
    let mut fields = vec![
        pair("method", head.method.as_str()),
        pair("path", path),
        pair("query", query),
        pair("headers", Value::Table(head.headers.keys().map(value).collect())),
    ];
    let key = match pattern {
        KeyPattern::Lua => match clefs.route(Value::Table(fields.clone())).await {
            Ok(key) => key,
            Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error),
        },
        pattern => pattern.key(path, query, header),
    };
    let Some(key) = key else {
        let said = match pattern {
            KeyPattern::Lua => "the function route names no Clef for the request".to_owned(),
            pattern => format!("the request has no key at {pattern}"),
        };
        return text(StatusCode::NOT_FOUND, said);
    };
    if key.len() > MOST_KEY_BYTES {
        return text(StatusCode::BAD_REQUEST, format!("the key has more than {MOST_KEY_BYTES} bytes"));
    }
    let body = match whole(body, &BODIES_KIB, (ROOM_TIME, BODY_TIME)).await {
        Ok(body) => body,
        Err((status, said)) => return text(status, said),
    };
    fields.extend([pair("body", body.as_slice()), pair("key", key.as_slice())]);
    let request = Value::Table(fields);
    if let Some(upgrade) = upgrade {
        return match clefs.open(key, "websocket", request) {
            Ok(open) => {
                let upgrade = upgrade.max_message_size(MOST_MESSAGE_BYTES).max_frame_size(MOST_MESSAGE_BYTES);
                upgrade.on_upgrade(|socket| run_websocket(socket, open))
            }
            Err(error) => text(StatusCode::SERVICE_UNAVAILABLE, error),
        };
    }
    if head.headers.get_all("accept").iter().any(|accept| accept.as_bytes().starts_with(b"text/event-stream")) {
        return match clefs.open(key, "events", request) {
            Ok(open) => events(open),
            Err(error) => text(StatusCode::SERVICE_UNAVAILABLE, error),
        };
    }
    match clefs.call(key, "http", vec![request]).await {
        Ok(values) => response(values.first().unwrap_or(&Value::Nil)),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error),
    }
}

/// Reads a body. What has come of it has a place among all that are read: one that is slow takes no place for what it may still have.
async fn whole(
    body: Body,
    room_kib: &Semaphore,
    (room_time, time): (Duration, Duration),
) -> Result<Vec<u8>, (StatusCode, String)> {
    let too_large = || (StatusCode::PAYLOAD_TOO_LARGE, format!("the body has more than {MOST_BODY_BYTES} bytes"));
    if body.size_hint().lower() > MOST_BODY_BYTES as u64 {
        return Err(too_large());
    }
    let read = async {
        let mut chunks = body.into_data_stream();
        let mut whole = Vec::new();
        let mut places = Vec::new();
        let mut room = 0;
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| (StatusCode::BAD_REQUEST, format!("the body: {error}")))?;
            let bytes = whole.len() + chunk.len();
            if bytes > MOST_BODY_BYTES {
                return Err(too_large());
            }
            let more = bytes.div_ceil(1 << 10) - room;
            if more > 0 {
                let Ok(Ok(place)) = timeout(room_time, room_kib.acquire_many(more as u32)).await else {
                    return Err((StatusCode::SERVICE_UNAVAILABLE, "too many bodies are read at the moment".to_owned()));
                };
                places.push(place);
                room += more;
            }
            whole.extend_from_slice(&chunk);
        }
        Ok(whole)
    };
    let slow = |_| Err((StatusCode::REQUEST_TIMEOUT, "the body takes too long".to_owned()));
    timeout(time, read).await.unwrap_or_else(slow)
}

/// Converts what `http` has returned: nothing, a string, or a table with `status`, `headers` and `body`.
fn response(value: &Value) -> Response<Body> {
    let wrong = |what: &str| text(StatusCode::INTERNAL_SERVER_ERROR, format!("the function http has returned {what}"));
    match value {
        Value::Nil => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        Value::String(bytes) => {
            let mut response = text(StatusCode::OK, String::new());
            *response.body_mut() = Body::from(bytes.clone());
            response
        }
        Value::Table(_) => {
            let status = match value.field("status") {
                None => StatusCode::OK,
                Some(Value::Integer(status)) => {
                    match u16::try_from(*status).ok().and_then(|status| StatusCode::from_u16(status).ok()) {
                        Some(status) if (200..600).contains(&status.as_u16()) => status,
                        _ => return wrong("a status that is none"),
                    }
                }
                Some(_) => return wrong("a status that is no number"),
            };
            let body = match value.field("body") {
                None => Vec::new(),
                Some(Value::String(bytes)) => bytes.clone(),
                Some(_) => return wrong("a body that is no string"),
            };
            if !body.is_empty() && matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
                return wrong("a body with a status that has none");
            }
            let mut headers = HeaderMap::new();
            if let Some(Value::Table(pairs)) = value.field("headers") {
                if pairs.len() > MOST_HEADERS {
                    return wrong(&format!("more than {MOST_HEADERS} headers"));
                }
                for (name, value) in pairs {
                    let value = match value {
                        Value::String(value) => HeaderValue::from_bytes(value),
                        Value::Integer(value) => Ok(HeaderValue::from(*value)),
                        _ => return wrong("a header that is neither a string nor an integer"),
                    };
                    let Value::String(name) = name else { return wrong("a header without a name") };
                    let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), value) else {
                        return wrong("headers that HTTP does not allow");
                    };
                    if is_of_connection(&name) || headers.try_append(name, value).is_err() {
                        return wrong("headers that HTTP does not allow");
                    }
                }
            }
            if !headers.contains_key("content-type") {
                let plain = HeaderValue::from_static("text/plain; charset=utf-8");
                if headers.try_insert("content-type", plain).is_err() {
                    return wrong("headers that HTTP does not allow");
                }
            }
            let mut response = Response::new(Body::from(body));
            (*response.status_mut(), *response.headers_mut()) = (status, headers);
            response
        }
        _ => wrong("neither a string nor a table"),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn bodies_have_limits() {
        let room = Semaphore::new(4 << 10);
        let times = (Duration::from_millis(200), Duration::from_secs(1));
        let status = |read: Result<Vec<u8>, (StatusCode, String)>| read.unwrap_err().0;
        let begun = |bytes| {
            let first = stream::iter([io::Result::Ok(Bytes::from(vec![0; bytes]))]);
            Body::from_stream(first.chain(stream::pending()))
        };
        // What has not come takes no place.
        let (slow, small) = tokio::join!(whole(begun(3 << 20), &room, times), whole(Body::from("small"), &room, times));
        assert_eq!((status(slow), small.unwrap()), (StatusCode::REQUEST_TIMEOUT, b"small".to_vec()));
        let mut slow = Box::pin(whole(begun(3 << 20), &room, times));
        assert!(timeout(Duration::from_millis(10), &mut slow).await.is_err() && room.available_permits() == 1 << 10);
        let large = whole(Body::from(vec![0; 2 << 20]), &room, times).await;
        assert_eq!((status(large), status(slow.await)), (StatusCode::SERVICE_UNAVAILABLE, StatusCode::REQUEST_TIMEOUT));
        assert_eq!(room.available_permits(), 4 << 10);
        let large = whole(Body::from(vec![0; MOST_BODY_BYTES + 1]), &room, times).await;
        assert_eq!(status(large), StatusCode::PAYLOAD_TOO_LARGE);
        let chunks = |last: &'static str| {
            Body::from_stream(stream::iter([io::Result::Ok(Bytes::from(vec![0; MOST_BODY_BYTES])), Ok(last.into())]))
        };
        assert_eq!(status(whole(chunks("x"), &room, times).await), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(whole(chunks(""), &room, times).await.unwrap().len(), MOST_BODY_BYTES);
    }
}
