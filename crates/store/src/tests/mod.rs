//! Kills and power cuts between any two steps: of whatever is done, at most one image of a generation may be restored from, and
//! none is lost.

mod histories;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use torpor_image::{HEADER_BYTES, Header, Kind, PAGE};

use crate::steps::tests::{cut_power, die_after, restart};
use crate::{Durability, Image, ImageState, Owner, Partial, Store};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Begin,
    Commit,
    Discard,
    Consume,
    Unconsume,
    Quarantine,
    Remove,
}

use Operation::{Begin, Commit, Consume, Discard, Quarantine, Remove, Unconsume};

const OPERATIONS: [Operation; 7] = [Begin, Commit, Discard, Consume, Unconsume, Quarantine, Remove];

/// What may be found of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// In this state.
    Is(Option<ImageState>),
    /// Killed between two steps: one of these.
    Between(Option<ImageState>, Option<ImageState>),
}

/// Somebody who uses a store until he is killed.
struct User {
    store: Store,
    last: u64,
    partial: Option<Partial>,
    image: Option<Image>,
    known: BTreeMap<u64, Known>,
}

impl User {
    fn new(folder: &Path) -> Self {
        Self { store: Store::of_app(folder), last: 0, partial: None, image: None, known: BTreeMap::new() }
    }

    /// Does it if it is possible here; false: he is dead.
    fn does(&mut self, operation: Operation) -> bool {
        use ImageState::{Committed, Consumed, Partial, Quarantined};
        let state = |user: &Self| match user.image.as_ref().map(|image| user.known[&image.generation()]) {
            Some(Known::Is(state)) => state,
            _ => None,
        };
        let (generation, from, to) = match (operation, &self.partial, &self.image, state(self)) {
            (Begin, None, ..) => (self.last + 1, None, Some(Partial)),
            (Commit, Some(_), ..) => (self.last, Some(Partial), Some(Committed)),
            (Discard, Some(_), ..) => (self.last, Some(Partial), None),
            (Consume, _, Some(image), Some(Committed)) => (image.generation(), Some(Committed), Some(Consumed)),
            (Unconsume, _, Some(image), Some(Consumed)) => (image.generation(), Some(Consumed), Some(Committed)),
            (Quarantine, _, Some(image), Some(Committed)) => (image.generation(), Some(Committed), Some(Quarantined)),
            (Remove, _, Some(image), Some(Committed)) => (image.generation(), Some(Committed), None),
            _ => return true,
        };
        self.known.insert(generation, Known::Between(from, to));
        let done = match operation {
            Begin => self.store.begin(generation).and_then(|partial| {
                self.last = generation;
                partial.file().write_all_at(&generation.to_ne_bytes(), 0)?;
                self.partial = Some(partial);
                Ok(())
            }),
            Commit => {
                let committed = self.partial.take().unwrap().commit(Durability::PowerCuts);
                committed.map(|image| self.image = Some(image)).map_err(crate::CommitError::into_error)
            }
            Discard => self.partial.take().unwrap().discard(),
            Consume => self.image.as_ref().unwrap().consume(),
            Unconsume => self.image.as_ref().unwrap().unconsume(),
            Quarantine => self.image.as_ref().unwrap().quarantine().map(drop),
            Remove => self.image.as_ref().unwrap().remove(),
        };
        if done.is_ok() {
            self.known.insert(generation, Known::Is(to));
        }
        done.is_ok()
    }
}

/// In memory where possible: directories are synced all the time.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Kills whoever does all this after some steps, cuts the power, and looks. Returns how many steps there were.
fn tried(operations: &[Operation], steps: u64, lost_renames: usize) -> u64 {
    let folder = folder();
    let mut user = User::new(folder.path());
    die_after(steps);
    let _all = operations.iter().all(|operation| user.does(*operation));
    let User { store, known, partial, last, .. } = user;
    // Nobody drops anything in a process that was killed.
    std::mem::forget(partial);
    let done = restart();
    let lost = cut_power(lost_renames);
    let told = format!("{operations:?}, {steps} steps, {lost} renames lost");
    let entries = store.list().unwrap();
    for (generation, known) in &known {
        let found: Vec<_> = entries.iter().filter(|entry| entry.generation() == *generation).collect();
        assert!(found.len() <= 1, "{told}: {found:?}");
        let state = found.first().map(|entry| entry.state);
        match known {
            Known::Is(expected) if lost == 0 => assert_eq!(state, *expected, "{told}"),
            Known::Between(from, to) if lost == 0 => assert!(state == *from || state == *to, "{told}: {state:?}"),
            // A rename that was not synced is undone: that of a quarantine, or one that was interrupted.
            Known::Is(Some(ImageState::Quarantined)) => {
                assert!(matches!(state, Some(ImageState::Committed | ImageState::Quarantined)), "{told}: {state:?}");
            }
            Known::Is(expected) => assert_eq!(state, *expected, "{told}"),
            Known::Between(from, to) => assert!(state == *from || state == *to, "{told}: {state:?}"),
        }
        let whole = |entry: &&crate::Entry| fs::read(&entry.path).unwrap() == generation.to_ne_bytes();
        if state != Some(ImageState::Partial) {
            assert!(found.iter().all(whole), "{told}: its bytes are lost");
        }
        // A wake that was killed gives the image back, and it is the same.
        if state == Some(ImageState::Consumed) {
            let image = store.image(*generation);
            image.unconsume().unwrap();
            assert_eq!(fs::read(image.path()).unwrap(), generation.to_ne_bytes(), "{told}");
        }
    }
    let owner = Owner { app: 0, epoch: torpor_image::Epoch::FIRST, boot: [0; 2] };
    assert!(store.clean(None, owner).unwrap() > last, "{told}: a generation would be used again");
    done
}

#[test]
fn after_any_steps_no_image_is_lost_and_one_at_most_is_current() {
    let mut random = 1_u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let mut sequences: Vec<Vec<Operation>> = vec![
        vec![Begin, Commit, Consume, Unconsume, Consume],
        vec![Begin, Discard, Begin, Commit, Quarantine],
        vec![Begin, Commit, Begin, Consume, Commit, Remove],
    ];
    sequences.extend((0..100).map(|_| (0..12).map(|_| OPERATIONS[next(OPERATIONS.len())]).collect()));
    for operations in &sequences {
        let all = tried(operations, u64::MAX, 0);
        for steps in 0..=all {
            for lost_renames in [0, 1, usize::MAX] {
                tried(operations, steps, lost_renames);
            }
        }
    }
}

#[test]
fn bytes_are_leased_whatever_becomes_of_the_image() {
    let folder = folder();
    let header = Header::default().encode();
    for end in [Consume, Quarantine, Remove] {
        let store = Store::of_app(folder.path());
        let partial = store.begin(1).unwrap();
        partial.file().write_all_at(&header, 0).unwrap();
        let image = partial.commit(Durability::PowerCuts).unwrap();
        let lease = image.open().unwrap();
        match end {
            Consume => image.consume().unwrap(),
            Quarantine => drop(image.quarantine().unwrap()),
            _ => image.remove().unwrap(),
        }
        assert!(image.open().is_err(), "{end:?}: it may not be restored from");
        let mut bytes = vec![0; header.len()];
        lease.file().read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, header, "{end:?}");
        let _gone = image.unconsume();
        image.remove().unwrap();
    }
}

#[test]
fn what_is_not_committed_is_removed() {
    let folder = folder();
    let store = Store::of_app(folder.path());
    drop(store.begin(1).unwrap());
    assert!(store.list().unwrap().is_empty());
    store.begin(1).unwrap().discard().unwrap();
    let first = store.begin(1).unwrap();
    first.file().write_all_at(b"first", 0).unwrap();
    std::mem::forget(first);
    let second = store.begin(1).unwrap();
    assert_eq!(fs::read(second.path()).unwrap(), b"", "a partial image that was left is not written to");
    // A panic leaves it to the next start, like a crash.
    let panicked = std::thread::spawn(move || {
        let _held = second;
        std::panic::resume_unwind(Box::new(()));
    });
    assert!(panicked.join().is_err());
    assert_eq!(store.list().unwrap().len(), 1);
}

/// Writes the image of a dozing app, with a page; it is committed.
fn dozing(store: &Store, generation: u64) -> Image {
    let header = Header { version: torpor_image::VERSION, generation, pages_bytes: PAGE, ..Header::default() };
    let partial = store.begin(generation).unwrap();
    partial.file().write_all_at(&header.encode(), 0).unwrap();
    partial.file().write_all_at(&[7; PAGE as usize], PAGE).unwrap();
    partial.commit(Durability::Processes).unwrap()
}

/// Makes a complete image behind that of a dozing app, which goes then.
fn hibernated(store: &Store, base: &Image, generation: u64) -> std::io::Result<()> {
    let partial = store.image(generation).begin_behind(base)?;
    let begins_at = partial.pages_at();
    let header = Header {
        version: torpor_image::VERSION,
        kind: Kind::Complete,
        generation,
        pages_bytes: begins_at + PAGE - HEADER_BYTES,
        ..Header::default()
    };
    partial.file().write_all_at(&[8; PAGE as usize], begins_at)?;
    partial.finish(&header)?;
    partial.commit(Durability::PowerCuts).map_err(crate::CommitError::into_error)?;
    base.remove()
}

/// A page of an image, by its generation.
fn page(image: &Image, offset: u64) -> Option<u8> {
    let lease = image.open().ok().filter(|lease| lease.header().generation == image.generation())?;
    let mut byte = [0];
    lease.file().read_exact_at(&mut byte, offset).unwrap();
    Some(byte[0])
}

#[test]
fn an_image_behind_another_is_whole_or_not_there_and_the_other_stays() {
    let all = {
        let folder = folder();
        let base = dozing(&Store::of_app(folder.path()), 1);
        die_after(u64::MAX);
        hibernated(base.store(), &base, 2).unwrap();
        restart()
    };
    for steps in 0..=all {
        let folder = folder();
        let store = Store::of_app(folder.path());
        let base = dozing(&store, 1);
        die_after(steps);
        let done = hibernated(&store, &base, 2);
        restart();
        let (first, second) = (page(&base, PAGE), page(&store.image(2), PAGE));
        // The pages of the first are there under either name.
        assert!(first.or(second) == Some(7), "{steps} steps");
        assert_eq!((first, second), if done.is_ok() { (None, Some(7)) } else { (Some(7), second) }, "{steps} steps");
        let foreign = |entry: &crate::Entry| entry.is_complete().is_none();
        assert!(!store.list().unwrap().iter().any(foreign), "{steps} steps");
        if second.is_some() {
            assert_eq!(page(&store.image(2), 2 * PAGE), Some(8), "{steps} steps");
            continue;
        }
        // Whatever was left behind it, it can be tried again.
        hibernated(&store, &base, 3).unwrap();
        assert_eq!((page(&base, PAGE), page(&store.image(3), 2 * PAGE)), (None, Some(8)), "{steps} steps");
    }
}

#[test]
fn what_is_given_up_behind_an_image_leaves_it_as_it_was() {
    let folder = folder();
    let store = Store::of_app(folder.path());
    let base = dozing(&store, 1);
    let before = fs::read(base.path()).unwrap();
    let partial = store.image(2).begin_behind(&base).unwrap();
    partial.file().write_all_at(b"more", before.len() as u64).unwrap();
    partial.discard().unwrap();
    assert_eq!(fs::read(base.path()).unwrap(), before);
    drop(store.image(3).begin_behind(&base).unwrap());
    assert_eq!(fs::read(base.path()).unwrap(), before);
    // Only behind one of a dozing app, which is there.
    hibernated(&store, &base, 4).unwrap();
    assert!(store.image(5).begin_behind(&base).is_err() && store.image(5).begin_behind(&store.image(4)).is_err());
}

/// Writes the image of a dozing app behind another one, in front of which nothing is needed then. Its page has the number of its generation.
fn dozes_again(store: &Store, base: &Image, generation: u64) -> std::io::Result<Image> {
    let partial = store.image(generation).begin_behind(base)?;
    let page = partial.pages_at();
    let header = Header {
        version: torpor_image::VERSION,
        generation,
        pages_bytes: page + PAGE - HEADER_BYTES,
        ..Header::default()
    };
    partial.file().write_all_at(&[generation as u8; PAGE as usize], page)?;
    partial.finish(&header)?;
    let image = partial.commit(Durability::Processes).map_err(crate::CommitError::into_error)?;
    base.remove()?;
    Ok(image)
}

/// Where the page of a generation is that [`dozes_again`] has written.
fn own_page(image: &Image) -> u64 {
    image.open().unwrap().header().state_offset() - PAGE
}

#[test]
fn of_many_generations_in_a_file_the_newest_is_found_wherever_it_ends() {
    const LAST: u64 = 6;
    let chain = |store: &Store, from: Image| -> std::io::Result<()> {
        let mut base = from;
        for generation in base.generation() + 1..=LAST {
            base = dozes_again(store, &base, generation)?;
        }
        Ok(())
    };
    let all = {
        let folder = folder();
        let store = Store::of_app(folder.path());
        let first = dozing(&store, 1);
        die_after(u64::MAX);
        chain(&store, first).unwrap();
        restart()
    };
    assert!(all > 10);
    for steps in 0..=all {
        let folder = folder();
        let store = Store::of_app(folder.path());
        let first = dozing(&store, 1);
        die_after(steps);
        let done = chain(&store, first);
        restart();
        // The journal names one of these, and each is what it was.
        let found: Vec<Image> = store.list().unwrap().into_iter().map(|entry| entry.image).collect();
        assert!((1..=2).contains(&found.len()), "{steps} steps: {found:?}");
        for image in &found {
            assert_eq!(image.open().unwrap().header().generation, image.generation(), "{steps} steps");
            assert_eq!(page(image, PAGE), Some(7), "{steps} steps");
            if image.generation() > 1 {
                assert_eq!(page(image, own_page(image)), Some(image.generation() as u8), "{steps} steps");
            }
        }
        let newest = found[found.len() - 1].clone();
        assert!(done.is_err() || newest.generation() == LAST, "{steps} steps");
        // What was begun behind it, with contents that look like headers, is never taken for one.
        let forged = Header { generation: 99, pages_bytes: PAGE, version: torpor_image::VERSION, ..Header::default() };
        let end = fs::metadata(newest.path()).unwrap().len();
        let file = fs::File::options().write(true).open(newest.path()).unwrap();
        file.write_all_at(&forged.encode(), end.next_multiple_of(PAGE)).unwrap();
        assert_eq!(newest.open().unwrap().header().generation, newest.generation(), "{steps} steps");
        // And it can be gone on with.
        let next = dozes_again(&store, &newest, 50).unwrap();
        assert_eq!((page(&next, PAGE), page(&next, own_page(&next))), (Some(7), Some(50)), "{steps} steps");
        // Only the first page and its own are needed.
        let own = own_page(&next);
        let trim = next.trim([PAGE..2 * PAGE, own..own + PAGE]).unwrap().unwrap();
        trim.run().unwrap();
        assert_eq!((page(&next, PAGE), page(&next, own)), (Some(7), Some(50)), "{steps} steps");
    }
}

#[test]
fn processes_that_were_built_from_a_consumed_image_doze_behind_it() {
    let folder = folder();
    let store = Store::of_app(folder.path());
    let base = dozing(&store, 1);
    hibernated(&store, &base, 2).unwrap();
    let complete = store.image(2);
    // It may still be restored from.
    assert!(store.image(3).begin_behind(&complete).is_err());
    complete.consume().unwrap();
    let again = dozes_again(&store, &complete, 4).unwrap();
    complete.remove_consumed().unwrap();
    assert_eq!((page(&again, PAGE), page(&again, own_page(&again))), (Some(7), Some(4)));
    // Its slot is the second one. Where that is damaged it is not found; the other one does not matter any more.
    let bytes = fs::read(again.path()).unwrap();
    for at in (1024..1048).chain(2048..2072) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        fs::write(again.path(), &damaged).unwrap();
        let is_found = again.open().is_ok_and(|lease| lease.header().generation == 4);
        assert_eq!(is_found, at < 2048, "byte {at}");
    }
}
