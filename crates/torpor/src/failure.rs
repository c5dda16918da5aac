//! Why a command failed, what the user reads of it, and the exit code.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | failed |
//! | 2 | the command or the description of the app is wrong |
//! | 3 | no such app, image or file; `checkpoint`, `restore`: refused |
//! | 4 | a name, port or state is in the way |
//! | 5 | the machine or kernel lacks what is needed |
//! | 6 | it took longer than `--timeout` |
//! | 7 | `down`: done, but the memory of an app is not kept |
//! | 126, 127 | an app's program, or a command in it, cannot be executed, or is not there |
//!
//! `exec` gives back the command's own status instead.

use std::io::{self, Write};
use std::path::PathBuf;

use torpor_api::client::ClientError;
use torpor_api::parse::ParseError;
use torpor_api::token::TokenError;
use torpor_api::{ApiError, ErrorKind, error};
use torpor_clef::{Key, ProgramError};
use torpor_engine::{Blocker, CheckpointError, RestoreError};
use torpor_hub::HubError;
use torpor_store::ImageError;

use crate::config::ConfigError;
use crate::output;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The daemon refused, or could not be asked.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Something was refused here.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// A short form is wrong.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The token cannot be read.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The daemon cannot start.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The arguments do not go together, or a file that the user has written is wrong; may have several lines.
    #[error("{0}")]
    Usage(String),
    /// Only root may do that.
    #[error("torpor {0} must run as root")]
    NotRoot(&'static str),
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The terminal or a standard stream failed.
    #[error("cannot {what}")]
    Terminal {
        /// What was tried.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// An image could not be looked into.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// An archive is not whole.
    #[error(transparent)]
    Archive(#[from] torpor_api::archive::ArchiveError),
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Clefs cannot be hosted.
    #[error("{0}")]
    Clef(String),
    /// A program in Lua has failed; may have several lines.
    #[error("{0}")]
    InClef(String),
    /// The program of a class cannot be had.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The app is something else.
    #[error("{0} is an app, not a class of Clefs")]
    NoClass(String),
    /// The class has no such Clef.
    #[error("{class} has no Clef {key}")]
    NoClef {
        /// The class.
        class: String,
        /// Whose key.
        key: Key,
    },
    /// The class has a Clef with this key.
    #[error("{class} has a Clef {key} already")]
    ClefExists {
        /// The class.
        class: String,
        /// Its key.
        key: Key,
    },
    /// A file is in the way.
    #[error("{} exists already", .0.display())]
    FileExists(PathBuf),
    /// Nobody can connect.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: std::net::SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The user gave it up.
    #[error("given up")]
    Interrupted,
    /// A tree could not be captured.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A tree could not be restored.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// A program ended as soon as it had started.
    #[error("{app} has ended: {reason}{}", if *restarts { "; its restart policy starts it again" } else { "" })]
    Ended {
        /// Its app.
        app: String,
        /// How, in words.
        reason: String,
        /// Whether its restart policy starts it again.
        restarts: bool,
        /// The last lines that it wrote.
        output: Vec<String>,
    },
    /// `torpor down` is done, and has stopped apps whose memory it was to keep.
    #[error("the memory of {} is not kept", .0.join(", "))]
    NotKept(Vec<String>),
    /// The exec stream broke.
    #[error("the exec stream broke")]
    Frame(#[from] torpor_api::frame::FrameError),
    /// Torpor ended the exec stream without a status.
    #[error("torpor ended the exec stream before the command had ended")]
    NoStatus,
    /// A value cannot be written as JSON.
    #[error("cannot write the result as json")]
    Json(#[from] serde_json::Error),
    /// The reader of our output left; not an error that anyone reads.
    #[error("nobody reads the output")]
    PipeClosed,
}

impl Failure {
    /// A failed write to standard output.
    pub(crate) fn output(source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::BrokenPipe => Self::PipeClosed,
            _ => Self::Terminal { what: "write to standard output", source },
        }
    }

    /// The exit code.
    pub(crate) fn code(&self) -> i32 {
        match self {
            Self::PipeClosed => 0,
            Self::Client(ClientError::Refused(ApiError { exit_status: Some(status), .. }))
            | Self::Api(ApiError { exit_status: Some(status), .. }) => *status,
            Self::Client(ClientError::Refused(error)) | Self::Api(error) => match error.kind {
                ErrorKind::Invalid => 2,
                ErrorKind::NotFound => 3,
                ErrorKind::Conflict => 4,
                ErrorKind::Unsupported => 5,
                ErrorKind::Internal => 1,
                ErrorKind::Timeout => 6,
            },
            Self::Parse(ParseError::NoFile(_)) => 3,
            Self::NoClass(_) | Self::NoClef { .. } => 3,
            Self::Read { source, .. }
            | Self::Program(ProgramError::Read(_, source))
            | Self::Image(ImageError::Read(_, source))
            | Self::Restore(RestoreError::Read(_, source))
                if source.kind() == io::ErrorKind::NotFound =>
            {
                3
            }
            Self::Parse(_) | Self::Config(_) | Self::Usage(_) | Self::Program(_) => 2,
            Self::NotKept(_) => 7,
            Self::Interrupted => 130,
            Self::Hub(HubError::AlreadyRunning { .. } | HubError::NameTaken { .. } | HubError::SocketTaken { .. }) => 4,
            Self::Checkpoint(CheckpointError::Refused { .. }) => 3,
            Self::Listen { .. } | Self::ClefExists { .. } | Self::FileExists(_) => 4,
            Self::Restore(error) if error.is_refusal() => 3,
            _ => 1,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Client(ClientError::Refused(error)) | Self::Api(error) => error.hint.clone(),
            Self::Client(ClientError::NotRunning { .. }) => {
                Some("start it with: torpor up (or: systemctl start torpor)".to_owned())
            }
            Self::Client(ClientError::NotAllowed { .. }) | Self::NotRoot(_) => {
                Some("run the command as root, for example with sudo".to_owned())
            }
            Self::Ended { app, output, .. } if output.is_empty() => {
                Some(format!("it wrote nothing; its description: torpor inspect {app}"))
            }
            Self::Ended { app, .. } => Some(format!("all that it wrote: torpor logs {app}")),
            Self::NoClass(_) => Some("the classes are listed by: torpor clef ls".to_owned()),
            Self::NoClef { class, .. } => Some(format!("its Clefs are listed by: torpor clef ls {class}")),
            Self::ClefExists { class, key } => {
                Some(format!("choose another key, or remove it: torpor clef rm {class}/{key}"))
            }
            Self::FileExists(_) => Some("choose another name, or remove the file".to_owned()),
            Self::Hub(HubError::AlreadyRunning { .. }) => {
                Some("use the one that runs, or give this one its own data_dir and run_dir".to_owned())
            }
            Self::Client(ClientError::Foreign { path, .. }) => Some(format!(
                "only root can listen there for torpor: remove {} and start the daemon, or choose a directory in which only root can \
                 make files (`socket` in `[api]`)",
                path.display()
            )),
            Self::Hub(HubError::SocketTaken { .. }) => Some(
                "use the one that runs, or give this one its own run_dir, and `socket` in `[api]` if it is set"
                    .to_owned(),
            ),
            Self::Hub(HubError::NameTaken { .. }) => {
                Some("use the one that runs, or give this one its own instance and pools".to_owned())
            }
            _ => None,
        }
    }

    /// What the user reads: what happened, and what to do. It may hold names that an enemy has chosen.
    pub(crate) fn text(&self) -> String {
        self.raw_text().lines().map(|line| format!("{}\n", output::safe(line))).collect()
    }

    fn raw_text(&self) -> String {
        let told = match self {
            // Excerpts of what the user has written, in their own lines.
            Self::Parse(_) | Self::Config(_) | Self::Usage(_) | Self::InClef(_) | Self::Program(_) => {
                error::causes(self)
            }
            _ => error::chain(self),
        };
        let mut text = format!("torpor: {told}\n");
        if let Self::Checkpoint(CheckpointError::Refused { obstacles, .. }) = self {
            for obstacle in Blocker::lines(obstacles) {
                text.push_str(&format!("  {}\n", error::one_line(&obstacle)));
            }
        }
        if let Self::Ended { output, .. } = self {
            for line in output {
                text.push_str(&format!("  {}\n", error::one_line(line)));
            }
        }
        if let Some(hint) = self.hint() {
            text.push_str(&format!("  {}\n", error::one_line(&hint)));
        }
        text
    }

    /// Tells the user and gives the exit code.
    pub(crate) fn report(&self) -> i32 {
        if !matches!(self, Self::PipeClosed) {
            // Where standard error is closed too, the exit code is all that is left to say.
            let _ = io::stderr().write_all(self.text().as_bytes());
        }
        self.code()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_errors_forge_no_lines() {
        let error = ApiError::new(ErrorKind::Invalid, "path `x\n2026-01-01 INFO forged\u{202e}` does not fit")
            .with_hint("remove `a\nb`");
        for failure in [Failure::Api(error.clone()), Failure::Client(ClientError::Refused(error))] {
            let text = failure.text();
            let expected = ["torpor: path `x\\n2026-01-01 INFO forged\\u{202e}` does not fit", "  remove `a\\nb`"];
            assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        }
        // What the user has written is shown in its own lines.
        let excerpt = Failure::Usage("not TOML:\n1 | a =\n  |   ^".to_owned());
        assert_eq!(excerpt.text().lines().count(), 3);
    }
}
