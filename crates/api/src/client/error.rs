//! Why a request did not get its answer.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::ApiError;

/// Why a request did not get its answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The daemon refused.
    #[error(transparent)]
    Refused(#[from] ApiError),
    /// Nothing listens at the socket.
    #[error("torpor is not running: nothing listens at {}", path.display())]
    NotRunning {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The socket belongs to root.
    #[error("only root may use {}", path.display())]
    NotAllowed {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another user listens at the socket: nothing was sent.
    #[error("user {user} listens at {}, not root and not you; nothing was sent", path.display())]
    Foreign {
        /// The socket.
        path: PathBuf,
        /// The id of the user.
        user: u32,
    },
    /// The socket cannot be connected for another reason.
    #[error("cannot connect to {}", path.display())]
    Unix {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The TCP address cannot be connected.
    #[error("cannot connect to {address}")]
    Tcp {
        /// The address.
        address: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The request broke off.
    #[error("the request to torpor failed")]
    Request {
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The answer broke off, or is too long.
    #[error("the answer of torpor broke off")]
    Body {
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A request cannot be written as JSON.
    #[error("cannot write the request as json")]
    Encode(#[source] serde_json::Error),
    /// An answer is not what it should be.
    #[error("the answer of torpor makes no sense to this version of the command")]
    Decode(#[source] serde_json::Error),
    /// A line of a stream is too long.
    #[error("a line of the answer is longer than {0} bytes")]
    Line(usize),
    /// Work ended without its last line.
    #[error("torpor ended the connection before the work was done")]
    CutOff,
    /// The daemon did not switch to the exec protocol.
    #[error("torpor did not open the exec stream")]
    Upgrade(#[source] hyper::Error),
    /// The daemon answered `exec` with something else than an upgrade.
    #[error("torpor answered {0} where it should have opened the exec stream")]
    NoUpgrade(hyper::StatusCode),
}

impl ClientError {
    pub(super) fn unix(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Self::NotRunning { path, source },
            io::ErrorKind::PermissionDenied => Self::NotAllowed { path, source },
            _ => Self::Unix { path, source },
        }
    }
}
