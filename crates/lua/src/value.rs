//! What passes between a program and its host.

use crate::ffi::{RawOf, RawString, RawValue, kind};

/// A value. Tables, functions and others stay in their state.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `nil`.
    Nil,
    /// `true` or `false`.
    Boolean(bool),
    /// An integer.
    Integer(i64),
    /// A number that is not an integer.
    Number(f64),
    /// A string, of any bytes.
    String(Vec<u8>),
    /// Something else; the number of its type as in lua.h.
    Other(i64),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.as_bytes().to_vec())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl Value {
    /// As C takes it; valid as long as this value.
    pub(crate) fn raw(&self) -> RawValue {
        let (kind, of) = match self {
            Self::Nil | Self::Other(_) => (kind::NIL, RawOf { integer: 0 }),
            Self::Boolean(is) => (kind::BOOLEAN, RawOf { integer: i64::from(*is) }),
            Self::Integer(integer) => (kind::NUMBER, RawOf { integer: *integer }),
            Self::Number(number) => (kind::FLOAT, RawOf { number: *number }),
            Self::String(bytes) => {
                (kind::STRING, RawOf { string: RawString { bytes: bytes.as_ptr(), len: bytes.len() } })
            }
        };
        RawValue { kind, of }
    }

    /// # Safety
    /// C has made it, and its string is still there.
    pub(crate) unsafe fn of(raw: &RawValue) -> Self {
        // SAFETY: the field that is read is the one that the kind says.
        unsafe {
            match raw.kind {
                kind::NIL => Self::Nil,
                kind::BOOLEAN => Self::Boolean(raw.of.integer != 0),
                kind::NUMBER => Self::Integer(raw.of.integer),
                kind::FLOAT => Self::Number(raw.of.number),
                kind::STRING => {
                    let RawString { bytes, len } = raw.of.string;
                    Self::String(std::slice::from_raw_parts(bytes, len).to_vec())
                }
                other => Self::Other(other),
            }
        }
    }
}
