//! The client's side of `exec`: see [`crate::frame`].

use bytes::BytesMut;
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};

use super::{Client, ClientError, segment};
use crate::frame::{Frame, FrameReader};
use crate::wire::EXEC_PROTOCOL;
use crate::worker::ExecRequest;

/// Receives the frames of a session.
pub type ExecReader = FrameReader<ReadHalf<TokioIo<Upgraded>>>;

/// An open session.
#[derive(Debug)]
pub struct ExecStream {
    /// Output and status.
    pub reader: ExecReader,
    /// Input and sizes.
    pub writer: ExecWriter,
}

/// Sends the frames of a session.
#[derive(Debug)]
pub struct ExecWriter(WriteHalf<TokioIo<Upgraded>>);

impl ExecWriter {
    /// Sends one frame.
    pub async fn send(&mut self, frame: &Frame) -> std::io::Result<()> {
        let mut bytes = BytesMut::new();
        frame.encode(&mut bytes);
        self.0.write_all(&bytes).await?;
        self.0.flush().await
    }
}

impl Client {
    /// Runs a command in an app; returns once it runs.
    pub async fn exec(&self, app: &str, request: &ExecRequest) -> Result<ExecStream, ClientError> {
        let body = serde_json::to_vec(request).map_err(ClientError::Encode)?;
        let headers =
            [(CONNECTION, HeaderValue::from_static("upgrade")), (UPGRADE, HeaderValue::from_static(EXEC_PROTOCOL))];
        let path = format!("/v1/apps/{}/exec", segment(app));
        let response = self.send(Method::POST, &path, Some(body), &headers).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(ClientError::NoUpgrade(response.status()));
        }
        let upgraded = hyper::upgrade::on(response).await.map_err(ClientError::Upgrade)?;
        let (reader, writer) = tokio::io::split(TokioIo::new(upgraded));
        Ok(ExecStream { reader: FrameReader::new(reader), writer: ExecWriter(writer) })
    }
}
