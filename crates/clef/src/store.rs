//! The states of sleeping Clefs: for each key a chain of records, a whole state and what has changed since.
//!
//! Each record has a *note* as well, which the host can read without the state, and may say when the key is *due*: the store knows the next one
//! that is. A chain that has become long, or larger than the state that it leads to, is *folded*: the next record is a whole state. Segments of the
//! log of which little is still needed are collected: what is needed of them is folded into the last segment, and they are removed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;

use torpor_lua::{FileImage, FileImageError, Image, ImageError, State, StateError, Windows};
use xxhash_rust::xxh3::xxh3_64;

use crate::index::Index;
use crate::log::{Found, Header, Kind, Location, Log, LogError, Record};

/// Records of a chain at most. Each takes 2 µs of a restore, or a read of the disk, and a whole state is written after so many: a counter of 25 kB,
/// whose changes are of 0.5 kB, would be written as a whole after 40 anyway, for their bytes.
const MOST_RECORDS: usize = 32;
/// A segment is collected when less than this share of it is needed, in percent.
const COLLECTED_BELOW: u64 = 50;
/// Bytes that are moved between two syncs while a segment is collected.
const MOVED_TOGETHER: usize = 4 << 20;
/// What is due and cannot be read is tried again after so many ms.
const RETRY: u64 = 60_000;
/// The pages of images of at least so many bytes begin at a page of the file.
const ALIGNED_FROM: usize = 64 << 10;

/// Why a state cannot be stored or had.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// An image.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// An image in a segment.
    #[error(transparent)]
    FileImage(#[from] FileImageError),
    /// A state cannot be restored.
    #[error(transparent)]
    State(#[from] StateError),
}

/// What the host says of a state beside the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// When somebody has to look after it, in ms since 1970; 0: never.
    pub due: u64,
    /// Anything.
    pub bytes: Vec<u8>,
}

impl Note {
    fn of(header: &Header, payload: &[u8]) -> Self {
        Self { due: header.due, bytes: payload[..header.note_bytes].to_vec() }
    }
}

/// The records that lead to a state. Whoever has restored the state keeps it, so that changes can be stored without looking for them.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    /// With the bytes of each, the oldest first.
    records: Vec<(Location, u32)>,
    due: u64,
}

impl Chain {
    /// Nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    fn newest(&self) -> Option<(Location, u64)> {
        self.records.last().map(|(location, _)| (*location, self.due))
    }

    /// Whether the next record should be of the whole state, which has so many bytes.
    pub fn wants_whole(&self, whole_bytes: usize) -> bool {
        let changes: usize = self.records.iter().skip(1).map(|(_, bytes)| *bytes as usize).sum();
        self.records.is_empty() || self.records.len() >= MOST_RECORDS || changes > whole_bytes
    }
}

/// What is stored of a key.
#[derive(Debug)]
pub struct Stored {
    /// The host's.
    pub note: Note,
    /// What leads to the state, the oldest first.
    pub images: Vec<Image>,
    /// For [`Store::put`] and [`Store::put_changes`].
    pub chain: Chain,
}

/// A state of a key, in memory.
#[derive(Debug)]
pub struct Restored {
    /// The host's.
    pub note: Note,
    /// As it was stored.
    pub state: State,
    /// For [`Store::put`] and [`Store::put_changes`].
    pub chain: Chain,
}

/// States by key.
#[derive(Debug)]
pub struct Store {
    log: Log,
    index: Index,
    /// Of keys that are due some time: when, and where their newest record is.
    due: BTreeSet<(u64, u64)>,
    /// By segment: bytes of records that are needed.
    needed: BTreeMap<u32, u64>,
    /// Large whole states that were read, or written, since the store was opened: their checksums are right.
    read: HashSet<Location>,
    /// Segments in which something cannot be read: they are not collected.
    unreadable: BTreeSet<u32>,
    /// What to undo if the next commit fails, the last first: key, where it was, where it is, and when it is due.
    undo: Vec<(u64, Place, Place)>,
}

/// The newest record of a key, and when it is due.
type Place = Option<(Location, u64)>;

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
            due: BTreeSet::new(),
            needed: BTreeMap::new(),
            read: HashSet::new(),
            unreadable: BTreeSet::new(),
            undo: Vec::new(),
        };
        for (key, (kind, location)) in newest {
            if kind == Kind::Removed {
                // It is needed as long as records of its key may lie before it.
                let bytes = store.log.header(location)?.0.record_bytes() as u32;
                store.need(&[(location, bytes)]);
                continue;
            }
            match store.chain(location) {
                Ok(chain) => {
                    store.need(&chain.records);
                    store.point(hash(&key), None, chain.newest());
                }
                // Whoever loads it is told; the others go on.
                Err(error) => {
                    tracing::error!(key = %key.escape_ascii(), %error, "a state cannot be read");
                    store.point(hash(&key), None, Some((location, 0)));
                }
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

    /// All keys, in no order; those whose record cannot be read are left out.
    pub fn keys(&self) -> impl Iterator<Item = Vec<u8>> {
        let locations = self.index.all().filter_map(Location::of);
        locations.filter_map(|location| self.log.header(location).ok().map(|(_, key)| key))
    }

    /// The key that is due next, and when; held ones are left out.
    pub fn next_due(&self) -> Option<(u64, Vec<u8>)> {
        let of = |(due, number): &(u64, u64)| Some((*due, self.log.header(Location::of(*number)?).ok()?.1));
        self.due.iter().find_map(of)
    }

    /// Somebody else sees to it that what has this chain is done when it is due, until it is stored again or [released](Store::release).
    pub fn hold(&mut self, chain: &Chain) {
        if let Some((location, due)) = chain.newest() {
            self.due.remove(&(due, location.number()));
        }
    }

    /// A key that was [held](Store::hold) is due as it was stored.
    pub fn release(&mut self, key: &[u8]) {
        let found = self.find(key).ok().flatten().and_then(|at| Some((self.log.header(at).ok()?.0.due, at)));
        if let Some((due, location)) = found.filter(|(due, _)| *due > 0) {
            self.due.insert((due, location.number()));
        }
    }

    /// The next key that is due by `now`, with a number for [`Store::due_again`]; it is not due any more.
    pub fn take_due(&mut self, now: u64) -> Option<(Vec<u8>, u64)> {
        while let Some((due, number)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.due.remove(&(due, number));
            match Location::of(number).map(|location| self.log.header(location)) {
                Some(Ok((_, key))) if self.index.find(hash(&key)).any(|found| found == number) => {
                    return Some((key, number));
                }
                // It was removed or stored anew.
                None | Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::error!(%error, "what is due cannot be read");
                    self.due.insert((now + RETRY, number));
                }
            }
        }
        None
    }

    /// What was taken is due at another time.
    pub fn due_again(&mut self, number: u64, due: u64) {
        self.due.insert((due, number));
    }

    /// Bytes that were stored since the last commit.
    pub fn batch_bytes(&self) -> usize {
        self.log.batch_bytes()
    }

    fn need(&mut self, records: &[(Location, u32)]) {
        for (location, bytes) in records {
            *self.needed.entry(location.segment).or_default() += u64::from(*bytes);
        }
    }

    fn find(&self, key: &[u8]) -> Result<Option<Location>, StoreError> {
        for location in self.index.find(hash(key)).filter_map(Location::of) {
            if self.log.header(location)?.1 == key {
                return Ok(Some(location));
            }
        }
        Ok(None)
    }

    /// The chain that a record is the newest of.
    fn chain(&self, newest: Location) -> Result<Chain, StoreError> {
        let mut chain = Chain::default();
        let mut next = Some(newest);
        while let Some(location) = next {
            let (header, _) = self.log.header(location)?;
            if chain.records.is_empty() {
                chain.due = header.due;
            }
            chain.records.push((location, header.record_bytes() as u32));
            next = if header.kind == Kind::Changes { header.before } else { None };
        }
        chain.records.reverse();
        Ok(chain)
    }

    fn found_chain(&self, key: &[u8]) -> Result<Option<Chain>, StoreError> {
        self.find(key)?.map(|newest| self.chain(newest)).transpose()
    }

    /// The chain of a key as it is now: the one that its caller has, unless it was collected meanwhile.
    fn current(&self, key: &[u8], known: Option<&Chain>) -> Result<Option<Chain>, StoreError> {
        if let Some(known) = known {
            let newest = known.newest().map(|(location, _)| location.number());
            if self.index.find(hash(key)).any(|found| Some(found) == newest) {
                return Ok(Some(known.clone()));
            }
        }
        self.found_chain(key)
    }

    fn append(&mut self, record: &Record<'_>) -> Result<(Location, u32), StoreError> {
        let bytes = record.note.len() + record.image.len();
        if self.log.is_full(bytes) {
            self.log.begin_next(bytes)?;
        }
        Ok(self.log.append(record)?)
    }

    /// Stores the whole state of a key. `chain` is what its caller knows of it, if it does.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn put(&mut self, key: &[u8], note: &Note, image: &Image, chain: Option<&Chain>) -> Result<Chain, StoreError> {
        let before = self.current(key, chain)?;
        let bytes = image.as_bytes();
        let aligned = (bytes.len() >= ALIGNED_FROM).then(|| image.pages_offset());
        let Note { due, bytes: note } = note;
        let record = Record { kind: Kind::Whole, key, before: None, due: *due, note, image: bytes, aligned };
        let new = self.append(&record)?;
        self.need(&[new]);
        if aligned.is_some() {
            self.read.insert(new.0);
        }
        let chain = Chain { records: vec![new], due: *due };
        self.moved(key, before, chain.newest());
        Ok(chain)
    }

    /// Stores what has changed of a key since it was last stored; none if it never was.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn put_changes(
        &mut self,
        key: &[u8],
        note: &Note,
        changes: &Image,
        chain: Option<&Chain>,
    ) -> Result<Option<Chain>, StoreError> {
        let Some(mut chain) = self.current(key, chain)? else { return Ok(None) };
        let before = chain.newest();
        let record = Record {
            kind: Kind::Changes,
            key,
            before: before.map(|(location, _)| location),
            due: note.due,
            note: &note.bytes,
            image: changes.as_bytes(),
            aligned: None,
        };
        let new = self.append(&record)?;
        self.need(&[new]);
        chain.records.push(new);
        chain.due = note.due;
        self.point(hash(key), before, chain.newest());
        self.undo.push((hash(key), before, chain.newest()));
        Ok(Some(chain))
    }

    /// Removes a key; false if it is not there.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        let Some(before) = self.found_chain(key)? else { return Ok(false) };
        let new = self.append(&removal(key))?;
        self.need(&[new]);
        self.moved(key, Some(before), None);
        Ok(true)
    }

    /// A key has a new chain, or none.
    fn moved(&mut self, key: &[u8], before: Option<Chain>, after: Place) {
        let before = before.unwrap_or_default();
        for (location, bytes) in &before.records {
            if let Some(needed) = self.needed.get_mut(&location.segment) {
                *needed = needed.saturating_sub(u64::from(*bytes));
            }
            self.read.remove(location);
        }
        self.point(hash(key), before.newest(), after);
        self.undo.push((hash(key), before.newest(), after));
    }

    fn point(&mut self, hash: u64, from: Place, to: Place) {
        let number = |(location, _): (Location, u64)| location.number();
        match (from.map(number), to.map(number)) {
            (Some(from), Some(to)) => _ = self.index.replace(hash, from, to),
            (Some(from), None) => _ = self.index.remove(hash, from),
            (None, Some(to)) => self.index.insert(hash, to),
            (None, None) => {}
        }
        if let Some((location, due)) = from.filter(|(_, due)| *due > 0) {
            self.due.remove(&(due, location.number()));
        }
        if let Some((location, due)) = to.filter(|(_, due)| *due > 0) {
            self.due.insert((due, location.number()));
        }
    }

    /// Makes durable what was stored since the last commit, all of it or nothing. After an error all is as it was at the last commit, and the
    /// store must be opened anew to store more.
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

    /// Lets go of the directory; nothing can be stored any more.
    pub(crate) fn close(&mut self) {
        self.log.close();
    }

    /// What is stored of a key.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn load(&self, key: &[u8]) -> Result<Option<Stored>, StoreError> {
        let Some(chain) = self.found_chain(key)? else { return Ok(None) };
        let mut note = Note::default();
        let mut images = Vec::new();
        for (location, _) in &chain.records {
            let (header, mut payload) = self.log.read(*location)?;
            note = Note::of(&header, &payload);
            images.push(Image::from_bytes(payload.split_off(header.note_bytes)));
        }
        Ok(Some(Stored { note, images, chain }))
    }

    /// Restores the state of a key, in `windows`. The pages of a large one are mapped, and read when they are used.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn restore(&mut self, key: &[u8], windows: &Arc<Windows>) -> Result<Option<Restored>, StoreError> {
        let Some(chain) = self.found_chain(key)? else { return Ok(None) };
        if let Some((first, changes)) = chain.records.split_first()
            && self.read.contains(&first.0)
            && let Some((file, offset, bytes)) = self.log.durable_image(first.0)?
        {
            let changes: Vec<_> = changes.iter().map(|(at, _)| self.log.read(*at)).collect::<Result<_, _>>()?;
            let note = match changes.last() {
                Some((header, payload)) => Note::of(header, payload),
                None => {
                    let (due, bytes) = self.log.note(first.0)?;
                    Note { due, bytes }
                }
            };
            let images: Vec<Image> = changes
                .into_iter()
                .map(|(header, mut payload)| Image::from_bytes(payload.split_off(header.note_bytes)))
                .collect();
            let whole = FileImage::open(file, offset, bytes)?;
            if let Some(state) = State::restore_mapped(windows, &whole, &images)? {
                return Ok(Some(Restored { note, state, chain }));
            }
        }
        let Some(Stored { note, images, chain }) = self.load(key)? else { return Ok(None) };
        if let (Some((first, _)), Some(image)) = (chain.records.first(), images.first())
            && image.as_bytes().len() >= ALIGNED_FROM
        {
            // Its checksum was right, so it need not be read again.
            self.read.insert(*first);
        }
        Ok(Some(Restored { note, state: State::restore(windows, &images)?, chain }))
    }

    /// The window of a key's state; none if it is not there.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn window(&self, key: &[u8]) -> Result<Option<u32>, StoreError> {
        let Some(newest) = self.find(key)? else { return Ok(None) };
        Ok(Some(Image::window_of(&self.log.image_head(newest)?)))
    }

    /// The note of a key, without its state.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn note(&self, key: &[u8]) -> Result<Option<Note>, StoreError> {
        self.find(key)?.map(|newest| self.note_at(newest)).transpose()
    }

    fn note_at(&self, location: Location) -> Result<Note, StoreError> {
        let (header, payload) = self.log.read(location)?;
        Ok(Note::of(&header, &payload))
    }

    /// Bytes of a key's records.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn bytes_of(&self, key: &[u8]) -> Result<u64, StoreError> {
        let chain = self.found_chain(key)?.unwrap_or_default();
        Ok(chain.records.iter().map(|(_, bytes)| u64::from(*bytes)).sum())
    }

    /// Bytes of all segments, and of them those that are needed.
    pub fn bytes(&self) -> (u64, u64) {
        (self.log.segments().map(|(_, bytes)| bytes).sum(), self.needed.values().sum())
    }

    /// Collects the segment of which the least is needed, if that is little enough; false if there is none. All was committed.
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
        for (location, Header { kind, .. }, key) in self.log.records(number)? {
            if self.log.batch_bytes() > MOVED_TOGETHER {
                self.commit()?;
            }
            match (kind, self.found_chain(&key)?) {
                // What it removed may lie in older segments.
                (Kind::Removed, None) if !is_oldest => {
                    let new = self.append(&removal(&key))?;
                    self.need(&[new]);
                }
                (Kind::Removed, _) | (_, None) => {}
                (_, Some(chain)) => {
                    if chain.records.iter().any(|(of_chain, _)| *of_chain == location)
                        && let Some(Stored { note, images, chain }) = self.load(&key)?
                    {
                        self.put(&key, &note, &Image::folded(&images)?, Some(&chain))?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn removal(key: &[u8]) -> Record<'_> {
    Record { kind: Kind::Removed, key, before: None, due: 0, note: &[], image: &[], aligned: None }
}
