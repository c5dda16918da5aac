//! The bearer token of the TCP API, in the hands of server and client.
//!
//! It is read from a file that only its owner can read, never from the command line (which every user of the machine can
//! see) and never printed: its `Debug` shows nothing.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Least length of a token, in bytes.
pub const LEAST_BYTES: usize = 16;
/// Longest token, in bytes.
pub const MOST_BYTES: usize = 4096;

/// A bearer token.
#[derive(Clone)]
pub struct Token(String);

/// Why a token cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("cannot read token file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Others can read it.
    #[error("token file {} has mode {mode:04o}: others could read it; run chmod 600 {}", path.display(), path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It is no token.
    #[error("token file {} must hold {LEAST_BYTES} to {MOST_BYTES} printable characters without spaces", .0.display())]
    Content(PathBuf),
}

impl Token {
    /// Reads a token from a file of mode 0600 or less; white space around it does not count.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Read { path: path.to_owned(), source };
        let file = crate::regular::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(TokenError::Mode { path: path.to_owned(), mode });
        }
        let mut text = String::new();
        file.take(MOST_BYTES as u64 + 2).read_to_string(&mut text).map_err(failed)?;
        let text = text.trim();
        if !(LEAST_BYTES..=MOST_BYTES).contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::Content(path.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }

    /// The token itself, for a header or a comparison.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}
