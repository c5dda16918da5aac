//! The frames that carry an `exec` after the HTTP upgrade.
//!
//! `POST /v1/apps/{name}/exec` has an [`ExecRequest`](crate::worker::ExecRequest) as its body and `Connection: Upgrade`,
//! `Upgrade: torpor-exec/1` among its headers. A refusal is an ordinary JSON error; otherwise the answer is
//! `101 Switching Protocols`, and from then on both sides send frames:
//!
//! ```text
//! +------+------------------------+----------------------+
//! | kind | length: u32 big-endian | payload: length bytes |
//! +------+------------------------+----------------------+
//! ```
//!
//! | kind | direction | payload |
//! |---|---|---|
//! | 0 stdin  | to Torpor   | bytes; none: end of file, no more stdin after it |
//! | 1 resize | to Torpor   | columns, rows: two u16 big-endian |
//! | 2 stdout | to the user | bytes, at least one |
//! | 3 stderr | to the user | bytes, at least one |
//! | 4 status | to the user | exit status as a shell reports it: i32 big-endian; the last frame |
//! | 5 error  | to the user | an [`ApiError`](crate::ApiError) as JSON: the session broke; the last frame |
//!
//! Invariants: a payload is at most [`PAYLOAD_BYTES`], so a reader never holds more than one frame of that size; an
//! unknown kind, a length beyond the bound or of the wrong size is an error after which nothing more is read. A client
//! that leaves without the last frame ends the session.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest payload of a frame, in bytes.
pub const PAYLOAD_BYTES: usize = 64 * 1024;
const HEADER_BYTES: usize = 5;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Input for the command; empty is end of file.
    Stdin(Bytes),
    /// New size of the terminal.
    Resize {
        /// Columns.
        columns: u16,
        /// Rows.
        rows: u16,
    },
    /// Output.
    Stdout(Bytes),
    /// Error output.
    Stderr(Bytes),
    /// Exit status; the last frame.
    Status(i32),
    /// The session broke, as JSON of an `ApiError`; the last frame.
    Error(Bytes),
}

/// What is wrong with received bytes.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// No such kind.
    #[error("frame of unknown kind {0}")]
    Kind(u8),
    /// Longer than allowed, or not the size that its kind has.
    #[error("frame of kind {kind} has {length} bytes")]
    Length {
        /// Its kind.
        kind: u8,
        /// Its stated length.
        length: u32,
    },
    /// The stream ended inside a frame.
    #[error("stream ended inside a frame")]
    CutOff,
    /// The stream failed.
    #[error("cannot read a frame")]
    Read(#[source] std::io::Error),
}

impl Frame {
    /// Appends the frame to `out`. A payload beyond [`PAYLOAD_BYTES`] goes out as several frames.
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Stdin(bytes) if bytes.is_empty() => put(out, 0, &[]),
            Self::Stdin(bytes) => bytes.chunks(PAYLOAD_BYTES).for_each(|part| put(out, 0, part)),
            Self::Resize { columns, rows } => {
                let [a, b] = columns.to_be_bytes();
                let [c, d] = rows.to_be_bytes();
                put(out, 1, &[a, b, c, d]);
            }
            Self::Stdout(bytes) => bytes.chunks(PAYLOAD_BYTES).for_each(|part| put(out, 2, part)),
            Self::Stderr(bytes) => bytes.chunks(PAYLOAD_BYTES).for_each(|part| put(out, 3, part)),
            Self::Status(status) => put(out, 4, &status.to_be_bytes()),
            Self::Error(json) => put(out, 5, &json[..json.len().min(PAYLOAD_BYTES)]),
        }
    }

    /// Takes the first whole frame from `buffer`; `None` while it is not all there.
    pub fn decode(buffer: &mut BytesMut) -> Result<Option<Self>, FrameError> {
        let Some((&kind, rest)) = buffer.split_first() else { return Ok(None) };
        if kind > 5 {
            return Err(FrameError::Kind(kind));
        }
        let Some(length) = rest.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length);
        let fits = match kind {
            1 | 4 => length == 4,
            2 | 3 => (1..=PAYLOAD_BYTES as u32).contains(&length),
            _ => length <= PAYLOAD_BYTES as u32,
        };
        if !fits {
            return Err(FrameError::Length { kind, length });
        }
        if buffer.len() < HEADER_BYTES + length as usize {
            return Ok(None);
        }
        buffer.advance(HEADER_BYTES);
        let mut payload = buffer.split_to(length as usize).freeze();
        Ok(Some(match kind {
            0 => Self::Stdin(payload),
            1 => Self::Resize { columns: payload.get_u16(), rows: payload.get_u16() },
            2 => Self::Stdout(payload),
            3 => Self::Stderr(payload),
            4 => Self::Status(payload.get_i32()),
            _ => Self::Error(payload),
        }))
    }
}

fn put(out: &mut BytesMut, kind: u8, payload: &[u8]) {
    out.reserve(HEADER_BYTES + payload.len());
    out.put_u8(kind);
    out.put_u32(payload.len() as u32);
    out.put_slice(payload);
}

/// Reads frames from a stream; holds at most one frame and one read.
#[derive(Debug)]
pub struct FrameReader<R> {
    inner: R,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads from `inner`.
    pub fn new(inner: R) -> Self {
        Self { inner, buffer: BytesMut::new() }
    }

    /// The next frame; `None` at an end between frames. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        loop {
            if let Some(frame) = Frame::decode(&mut self.buffer)? {
                return Ok(Some(frame));
            }
            self.buffer.reserve(HEADER_BYTES + PAYLOAD_BYTES - self.buffer.len().min(PAYLOAD_BYTES));
            if self.inner.read_buf(&mut self.buffer).await.map_err(FrameError::Read)? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(FrameError::CutOff) };
            }
        }
    }
}
