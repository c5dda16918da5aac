//! What the thread of a host is asked.

use std::sync::Arc;

use tokio::sync::oneshot;
use torpor_lua::Value;

use super::socket::Sender;
use crate::class::Code;
use crate::host::Host;
use crate::message::{Incoming, Socket};

/// Of a call.
pub(super) type Answer = Result<Vec<Value>, Arc<str>>;

/// What the thread is asked.
#[derive(Debug)]
pub(super) enum Request {
    /// Calls a function of a Clef.
    Call { key: Vec<u8>, function: String, arguments: Vec<Value>, answer: oneshot::Sender<Answer> },
    /// Somebody has connected.
    Open { socket: Socket, key: Vec<u8>, function: &'static str, request: Value, to: Arc<Sender> },
    /// Asks which Clef a request is for.
    Route { request: Value, answer: oneshot::Sender<Result<Option<Vec<u8>>, String>> },
    /// Something else has come.
    Incoming(Incoming),
    /// Changes the code of the class.
    Reload(Code),
    /// Something else is done with the host.
    Manage(Work),
    /// Puts all to sleep, and ends.
    End(oneshot::Sender<Result<(), String>>),
}

/// Tells what was done, once that is durable, or why it is not.
pub(super) type Tell = Box<dyn FnOnce(Result<(), String>)>;

/// What somebody does with the host.
pub(super) struct Work(pub(super) Box<dyn FnOnce(&mut Host) -> Tell + Send>);

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Work")
    }
}
