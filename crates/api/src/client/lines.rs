//! Streams of one JSON value a line.

use std::marker::PhantomData;

use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use super::ClientError;

/// Longest line, in bytes.
const LINE_BYTES: usize = 8 << 20;

/// The values of a stream, one at a time; dropping it ends the stream.
#[derive(Debug)]
pub struct Lines<T> {
    body: Incoming,
    buffer: BytesMut,
    /// How much of the buffer is known to hold no line end.
    searched: usize,
    kind: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Lines<T> {
    pub(super) fn new(response: Response<Incoming>) -> Self {
        Self { body: response.into_body(), buffer: BytesMut::new(), searched: 0, kind: PhantomData }
    }

    /// The next value; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<T>, ClientError> {
        loop {
            if let Some(at) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + at + 1);
                self.searched = 0;
                return serde_json::from_slice(&line).map(Some).map_err(ClientError::Decode);
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > LINE_BYTES {
                return Err(ClientError::Line(LINE_BYTES));
            }
            match self.body.frame().await {
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(ClientError::CutOff),
                Some(Err(error)) => return Err(ClientError::Body { source: error.into() }),
                Some(Ok(frame)) => self.buffer.extend_from_slice(&frame.into_data().unwrap_or_default()),
            }
        }
    }
}
