//! How Torpor refuses: one shape for every error on the wire.

use serde::{Deserialize, Serialize};

/// What kind of refusal it was; decides the HTTP status and the exit code of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The request itself is wrong (400).
    Invalid,
    /// There is no such app, image or event (404).
    NotFound,
    /// The name, port or state is taken or does not fit (409).
    Conflict,
    /// The machine or kernel lacks what is needed (501).
    Unsupported,
    /// Something failed on our side (500).
    Internal,
    /// It did not come to its end in the time that it was given, and goes on unless the message says otherwise (504).
    Timeout,
}

/// An error as a user sees it: what happened, to which app, what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error, utoipa::ToSchema)]
#[error("{message}")]
pub struct ApiError {
    /// What kind of refusal.
    pub kind: ErrorKind,
    /// What happened, and to which app; the whole chain of causes in one line.
    pub message: String,
    /// What the user can do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Where a program was to be run and cannot be: the exit status that a shell gives for this, 127 if there is none of that
    /// name and 126 if it cannot be executed. The command line ends with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_status: Option<i32>,
}

impl ApiError {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, exit_status: None }
    }

    /// The same error with advice.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// An internal error from any error, with its chain of causes in one line.
    pub fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::new(ErrorKind::Internal, chain(error))
    }
}

/// `error` and its causes, joined by `: `.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
