//! A call with its streams, and what carries it.

use std::io;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

use super::message::{WorkerAnswer, WorkerNotice, WorkerRequest};
use crate::archive::Reader;
use crate::error::ApiError;
use crate::view::Event;
use crate::worker::{BoxStream, ExecSession, LogLine, Progress};

/// One call.
pub struct Call {
    /// What is asked.
    pub request: WorkerRequest,
    /// What goes with it.
    pub attachment: Attachment,
}

/// What goes with a request.
pub enum Attachment {
    /// Nothing.
    None,
    /// Where reports of progress go.
    Progress(mpsc::Sender<Progress>),
    /// An archive of which only the manifest was read.
    Archive(Box<Reader>),
}

/// What comes back.
pub struct Reply {
    /// The answer.
    pub answer: WorkerAnswer,
    /// What follows it.
    pub output: Output,
}

/// What follows an answer.
pub enum Output {
    /// Nothing.
    None,
    /// An archive.
    Archive(BoxStream<io::Result<Bytes>>),
    /// A command.
    Session(ExecSession),
    /// Lines of an app's output.
    Lines(BoxStream<LogLine>),
    /// Events.
    Events(BoxStream<Event>),
}

impl From<WorkerAnswer> for Reply {
    fn from(answer: WorkerAnswer) -> Self {
        Self { answer, output: Output::None }
    }
}

impl From<Output> for Reply {
    fn from(output: Output) -> Self {
        Self { answer: WorkerAnswer::Stream, output }
    }
}

/// What carries calls to one worker; the rules are those of [`crate::port`].
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Carries a call.
    ///
    /// # Errors
    /// That of the worker, or why the call or its answer did not arrive.
    async fn call(&self, call: Call) -> Result<Reply, ApiError>;

    /// Tells the worker something without waiting for it.
    fn notify(&self, notice: WorkerNotice);
}
