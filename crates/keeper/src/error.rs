//! How the keeper and its client refuse.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::protocol::Refusal;

/// What went wrong, on either side of the socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody listens there.
    #[error("no keeper listens on {path}")]
    NotRunning {
        /// The socket.
        path: PathBuf,
        /// `ENOENT` or `ECONNREFUSED`.
        source: io::Error,
    },
    /// A step on the socket failed.
    #[error("cannot {step} the keeper on {path}")]
    Socket {
        /// `connect to`, `ask`, `hear from` …
        step: &'static str,
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// No reply in time. Whether the request was carried out is unknown; every request may be repeated.
    #[error("the keeper on {path} did not answer within {timeout:?}")]
    TimedOut {
        /// The socket.
        path: PathBuf,
        /// How long it was waited for.
        timeout: Duration,
    },
    /// The keeper closed the connection.
    #[error("the keeper on {path} closed the connection")]
    Closed {
        /// The socket.
        path: PathBuf,
    },
    /// The keeper speaks another version of the protocol.
    #[error(
        "the keeper on {path} speaks protocol version {keeper}, this program speaks version {own}: run the program that \
         started it, or end that keeper and lose what it holds"
    )]
    Version {
        /// The socket.
        path: PathBuf,
        /// Its version.
        keeper: u16,
        /// Ours.
        own: u16,
    },
    /// The keeper said no.
    #[error("the keeper refused to {request} `{key}`")]
    Refused {
        /// `put`, `get` …
        request: &'static str,
        /// The key or prefix; empty where there is none.
        key: String,
        /// Why.
        source: Refusal,
    },
    /// The reply is not one that belongs to the request.
    #[error("the keeper on {path} gave an answer that does not belong to the request `{request}`")]
    Answer {
        /// The socket.
        path: PathBuf,
        /// `put`, `get` …
        request: &'static str,
    },
    /// An entry was replaced again and again while it was read.
    #[error("`{key}` was replaced {times} times while it was read")]
    Unsteady {
        /// The key.
        key: String,
        /// How often.
        times: u32,
    },
    /// A file of the start-up could not be used.
    #[error("cannot {step} {path}")]
    File {
        /// What was to be done with it.
        step: &'static str,
        /// Which.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A kernel facility failed.
    #[error("cannot {step}")]
    Kernel {
        /// What was to be done.
        step: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// Another keeper serves this socket.
    #[error("another keeper already serves {path}")]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// A keeper of an older version lives whose socket was removed.
    #[error(
        "a keeper holds {lock} and does not listen on {path}: end its process (`fuser {lock}` shows it) and start again; what \
         only that keeper holds is lost"
    )]
    Hidden {
        /// The socket.
        path: PathBuf,
        /// Its lock.
        lock: PathBuf,
    },
    /// The new keeper said why it could not start.
    #[error("the keeper for {path} did not start: {complaint}")]
    Start {
        /// The socket.
        path: PathBuf,
        /// In its own words.
        complaint: String,
    },
    /// An argument of `torpor keeper` is wrong.
    #[error("keeper: {0}")]
    Usage(#[from] UsageError),
}

/// What is wrong with the keeper's arguments.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// Not one of ours.
    #[error("unknown argument `{0}`")]
    Unknown(String),
    /// Lacks its value.
    #[error("`{0}` needs a path")]
    Value(&'static str),
    /// Not given.
    #[error("`--socket PATH` is missing")]
    NoSocket,
}
