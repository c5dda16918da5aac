//! Where the newest record of each key is, in 16 bytes a key and some room.
//!
//! The keys themselves are in the log. Two with the same hash are told apart by whoever looks there.

/// Room for so many at first.
const LEAST: usize = 64;

/// A table with open addressing and linear probing; a location of 0 is a free place.
#[derive(Debug, Default)]
pub(crate) struct Index {
    places: Vec<(u64, u64)>,
    count: usize,
}

impl Index {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    fn home(&self, hash: u64) -> usize {
        // The places are a power of two.
        hash as usize & (self.places.len() - 1)
    }

    fn next(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }

    /// Locations of all keys.
    pub(crate) fn all(&self) -> impl Iterator<Item = u64> {
        self.places.iter().map(|(_, location)| *location).filter(|location| *location != 0)
    }

    /// Locations of keys with this hash.
    pub(crate) fn find(&self, hash: u64) -> impl Iterator<Item = u64> {
        let mut place = if self.places.is_empty() { 0 } else { self.home(hash) };
        std::iter::from_fn(move || {
            loop {
                let (found, location) = *self.places.get(place)?;
                if location == 0 {
                    return None;
                }
                place = self.next(place);
                if found == hash {
                    return Some(location);
                }
            }
        })
    }

    /// Adds a key.
    pub(crate) fn insert(&mut self, hash: u64, location: u64) {
        if (self.count + 1) * 5 > self.places.len() * 4 {
            let larger = (self.places.len() * 2).max(LEAST);
            let old = std::mem::replace(&mut self.places, vec![(0, 0); larger]);
            old.into_iter()
                .filter(|(_, location)| *location != 0)
                .for_each(|(hash, location)| self.put(hash, location));
        }
        self.put(hash, location);
        self.count += 1;
    }

    fn put(&mut self, hash: u64, location: u64) {
        let mut place = self.home(hash);
        while self.places[place].1 != 0 {
            place = self.next(place);
        }
        self.places[place] = (hash, location);
    }

    fn place_of(&self, hash: u64, location: u64) -> Option<usize> {
        if self.places.is_empty() {
            return None;
        }
        let mut place = self.home(hash);
        while self.places[place].1 != 0 {
            if self.places[place] == (hash, location) {
                return Some(place);
            }
            place = self.next(place);
        }
        None
    }

    /// Changes where a key is; false if it is not there.
    pub(crate) fn replace(&mut self, hash: u64, from: u64, to: u64) -> bool {
        let place = self.place_of(hash, from);
        if let Some(place) = place {
            self.places[place].1 = to;
        }
        place.is_some()
    }

    /// Removes a key; false if it is not there.
    pub(crate) fn remove(&mut self, hash: u64, location: u64) -> bool {
        let Some(mut free) = self.place_of(hash, location) else { return false };
        self.count -= 1;
        // What follows moves up, unless that were before its home.
        let mut place = self.next(free);
        while self.places[place].1 != 0 {
            let home = self.home(self.places[place].0);
            let mask = self.places.len() - 1;
            if place.wrapping_sub(home) & mask >= place.wrapping_sub(free) & mask {
                self.places[free] = self.places[place];
                free = place;
            }
            place = self.next(place);
        }
        self.places[free] = (0, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_finds_what_was_inserted(steps in proptest::collection::vec((0_u64..40, 1_u64..30, 0_u8..4), 1..300)) {
            let (mut index, mut known) = (Index::default(), BTreeSet::new());
            for (hash, location, what) in steps {
                // Hashes that meet at the end of the table.
                let hash = hash.wrapping_mul(7).wrapping_sub(20);
                match what {
                    0 => prop_assert_eq!(index.remove(hash, location), known.remove(&(hash, location))),
                    1 if !known.contains(&(hash, location + 1)) => {
                        let is = known.remove(&(hash, location));
                        prop_assert_eq!(index.replace(hash, location, location + 1), is);
                        if is {
                            known.insert((hash, location + 1));
                        }
                    }
                    _ if known.insert((hash, location)) => index.insert(hash, location),
                    _ => {}
                }
                prop_assert_eq!(index.len(), known.len());
                let found: BTreeSet<u64> = index.find(hash).collect();
                let expected: BTreeSet<u64> = known.iter().filter(|one| one.0 == hash).map(|one| one.1).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
