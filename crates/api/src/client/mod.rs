//! The HTTP client: one connection for each request, over the Unix socket or TCP with a token.
//!
//! ```text
//! Client ── connect ──▶ Connection (hyper, HTTP/1.1) ──▶ one JSON body          call
//!                                                   └──▶ one JSON value a line  Lines
//!                                                   └──▶ frames after upgrade   ExecStream
//! ```
//!
//! Nothing is sent to a Unix socket on which another user than root or our own listens.
//!
//! A refusal of the daemon is [`ClientError::Refused`] with its `ApiError`; everything else is about the way there.
//! Bodies and lines are bounded.

mod archive;
mod calls;
mod error;
mod exec;
mod lines;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::http::request::Builder;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, CONTROLS};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{TcpStream, UnixStream};

pub use archive::Download;
pub use calls::AppAction;
pub use error::ClientError;
pub use exec::{ExecReader, ExecStream, ExecWriter};
pub use lines::Lines;

use crate::error::{ApiError, ErrorKind};
use crate::token::Token;

/// What is sent.
type Sent = UnsyncBoxBody<Bytes, std::io::Error>;

/// User id of root.
const ROOT: u32 = 0;
/// Longest body that is not a stream, in bytes.
const BODY_BYTES: usize = 64 << 20;

/// What must be written as `%XX` in one segment of a path or in a query's value.
const SEGMENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'&')
    .add(b'+')
    .add(b'/')
    .add(b':')
    .add(b'<')
    .add(b'=')
    .add(b'>')
    .add(b'?')
    .add(b'@')
    .add(b'[')
    .add(b']')
    .add(b'`')
    .add(b'{')
    .add(b'}');

/// Where the daemon listens.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// Its Unix socket.
    Unix(PathBuf),
    /// A TCP address, `host:port`, with the token that it asks for.
    Tcp {
        /// `host:port`.
        address: String,
        /// Sent as `Authorization: Bearer`.
        token: Token,
    },
}

/// A client of one daemon.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: Endpoint,
}

impl Client {
    /// A client; nothing is connected yet.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }

    /// Sends one request; gives back the answer if it is not an error.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        headers: &[(HeaderName, HeaderValue)],
    ) -> Result<Response<Incoming>, ClientError> {
        let mut request = Request::builder().method(method).uri(path);
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let body = Full::new(Bytes::from(body.unwrap_or_default())).map_err(|never| match never {}).boxed_unsync();
        let request = self.addressed(request)?.body(body);
        let request = request.map_err(|error| ClientError::Request { source: error.into() })?;
        let response = self.exchange(request).await?;
        if response.status().is_success() || response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        Err(refusal(response).await)
    }

    /// With the headers that say who asks whom.
    fn addressed(&self, mut request: Builder) -> Result<Builder, ClientError> {
        if let Endpoint::Tcp { token, .. } = &self.endpoint {
            let value = HeaderValue::from_str(&format!("Bearer {}", token.expose()));
            let mut value = value.map_err(|error| ClientError::Request { source: error.into() })?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        let host = match &self.endpoint {
            Endpoint::Unix(_) => "torpor",
            Endpoint::Tcp { address, .. } => address,
        };
        Ok(request.header(HOST, host))
    }

    async fn exchange(&self, request: Request<Sent>) -> Result<Response<Incoming>, ClientError> {
        match &self.endpoint {
            Endpoint::Unix(path) => over(connect(path).await?, request).await,
            Endpoint::Tcp { address, .. } => {
                let stream = TcpStream::connect(address.as_str())
                    .await
                    .map_err(|source| ClientError::Tcp { address: address.clone(), source })?;
                over(stream, request).await
            }
        }
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<T, ClientError> {
        let body = body.map(serde_json::to_vec).transpose().map_err(ClientError::Encode)?;
        let response = self.send(method, path, body, &[]).await?;
        serde_json::from_slice(&collect(response).await?).map_err(ClientError::Decode)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, None::<&()>).await
    }

    async fn no_content(&self, method: Method, path: &str) -> Result<(), ClientError> {
        let response = self.send(method, path, None, &[]).await?;
        collect(response).await.map(drop)
    }
}

/// Connects to a Unix socket of root or of our own user. The daemon's directory may be one in which others make names, as `/tmp`:
/// while no daemon runs, the socket may be anybody's.
async fn connect(path: &Path) -> Result<UnixStream, ClientError> {
    let failed = |source| ClientError::unix(path, source);
    let stream = UnixStream::connect(path).await.map_err(failed)?;
    let user = stream.peer_cred().map_err(failed)?.uid();
    if [ROOT, rustix::process::geteuid().as_raw()].contains(&user) {
        return Ok(stream);
    }
    Err(ClientError::Foreign { path: path.to_owned(), user })
}

async fn over<S>(stream: S, request: Request<Sent>) -> Result<Response<Incoming>, ClientError>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let failed = |source: hyper::Error| ClientError::Request { source: source.into() };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    // The connection's own error also reaches the request or the body that waits for it.
    tokio::spawn(connection.with_upgrades());
    sender.send_request(request).await.map_err(failed)
}

async fn collect(response: Response<Incoming>) -> Result<Bytes, ClientError> {
    let body = Limited::new(response.into_body(), BODY_BYTES).collect().await;
    body.map(http_body_util::Collected::to_bytes).map_err(|source| ClientError::Body { source })
}

async fn refusal(response: Response<Incoming>) -> ClientError {
    let status = response.status();
    let body = match collect(response).await {
        Ok(body) => body,
        Err(error) => return error,
    };
    ClientError::Refused(serde_json::from_slice(&body).unwrap_or_else(|_| {
        let kind = if status == StatusCode::NOT_FOUND { ErrorKind::NotFound } else { ErrorKind::Internal };
        ApiError::new(kind, format!("the daemon answered {status} without saying why"))
    }))
}

/// `path?query`, without the question mark where the query is empty.
fn with_query(path: &str, query: &[(&str, String)]) -> String {
    let mut text = path.to_owned();
    for (at, (key, value)) in query.iter().enumerate() {
        text.push(if at == 0 { '?' } else { '&' });
        text.push_str(key);
        text.push('=');
        text.push_str(&segment(value));
    }
    text
}

fn segment(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, SEGMENT).to_string()
}
