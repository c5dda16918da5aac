//! The states of sleeping Clefs: for each key a chain of records, a whole state and what has changed since.
//!
//! A chain that has become long, or larger than the state that it leads to, is *folded*: the next record is a whole state. Segments of the log of
//! which little is still needed are collected: what is needed of them is folded into the last segment, and they are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use torpor_lua::{Image, ImageError};
use xxhash_rust::xxh3::xxh3_64;

use crate::index::Index;
use crate::log::{Found, Header, Kind, Location, Log, LogError};

/// Records of a chain at most.
const MOST_RECORDS: usize = 16;
/// A segment is collected when less than this share of it is needed, in percent.
const COLLECTED_BELOW: u64 = 50;

/// Why a state cannot be stored or had.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// An image.
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// States by key.
#[derive(Debug)]
pub struct Store {
    log: Log,
    index: Index,
    /// By segment: bytes of records that are needed.
    needed: BTreeMap<u32, u64>,
    /// Segments in which something cannot be read: they are not collected.
    unreadable: BTreeSet<u32>,
    /// What to do to the index if the next commit fails, the last first: key, where it was, where it is.
    undo: Vec<(u64, Option<Location>, Option<Location>)>,
}

fn hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

impl Store {
    /// Opens the store, with everything that was committed. Nobody else may change its directory.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let mut newest: BTreeMap<Vec<u8>, (Kind, Location)> = BTreeMap::new();
        let note = |Found { location, header, key }: Found<'_>| {
            newest.insert(key.to_vec(), (header.kind, location));
        };
        let log = Log::open(folder, note)?;
        let mut store = Self {
            log,
            index: Index::default(),
            needed: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            undo: Vec::new(),
        };
        for (key, (kind, location)) in newest {
            if kind == Kind::Removed {
                // It is needed as long as records of its key may lie before it.
                *store.needed.entry(location.segment).or_default() +=
                    store.log.header(location)?.0.record_bytes() as u64;
                continue;
            }
            store.index.insert(hash(&key), location.number());
            match store.chain(location) {
                Ok(chain) => {
                    for (location, header) in chain {
                        *store.needed.entry(location.segment).or_default() += header.record_bytes() as u64;
                    }
                }
                // Whoever loads it is told; the others go on.
                Err(error) => tracing::error!(key = %key.escape_ascii(), %error, "a state cannot be read"),
            }
        }
        Ok(store)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn find(&self, key: &[u8]) -> Result<Option<Location>, StoreError> {
        for location in self.index.find(hash(key)).filter_map(Location::of) {
            if self.log.header(location)?.1 == key {
                return Ok(Some(location));
            }
        }
        Ok(None)
    }

    /// Records that lead to a state, the newest first.
    fn chain(&self, newest: Location) -> Result<Vec<(Location, Header)>, StoreError> {
        let mut chain = Vec::new();
        let mut next = Some(newest);
        while let Some(location) = next {
            let (header, _) = self.log.header(location)?;
            chain.push((location, header));
            next = if header.kind == Kind::Changes { header.before } else { None };
        }
        Ok(chain)
    }

    fn append(
        &mut self,
        kind: Kind,
        key: &[u8],
        payload: &[u8],
        before: Option<Location>,
    ) -> Result<Location, StoreError> {
        if !self.log.has_room(payload.len()) {
            self.commit()?;
            self.log.begin_next(payload.len())?;
        }
        Ok(self.log.append(kind, key, payload, before)?)
    }

    /// Whether the next record of a key should be of its whole state, which has so many bytes.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn wants_whole(&self, key: &[u8], whole_bytes: usize) -> Result<bool, StoreError> {
        let Some(newest) = self.find(key)? else { return Ok(true) };
        let chain = self.chain(newest)?;
        let changes: usize = chain
            .iter()
            .filter(|(_, header)| header.kind == Kind::Changes)
            .map(|(_, header)| header.payload_bytes)
            .sum();
        Ok(chain.len() >= MOST_RECORDS || changes > whole_bytes)
    }

    /// Stores the whole state of a key.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn put(&mut self, key: &[u8], image: &Image) -> Result<(), StoreError> {
        let before = self.find(key)?;
        let new = self.append(Kind::Whole, key, image.as_bytes(), None)?;
        self.moved(key, before, Some(new))
    }

    /// Stores what has changed of a key since it was last stored; false if it never was.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn put_changes(&mut self, key: &[u8], changes: &Image) -> Result<bool, StoreError> {
        let Some(before) = self.find(key)? else { return Ok(false) };
        let new = self.append(Kind::Changes, key, changes.as_bytes(), Some(before))?;
        let bytes = self.log.header(new)?.0.record_bytes() as u64;
        *self.needed.entry(new.segment).or_default() += bytes;
        self.index.replace(hash(key), before.number(), new.number());
        self.undo.push((hash(key), Some(before), Some(new)));
        Ok(true)
    }

    /// Removes a key; false if it is not there.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        let Some(before) = self.find(key)? else { return Ok(false) };
        let new = self.append(Kind::Removed, key, &[], None)?;
        *self.needed.entry(new.segment).or_default() += self.log.header(new)?.0.record_bytes() as u64;
        self.moved(key, Some(before), None)?;
        Ok(true)
    }

    /// A key has a new chain, or none.
    fn moved(&mut self, key: &[u8], before: Option<Location>, after: Option<Location>) -> Result<(), StoreError> {
        let old = before.map_or(Ok(Vec::new()), |before| self.chain(before))?;
        for (location, header) in old {
            if let Some(needed) = self.needed.get_mut(&location.segment) {
                *needed = needed.saturating_sub(header.record_bytes() as u64);
            }
        }
        if let Some(after) = after {
            *self.needed.entry(after.segment).or_default() += self.log.header(after)?.0.record_bytes() as u64;
        }
        self.point(hash(key), before, after);
        self.undo.push((hash(key), before, after));
        Ok(())
    }

    fn point(&mut self, hash: u64, from: Option<Location>, to: Option<Location>) {
        match (from, to) {
            (Some(from), Some(to)) => _ = self.index.replace(hash, from.number(), to.number()),
            (Some(from), None) => _ = self.index.remove(hash, from.number()),
            (None, Some(to)) => self.index.insert(hash, to.number()),
            (None, None) => {}
        }
    }

    /// Makes durable what was stored; that may happen before, where much is stored. After an error all is as it was at the last commit, and the store must be opened anew to store more.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn commit(&mut self) -> Result<(), StoreError> {
        let undo = std::mem::take(&mut self.undo);
        if let Err(error) = self.log.commit() {
            for (hash, before, after) in undo.into_iter().rev() {
                self.point(hash, after, before);
            }
            self.log.discard();
            return Err(error.into());
        }
        Ok(())
    }

    /// The images that lead to the state of a key, the oldest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn load(&self, key: &[u8]) -> Result<Option<Vec<Image>>, StoreError> {
        let Some(newest) = self.find(key)? else { return Ok(None) };
        let mut images = Vec::new();
        for (location, _) in self.chain(newest)?.into_iter().rev() {
            images.push(Image::from_bytes(self.log.read(location)?.1));
        }
        Ok(Some(images))
    }

    /// The keys in no order, with the bytes of the records that lead to their states.
    pub fn keys(&self) -> impl Iterator<Item = Result<(Vec<u8>, u64), StoreError>> {
        self.index.locations().filter_map(Location::of).map(|location| {
            let (_, key) = self.log.header(location)?;
            let chain = self.chain(location)?;
            Ok((key, chain.iter().map(|(_, header)| header.record_bytes() as u64).sum()))
        })
    }

    /// Bytes of all segments, and of them those that are needed.
    pub fn bytes(&self) -> (u64, u64) {
        (self.log.segments().map(|(_, bytes)| bytes).sum(), self.needed.values().sum())
    }

    /// Collects the segment of which the least is needed, if that is little enough; false if there is none.
    ///
    /// # Errors
    /// See [`StoreError`]. No record is lost then, and a segment that cannot be read is not tried again.
    pub fn collect(&mut self) -> Result<bool, StoreError> {
        let last = self.log.segments().next_back().map_or(0, |(number, _)| number);
        let needed = |number: u32| self.needed.get(&number).copied().unwrap_or(0);
        let is_full = |(number, bytes): &(u32, u64)| *number != last && *bytes > 0 && !self.unreadable.contains(number);
        let full = self.log.segments().filter(is_full);
        let emptiest = full.min_by_key(|(number, bytes)| needed(*number) * 100 / *bytes);
        let Some((number, bytes)) = emptiest else { return Ok(false) };
        if needed(number) * 100 / bytes >= COLLECTED_BELOW {
            return Ok(false);
        }
        self.commit()?;
        let moved = self.move_needed(number);
        if moved.is_err() {
            self.unreadable.insert(number);
        }
        moved?;
        self.commit()?;
        self.log.remove(number)?;
        self.needed.remove(&number);
        Ok(true)
    }

    /// Stores anew what is needed of a segment.
    fn move_needed(&mut self, number: u32) -> Result<(), StoreError> {
        let is_oldest = self.log.segments().next().is_some_and(|(oldest, _)| oldest == number);
        for (location, header, key) in self.log.records(number)? {
            match (header.kind, self.find(&key)?) {
                // What it removed may lie in older segments.
                (Kind::Removed, None) if !is_oldest => {
                    let new = self.append(Kind::Removed, &key, &[], None)?;
                    *self.needed.entry(new.segment).or_default() += header.record_bytes() as u64;
                }
                (Kind::Removed, _) | (_, None) => {}
                (_, Some(newest)) => {
                    if self.chain(newest)?.iter().any(|(of_chain, _)| *of_chain == location) {
                        let images = self.load(&key)?.unwrap_or_default();
                        self.put(&key, &Image::folded(&images)?)?;
                    }
                }
            }
        }
        Ok(())
    }
}
