//! What a host is told, and what it tells.

use std::sync::Arc;

use torpor_lua::Value;

/// A connection, by a number that no other one has had.
pub type Socket = i64;

/// What comes in.
#[derive(Clone, Debug)]
pub enum Incoming {
    /// Calls a function of a Clef; [`Outgoing::Answered`] has the same number.
    Call {
        /// Which Clef.
        key: Vec<u8>,
        /// Name of the function.
        function: String,
        /// What it gets.
        arguments: Vec<Value>,
        /// Of the caller's choice.
        call: u64,
    },
    /// Somebody has connected to a Clef: its function is called with the connection and the request.
    Opened {
        /// The connection.
        socket: Socket,
        /// Which Clef.
        key: Vec<u8>,
        /// Name of the function.
        function: &'static str,
        /// What it gets behind the connection.
        request: Value,
    },
    /// A message has come.
    Received(Socket, Vec<u8>),
    /// The other side sends nothing more; it may still read.
    Ended(Socket),
    /// The other side has closed the connection, or it is broken.
    Closed(Socket),
    /// What [`Outgoing::Fetch`] asked for.
    Fetched {
        /// The number of the request.
        fetch: u64,
        /// The response, or why there is none.
        result: Result<Value, String>,
    },
}

/// What a host tells: only when the states that it follows from are as durable as the class wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Outgoing {
    /// A call has ended.
    Answered {
        /// As in [`Incoming::Call`].
        call: u64,
        /// What the function has returned, or an error with a traceback.
        result: Result<Vec<Value>, Arc<str>>,
    },
    /// A message for the other side.
    Sent(Socket, Vec<u8>),
    /// A message was taken: there is room for another one.
    Taken(Socket),
    /// The connection is to be closed, behind what was sent.
    Close(Socket),
    /// An HTTP request is to be made.
    Fetch {
        /// Its number.
        fetch: u64,
        /// A URL, or a table with `url`, `method`, `headers` and `body`.
        request: Value,
    },
    /// A Clef says something.
    Printed {
        /// Which one.
        key: Arc<[u8]>,
        /// A line.
        line: String,
    },
    /// A function has failed, with nobody to tell.
    Failed {
        /// Of which Clef.
        key: Arc<[u8]>,
        /// With a traceback.
        error: Arc<str>,
    },
}
