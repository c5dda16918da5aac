//! Keys as people write them.

use std::fmt;
use std::str::FromStr;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode, utf8_percent_encode};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::log::MOST_KEY_BYTES;

/// What is written as `%XX`.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// The key of a Clef. It is written as it is, but for `%`, control characters and bytes that are not UTF-8, which are `%XX`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub Vec<u8>);

/// Why a text is no key.
#[derive(Debug, thiserror::Error)]
#[error("a key has 1 to {MOST_KEY_BYTES} bytes")]
pub struct KeyError;

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let key: Vec<u8> = percent_decode_str(text).collect();
        if key.is_empty() || key.len() > MOST_KEY_BYTES { Err(KeyError) } else { Ok(Self(key)) }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(text) = std::str::from_utf8(&self.0) else { return percent_encode(&self.0, ENCODED).fmt(f) };
        for char in text.chars() {
            let mut buffer = [0; 4];
            let written = char.encode_utf8(&mut buffer);
            if char.is_ascii() || char.is_control() {
                utf8_percent_encode(written, ENCODED).fmt(f)?;
            } else {
                f.write_str(written)?;
            }
        }
        Ok(())
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'d> Deserialize<'d> for Key {
    fn deserialize<D: Deserializer<'d>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_look_like_what_they_are() {
        for (bytes, text) in [
            (&b"ann"[..], "ann"),
            ("größe/2 é".as_bytes(), "größe/2 é"),
            (b"100%", "100%25"),
            (b"a\nb\x7f", "a%0Ab%7F"),
            (b"\xffa%", "%FFa%25"),
            ("\u{85}".as_bytes(), "%C2%85"),
        ] {
            assert_eq!(Key(bytes.to_vec()).to_string(), text);
            assert_eq!(text.parse::<Key>().unwrap().0, bytes);
        }
        assert!("".parse::<Key>().is_err() && "a".repeat(1025).parse::<Key>().is_err());
    }

    proptest! {
        #[test]
        fn every_key_comes_back(bytes in proptest::collection::vec(any::<u8>(), 1..40)) {
            let key = Key(bytes);
            prop_assert_eq!(key.to_string().parse::<Key>().unwrap(), key);
        }
    }
}
