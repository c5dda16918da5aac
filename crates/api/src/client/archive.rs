//! Archives to and from the daemon: streams of bytes that the client does not look into.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::{Method, Request};
use tokio::sync::mpsc;

use super::{Client, ClientError, collect, refusal, segment, with_query};
use crate::archive::MEDIA_TYPE;
use crate::view::Imported;
use crate::wire::ImportQuery;

/// An archive that is being received.
#[derive(Debug)]
pub struct Download {
    body: Incoming,
}

impl Download {
    /// The next piece; `None` at the end of the connection, which need not be the end of the archive.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(ClientError::Body { source: error.into() }),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => return Ok(Some(bytes)),
                    Err(_trailers) => {}
                },
            }
        }
    }
}

/// An archive that is being sent: what comes out of a channel.
pub(super) struct Upload(mpsc::Receiver<io::Result<Bytes>>);

impl Body for Upload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

impl Client {
    /// An app as an archive; with `sleep` it is put to warm first if it is not.
    pub async fn export(&self, app: &str, sleep: bool) -> Result<Download, ClientError> {
        let path = format!("/v1/apps/{}/archive?sleep={sleep}", segment(app));
        Ok(Download { body: self.send(Method::GET, &path, None, &[]).await?.into_body() })
    }

    /// Makes an app from an archive whose bytes come through `pieces`; an error there gives it up.
    pub async fn import(
        &self,
        query: &ImportQuery,
        pieces: mpsc::Receiver<io::Result<Bytes>>,
    ) -> Result<Imported, ClientError> {
        let mut pairs = vec![("yes", query.yes.to_string()), ("trust", query.trust.to_string())];
        pairs.extend(query.name.clone().map(|name| ("name", name)));
        pairs.extend(query.publish.clone().map(|ports| ("publish", ports)));
        let request = Request::builder()
            .method(Method::POST)
            .uri(with_query("/v1/archives", &pairs))
            .header(hyper::header::CONTENT_TYPE, MEDIA_TYPE);
        let request = self.addressed(request)?.body(Upload(pieces).boxed_unsync());
        let response = self.exchange(request.map_err(|error| ClientError::Request { source: error.into() })?).await?;
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        serde_json::from_slice(&collect(response).await?).map_err(ClientError::Decode)
    }
}
