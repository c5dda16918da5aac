//! `exec` over an upgraded connection; [`torpor_api::frame`] says what flows.
//!
//! ```text
//!   frames in  ─▶ reader ─┬─ stdin (queue) ─▶ input of the command
//!                         └─ resize        ─▶ terminal
//!   output, errors ─▶ pumps ─▶ frames (queue) ─▶ writer ─▶ frames out
//! ```
//! The session ends when the command has ended and its output is read (at most [`DRAIN`] after its end, for background
//! processes may hold it open), when the worker has ended it at its time-out, when the client leaves or sends what is no frame, or when the hub closes. Dropping the
//! worker's side of the session is what tells the worker to end the command. Every queue is bounded, so a slow reader
//! slows the command and nothing grows; a client that leaves while its input waits in a full queue is noticed only when
//! the command reads, writes or ends.

use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use torpor_api::frame::{Frame, FrameReader, PAYLOAD_BYTES};
use torpor_api::wire::EXEC_PROTOCOL;
use torpor_api::worker::{ExecRequest, ExecSession};
use torpor_api::{ApiError, ErrorKind, error};
use tracing::{debug, warn};

use super::App;
use super::extract::{Failure, Named, json};

/// How long output is read after the command has ended.
const DRAIN: Duration = Duration::from_secs(1);
/// Frames that may wait in each direction.
const QUEUE: usize = 16;

/// Runs a command in an app, waking it first: answers `101` and speaks the frames of `torpor-exec/1` from then on.
#[utoipa::path(post, path = "/v1/apps/{name}/exec", tag = "apps", request_body = ExecRequest,
    params(("name" = String, Path, description = "Name or id."),
        ("Upgrade" = String, Header, description = "`torpor-exec/1`, with `Connection: Upgrade`.")),
    responses((status = 101, description = "The command runs; frames follow."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn exec(State(hub): State<App>, Named(app): Named, request: Request) -> Result<Response, Failure> {
    let (mut parts, body) = request.into_parts();
    let asked = parts.headers.get(UPGRADE).is_some_and(|value| value.as_bytes() == EXEC_PROTOCOL.as_bytes());
    let upgrade = parts.extensions.remove::<OnUpgrade>().filter(|_| asked).ok_or_else(|| {
        ApiError::new(
            ErrorKind::Invalid,
            format!("exec needs the headers Connection: Upgrade, Upgrade: {EXEC_PROTOCOL}"),
        )
    })?;
    // Where the client leaves before it is answered, this is dropped: the worker gives the start up then.
    let session = hub.exec(&app, json(body).await?).await?;
    tokio::spawn(async move {
        match upgrade.await {
            Ok(upgraded) => {
                let end = run_session(TokioIo::new(upgraded), session, hub.closed()).await;
                debug!(app, ?end, "exec ended");
            }
            Err(problem) => warn!(app, error = %problem, "the client of an exec left before it began"),
        }
    });
    let headers =
        [(CONNECTION, HeaderValue::from_static("upgrade")), (UPGRADE, HeaderValue::from_static(EXEC_PROTOCOL))];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers, Body::empty()).into_response())
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The command ended with this status, as a shell reports it.
    Status(i32),
    /// The client left.
    ClientLeft,
    /// The client sent what is no frame of its side.
    Protocol(String),
    /// The worker ended the command, for this reason.
    Ended(ApiError),
    /// The worker lost the command.
    Lost,
    /// The hub closed.
    Closed,
}

/// Carries a session over `io` until one side ends it or `closed` resolves.
pub async fn run_session(
    io: impl AsyncRead + AsyncWrite + Send + 'static,
    session: ExecSession,
    closed: impl Future<Output = ()>,
) -> SessionEnd {
    let (read, write) = tokio::io::split(io);
    let (frames, outgoing) = mpsc::channel(QUEUE);
    let writer = tokio::spawn(write_frames(write, outgoing));
    let ExecSession { input, output, errors, status, resize } = session;
    let (typed, stdin) = mpsc::channel(QUEUE);
    let (sized, sizes) = watch::channel(None);
    let output = async {
        tokio::join!(pump(output, Frame::Stdout, &frames), pump(errors, Frame::Stderr, &frames));
    };
    let command = async {
        let mut output = std::pin::pin!(output);
        let mut status = status;
        let status = tokio::select! {
            biased;
            status = &mut status => {
                // Running out of time is fine: the rest belongs to processes that live on.
                let _ = tokio::time::timeout(DRAIN, &mut output).await;
                status
            }
            () = &mut output => status.await,
        };
        match status {
            Ok(Ok(status)) => SessionEnd::Status(status),
            Ok(Err(error)) => SessionEnd::Ended(error),
            Err(_) => SessionEnd::Lost,
        }
    };
    let end = tokio::select! {
        end = command => end,
        end = receive(FrameReader::new(read), typed, sized) => end,
        () = feed(input, stdin) => SessionEnd::ClientLeft,
        () = pass_sizes(sizes, resize) => SessionEnd::ClientLeft,
        () = frames.closed() => SessionEnd::ClientLeft,
        () = closed => SessionEnd::Closed,
    };
    let last = match &end {
        SessionEnd::Status(status) => Some(Frame::Status(*status)),
        SessionEnd::ClientLeft => None,
        SessionEnd::Protocol(why) => Some(broken(ErrorKind::Invalid, &format!("exec ended: {why}"))),
        SessionEnd::Ended(error) => Some(failed(error)),
        SessionEnd::Lost => Some(broken(ErrorKind::Internal, "the command's status was lost")),
        SessionEnd::Closed => Some(broken(ErrorKind::Internal, "torpor is ending; the command was given up")),
    };
    // A client that does not read any more must not hold this up.
    let finish = async {
        if let Some(last) = last {
            // An error means that the client left: nobody to tell.
            let _ = frames.send(last).await;
        }
        drop(frames);
        writer.await
    };
    if let Ok(Err(problem)) = tokio::time::timeout(DRAIN, finish).await {
        warn!(error = %problem, "the writer of an exec failed");
    }
    end
}

fn broken(kind: ErrorKind, message: &str) -> Frame {
    failed(&ApiError::new(kind, message))
}

fn failed(error: &ApiError) -> Frame {
    Frame::Error(Bytes::from(serde_json::to_vec(error).unwrap_or_default()))
}

/// Reads the client's frames.
async fn receive<R: AsyncRead + Unpin>(
    mut frames: FrameReader<R>,
    stdin: mpsc::Sender<Bytes>,
    sizes: watch::Sender<Option<(u16, u16)>>,
) -> SessionEnd {
    let mut stdin = Some(stdin);
    loop {
        match frames.next().await {
            Ok(Some(Frame::Stdin(bytes))) if bytes.is_empty() => stdin = None,
            Ok(Some(Frame::Stdin(bytes))) => match &stdin {
                // An error means that the command closed its input; what comes is thrown away, as a pipe would.
                Some(queue) => drop(queue.send(bytes).await),
                None => return SessionEnd::Protocol("input after its end".to_owned()),
            },
            Ok(Some(Frame::Resize { columns, rows })) => drop(sizes.send_replace(Some((columns, rows)))),
            Ok(Some(_)) => return SessionEnd::Protocol("a frame of the wrong direction".to_owned()),
            Ok(None) => return SessionEnd::ClientLeft,
            Err(problem) => return SessionEnd::Protocol(error::chain(&problem)),
        }
    }
}

/// Passes the latest size on; never resolves. A worker that is slow to take one must not keep us from the next frame.
async fn pass_sizes(mut sizes: watch::Receiver<Option<(u16, u16)>>, resize: mpsc::Sender<(u16, u16)>) {
    while sizes.changed().await.is_ok() {
        let latest = *sizes.borrow_and_update();
        if let Some(size) = latest
            && resize.send(size).await.is_err()
        {
            break;
        }
    }
    drop(resize);
    std::future::pending::<()>().await;
}

/// Writes input to the command; never resolves, for the end of input is not the end of the session.
async fn feed(input: Pin<Box<dyn AsyncWrite + Send>>, mut stdin: mpsc::Receiver<Bytes>) {
    let mut input = input;
    while let Some(bytes) = stdin.recv().await {
        let written = async {
            input.write_all(&bytes).await?;
            input.flush().await
        };
        if let Err(problem) = written.await {
            debug!(error = %problem, "the command takes no more input");
            break;
        }
    }
    if let Err(problem) = input.shutdown().await {
        debug!(error = %problem, "the command's input was closed already");
    }
    drop(input);
    drop(stdin);
    std::future::pending::<()>().await;
}

async fn pump(mut from: Pin<Box<dyn AsyncRead + Send>>, frame: fn(Bytes) -> Frame, to: &mpsc::Sender<Frame>) {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(PAYLOAD_BYTES.min(8192));
        match from.read_buf(&mut buffer).await {
            Ok(0) => return,
            Ok(_) => {
                if to.send(frame(buffer.split().freeze())).await.is_err() {
                    return;
                }
            }
            // A terminal whose last user left says EIO: the end of its output.
            Err(problem) => return debug!(error = %problem, "the command's output ended"),
        }
    }
}

async fn write_frames(mut to: impl AsyncWrite + Unpin + Send, mut frames: mpsc::Receiver<Frame>) {
    let mut bytes = BytesMut::new();
    while let Some(frame) = frames.recv().await {
        bytes.clear();
        frame.encode(&mut bytes);
        let written = async {
            to.write_all(&bytes).await?;
            to.flush().await
        };
        if let Err(problem) = written.await {
            return debug!(error = %problem, "the client of an exec left");
        }
    }
    if let Err(problem) = to.shutdown().await {
        debug!(error = %problem, "the client of an exec left");
    }
}
