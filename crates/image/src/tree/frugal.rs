//! Decoding lists within a bound on memory.
//!
//! In memory a record takes up to 200 times as many bytes as encoded: an empty list is one byte there and 24 here. Whoever writes a
//! state could make its reader allocate that much. So every list and box of a tree charges what it allocates, before it does, to a
//! budget of the calling thread. Without [`within`] there is no bound: an image of this machine's own must not become unreadable.
//!
//! Lists grow by a quarter, and never beyond the length that they announce, so that little is allocated in vain.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// Bytes that are allocated at once for a list that only says that it is long.
const FIRST_BYTES: usize = 4096;

thread_local! {
    /// What may still be allocated, bytes.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Decodes with so many bytes for lists and boxes; whether they were enough.
pub(super) fn within<T>(bytes: usize, decode: impl FnOnce() -> T) -> (T, bool) {
    LEFT.set(bytes);
    let done = decode();
    let enough = LEFT.get() > 0;
    LEFT.set(usize::MAX);
    (done, enough)
}

fn charge<E: Error>(bytes: usize) -> Result<(), E> {
    LEFT.with(|left| {
        if left.get() == usize::MAX {
            return Ok(());
        }
        let rest = left.get().saturating_sub(bytes);
        left.set(rest);
        if rest == 0 { Err(E::custom("too much memory")) } else { Ok(()) }
    })
}

struct Frugal<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Frugal<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let announced = list.size_hint().unwrap_or(usize::MAX);
        let first = (FIRST_BYTES / size_of::<T>().max(1)).max(1);
        let mut items: Vec<T> = Vec::new();
        while let Some(item) = list.next_element()? {
            if items.len() == items.capacity() {
                let left = announced.saturating_sub(items.len()).max(1);
                let more = first.max(items.len() / 4).min(left);
                charge(more.saturating_mul(size_of::<T>()))?;
                items.reserve_exact(more);
            }
            items.push(item);
        }
        Ok(items)
    }
}

/// A list.
pub(super) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(Frugal(PhantomData))
}

/// What is large in a list of small things.
pub(super) fn boxed<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Box<T>, D::Error> {
    charge(size_of::<T>())?;
    T::deserialize(from).map(Box::new)
}

/// The same where it may be missing.
pub(super) fn maybe_boxed<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<Box<T>>, D::Error> {
    let found: Option<Box<T>> = Option::deserialize(from)?;
    if found.is_some() {
        charge(size_of::<T>())?;
    }
    Ok(found)
}
