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
        Self { kind, message: without_numbers(&message.into()), hint: None, exit_status: None }
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

/// `error` and its causes in one line, joined by `: `. Messages may hold names that an enemy has chosen: see [`one_line`].
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    one_line(&causes(error))
}

/// `error` and its causes, joined by `: `, [without numbers](without_numbers) and otherwise as they are: for errors of what the
/// user has written, whose excerpts take several lines.
pub fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    without_numbers(&text)
}

/// `text` without the numbers that the standard library puts behind the texts of errors of the system: ` (os error 2)`.
pub fn without_numbers(text: &str) -> String {
    const BEGIN: &str = " (os error ";
    let mut parts = text.split(BEGIN);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
                plain.push_str(rest);
            }
            _ => plain.extend([BEGIN, part]),
        }
    }
    plain
}

/// Text that stays in its line and reads as it is written: control characters but tabs, and what [`is_deceptive`], as escapes
/// (`\n`, `\u{202e}`).
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if (c.is_control() && c != '\t') || is_deceptive(c) {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

/// A character that nobody sees and that changes how others are read: marks and overrides of direction, separators of lines and
/// paragraphs, invisible formatting, tags. Joiners, which scripts need, are none of them.
pub const fn is_deceptive(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_are_told_in_words() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot open `x` ({text})")]
        struct Outer {
            text: String,
            #[source]
            source: std::io::Error,
        }
        let source = || std::io::Error::from_raw_os_error(2);
        let outer = Outer { text: source().to_string(), source: source() };
        let told = "cannot open `x` (No such file or directory): No such file or directory";
        assert_eq!(chain(&outer), told);
        assert_eq!(ApiError::internal(&outer).message, told);
        for unchanged in ["", "an (os error )", "an (os error x)", "an (os error 2", "(os error 2)"] {
            assert_eq!(without_numbers(unchanged), unchanged);
        }
    }

    #[test]
    fn a_chain_is_one_line_that_reads_as_it_is_written() {
        let forged =
            "no `a\nINFO forged\u{1b}[2J\u{9b}\u{202e}\u{2028}\u{200b}\u{2066}\u{e0041}`, \tbut `é 🤷\u{200d} \\n`";
        let error = ApiError::new(ErrorKind::Invalid, forged);
        let expected = r"no `a\nINFO forged\u{1b}[2J\u{9b}\u{202e}\u{2028}\u{200b}\u{2066}\u{e0041}`, ".to_owned()
            + "\tbut `é 🤷\u{200d} \\n`";
        assert_eq!(chain(&error), expected);
        assert_eq!(one_line(&expected), expected);
        assert_eq!(causes(&error), forged);
    }
}
