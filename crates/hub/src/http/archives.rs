//! Routes of archives: apps with all that they are, as streams.

use std::io::{self, Read};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use tokio::sync::mpsc;
use torpor_api::ApiError;
use torpor_api::archive::MEDIA_TYPE;
use torpor_api::view::Imported;
use torpor_api::wire::{ExportQuery, ImportQuery};

use super::App;
use super::extract::{Failure, Named, Params, carried_through};

/// Pieces of an archive that may wait to be read.
const PIECES: usize = 8;

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
) -> Result<Response, Failure> {
    let archive = carried_through({
        let hub = hub.clone();
        async move { hub.export(&app, query.sleep).await }
    });
    let archive = archive.await?.take_until(hub.closed());
    Ok(([(CONTENT_TYPE, MEDIA_TYPE)], Body::from_stream(archive)).into_response())
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
    tokio::spawn(pass_on(body, pieces, hub.closed()));
    let archive = Box::new(Received { pieces: received, piece: Bytes::new() });
    let imported = carried_through(async move { hub.import(archive, query).await }).await?;
    Ok((StatusCode::CREATED, axum::Json(imported)).into_response())
}

/// Reads a body to its end, also where nobody wants the rest: a client that is still sending would not see our answer.
async fn pass_on(body: Body, pieces: mpsc::Sender<io::Result<Bytes>>, closed: impl Future<Output = ()>) {
    let mut body = body.into_data_stream();
    let mut closed = std::pin::pin!(closed);
    loop {
        let piece = tokio::select! {
            piece = body.next() => piece.map(|piece| piece.map_err(io::Error::other)),
            () = &mut closed => Some(Err(io::Error::other("the daemon is closing"))),
        };
        let Some(piece) = piece else { return };
        let failed = piece.is_err();
        // Nobody may want it any more.
        let _ = pieces.send(piece).await;
        if failed {
            return;
        }
    }
}

/// What comes, to be read by a thread that may block.
struct Received {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Read for Received {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let taken = self.piece.split_to(self.piece.len().min(buffer.len()));
        buffer[..taken.len()].copy_from_slice(&taken);
        Ok(taken.len())
    }
}
