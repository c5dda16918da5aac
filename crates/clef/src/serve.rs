//! Clefs behind HTTP.
//!
//! A thread has the host. It takes the requests that wait, calls their Clefs one after the other, commits once, and only then gives the answers: the
//! output gate.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use torpor_api::error::causes;
use torpor_lua::Value;

use crate::class::Class;
use crate::host::{Host, HostError};
use crate::log::MOST_KEY_BYTES;
use crate::route::KeyPattern;

/// Requests whose answers wait for the same commit, at most.
const TOGETHER: usize = 256;
/// Requests that wait for the host at most.
const MOST_WAITING: usize = 1024;
/// Bytes of the body of a request at most.
const MOST_BODY_BYTES: usize = 4 << 20;

/// What a thread does with the host.
#[derive(Debug)]
pub enum Request {
    /// Calls a function of a Clef.
    Call {
        /// Which one.
        key: Vec<u8>,
        /// Name of the function.
        function: String,
        /// What it gets.
        arguments: Vec<Value>,
        /// Gets what it returns, or why not.
        answer: oneshot::Sender<Result<Vec<Value>, String>>,
    },
    /// Changes the code of the class.
    Reload(String),
    /// Something else.
    Manage(Manage),
    /// Puts all to sleep, and ends.
    End(oneshot::Sender<Result<(), String>>),
}

/// What somebody does with the host on its thread.
pub struct Manage(Box<dyn FnOnce(&mut Host) + Send>);

impl std::fmt::Debug for Manage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Manage")
    }
}

/// A thread that has the Clefs of a class.
#[derive(Clone, Debug)]
pub struct Clefs(mpsc::SyncSender<Request>);

impl Clefs {
    /// Starts the thread. `folder` is a directory that nobody else changes. The host [rests](Host::rest) when it was not asked anything for
    /// `rest_after`.
    ///
    /// # Errors
    /// Why there are none, in words.
    pub fn start(class: Class, folder: PathBuf, rest_after: Option<Duration>) -> Result<Self, String> {
        let (sender, requests) = mpsc::sync_channel(MOST_WAITING);
        let (opened, is_open) = mpsc::channel();
        let run = move || {
            let host = Host::open(class, &folder).map_err(|error| causes(&error));
            let host = match host {
                Ok(host) => {
                    let _ = opened.send(Ok(()));
                    host
                }
                Err(error) => {
                    let _ = opened.send(Err(error));
                    return;
                }
            };
            run(host, &requests, rest_after);
        };
        thread::Builder::new().name("clefs".to_owned()).spawn(run).map_err(|error| error.to_string())?;
        is_open.recv().map_err(|error| error.to_string())??;
        Ok(Self(sender))
    }

    /// Calls a function of a Clef; its answer is durable as the class wants it.
    ///
    /// # Errors
    /// In words: the error of its program, with a traceback, or of its host.
    pub async fn call(&self, key: Vec<u8>, function: &str, arguments: Vec<Value>) -> Result<Vec<Value>, String> {
        let (answer, answered) = oneshot::channel();
        let request = Request::Call { key, function: function.to_owned(), arguments, answer };
        self.send(request)?;
        answered.await.unwrap_or_else(|_| Err(GONE.to_owned()))
    }

    /// Changes the code: see [`Host::reload`].
    pub fn reload(&self, source: String) {
        // Without a host there is nothing to change.
        let _ = self.0.send(Request::Reload(source));
    }

    /// Does something with the host, on its thread.
    ///
    /// # Errors
    /// In words: what `work` gives, or that there is no host.
    pub async fn manage<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Host) -> Result<T, HostError> + Send + 'static,
    ) -> Result<T, String> {
        let (answer, answered) = oneshot::channel();
        let work = move |host: &mut Host| {
            let done = work(host);
            // What it has stored is durable before anybody is told.
            let done = host.commit().and(done);
            // Whoever has gone needs no answer.
            let _ = answer.send(done.map_err(|error| causes(&error)));
        };
        self.send(Request::Manage(Manage(Box::new(work))))?;
        answered.await.unwrap_or_else(|_| Err(GONE.to_owned()))
    }

    fn send(&self, request: Request) -> Result<(), String> {
        self.0.try_send(request).map_err(|error| match error {
            mpsc::TrySendError::Full(_) => format!("{MOST_WAITING} requests wait already"),
            mpsc::TrySendError::Disconnected(_) => GONE.to_owned(),
        })
    }

    /// Puts all to sleep.
    ///
    /// # Errors
    /// In words.
    pub async fn end(&self) -> Result<(), String> {
        let (answer, answered) = oneshot::channel();
        self.0.send(Request::End(answer)).map_err(|_| GONE.to_owned())?;
        answered.await.unwrap_or_else(|_| Err(GONE.to_owned()))
    }
}

const GONE: &str = "the host of the Clefs has ended";

/// The next request. While none comes, the host goes to rest: then its thread waits without a time-out, and the process can sleep.
fn next(host: &mut Host, requests: &mpsc::Receiver<Request>, rest_after: Option<Duration>) -> Option<Request> {
    if let Some(rest_after) = rest_after.filter(|_| !host.is_resting()) {
        match requests.recv_timeout(rest_after) {
            Ok(request) => return Some(request),
            Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                if let Err(error) = host.rest() {
                    tracing::warn!(error = causes(&error), "going to rest");
                }
            }
        }
    }
    requests.recv().ok()
}

fn run(mut host: Host, requests: &mpsc::Receiver<Request>, rest_after: Option<Duration>) {
    while let Some(first) = next(&mut host, requests, rest_after) {
        let mut held = Vec::new();
        let mut end = None;
        let others = std::iter::from_fn(|| requests.try_recv().ok());
        for request in std::iter::once(first).chain(others).take(TOGETHER) {
            match request {
                Request::Call { key, function, arguments, answer } => {
                    let result = host.call(&key, &function, &arguments).map_err(|error| causes(&error));
                    held.push((answer, result));
                }
                Request::Reload(source) => host.reload(source),
                Request::Manage(Manage(work)) => work(&mut host),
                Request::End(answer) => {
                    end = Some(answer);
                    break;
                }
            }
        }
        let committed = host.commit().map_err(|error| causes(&error));
        for (answer, result) in held {
            // Whoever has gone needs no answer.
            let _ = answer.send(committed.clone().and(result));
        }
        if let Some(answer) = end {
            let _ = answer.send(host.sleep().map_err(|error| causes(&error)));
            return;
        }
        if let Err(error) = host.collect() {
            tracing::warn!(error = causes(&error), "collecting the log");
        }
    }
}

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

fn pair(name: &str, value: impl Into<Value>) -> (Value, Value) {
    (name.into(), value.into())
}

async fn answer(clefs: &Clefs, pattern: &KeyPattern, request: axum::extract::Request) -> Response<Body> {
    let (head, body) = request.into_parts();
    let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
    // A header that is repeated names no Clef: which of them would it be?
    let header = |name: &str| {
        let mut values = head.headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none()).and_then(|value| value.to_str().ok())
    };
    let Some(key) = pattern.key(path, query, header) else {
        return text(StatusCode::NOT_FOUND, format!("the request has no key at {pattern}"));
    };
    let Ok(body) = to_bytes(body, MOST_BODY_BYTES).await else {
        return text(StatusCode::PAYLOAD_TOO_LARGE, format!("the body has more than {MOST_BODY_BYTES} bytes"));
    };
    if key.len() > MOST_KEY_BYTES {
        return text(StatusCode::BAD_REQUEST, format!("the key has more than {MOST_KEY_BYTES} bytes"));
    }
    // One that is repeated is one with all values, as in RFC 9110, section 5.3.
    let value = |name: &HeaderName| {
        let values: Vec<&[u8]> = head.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
        pair(name.as_str(), values.join(&b", "[..]).as_slice())
    };
    let headers = head.headers.keys().map(value);
    let request = Value::Table(vec![
        pair("method", head.method.as_str()),
        pair("path", path),
        pair("query", query),
        pair("headers", Value::Table(headers.collect())),
        pair("body", &*body),
        pair("key", key.as_slice()),
    ]);
    match clefs.call(key, "http", vec![request]).await {
        Ok(values) => response(values.first().unwrap_or(&Value::Nil)),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error),
    }
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
                        Some(status) => status,
                        None => return wrong("a status that is none"),
                    }
                }
                Some(_) => return wrong("a status that is no number"),
            };
            let body = match value.field("body") {
                None => Vec::new(),
                Some(Value::String(bytes)) => bytes.clone(),
                Some(_) => return wrong("a body that is no string"),
            };
            let mut headers = HeaderMap::new();
            if let Some(Value::Table(pairs)) = value.field("headers") {
                for (name, value) in pairs {
                    let value = match value {
                        Value::String(value) => HeaderValue::from_bytes(value),
                        Value::Integer(value) => Ok(HeaderValue::from(*value)),
                        _ => return wrong("a header that is neither a string nor an integer"),
                    };
                    let Value::String(name) = name else { return wrong("a header without a name") };
                    match (HeaderName::from_bytes(name), value) {
                        (Ok(name), Ok(value)) if headers.try_append(name.clone(), value.clone()).is_ok() => {}
                        _ => return wrong("headers that HTTP does not allow"),
                    }
                }
            }
            headers.entry("content-type").or_insert(HeaderValue::from_static("text/plain; charset=utf-8"));
            let mut response = Response::new(Body::from(body));
            (*response.status_mut(), *response.headers_mut()) = (status, headers);
            response
        }
        _ => wrong("neither a string nor a table"),
    }
}
