//! SHA-256 digests as types: of contents, and of layers as the store names them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A text that is not a SHA-256 digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a sha256 digest")]
pub struct DigestError {
    /// Its beginning.
    text: String,
}

/// A SHA-256 digest, written `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    pub(crate) fn finish(hasher: Sha256) -> Self {
        Self(hasher.finalize().into())
    }

    /// Its 64 hexadecimal digits, without `sha256:`.
    pub fn hex(&self) -> String {
        use fmt::Write as _;
        self.0.iter().fold(String::with_capacity(64), |mut text, byte| {
            write!(text, "{byte:02x}").expect("writing to a string does not fail");
            text
        })
    }

    /// From 64 hexadecimal digits.
    pub(crate) fn from_hex(hex: &str) -> Option<Self> {
        let lower = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
        if hex.len() != 64 || !hex.as_bytes().iter().all(lower) {
            return None;
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[index * 2..index * 2 + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let digest = text.strip_prefix("sha256:").and_then(Self::from_hex);
        digest.ok_or_else(|| DigestError { text: text.chars().take(100).collect() })
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Self, DigestError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

/// Names an unpacked layer of the store.
///
/// It is the digest of the layer's uncompressed archive (`diff_id`), except where the tree also depends on the layers
/// below it (see [`LayerDigest::over`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LayerDigest(Digest);

impl LayerDigest {
    /// A layer whose tree depends on nothing but its archive.
    pub(crate) fn alone(diff_id: Digest) -> Self {
        Self(diff_id)
    }

    /// A layer whose tree took something from the layers below: metadata of directories that its archive leaves out,
    /// or (`merged`) the symbolic links to directories that a tarball's paths go through.
    pub(crate) fn over(diff_id: Digest, below: &[Self], merged: bool) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(if merged { "torpor tarball over layers\n" } else { "torpor layer over layers\n" });
        hasher.update(diff_id.0);
        for layer in below {
            hasher.update(layer.0.0);
        }
        Self(Digest::finish(hasher))
    }

    /// A layer that came from another machine as a tree ([`crate::write_tree`]), of which the archive is not known. Its
    /// sender's name for it cannot be checked, so it gets one of its own by what came.
    pub(crate) fn moved(stream: Digest) -> Self {
        let mut hasher = Sha256::new();
        hasher.update("torpor moved layer\n");
        hasher.update(stream.0);
        Self(Digest::finish(hasher))
    }

    pub(crate) fn hex(&self) -> String {
        self.0.hex()
    }

    pub(crate) fn from_hex(hex: &str) -> Option<Self> {
        Digest::from_hex(hex).map(Self)
    }
}

impl fmt::Display for LayerDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

impl fmt::Debug for LayerDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

impl FromStr for LayerDigest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        text.parse().map(Self)
    }
}
