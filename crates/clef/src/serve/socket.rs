//! Connections, however they come: what a Clef sends and has not taken. WebSocket and server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use axum::http::{HeaderValue, Response};
use futures_util::{SinkExt, StreamExt};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::sleep;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::OpenSocket;

/// Messages that a Clef has not taken yet, of a connection.
const MOST_UNTAKEN: usize = 64;
/// Bytes that a client has not read yet; one with more is too slow, and is disconnected.
const MOST_UNSENT_BYTES: usize = 8 << 20;
/// Bytes of a message from a client at most.
pub(super) const MOST_MESSAGE_BYTES: usize = 1 << 20;
/// How long a client may read nothing of the rest, once its Clef has closed the connection.
pub(super) const LINGER: Duration = Duration::from_secs(30);
/// What a message counts for beside its bytes.
const MESSAGE_COST: usize = 64;

/// For a client.
#[derive(Debug)]
pub(super) enum ToSocket {
    Message(Vec<u8>),
    Close,
}

/// The host's end of a connection.
#[derive(Debug)]
pub(super) struct Sender {
    to: mpsc::UnboundedSender<ToSocket>,
    unsent_bytes: AtomicUsize,
    untaken: Semaphore,
    /// The client reads too slowly.
    is_slow: Notify,
    /// The Clef has closed the connection.
    is_closing: Notify,
}

pub(super) fn channel() -> (Arc<Sender>, mpsc::UnboundedReceiver<ToSocket>) {
    let (to, from) = mpsc::unbounded_channel();
    let sender = Sender {
        to,
        unsent_bytes: AtomicUsize::new(0),
        untaken: Semaphore::new(MOST_UNTAKEN),
        is_slow: Notify::new(),
        is_closing: Notify::new(),
    };
    (Arc::new(sender), from)
}

impl Sender {
    /// False where the client has gone or reads too slowly.
    pub(super) fn send(&self, message: ToSocket) -> bool {
        let bytes = match &message {
            ToSocket::Message(bytes) => bytes.len() + MESSAGE_COST,
            ToSocket::Close => {
                self.is_closing.notify_one();
                0
            }
        };
        if self.unsent_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > MOST_UNSENT_BYTES {
            self.is_slow.notify_one();
            return false;
        }
        self.to.send(message).is_ok()
    }

    /// Waits until the client must be cut off: it reads too slowly, or its Clef has closed the connection and it reads nothing of the rest for
    /// `linger`. It would hold the connection for ever.
    pub(super) async fn overdue(&self, linger: Duration) {
        let lingered = async {
            self.is_closing.notified().await;
            let unsent = || self.unsent_bytes.load(Ordering::Relaxed);
            let mut before = usize::MAX;
            while unsent() < before {
                before = unsent();
                sleep(linger).await;
            }
        };
        tokio::select! {
            () = self.is_slow.notified() => {}
            () = lingered => {}
        }
    }

    pub(super) fn sent(&self, bytes: usize) {
        self.unsent_bytes.fetch_sub(bytes + MESSAGE_COST, Ordering::Relaxed);
    }

    /// The Clef has taken a message.
    pub(super) fn taken(&self) {
        self.untaken.add_permits(1);
    }

    /// Waits until the Clef may get another message.
    pub(super) async fn room(&self) {
        if let Ok(permit) = self.untaken.acquire().await {
            permit.forget();
        }
    }
}

/// Passes messages on both ways until one side closes. Pings are answered here.
pub(super) async fn run_websocket(socket: WebSocket, mut open: OpenSocket) {
    let (mut to, mut from) = socket.split();
    let mut outgoing = std::mem::replace(&mut open.from, mpsc::unbounded_channel().1);
    let sender = open.to.clone();
    let write = async move {
        while let Some(ToSocket::Message(bytes)) = outgoing.recv().await {
            let len = bytes.len();
            let message = match String::from_utf8(bytes) {
                Ok(text) => Message::Text(text.into()),
                Err(error) => Message::Binary(error.into_bytes().into()),
            };
            if to.send(message).await.is_err() {
                return;
            }
            sender.sent(len);
        }
        let frame = CloseFrame { code: close_code::NORMAL, reason: "".into() };
        let _ = to.send(Message::Close(Some(frame))).await;
    };
    let read = async {
        while let Some(Ok(message)) = from.next().await {
            let bytes = match message {
                Message::Text(text) => text.as_bytes().to_vec(),
                Message::Binary(bytes) => bytes.to_vec(),
                Message::Ping(_) | Message::Pong(_) => continue,
                Message::Close(_) => return,
            };
            if !open.received(bytes).await {
                return;
            }
        }
    };
    let to = open.to.clone();
    tokio::select! {
        () = write => {}
        () = read => {}
        () = to.overdue(LINGER) => {}
    }
}

/// A message as an event. Its lines end as they do for browsers: with CR LF, LF or CR.
fn event(mut message: &[u8]) -> Vec<u8> {
    let mut event = Vec::with_capacity(message.len() + 8);
    loop {
        let end = message.iter().position(|byte| b"\r\n".contains(byte));
        let (line, rest) = message.split_at(end.unwrap_or(message.len()));
        event.extend_from_slice(b"data: ");
        event.extend_from_slice(line);
        event.push(b'\n');
        match rest {
            [] => break,
            [b'\r', b'\n', rest @ ..] | [_, rest @ ..] => message = rest,
        }
    }
    event.push(b'\n');
    event
}

/// The messages of a Clef as server-sent events.
pub(super) fn events(mut open: OpenSocket) -> Response<Body> {
    let outgoing = std::mem::replace(&mut open.from, mpsc::unbounded_channel().1);
    let to = open.to.clone();
    let slow = Box::pin(async move { to.overdue(LINGER).await });
    let messages = UnboundedReceiverStream::new(outgoing)
        .take_until(slow)
        .take_while(|message| std::future::ready(!matches!(message, ToSocket::Close)));
    let events = messages.map(move |message| {
        // It is closed when the stream is dropped.
        let open = &open;
        let ToSocket::Message(bytes) = message else { return Ok::<Bytes, Infallible>(Bytes::new()) };
        open.to.sent(bytes.len());
        Ok(event(&bytes).into())
    });
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("text/event-stream"));
    headers.insert("cache-control", HeaderValue::from_static("no-cache"));
    response
}
