//! TCP: connections in frames, to the Clef that the first frame names.
//!
//! ```text
//! accept ─▶ first frame ─▶ which Clef ─▶ frames ⇄ messages ─▶ closed by the Clef: what it has sent is written, then FIN
//!             │ too late,     │ none       │ the client sends FIN: its messages end, those of the Clef are still written
//!             ▼ too large     ▼            ▼ broken, or a frame is too large
//!                     closed, and the Clef is told
//! ```
//! Every wait has a deadline, or ends when one of both sides ends the connection.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use torpor_lua::Value;

use super::http::pair;
use super::socket::{LINGER, MOST_MESSAGE_BYTES, ToSocket};
use super::{Clefs, OpenSocket};
use crate::frames::{Decoder, Frames};
use crate::log::MOST_KEY_BYTES;
use crate::route::KeyPattern;

/// Bytes of the first frame at most.
const MOST_FIRST_BYTES: usize = 1024;
/// Bytes that are read at once: what a chunk of a stream has at most.
const MOST_CHUNK_BYTES: usize = 64 << 10;
/// Between two attempts to accept a connection, where the first has failed: for want of descriptors, say.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// What limits connections.
#[derive(Clone, Copy, Debug)]
pub struct TcpLimits {
    /// Those that are open at the same time; others wait until they are accepted.
    pub connections: usize,
    /// How long the first frame may take.
    pub first: Duration,
    /// How long a client may read nothing of the rest, once its Clef has closed the connection.
    pub linger: Duration,
}

impl Default for TcpLimits {
    fn default() -> Self {
        Self { connections: 10_000, first: Duration::from_secs(10), linger: LINGER }
    }
}

/// What all connections have in common.
struct Server {
    clefs: Clefs,
    pattern: KeyPattern,
    frames: Frames,
    limits: TcpLimits,
}

/// Accepts connections, each for the Clef that its first frame names, until `end` is there. Those that are open then stay open.
pub async fn serve_tcp(
    listener: TcpListener,
    clefs: Clefs,
    pattern: KeyPattern,
    (frames, limits): (Frames, TcpLimits),
    end: impl Future<Output = ()> + Send,
) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let server = Arc::new(Server { clefs, pattern, frames, limits });
    let accept = async {
        // It is never closed.
        while let Ok(place) = places.clone().acquire_owned().await {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be accepted");
                    sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            let server = server.clone();
            tokio::spawn(async move {
                if let Err(error) = server.connection(stream, peer).await {
                    tracing::debug!(%error, %peer, "a connection");
                }
                drop(place);
            });
        }
    };
    tokio::select! {
        () = accept => {}
        () = end => {}
    }
}

/// How a connection ends.
enum Ending {
    /// What was sent is to be read.
    Closed,
    /// Nobody reads it.
    Cut,
}

impl Server {
    async fn connection(&self, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let (from, mut to) = stream.into_split();
        let mut input = Input { from, decoder: Decoder::new(self.frames) };
        let first = timeout(self.limits.first, input.first()).await??;
        let Some(first) = first else { return Ok(()) };
        let Some((key, request)) = self.key(first, peer).await else { return Ok(()) };
        let Some(open) = self.clefs.open_within(key, "tcp", request).await else { return Ok(()) };
        match self.pass(&mut input, &mut to, open).await {
            Ending::Closed => {
                // With bytes that were not read, the close would be a reset, which takes back what the client has not read yet.
                let end = async {
                    to.shutdown().await?;
                    input.drain().await
                };
                timeout(self.limits.linger, end).await?
            }
            Ending::Cut => {
                to.as_ref().set_zero_linger()?;
                // Dropping it would send an orderly end before the reset, if nothing waits to be sent.
                to.forget();
                Ok(())
            }
        }
    }

    /// Which Clef, and what its function gets.
    async fn key(&self, first: Vec<u8>, peer: SocketAddr) -> Option<(Vec<u8>, Value)> {
        let mut fields = vec![pair("peer", &*peer.to_string())];
        let key = match self.pattern {
            KeyPattern::Lua => {
                fields.push(pair("line", first.as_slice()));
                // Its error is told by the host.
                self.clefs.route(Value::Table(fields.clone())).await.ok().flatten()?
            }
            _ => first,
        };
        fields.push(pair("key", key.as_slice()));
        (1..=MOST_KEY_BYTES).contains(&key.len()).then_some((key, Value::Table(fields)))
    }

    /// Passes messages on both ways until one side closes.
    async fn pass(&self, input: &mut Input, to: &mut OwnedWriteHalf, mut open: OpenSocket) -> Ending {
        let mut outgoing = std::mem::replace(&mut open.from, mpsc::unbounded_channel().1);
        let sender = open.to.clone();
        let write = async {
            while let Some(ToSocket::Message(bytes)) = outgoing.recv().await {
                let len = bytes.len();
                if to.write_all(&self.frames.encoded(bytes)).await.is_err() {
                    return Ending::Cut;
                }
                sender.sent(len);
            }
            Ending::Closed
        };
        let read = async {
            loop {
                let (is_more, is_told) = match input.next().await {
                    Ok(Some(message)) => (true, open.received(message).await),
                    Ok(None) => (false, open.ended().await),
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ending::Closed,
                    Err(_) => return Ending::Cut,
                };
                if !is_told {
                    return Ending::Closed;
                }
                if !is_more {
                    break;
                }
            }
            // What the Clef still sends is written, until it closes.
            std::future::pending().await
        };
        tokio::select! {
            ending = write => ending,
            ending = read => ending,
            () = sender.overdue(self.limits.linger) => Ending::Cut,
        }
    }
}

/// What a client sends. Only while there is something to read does it have a buffer.
struct Input {
    from: OwnedReadHalf,
    decoder: Decoder,
}

impl Input {
    /// None where the client has ended before.
    async fn first(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(first) = self.decoder.first(MOST_FIRST_BYTES).map_err(invalid)? {
                return Ok(Some(first));
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// The next message; none where no more come. [`io::ErrorKind::InvalidData`]: it is too large.
    async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(message) = self.decoder.next(MOST_MESSAGE_BYTES).map_err(invalid)? {
                return Ok(Some(message));
            }
            if !self.fill().await? {
                return Ok(self.decoder.last());
            }
        }
    }

    /// Reads more; false where there is nothing more.
    async fn fill(&mut self) -> io::Result<bool> {
        loop {
            self.from.readable().await?;
            match self.read() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }

    fn read(&mut self) -> io::Result<bool> {
        let mut bytes = [0; MOST_CHUNK_BYTES];
        let count = self.from.try_read(&mut bytes)?;
        self.decoder.add(&bytes[..count]);
        Ok(count > 0)
    }

    /// Until the client has ended.
    async fn drain(&mut self) -> io::Result<()> {
        while self.fill().await? {
            self.decoder = Decoder::new(Frames::Stream);
        }
        Ok(())
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
