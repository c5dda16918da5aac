//! Images made by an enemy, with right checksums: reading them gives an error or a tree that may be used without a second
//! thought. It never panics, never takes more memory than a small multiple of the image, never points outside of the file.
#![forbid(unsafe_code)]

mod common;

use std::alloc::System;
use std::sync::{Mutex, MutexGuard, PoisonError};

use proptest::prelude::*;
use proptest::sample::Index;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use torpor_image::tree::{Executable, FileKind, Tree, UnixState};
use torpor_image::{Content, FormatError, HEADER_BYTES, Header, Kind, Region, State};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The allocator counts for all threads: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What reading may allocate in all, whatever the image: serde takes at most 1 MiB ahead for each list that is open.
const ALLOWED_BYTES: usize = 12 << 20;
/// And this for every byte of state: the smallest records have a byte for each of their fields.
const ALLOWED_PER_BYTE: usize = 200;

/// Reads an image as the engine does, and looks at everything that it names.
fn read(image: &[u8]) -> Result<(), FormatError> {
    let before = ALLOCATOR.stats();
    let result = decode(image);
    let taken = ALLOCATOR.stats() - before;
    if let Ok(read) = &result {
        read.look(image.len() as u64);
    }
    let bytes = taken.bytes_allocated;
    let allowed = ALLOWED_BYTES + ALLOWED_PER_BYTE * image.len();
    assert!(bytes <= allowed, "an image of {} bytes took {bytes} bytes to read", image.len());
    result.map(drop)
}

enum Read {
    Dozing(State),
    Complete(Box<Tree>),
}

fn decode(image: &[u8]) -> Result<Read, FormatError> {
    let header = Header::decode(image, image.len() as u64)?;
    let state = &image[header.state_offset() as usize..header.plan_offset() as usize];
    match header.kind {
        Kind::Dozing => State::decode(state, &header).map(Read::Dozing),
        Kind::Complete => Tree::read(state, &header).map(|tree| Read::Complete(Box::new(tree))),
    }
}

impl Read {
    fn look(&self, file_bytes: u64) {
        match self {
            Self::Dozing(state) => {
                state.memory_bytes();
                state.processes.iter().for_each(|process| look_at(&process.regions, file_bytes));
            }
            Self::Complete(tree) => look_at_tree(tree, file_bytes),
        }
    }
}

fn look_at(regions: &[Region], file_bytes: u64) {
    for region in regions {
        assert!(region.start.checked_add(region.bytes()).is_some());
        if let Content::Stored { offset, .. } = region.content {
            assert!(offset >= HEADER_BYTES && offset.checked_add(region.bytes()).is_some_and(|end| end <= file_bytes));
        }
    }
}

/// Every place is used as the engine uses it.
fn look_at_tree(tree: &Tree, file_bytes: u64) {
    tree.memory_bytes();
    for life in tree.processes.iter().filter_map(|process| process.alive()) {
        let _ = (&life.threads[0].registers[26], &life.actions[63]);
        match life.space.executable {
            Executable::File(file) => drop(life.space.files[file as usize].clone()),
            Executable::Memory(memory) => drop(tree.memories[memory as usize].clone()),
        }
        life.descriptors.iter().for_each(|descriptor| drop(tree.files[descriptor.file as usize].clone()));
        for area in &life.space.areas {
            assert!(area.start < area.end);
            look_at(&area.pages, file_bytes);
        }
        for thread in &life.threads {
            assert!(thread.rseq.is_none_or(|(address, ..)| address < 1 << 56));
        }
    }
    tree.memories.iter().for_each(|memory| look_at(&memory.pages, file_bytes));
    for file in &tree.files {
        match &file.kind {
            FileKind::Pipe { pipe, .. } | FileKind::Fifo { pipe, .. } => drop(tree.pipes[*pipe as usize].clone()),
            FileKind::Memory { memory } => drop(tree.memories[*memory as usize].clone()),
            FileKind::Epoll { members } => {
                members.iter().for_each(|member| drop(tree.files[member.file as usize].clone()));
            }
            FileKind::Unix(socket) => {
                if let UnixState::Connected { peer } = socket.state {
                    assert!(matches!(tree.files[peer as usize].kind, FileKind::Unix(_)));
                }
            }
            _ => {}
        }
    }
}

/// An image with this state, whose checksums are right.
fn around(kind: Kind, state: &[u8]) -> Vec<u8> {
    [common::header(kind, state, &[]).encode(), common::pages(), state.to_vec()].concat()
}

/// What an enemy does to bytes.
#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Flip(Index, u8),
    Cut(Index),
    /// Bytes from somewhere else, put over or between.
    Splice {
        from: Index,
        to: Index,
        bytes: usize,
        over: bool,
    },
    /// A huge number, in the form of the complete kind or of the dozing one.
    Inflate {
        at: Index,
        varint: bool,
        size: u32,
        over: bool,
    },
}

fn change() -> impl Strategy<Value = Change> {
    let index = any::<Index>;
    prop_oneof![
        (index(), any::<u8>()).prop_map(|(at, value)| Change::Set(at, value)),
        (index(), 0..8_u8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        index().prop_map(Change::Cut),
        (index(), index(), 1..300_usize, any::<bool>()).prop_map(|(from, to, bytes, over)| Change::Splice {
            from,
            to,
            bytes,
            over
        }),
        (index(), any::<bool>(), 0..64_u32, any::<bool>()).prop_map(|(at, varint, size, over)| Change::Inflate {
            at,
            varint,
            size,
            over
        }),
    ]
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len();
        match self {
            Self::Set(at, value) => bytes[at.index(length)] = *value,
            Self::Flip(at, bit) => bytes[at.index(length)] ^= 1 << bit,
            Self::Cut(at) => bytes.truncate(at.index(length)),
            Self::Splice { from, to, bytes: count, over } => {
                let from = from.index(length);
                let piece = bytes[from..length.min(from + count)].to_vec();
                put(bytes, to.index(length), &piece, *over);
            }
            Self::Inflate { at, varint: true, size, over } => {
                put(bytes, at.index(length), &varint(u64::MAX >> size), *over);
            }
            Self::Inflate { at, size, over, .. } => {
                put(bytes, at.index(length), &(u32::MAX >> (size % 32)).to_le_bytes(), *over);
            }
        }
    }
}

/// Puts a piece over what is at `at` (as far as there is something), or before it.
fn put(bytes: &mut Vec<u8>, at: usize, piece: &[u8], over: bool) {
    let end = if over { bytes.len().min(at + piece.len()) } else { at };
    bytes.splice(at..end, piece.iter().copied());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hostile_trees(changes in prop::collection::vec(change(), 1..4)) {
        let _alone = alone();
        let mut state = common::tree().encode();
        changes.iter().for_each(|change| change.apply(&mut state));
        let _ = read(&around(Kind::Complete, &state));
    }

    #[test]
    fn hostile_states(changes in prop::collection::vec(change(), 1..4)) {
        let _alone = alone();
        let mut state = common::dozing().encode();
        changes.iter().for_each(|change| change.apply(&mut state));
        let _ = read(&around(Kind::Dozing, &state));
    }

    /// Lengths, offsets and sums of the header that mean nothing.
    #[test]
    fn hostile_headers(fields in any::<[Option<u64>; 5]>(), low in any::<bool>(), changes in prop::collection::vec(change(), 0..2)) {
        let _alone = alone();
        let image = common::complete_image();
        let mut header = Header::decode(&image, image.len() as u64).unwrap();
        let small = |value: u64| if low { value % 40_000 } else { value };
        let places = [&mut header.pages_bytes, &mut header.state_bytes, &mut header.plan_bytes, &mut header.app, &mut header.generation];
        for (place, field) in places.into_iter().zip(fields) {
            if let Some(field) = field {
                *place = small(field);
            }
        }
        let mut bad = [header.encode(), image[HEADER_BYTES as usize..].to_vec()].concat();
        changes.iter().for_each(|change| change.apply(&mut bad));
        let _ = read(&bad);
    }
}

#[test]
fn what_is_not_hostile_is_read() {
    let _alone = alone();
    read(&common::complete_image()).unwrap();
    read(&common::dozing_image()).unwrap();
}

#[test]
fn every_cut_is_an_error() {
    let _alone = alone();
    for (kind, state) in [(Kind::Complete, common::tree().encode()), (Kind::Dozing, common::dozing().encode())] {
        for end in 0..state.len() {
            assert!(read(&around(kind, &state[..end])).is_err(), "{kind:?} cut at {end}");
        }
    }
    let image = common::complete_image();
    for end in (0..image.len()).step_by(7) {
        assert!(read(&image[..end]).is_err());
    }
}

#[test]
fn a_huge_length_in_any_place_takes_no_memory() {
    let _alone = alone();
    let state = common::tree().encode();
    for at in 0..state.len() {
        for value in [1 << 20, u64::from(u32::MAX), u64::MAX] {
            let mut bad = state.clone();
            put(&mut bad, at, &varint(value), true);
            let _ = read(&around(Kind::Complete, &bad));
        }
    }
    let state = common::dozing().encode();
    for at in 0..state.len() - 4 {
        let mut bad = state.clone();
        put(&mut bad, at, &u32::MAX.to_le_bytes(), true);
        let _ = read(&around(Kind::Dozing, &bad));
    }
}

/// More memory than there are addresses, each process of which is right by itself.
#[test]
fn sums_over_processes_do_not_overflow() {
    let _alone = alone();
    let region = |n: u64| Region { start: n << 44, pages: u32::MAX, writable: true, content: Content::Zero };
    let mut state = common::dozing();
    state.processes[0].regions = (0..4096).map(region).collect();
    let first = state.processes[0].clone();
    state.processes = (1..300).map(|pid| torpor_image::Process { pid, ..first.clone() }).collect();
    read(&around(Kind::Dozing, &state.encode())).unwrap();
}

/// Reading what came from elsewhere takes at most four times its bytes, and a constant for short ones.
#[test]
fn a_state_of_unknown_origin_takes_little_memory() {
    use torpor_image::tree::{FOREIGN_BYTES, FOREIGN_BYTES_PER_BYTE};
    const MANY: usize = 1_000_000;
    let _alone = alone();
    let read = |tree: &Tree| {
        let state = tree.encode();
        let header = Header { state_bytes: state.len() as u64, ..common::header(Kind::Complete, &state, &[]) };
        let before = ALLOCATOR.stats();
        let result = Tree::read_foreign(&state, &header);
        let bytes = (ALLOCATOR.stats() - before).bytes_allocated;
        // Checking that ids and names are there once takes tables of its own, which are within the constant for honest trees.
        let allowed = FOREIGN_BYTES_PER_BYTE * state.len() + FOREIGN_BYTES;
        assert!(bytes <= allowed, "a state of {} bytes took {bytes} bytes to read", state.len());
        result
    };
    assert_eq!(read(&common::tree()).unwrap(), common::tree());
    let file = common::tree().files.into_iter().find(|file| matches!(file.kind, FileKind::Event { .. })).unwrap();
    let socket = common::tree().files.into_iter().find(|file| matches!(file.kind, FileKind::Inet(_))).unwrap();
    let zombie = common::tree().processes[2].clone();
    let bombs: [fn(&mut Tree, [torpor_image::tree::OpenFile; 2], torpor_image::tree::Process); 5] = [
        |tree, [file, _], _| tree.files = vec![file; MANY],
        |tree, [_, socket], _| tree.files = vec![socket; MANY / 10],
        |tree, _, zombie| tree.processes.extend(vec![zombie; MANY]),
        |tree, _, _| tree.pipes[0].contents = vec![Vec::new(); MANY * 4],
        |tree, _, _| tree.surroundings.lost = vec![String::new(); MANY * 4],
    ];
    for (n, bomb) in bombs.iter().enumerate() {
        let mut tree = common::tree();
        bomb(&mut tree, [file.clone(), socket.clone()], zombie.clone());
        assert!(read(&tree).is_err(), "bomb {n} was read");
    }
}
