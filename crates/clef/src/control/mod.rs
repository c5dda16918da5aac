//! What commands ask of a host that runs elsewhere: in a sandbox, say.
//!
//! ```text
//! torpor clef … ─ exec ─▶ relay ── Unix socket ──▶ answer ──▶ Clefs
//! ```
//! One request for each connection, as JSON on one line; one answer, as JSON on a line, or several of them with [`ControlAnswer::End`] as the
//! last. The relay passes lines on as they are, so a command can ask hosts that are older than it: what they do not know, they answer with an error,
//! and fields that the command does not know are passed over.

mod answer;
mod inspect;
mod relay;
mod value;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

pub use self::answer::serve_control;
pub use self::inspect::{AlarmView, ClefView, Global, Put, Ran};
pub use self::relay::relay;
use crate::host::{ClefStatus, Stats};
use crate::key::Key;
use crate::note::Usage;
use crate::program::Program;

/// Bytes of a line at most: a copy of a Clef with the largest memory and its note, encoded, and then some.
pub const MOST_LINE_BYTES: usize = 128 << 20;
/// Bytes of a copy of a Clef at most: so many are a line, encoded.
pub const MOST_COPY_BYTES: usize = 95 << 20;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ControlRequest {
    /// Calls a function of a Clef, which is created if there is none.
    Call {
        /// Which one.
        key: Key,
        /// Name of the function.
        function: String,
        /// What it gets.
        arguments: Vec<Json>,
    },
    /// All Clefs: a [`ControlAnswer::Clef`] for each, then the end.
    List {},
    /// Numbers.
    Stats {},
    /// Puts Clefs to sleep.
    Sleep {
        /// Which one; absent: all.
        key: Option<Key>,
    },
    /// Removes a Clef and its state.
    Remove {
        /// Which one.
        key: Key,
    },
    /// All about a Clef: [`ControlAnswer::Inspected`].
    Inspect {
        /// Which one.
        key: Key,
    },
    /// What a Clef has used: [`ControlAnswer::Used`].
    Usage {
        /// Which one.
        key: Key,
    },
    /// Has a Clef in memory.
    Wake {
        /// Which one.
        key: Key,
    },
    /// Runs a line of Lua in a Clef: [`ControlAnswer::Ran`].
    Run {
        /// Which one.
        key: Key,
        /// An expression, or statements.
        line: String,
        /// Keeps what it changes.
        keeps: bool,
    },
    /// Copies a Clef.
    Fork {
        /// Which one.
        key: Key,
        /// The key of the copy.
        to: Key,
    },
    /// A copy for elsewhere: [`ControlAnswer::Exported`].
    Export {
        /// Which one.
        key: Key,
    },
    /// Makes a Clef of a copy.
    Import {
        /// Its key.
        key: Key,
        /// What was exported, in base64.
        copy: String,
    },
    /// Changes the code, for the host's next start too. Each Clef gets it at its next call.
    Upgrade {
        /// The new code.
        program: Program,
    },
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlAnswer {
    /// What a function has returned. Bytes that are not UTF-8 are replaced; what JSON has nothing for is null.
    Returned(Vec<Json>),
    /// One of the Clefs.
    Clef(ClefStatus),
    /// Numbers.
    Stats(Stats),
    /// How many Clefs were awake, and sleep now.
    Slept(u64),
    /// Whether there was such a Clef.
    Removed(bool),
    /// It has the new code.
    Upgraded {},
    /// All about a Clef.
    Inspected(Box<ClefView>),
    /// What a Clef has used.
    Used(Usage),
    /// Whether it was asleep.
    Woken(bool),
    /// What a chunk has done.
    Ran(Ran),
    /// There is a copy now.
    Copied {},
    /// A copy, in base64.
    Exported(String),
    /// There is no such Clef.
    Missing {},
    /// There is a Clef with the key of the copy.
    Exists {},
    /// There are no more.
    End {},
    /// Why it is not done, in words.
    Error(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_look_like_this() {
        let call =
            ControlRequest::Call { key: Key(b"a".to_vec()), function: "f".to_owned(), arguments: vec![1.into()] };
        for (request, json) in [
            (call, r#"{"call":{"key":"a","function":"f","arguments":[1]}}"#),
            (ControlRequest::List {}, r#"{"list":{}}"#),
            (ControlRequest::Sleep { key: None }, r#"{"sleep":{"key":null}}"#),
        ] {
            assert_eq!(serde_json::to_string(&request).unwrap(), json);
            assert_eq!(serde_json::from_str::<ControlRequest>(json).unwrap(), request);
        }
        assert_eq!(serde_json::to_string(&ControlAnswer::End {}).unwrap(), r#"{"end":{}}"#);
    }
}
