//! A transport that encodes and decodes every request, answer and item as JSON, and is otherwise as [`InProcess`](super::InProcess).
//!
//! What cannot travel fails here: a call with an error, an item of a stream by a panic. Bytes and events are encoded and decoded where
//! they are read and written; only the status of a command and the sizes of its terminal pass through a task.

use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use bytes::{Buf, Bytes};
use futures_core::Stream;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{mpsc, oneshot};

use super::call::{Attachment, Call, Output, Reply, Transport};
use super::dispatcher::Dispatcher;
use super::items::{ArchiveItem, ExecInput, ExecOutput, PIECE_BYTES, Piece};
use super::message::{WorkerAnswer, WorkerNotice, WorkerRequest};
use crate::archive::Reader;
use crate::error::{ApiError, ErrorKind};
use crate::worker::{BoxStream, ExecSession, Progress};

/// Reports of progress that may wait.
const REPORTS: usize = 32;
/// New sizes of a terminal that may wait.
const SIZES: usize = 8;

/// Serves calls by a dispatcher, in their encoded form.
pub struct Encoded(pub Dispatcher);

#[async_trait]
impl Transport for Encoded {
    async fn call(&self, call: Call) -> Result<Reply, ApiError> {
        let request: WorkerRequest = transcode(&call.request)?;
        let reply = match call.attachment {
            Attachment::None => self.0.serve(Call { request, attachment: Attachment::None }).await,
            Attachment::Progress(progress) => self.serve_with_progress(request, progress).await,
            Attachment::Archive(archive) => {
                let attachment = Attachment::Archive(Box::new(upload(*archive)?));
                self.0.serve(Call { request, attachment }).await
            }
        };
        let (answer, output) = match reply {
            Ok(Reply { answer, output }) => (Ok(answer), output),
            Err(error) => (Err(error), Output::None),
        };
        let answer: Result<WorkerAnswer, ApiError> = transcode(&answer)?;
        let output = match output {
            Output::None => Output::None,
            Output::Archive(archive) => Output::Archive(Box::pin(Map(archive, archive_item))),
            Output::Session(session) => Output::Session(exec_session(session)),
            Output::Lines(lines) => Output::Lines(Box::pin(Map(lines, |line| item(&line)))),
            Output::Events(events) => Output::Events(Box::pin(Map(events, |event| item(&event)))),
        };
        Ok(Reply { answer: answer?, output })
    }

    fn notify(&self, notice: WorkerNotice) {
        self.0.notice(item(&notice));
    }
}

impl Encoded {
    async fn serve_with_progress(
        &self,
        request: WorkerRequest,
        progress: mpsc::Sender<Progress>,
    ) -> Result<Reply, ApiError> {
        let (reports, mut reported) = mpsc::channel(REPORTS);
        // Where nobody keeps up, a report in between is lost.
        let pass_on = |report: Progress| drop(progress.try_send(item(&report)));
        let mut reply = std::pin::pin!(self.0.serve(Call { request, attachment: Attachment::Progress(reports) }));
        loop {
            tokio::select! {
                biased;
                Some(report) = reported.recv() => pass_on(report),
                reply = &mut reply => {
                    while let Ok(report) = reported.try_recv() {
                        pass_on(report);
                    }
                    return reply;
                }
            }
        }
    }
}

/// A value as it is at the other end.
fn transcode<T: Serialize + DeserializeOwned>(value: &T) -> Result<T, ApiError> {
    let failed = |error: serde_json::Error| ApiError::internal(&error);
    serde_json::from_slice(&serde_json::to_vec(value).map_err(failed)?).map_err(failed)
}

/// An item of a stream as it is at the other end.
fn item<T: Serialize + DeserializeOwned>(value: &T) -> T {
    transcode(value).expect("an item of a stream is decoded from what it was encoded to")
}

fn archive_item(result: io::Result<Bytes>) -> io::Result<Bytes> {
    let sent: ArchiveItem = result.map(Piece).map_err(|error| ApiError::internal(&error));
    item(&sent).map(|Piece(bytes)| bytes).map_err(io::Error::other)
}

/// A stream, item by item.
struct Map<T>(BoxStream<T>, fn(T) -> T);

impl<T> Stream for Map<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let each = self.1;
        self.0.as_mut().poll_next(context).map(|next| next.map(each))
    }
}

/// An archive as the worker reads it.
fn upload(archive: Reader) -> Result<Reader, ApiError> {
    let read = ApiError::new(ErrorKind::Invalid, "an archive is sent from its beginning");
    let bytes = Upload { bytes: archive.rewind().ok_or(read)?, piece: Bytes::new() };
    // What was read of it already is at hand: this does not block.
    Ok(Reader::open(Box::new(bytes)).map_err(|error| error.to_api())?.0)
}

/// The bytes of an archive in pieces.
struct Upload {
    bytes: Box<dyn Read + Send>,
    piece: Bytes,
}

impl Read for Upload {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.piece.is_empty() {
            let mut buffer = vec![0; PIECE_BYTES];
            let next = match self.bytes.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
                next => next.map(|count| Bytes::copy_from_slice(&buffer[..count])),
            };
            self.piece = archive_item(next)?;
        }
        let count = self.piece.len().min(into.len());
        self.piece.copy_to_slice(&mut into[..count]);
        Ok(count)
    }
}

fn exec_session(session: ExecSession) -> ExecSession {
    let ExecSession { input, output, errors, status, resize } = session;
    let (ended, new_status) = oneshot::channel();
    let (new_resize, sizes) = mpsc::channel(SIZES);
    tokio::spawn(pass_status(status, ended));
    tokio::spawn(pass_sizes(sizes, resize));
    ExecSession {
        input: Box::pin(Input { inner: input, piece: Bytes::new() }),
        output: Box::pin(CommandOutput { inner: output, wrap: ExecOutput::Stdout }),
        errors: Box::pin(CommandOutput { inner: errors, wrap: ExecOutput::Stderr }),
        status: new_status,
        resize: new_resize,
    }
}

type Status = Result<i32, ApiError>;

/// Passes the status on. Where nobody waits for it any more, the worker is told by the end of its channel.
async fn pass_status(status: oneshot::Receiver<Status>, mut to: oneshot::Sender<Status>) {
    let status = tokio::select! {
        status = status => status,
        () = to.closed() => return,
    };
    // An error means that the command was lost: the end of the channel says so.
    let Ok(status) = status else { return };
    if let ExecOutput::Ended(status) = item(&ExecOutput::Ended(status)) {
        // Whoever asked may have gone.
        drop(to.send(status));
    }
}

async fn pass_sizes(mut sizes: mpsc::Receiver<(u16, u16)>, to: mpsc::Sender<(u16, u16)>) {
    loop {
        let size = tokio::select! {
            size = sizes.recv() => size,
            () = to.closed() => return,
        };
        let Some((columns, rows)) = size else { return };
        if let ExecInput::Resize(columns, rows) = item(&ExecInput::Resize(columns, rows))
            && to.send((columns, rows)).await.is_err()
        {
            return;
        }
    }
}

/// Standard input of a command, with a piece that has arrived and is not written yet.
struct Input {
    inner: Pin<Box<dyn AsyncWrite + Send>>,
    piece: Bytes,
}

impl Input {
    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.piece.is_empty() {
            match ready!(self.inner.as_mut().poll_write(context, &self.piece))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.piece.advance(count),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Input {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_written(context))?;
        let count = bytes.len().min(PIECE_BYTES);
        match item(&ExecInput::Stdin(Piece(Bytes::copy_from_slice(&bytes[..count])))) {
            ExecInput::Stdin(Piece(bytes)) => self.piece = bytes,
            ExecInput::End | ExecInput::Resize(..) => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
        }
        // What does not fit now is written by the next call.
        if let Poll::Ready(Err(error)) = self.poll_written(context) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_written(context))?;
        self.inner.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_written(context))?;
        match item(&ExecInput::End) {
            ExecInput::End => self.inner.as_mut().poll_shutdown(context),
            ExecInput::Stdin(_) | ExecInput::Resize(..) => Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
        }
    }
}

/// Standard output or error of a command.
struct CommandOutput {
    inner: Pin<Box<dyn AsyncRead + Send>>,
    wrap: fn(Piece) -> ExecOutput,
}

impl AsyncRead for CommandOutput {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut buffer = vec![0; into.remaining().min(PIECE_BYTES)];
        let mut read = ReadBuf::new(&mut buffer);
        ready!(self.inner.as_mut().poll_read(context, &mut read))?;
        match item(&(self.wrap)(Piece(Bytes::copy_from_slice(read.filled())))) {
            ExecOutput::Stdout(Piece(bytes)) | ExecOutput::Stderr(Piece(bytes)) => into.put_slice(&bytes),
            ExecOutput::Ended(_) => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
        }
        Poll::Ready(Ok(()))
    }
}
