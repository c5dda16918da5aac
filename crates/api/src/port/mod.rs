//! How a hub talks to a worker: calls as data, and what carries them.
//!
//! ```text
//!  hub ──▶ WorkerClient ──Call──▶ Transport ──Call──▶ Dispatcher ──▶ WorkerPort (the worker)
//!                       ◀─Reply──           ◀─Reply──
//! ```
//! A [`Call`] is a [`WorkerRequest`] and the stream that goes with it, if any; a [`Reply`] is a [`WorkerAnswer`] and the stream that
//! follows it, if any. Requests, answers and the items of streams ([`items`]) are serde types. Errors are [`ApiError`](crate::ApiError)s.
//!
//! [`InProcess`] passes calls as they are. [`Encoded`] encodes and decodes whatever passes; with it, tests show that everything can
//! travel. Neither has a task between hub and worker, so the rules that hold for a call of a function hold for a [`Transport`]:
//! - Who drops the future of a call gives the call up; who drops a stream ends it.
//! - Streams are bounded: a reader that is slow slows its writer down. Only reports of progress may be lost.
//! - What a worker emitted as an event before it answered a call is ready on the stream of events when the answer arrives.

mod call;
mod client;
mod dispatcher;
mod encoded;
mod in_process;
pub mod items;
mod message;

pub use self::call::{Attachment, Call, Output, Reply, Transport};
pub use self::client::{StagedArchive, WorkerClient};
pub use self::dispatcher::Dispatcher;
pub use self::encoded::Encoded;
pub use self::in_process::InProcess;
pub use self::message::{UploadId, WorkerAnswer, WorkerNotice, WorkerRequest};
