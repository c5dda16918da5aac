//! Routes of archives: apps with all that they are, as streams.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use torpor_api::archive::MEDIA_TYPE;
use torpor_api::view::Imported;
use torpor_api::wire::{ExportQuery, ImportQuery};
use torpor_api::worker::BoxStream;
use torpor_api::{ApiError, ErrorKind};
use tracing::warn;

use super::App;
use super::extract::{Failure, Named, Params, carried_through};
use crate::hang_up::HangUp;
use crate::transfers::{LEAST_BYTES, Pace, Upload};

/// Pieces of an archive that may wait to be read.
const PIECES: usize = 8;
/// The largest part of an exported archive that is passed to its connection at once, in bytes.
const PART_BYTES: usize = 64 << 10;

/// An app as an archive.
///
/// The app must be warm; with `sleep` it is put there first. The answer is cut off, or ends with an error in the archive, where
/// it cannot be completed: only one with its end is whole.
#[utoipa::path(get, path = "/v1/apps/{name}/archive", tag = "apps", operation_id = "export_app",
    params(("name" = String, Path, description = "Name or id."), ExportQuery),
    responses((status = 200, content_type = MEDIA_TYPE, body = String, description = "The archive."),
        (status = "default", body = ApiError, description = "Why not.")))]
pub(super) async fn export(
    State(hub): State<App>,
    Named(app): Named,
    Params(query): Params<ExportQuery>,
    Extension(hang_up): Extension<HangUp>,
) -> Result<Response, Failure> {
    let archive = carried_through({
        let hub = hub.clone();
        async move { hub.export(&app, query.sleep).await }
    });
    let archive = archive.await?;
    let (pieces, received) = mpsc::channel(1);
    tokio::spawn(send(archive, pieces, hub, hang_up));
    Ok(([(CONTENT_TYPE, MEDIA_TYPE)], Body::from_stream(ReceiverStream::new(received))).into_response())
}

/// Sends an archive as fast as its reader takes it, and hangs up on one that stops reading.
async fn send(
    mut archive: BoxStream<io::Result<Bytes>>,
    pieces: mpsc::Sender<io::Result<Bytes>>,
    hub: App,
    hang_up: HangUp,
) {
    let mut pace = Pace::new(hub.options.stalled_after);
    let mut closed = std::pin::pin!(hub.closed());
    loop {
        let piece = tokio::select! {
            piece = archive.next() => piece,
            () = pieces.closed() => return,
            () = &mut closed => return,
        };
        let Some(piece) = piece else { return };
        for part in parts(piece) {
            let (bytes, since) = (part.as_ref().map_or(0, Bytes::len), Instant::now());
            let room = tokio::select! {
                room = tokio::time::timeout(pace.left(), pieces.reserve()) => room,
                () = &mut closed => return,
            };
            match room {
                Ok(Ok(room)) => room.send(part),
                Ok(Err(_left)) => return,
                Err(_elapsed) => {
                    warn!("the reader of an exported archive makes no progress; its connection is closed");
                    return hang_up.now();
                }
            }
            pace.passed(since.elapsed(), bytes as u64);
        }
    }
}

/// A piece in parts of at most [`PART_BYTES`], so that a slow reader is seen to make progress; an error is one part.
fn parts(piece: io::Result<Bytes>) -> impl Iterator<Item = io::Result<Bytes>> {
    let (mut rest, error) = match piece {
        Ok(bytes) => (bytes, None),
        Err(error) => (Bytes::new(), Some(error)),
    };
    let bytes = std::iter::from_fn(move || {
        let part = rest.split_to(rest.len().min(PART_BYTES));
        (!part.is_empty()).then_some(Ok(part))
    });
    bytes.chain(error.map(Err))
}

/// Makes an app from an archive; it sleeps then, and its first packet wakes it.
#[utoipa::path(post, path = "/v1/archives", tag = "apps", operation_id = "import_app", params(ImportQuery),
    request_body(content_type = MEDIA_TYPE, content = String),
    responses((status = 201, body = Imported, description = "Made, and asleep."),
        (status = "default", body = ApiError, description = "Why not; nothing was left behind.")))]
pub(super) async fn import(
    State(hub): State<App>,
    Params(query): Params<ImportQuery>,
    body: Body,
) -> Result<Response, Failure> {
    let (pieces, received) = mpsc::channel(PIECES);
    let upload = Upload::new();
    tokio::spawn(pass_on(body, pieces, upload.clone(), hub.options.stalled_after, hub.closed()));
    let archive = Box::new(Received { pieces: received, piece: Bytes::new(), upload: upload.clone() });
    let imported = carried_through(async move { hub.import(archive, upload, query).await }).await?;
    Ok((StatusCode::CREATED, axum::Json(imported)).into_response())
}

/// Reads a body to its end, also where nobody wants the rest: a client that is still sending would not see our answer. One that
/// stalls is not read further.
async fn pass_on(
    body: Body,
    pieces: mpsc::Sender<Bytes>,
    upload: Arc<Upload>,
    stalled_after: Duration,
    closed: impl Future<Output = ()>,
) {
    let mut body = body.into_data_stream();
    let mut closed = std::pin::pin!(closed);
    let mut pace = Pace::new(stalled_after);
    let mut pieces = Some(pieces);
    loop {
        let since = Instant::now();
        let next = tokio::select! {
            next = tokio::time::timeout(pace.left(), body.next()) => next,
            () = upload.ended(), if pieces.is_some() => {
                pieces = None;
                continue;
            }
            () = &mut closed => return upload.end(ApiError::new(ErrorKind::Internal, "the daemon is closing")),
        };
        let piece = match next {
            Ok(None) => return,
            Ok(Some(Ok(piece))) => piece,
            Ok(Some(Err(error))) => {
                let message = format!("the archive was not received to its end: {}", torpor_api::error::chain(&error));
                return upload.end(ApiError::new(ErrorKind::Invalid, message));
            }
            Err(_elapsed) => return upload.end(stalled(stalled_after)),
        };
        pace.passed(since.elapsed(), piece.len() as u64);
        upload.received(piece.len() as u64);
        let Some(wanted) = &pieces else { continue };
        tokio::select! {
            // Nobody may want it any more.
            _ = wanted.send(piece) => {}
            () = upload.ended() => pieces = None,
        }
    }
}

fn stalled(after: Duration) -> ApiError {
    let message = format!(
        "the upload of the archive has stalled: less than {} KiB came in {} s",
        LEAST_BYTES >> 10,
        after.as_secs_f32()
    );
    ApiError::new(ErrorKind::Timeout, message).with_hint("send it again over a better connection, or from a file")
}

/// What comes, to be read by a thread that may block. Fails once the upload is ended.
struct Received {
    pieces: mpsc::Receiver<Bytes>,
    piece: Bytes,
    upload: Arc<Upload>,
}

impl Read for Received {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            let piece = self.pieces.blocking_recv();
            if let Some(why) = self.upload.why() {
                return Err(io::Error::other(why));
            }
            match piece {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let taken = self.piece.split_to(self.piece.len().min(buffer.len()));
        buffer[..taken.len()].copy_from_slice(&taken);
        Ok(taken.len())
    }
}
