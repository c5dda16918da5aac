//! Images as earlier versions wrote them are read as what they were.
//!
//! `fixtures/` holds one file per kind and version of the format, each made once and never again. A test that fails here
//! says that images in the field would no longer be read, or be read as something else: the format has changed, and needs a
//! new version, beside which the old one is read.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::PathBuf;

use torpor_image::tree::{Backing, Details, FileContents, Tree, UsedPages};
use torpor_image::{FormatError, HEADER_BYTES, Header, Kind, Region, State, VERSION, checksum};

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn open(image: &[u8]) -> (Header, &[u8]) {
    let header = Header::decode(image, image.len() as u64).unwrap();
    let state = &image[header.state_offset() as usize..header.plan_offset() as usize];
    (header, state)
}

fn check_pages(image: &[u8], header: &Header, regions: &[Region]) {
    for region in regions {
        let torpor_image::Content::Stored { offset, checksum: sum } = region.content else { continue };
        assert!(header.pages().contains(&offset));
        assert_eq!(checksum(&image[offset as usize..(offset + region.bytes()) as usize]), sum);
    }
}

#[test]
fn complete_images_of_versions_2_and_3_are_what_they_were() {
    // Version 2 had no details.
    check_complete("complete-2.image", 2, &Tree { details: Details::default(), ..common::tree() });
    check_complete("complete-3.image", 3, &common::tree());
}

fn check_complete(name: &str, version: u32, wanted: &Tree) {
    let image = fixture(name);
    assert_eq!(image[8..12], u32::to_le_bytes(version));
    let (header, state) = open(&image);
    assert_eq!(header, Header { version, ..common::header(Kind::Complete, state, common::PLAN) }, "{name}");
    let tree = Tree::read(state, &header).unwrap();
    assert_eq!(tree, *wanted, "{name}");
    let areas = tree.processes.iter().filter_map(|process| process.alive()).flat_map(|life| &life.space.areas);
    let mut stored = 0;
    for area in areas {
        stored += area.pages.len();
        check_pages(&image, &header, &area.pages);
        assert!(area.pages.is_empty() || matches!(area.backing, Backing::Anonymous { .. }));
    }
    tree.memories.iter().for_each(|memory| check_pages(&image, &header, &memory.pages));
    assert_eq!((stored, tree.memories.len()), (4, 4));
}

#[test]
fn dozing_images_of_all_versions_are_what_they_were() {
    for (name, version) in [("dozing-1.image", 1), ("dozing-2.image", 2), ("dozing-3.image", 3)] {
        let image = fixture(name);
        assert_eq!(image[8..12], u32::to_le_bytes(version));
        let (header, state) = open(&image);
        assert_eq!(header, Header { version, ..common::header(Kind::Dozing, state, &[]) }, "{name}");
        let state = State::decode(state, &header).unwrap();
        assert_eq!(state, common::dozing(), "{name}");
        check_pages(&image, &header, &state.processes[0].regions);
    }
}

#[test]
fn images_are_written_byte_for_byte_as_before() {
    assert_eq!(VERSION, 3, "a new version needs its own fixtures");
    assert!(fixture("complete-3.image") == common::complete_image(), "the complete format has changed");
    assert!(fixture("dozing-3.image") == common::dozing_image(), "the dozing format has changed");
}

/// An image of before has none of it, and one that has nothing to say has none either.
#[test]
fn contents_of_files_follow_the_state() {
    let image = common::complete_image();
    let (header, state) = open(&image);
    let mut tree = Tree::decode(state, header.pages()).unwrap();
    assert!(tree.contents.is_empty());
    tree.contents = vec![FileContents { path: b"/data/index".to_vec(), checksum: 7 }];
    let bytes = tree.encode();
    assert!(bytes.starts_with(state) && bytes.len() > state.len());
    assert_eq!(Tree::decode(&bytes, header.pages()).unwrap(), tree);
    for wrong in [&bytes[..bytes.len() - 1], &[&bytes[..], &[0]].concat(), &[state, &[0]].concat()] {
        assert!(Tree::decode(wrong, header.pages()).is_err());
    }
}

#[test]
fn used_pages_of_files_follow_the_loading_set() {
    let image = common::complete_image();
    let (header, state) = open(&image);
    let mut tree = Tree::decode(state, header.pages()).unwrap();
    tree.used = vec![UsedPages { path: b"/lib/a.so".to_vec(), runs: vec![(0, 16), (40, 1)] }];
    let bytes = tree.encode();
    assert_eq!(Tree::decode(&bytes, header.pages()).unwrap(), tree);
    // Nothing is written that could not be read again.
    let beyond = vec![UsedPages { path: b"/lib/a.so".to_vec(), runs: vec![(u32::MAX, 1)] }];
    assert!(Tree { used: beyond, ..tree.clone() }.check(&header.pages()).is_err());
    // An empty list at the end.
    let without = Tree { used: Vec::new(), contents: vec![FileContents { path: b"/a".to_vec(), checksum: 7 }], ..tree };
    assert!(Tree::decode(&[&without.encode()[..], &[0]].concat(), header.pages()).is_err());
}

#[test]
fn later_versions_are_refused_by_number() {
    let mut image = fixture("complete-3.image");
    image[8..12].copy_from_slice(&u32::to_le_bytes(VERSION + 1));
    assert_eq!(Header::decode(&image, image.len() as u64), Err(FormatError::Version(VERSION + 1)));
}

/// Writes those fixtures that are not there: `cargo test -p torpor-image --test golden -- --ignored`, once per version.
#[test]
#[ignore = "makes fixtures of a new version"]
fn make_missing_fixtures() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for (name, image) in [
        ("complete-3.image", common::complete_image()),
        ("dozing-3.image", common::dozing_image()),
        ("dozing-1.image", version_1(&common::dozing_image())),
    ] {
        let path = folder.join(name);
        if !path.exists() {
            std::fs::write(path, image).unwrap();
        }
    }
}

/// The dozing image as version 1 had it: a shorter header, and the same behind it.
fn version_1(image: &[u8]) -> Vec<u8> {
    let mut header = image[..72].to_vec();
    header[8..12].copy_from_slice(&u32::to_le_bytes(1));
    header.extend_from_slice(&checksum(&header).to_le_bytes());
    header.resize(HEADER_BYTES as usize, 0);
    [&header, &image[HEADER_BYTES as usize..]].concat()
}
