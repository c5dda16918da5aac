//! What passes between a program and its host.

use std::ffi::{c_int, c_void};

use crate::ffi::{self, RawOf, RawStep, RawString, RawValue, kind};

/// Values that the host takes of a step at most, and bytes of their strings.
const MOST_VALUES: usize = 1 << 16;
const MOST_BYTES: usize = 16 << 20;

/// A value.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
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
    /// A table: a copy of its pairs, in any order, without its metatable. Tables are at most 16 deep.
    Table(Vec<(Self, Self)>),
    /// An object of the host's, by its number. Programs have one value for it, which is a key of tables; its methods are requests.
    Handle(i64),
    /// A function, coroutine or userdata: it stays where it is. The number of its type as in lua.h.
    Other(i64),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.as_bytes().to_vec())
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self::String(bytes.to_vec())
    }
}

impl From<bool> for Value {
    fn from(is: bool) -> Self {
        Self::Boolean(is)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl Value {
    /// The field of a table.
    pub fn field(&self, name: &str) -> Option<&Self> {
        let Self::Table(pairs) = self else { return None };
        let is_it = |key: &Self| matches!(key, Self::String(bytes) if bytes == name.as_bytes());
        pairs.iter().find(|(key, _)| is_it(key)).map(|(_, value)| value)
    }

    /// Its bytes, if it is a string.
    pub fn bytes(&self) -> Option<&[u8]> {
        let Self::String(bytes) = self else { return None };
        Some(bytes)
    }

    /// It as a number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Integer(number) => Some(*number as f64),
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// As C takes it, behind others; valid as long as this value.
    pub(crate) fn add_raw(&self, to: &mut Vec<RawValue>) {
        let (kind, of) = match self {
            Self::Nil | Self::Other(_) => (kind::NIL, RawOf { integer: 0 }),
            Self::Boolean(is) => (kind::BOOLEAN, RawOf { integer: i64::from(*is) }),
            Self::Integer(integer) => (kind::NUMBER, RawOf { integer: *integer }),
            Self::Handle(number) => (kind::HANDLE, RawOf { integer: *number }),
            Self::Number(number) => (kind::FLOAT, RawOf { number: *number }),
            Self::String(bytes) => {
                (kind::STRING, RawOf { string: RawString { bytes: bytes.as_ptr(), len: bytes.len() } })
            }
            Self::Table(pairs) => {
                // There is no key nil in a table, nor one that is not a number.
                let is_key = |key: &Self| match key {
                    Self::Nil | Self::Other(_) => false,
                    Self::Number(number) => !number.is_nan(),
                    _ => true,
                };
                let pairs = || pairs.iter().filter(|(key, _)| is_key(key));
                to.push(RawValue { kind: kind::TABLE, of: RawOf { integer: pairs().count() as i64 } });
                for (key, value) in pairs() {
                    key.add_raw(to);
                    value.add_raw(to);
                }
                return;
            }
        };
        to.push(RawValue { kind, of });
    }
}

/// Values that C has visited: tables that have begun, and within each what is in it, a key before its value.
#[derive(Default)]
struct Visited {
    open: Vec<Vec<Value>>,
    done: Vec<Value>,
    count: usize,
    bytes: usize,
}

impl Visited {
    fn add(&mut self, value: Value) {
        self.open.last_mut().unwrap_or(&mut self.done).push(value);
    }

    /// # Safety
    /// C has made it, and its string is still there.
    unsafe fn visit(&mut self, raw: &RawValue) -> bool {
        self.count += 1;
        // SAFETY: the field that is read is the one that the kind says.
        let value = unsafe {
            match raw.kind {
                kind::NIL => Value::Nil,
                kind::BOOLEAN => Value::Boolean(raw.of.integer != 0),
                kind::NUMBER => Value::Integer(raw.of.integer),
                kind::HANDLE => Value::Handle(raw.of.integer),
                kind::FLOAT => Value::Number(raw.of.number),
                kind::STRING => {
                    let RawString { bytes, len } = raw.of.string;
                    self.bytes = self.bytes.saturating_add(len);
                    if self.bytes > MOST_BYTES {
                        return false;
                    }
                    Value::String(std::slice::from_raw_parts(bytes, len).to_vec())
                }
                kind::TABLE => {
                    self.open.push(Vec::new());
                    return self.count < MOST_VALUES;
                }
                kind::END => {
                    let mut all = self.open.pop().unwrap_or_default().into_iter();
                    Value::Table(std::iter::from_fn(|| Some((all.next()?, all.next()?))).collect())
                }
                other => Value::Other(other),
            }
        };
        self.add(value);
        self.count < MOST_VALUES
    }
}

unsafe extern "C" fn visit(context: *mut c_void, value: *const RawValue) -> c_int {
    // SAFETY: `all_of` passes what it has, and C a value of its own.
    let (visited, value) = unsafe { (&mut *context.cast::<Visited>(), &*value) };
    // SAFETY: C has made it, and its string is there until the step is finished.
    c_int::from(unsafe { visited.visit(value) })
}

/// All values of a step; none where there is too much of them.
///
/// # Safety
/// It is the last step of its state, whose arena is attached, and is not finished.
pub(crate) unsafe fn all_of(step: &RawStep) -> Option<Vec<Value>> {
    let mut visited = Visited::default();
    // SAFETY: as the caller says; `visit` gets what it expects.
    let all = unsafe { ffi::torpor_visit_values(step, visit, (&raw mut visited).cast()) };
    (all != 0).then_some(visited.done)
}
