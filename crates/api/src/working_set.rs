//! Which pages a wake brings back before the program runs, as people write it: `"1 of 2"`, `"last"`, `"union"`, `"present"`, `"none"`, `"all"`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::units::text_serde;

/// Wakes that a policy looks back at most.
pub const MOST_WAKES: u8 = 8;

/// Which pages of an app come back before its program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkingSetPolicy {
    /// Pages that were touched in `k` of the last `n` wakes that showed it.
    Of {
        /// 1 to `n`.
        k: u8,
        /// 1 to [`MOST_WAKES`].
        n: u8,
    },
    /// Pages that any wake has touched.
    Union,
    /// Pages that were touched in one of the last two wakes, with the pages that came beside them (FaaSnap's present pages).
    Present,
    /// No page.
    None,
    /// Every page: the wake is not lazy.
    All,
}

impl Default for WorkingSetPolicy {
    fn default() -> Self {
        Self::Of { k: 1, n: 2 }
    }
}

/// Not a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no working set: write for example \"1 of 2\" (of the last wakes, at most {MOST_WAKES}), or last, union, present, none or all"
)]
pub struct WorkingSetError(String);

impl FromStr for WorkingSetPolicy {
    type Err = WorkingSetError;

    fn from_str(text: &str) -> Result<Self, WorkingSetError> {
        Ok(match text.trim() {
            "last" => Self::Of { k: 1, n: 1 },
            "union" => Self::Union,
            "present" => Self::Present,
            "none" => Self::None,
            "all" => Self::All,
            other => {
                let numbers = other.split_once(" of ").and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
                let bounded = numbers.filter(|(k, n)| 1 <= *k && k <= n && *n <= MOST_WAKES);
                let (k, n) = bounded.ok_or_else(|| WorkingSetError(text.to_owned()))?;
                Self::Of { k, n }
            }
        })
    }
}

impl fmt::Display for WorkingSetPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of { k: 1, n: 1 } => f.write_str("last"),
            Self::Of { k, n } => write!(f, "{k} of {n}"),
            Self::Union => f.write_str("union"),
            Self::Present => f.write_str("present"),
            Self::None => f.write_str("none"),
            Self::All => f.write_str("all"),
        }
    }
}

text_serde!(
    WorkingSetPolicy,
    "a working set such as \"1 of 2\", \"last\", \"union\", \"present\", \"none\" or \"all\"",
    "Pages that come back before the program runs: those touched in K of the last N wakes, such as \"1 of 2\", or last, union, present, none or all."
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_survive_their_text_and_others_are_refused() {
        for text in ["last", "1 of 2", "3 of 8", "union", "present", "none", "all"] {
            assert_eq!(text.parse::<WorkingSetPolicy>().unwrap().to_string(), text);
        }
        assert_eq!("1 of 1".parse(), Ok(WorkingSetPolicy::Of { k: 1, n: 1 }));
        for text in ["", "0 of 2", "3 of 2", "1 of 9", "1 of", "one of two", "Last"] {
            assert!(text.parse::<WorkingSetPolicy>().is_err(), "{text}");
        }
    }
}
