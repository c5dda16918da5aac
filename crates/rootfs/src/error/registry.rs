//! How registries, and the way to them, refuse.

use std::io;
use std::path::PathBuf;

use crate::reference::ReferenceError;

/// Why a registry did not give an image.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The reference does not parse.
    #[error("it is not a reference to an image")]
    Reference(#[source] ReferenceError),
    /// The registry or the way to it.
    #[error("cannot fetch {what}")]
    Fetch {
        /// The manifest, a blob.
        what: String,
        /// Why.
        source: RequestError,
    },
    /// The connection broke.
    #[error("the download of {what} broke off")]
    Download {
        /// What was fetched.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// The client cannot be made.
    #[error("cannot set up the registry client")]
    Client(#[source] RequestError),
    /// The file with credentials does not read.
    #[error("the credentials in {} cannot be read", path.display())]
    AuthFile {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Credentials are kept by a helper program.
    #[error(
        "the credentials for {registry} are kept by the helper {helper:?}, which is not supported; use \"docker login\" without helpers"
    )]
    AuthHelper {
        /// Which registry.
        registry: String,
        /// Which helper.
        helper: String,
    },
}

/// Why a request to a registry failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The connection, TLS or the HTTP of the answer.
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    /// The answer did not come in time.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// An address that the registry names, or its own, is none.
    #[error("invalid URL: {0}")]
    Url(String),
    /// The registry wants credentials, or others.
    #[error("not authorized: url {url}")]
    Unauthorized {
        /// What was asked for.
        url: String,
    },
    /// No token was given for the credentials.
    #[error("authorization failed: {0}")]
    Authorization(String),
    /// The token cannot be read.
    #[error("the registry's token cannot be read: {0}")]
    Token(String),
    /// The registry refuses and gives its reasons in the form of the specification.
    #[error("the registry refuses: url {url}, {messages}")]
    Refused {
        /// What was asked for.
        url: String,
        /// Its reasons.
        messages: String,
    },
    /// Any other answer.
    #[error("the registry's answer is an error: url {url}, code: {code}, message: {message}")]
    Answer {
        /// What was asked for.
        url: String,
        /// HTTP status.
        code: u16,
        /// The beginning of its text.
        message: String,
    },
}
