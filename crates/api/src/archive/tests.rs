//! Archives survive being written and read; whatever is wrong with one is found.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Cursor, Read, Write};

use proptest::prelude::*;

use super::*;
use crate::spec::Source;

fn manifest() -> Manifest {
    let spec = serde_json::json!({"name": "web", "source": Source::Stored { name: "x".into() }});
    Manifest {
        torpor: "1".into(),
        made: Timestamp::UNIX_EPOCH,
        spec: serde_json::from_value(spec).unwrap(),
        resolved: Resolved::default(),
        addresses: vec!["10.0.0.2".parse().unwrap()],
        left_out: vec!["a connection".into()],
    }
}

fn write(sections: &[(Section, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = Writer::begin(&mut out, &manifest()).unwrap();
    for (section, bytes) in sections {
        let mut part = writer.section(section).unwrap();
        part.write_all(bytes).unwrap();
        part.finish().unwrap();
    }
    writer.end().unwrap();
    out
}

fn read(bytes: &[u8]) -> Result<Vec<(Section, Vec<u8>)>, String> {
    let (mut reader, found) = Reader::open(Box::new(Cursor::new(bytes.to_vec()))).map_err(|error| error.to_string())?;
    assert_eq!(found, manifest());
    let mut sections = Vec::new();
    while let Some(section) = reader.next_section().map_err(|error| error.to_string())? {
        let mut contents = Vec::new();
        reader.read_to_end(&mut contents).map_err(|error| error.to_string())?;
        sections.push((section, contents));
    }
    Ok(sections)
}

fn sample() -> Vec<(Section, Vec<u8>)> {
    let layer = Section::Layer { name: "sha256:00".into() };
    vec![(layer, vec![7; 700_000]), (Section::Files, Vec::new()), (Section::Image { bytes: 3 }, vec![1, 2, 3])]
}

#[test]
fn survives_its_bytes() {
    assert_eq!(read(&write(&sample())).unwrap(), sample());
}

#[test]
fn sections_can_be_passed_over() {
    let bytes = write(&sample());
    let (mut reader, _) = Reader::open(Box::new(Cursor::new(bytes))).unwrap();
    let mut seen = Vec::new();
    while let Some(section) = reader.next_section().unwrap() {
        seen.push(section);
    }
    assert_eq!(seen, sample().into_iter().map(|(section, _)| section).collect::<Vec<_>>());
    assert!(reader.next_section().unwrap().is_none());
}

#[test]
fn a_reader_rewinds_until_a_section_is_asked_for() {
    let bytes = write(&sample());
    let open = || Reader::open(Box::new(Cursor::new(bytes.clone()))).unwrap().0;
    let mut again = Vec::new();
    open().rewind().unwrap().read_to_end(&mut again).unwrap();
    assert_eq!(again, bytes);
    let mut begun = open();
    begun.next_section().unwrap();
    assert!(begun.rewind().is_none());
}

#[test]
fn a_reason_arrives() {
    let mut out = Vec::new();
    let mut writer = Writer::begin(&mut out, &manifest()).unwrap();
    writer.section(&Section::Files).unwrap().write_all(b"half").unwrap();
    writer.fail(&ApiError::new(crate::ErrorKind::Conflict, "it woke")).unwrap();
    assert_eq!(read(&out).unwrap_err(), "it woke");
}

#[test]
fn whatever_is_cut_off_or_added_is_found() {
    let whole = write(&sample()[1..]);
    for length in 0..whole.len() {
        assert!(read(&whole[..length]).is_err(), "{length} of {}", whole.len());
    }
    assert!(read(&[&whole[..], b"x"].concat()).unwrap_err().contains("follow"));
    assert!(read(b"\x1f\x8b").unwrap_err().contains("not an archive"));
}

#[test]
fn every_flipped_bit_is_found() {
    let whole = write(&sample()[1..]);
    for bit in 0..whole.len() * 8 {
        let mut bad = whole.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(read(&bad).is_err(), "bit {bit}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_read(tail in proptest::collection::vec(any::<u8>(), 0..400)) {
        let whole = write(&[]);
        let bytes = [&whole[..20], &tail].concat();
        let _ = Reader::open(Box::new(Cursor::new(bytes)));
    }
}
