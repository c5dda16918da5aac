//! How a class is deployed: what its host reads when it starts.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use torpor_api::units::{Bytes, Span};

use crate::class::{Class, Code, Durability, Limits};
use crate::frames::Frames;
use crate::route::KeyPattern;
use crate::serve::Allowed;

/// How long a host has nothing to do before it rests, unless that is set. An app sleeps 2 s after a wake at the earliest: by then it must not be
/// at work.
const REST_AFTER: Span = Span(Duration::from_secs(1));

/// How a class is deployed, as JSON in its image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deployment {
    /// Of the class, in messages to and of Clefs.
    pub name: String,
    /// Which part of a request names the Clef.
    #[serde(with = "as_text")]
    pub key: KeyPattern,
    /// It takes TCP connections, with messages like this; none: it takes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<Frames>,
    /// When changes are on disk.
    #[serde(default)]
    pub durability: Durability,
    /// Memory of each Clef.
    pub memory: Bytes,
    /// Processor time for each message.
    pub cpu: Span,
    /// Clefs that are awake at the same time.
    pub awake: usize,
    /// Whom programs may send HTTP requests to.
    #[serde(default)]
    pub allow: Allowed,
    /// How long the host has nothing to do before it puts all Clefs to sleep, so that its process can sleep too.
    #[serde(default = "rest_after")]
    pub rest_after: Span,
}

fn rest_after() -> Span {
    REST_AFTER
}

impl Deployment {
    /// Of a class whose host rests after the usual time.
    pub fn new(name: String, key: KeyPattern, durability: Durability, limits: Limits, allow: Allowed) -> Self {
        let Limits { memory_bytes, step, awake, .. } = limits;
        let (memory, cpu) = (Bytes(memory_bytes as u64), Span(step));
        Self { name, key, tcp: None, durability, memory, cpu, awake, allow, rest_after: REST_AFTER }
    }

    /// The class, with its code.
    pub fn class(&self, code: Code) -> Class {
        let limits =
            Limits { memory_bytes: self.memory.0 as usize, step: self.cpu.0, awake: self.awake, ..Limits::default() };
        Class { name: self.name.clone(), code, limits, durability: self.durability }
    }
}

mod as_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'d, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'d>,
    {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_read_as_they_are_written() {
        let allow = Allowed(vec!["*.example.org".parse().unwrap()]);
        let key = "path:/rooms/{key}/x".parse().unwrap();
        let mut deployment = Deployment::new("room.lua".to_owned(), key, Durability::Sleep, Limits::default(), allow);
        deployment.tcp = Some(Frames::Length);
        let json = serde_json::to_string(&deployment).unwrap();
        assert_eq!(serde_json::from_str::<Deployment>(&json).unwrap(), deployment);
        let few = r#"{"name": "a", "key": "query:k", "memory": "1M", "cpu": "50ms", "awake": 3}"#;
        let read: Deployment = serde_json::from_str(few).unwrap();
        assert_eq!((read.rest_after, read.durability), (REST_AFTER, Durability::Reply));
        assert!(serde_json::from_str::<Deployment>(&few.replace("awake", "awoken")).is_err());
        assert!(serde_json::from_str::<Deployment>(&few.replace("query:k", "k")).is_err());
    }
}
