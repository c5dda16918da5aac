//! Connections, however they come: what a Clef sends and has not taken. WebSocket and server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use axum::http::{HeaderValue, Response};
use futures_util::{SinkExt, StreamExt};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_tungstenite::tungstenite;

use super::OpenSocket;

/// Messages that a Clef has not taken yet, of a connection.
const MOST_UNTAKEN: usize = 64;
/// KiB of them, of a connection: one message of any size has room.
const MOST_UNTAKEN_KIB: usize = MOST_MESSAGE_BYTES >> 10;
/// Bytes that a client has not read yet; one with more is too slow, and is disconnected.
const MOST_UNSENT_BYTES: usize = 8 << 20;
/// Bytes of a message from a client at most.
pub(super) const MOST_MESSAGE_BYTES: usize = 1 << 20;
/// How long a client may read nothing of the rest, once its Clef has closed the connection.
pub(super) const LINGER: Duration = Duration::from_secs(30);
/// How long a message may wait until the Clef has taken what came before: meanwhile nobody sees that the client has gone.
const MOST_WAIT: Duration = Duration::from_secs(5 * 60);
/// Between two pings to a client.
const PING: Duration = Duration::from_secs(30);
/// A client that says nothing for so long, not even that it has got a ping, has gone.
const MOST_SILENCE: Duration = Duration::from_secs(90);
/// How long a client may take to answer that the connection is closed.
const MOST_CLOSING: Duration = Duration::from_secs(5);
/// How long a client that has broken the protocol, of whom nothing more is read, may take to read why.
const LAST_WORD: Duration = Duration::from_secs(1);
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
    untaken_kib: Semaphore,
    /// KiB of each message that the Clef has not taken yet.
    waiting: Mutex<VecDeque<u32>>,
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
        untaken_kib: Semaphore::new(MOST_UNTAKEN_KIB),
        waiting: Mutex::default(),
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

    /// The Clef has taken a message: the one that came first.
    pub(super) fn taken(&self) {
        let first = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        if let Some(kib) = first {
            self.untaken_kib.add_permits(kib as usize);
            self.untaken.add_permits(1);
        }
    }

    /// Waits until the Clef may get another message of so many bytes.
    pub(super) async fn room(&self, bytes: usize) {
        let kib = bytes.div_ceil(1 << 10).min(MOST_UNTAKEN_KIB) as u32;
        if let (Ok(message), Ok(room)) = (self.untaken.acquire().await, self.untaken_kib.acquire_many(kib).await) {
            message.forget();
            room.forget();
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(kib);
        }
    }
}

/// How a WebSocket ends.
enum Ending {
    /// From here.
    Closed(u16),
    /// The client has broken the protocol, and nothing more is read of it.
    Wrong(u16),
    /// The client has closed it.
    Left,
    /// Nobody is there to be told.
    Broken,
}

impl Ending {
    fn of(error: axum::Error) -> Self {
        match error.into_inner().downcast_ref() {
            Some(tungstenite::Error::Capacity(_)) => Self::Wrong(close_code::SIZE),
            Some(tungstenite::Error::Utf8(_)) => Self::Wrong(close_code::INVALID),
            Some(tungstenite::Error::Protocol(tungstenite::error::ProtocolError::ResetWithoutClosingHandshake)) => {
                Self::Broken
            }
            Some(tungstenite::Error::Protocol(_)) => Self::Wrong(close_code::PROTOCOL),
            _ => Self::Broken,
        }
    }
}

/// Passes messages on both ways until one side closes. Pings are answered here, and sent.
pub(super) async fn run_websocket(socket: WebSocket, mut open: OpenSocket) {
    let (mut to, mut from) = socket.split();
    let mut outgoing = std::mem::replace(&mut open.from, mpsc::unbounded_channel().1);
    let sender = open.to.clone();
    let write = async {
        let mut pings = interval_at(Instant::now() + PING, PING);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let (message, len) = tokio::select! {
                message = outgoing.recv() => {
                    let Some(ToSocket::Message(bytes)) = message else { return Ending::Closed(close_code::NORMAL) };
                    let len = bytes.len();
                    match String::from_utf8(bytes) {
                        Ok(text) => (Message::Text(text.into()), Some(len)),
                        Err(error) => (Message::Binary(error.into_bytes().into()), Some(len)),
                    }
                }
                _ = pings.tick() => (Message::Ping(Bytes::new()), None),
            };
            if to.send(message).await.is_err() {
                return Ending::Broken;
            }
            if let Some(len) = len {
                sender.sent(len);
            }
        }
    };
    let read = async {
        loop {
            let bytes = match timeout(MOST_SILENCE, from.next()).await {
                Ok(Some(Ok(Message::Text(text)))) => text.as_bytes().to_vec(),
                Ok(Some(Ok(Message::Binary(bytes)))) => bytes.to_vec(),
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => continue,
                Ok(Some(Ok(Message::Close(_)))) => return Ending::Left,
                Ok(Some(Err(error))) => return Ending::of(error),
                Ok(None) | Err(_) => return Ending::Broken,
            };
            match timeout(MOST_WAIT, open.received(bytes)).await {
                Ok(true) => {}
                Ok(false) => return Ending::Closed(close_code::AWAY),
                Err(_) => return Ending::Closed(close_code::POLICY),
            }
        }
    };
    let ending = tokio::select! {
        ending = write => ending,
        ending = read => ending,
        () = sender.overdue(LINGER) => Ending::Broken,
    };
    // The Clef does not wait for what follows.
    drop(open);
    let (code, is_wrong) = match ending {
        Ending::Closed(code) => (code, false),
        Ending::Wrong(code) => (code, true),
        Ending::Left => {
            // The answer is ready since the client's word was read.
            let _ = timeout(MOST_CLOSING, to.close()).await;
            return;
        }
        Ending::Broken => return,
    };
    let frame = CloseFrame { code, reason: "".into() };
    if !matches!(timeout(LINGER, to.send(Message::Close(Some(frame)))).await, Ok(Ok(()))) {
        return;
    }
    // What is not read would reset the connection, and the client would not get what was sent last.
    match is_wrong {
        true => sleep(LAST_WORD).await,
        false => _ = timeout(MOST_CLOSING, async { while let Some(Ok(_)) = from.next().await {} }).await,
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
