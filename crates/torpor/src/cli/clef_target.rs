//! Names of Clefs.

use std::str::FromStr;

use torpor_clef::Key;

use super::name;

/// A class, or one of its Clefs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) class: String,
    pub(crate) key: Option<Key>,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (class, key) = match text.split_once('/') {
            None => (text, None),
            Some((class, key)) => (class, Some(key.parse().map_err(|error| format!("{error}"))?)),
        };
        Ok(Self { class: name(class)?, key })
    }
}
