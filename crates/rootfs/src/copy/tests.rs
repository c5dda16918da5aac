//! Trees survive the way there and back; hostile streams make nothing outside of their directory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};

use super::*;
use crate::digest::Digest;
use crate::limits::Limits;

/// What is to be the same: by path, what is known of it and its contents.
fn look(root: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    let mut inodes = BTreeMap::new();
    while let Some(path) = folders.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
        // A mark of overlayfs has none that counts.
        let mark = stat.file_type().is_char_device();
        let times = if mark { (0, 0) } else { (stat.mtime(), stat.mtime_nsec()) };
        let mut text = format!("{:o} {}:{} {times:?} {:x}", stat.mode(), stat.uid(), stat.gid(), stat.rdev());
        if stat.is_dir() {
            folders.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if stat.is_file() {
            let contents = fs::read(&path).unwrap();
            text += &format!(" {} {} {}", contents.len(), Digest::of(&contents), stat.blocks());
        } else if stat.is_symlink() {
            text += &format!(" {:?}", fs::read_link(&path).unwrap());
        }
        for attribute in ["user.a", "trusted.overlay.opaque"] {
            let mut value = [0; 64];
            if !stat.is_symlink()
                && let Ok(count) = rustix::fs::getxattr(&path, attribute, &mut value[..])
            {
                text += &format!(" {attribute}={:?}", &value[..count]);
            }
        }
        if stat.nlink() > 1 && !stat.is_dir() {
            let names: &mut Vec<Vec<u8>> = inodes.entry(stat.ino()).or_default();
            names.push(name.clone());
        }
        found.insert(name, text);
    }
    for names in inodes.into_values() {
        found.insert([&b"links "[..], &names.concat()].concat(), names.len().to_string());
    }
    found
}

/// A tree with everything in it.
fn sample(root: &Path) {
    let at = |name: &str| root.join(name);
    fs::create_dir_all(at("a/b/c")).unwrap();
    fs::create_dir_all(at("full/deep")).unwrap();
    fs::write(at("a/file"), b"contents").unwrap();
    fs::hard_link(at("a/file"), at("a/b/again")).unwrap();
    symlink("../../etc/passwd", at("a/link")).unwrap();
    let sparse = File::create(at("sparse")).unwrap();
    sparse.write_all_at(&[1; 70_000], 5 << 20).unwrap();
    sparse.set_len(9 << 20).unwrap();
    File::create(at("large")).unwrap().write_all(&vec![9; 700_000]).unwrap();
    for (name, kind) in [("fifo", FileType::Fifo), ("socket", FileType::Socket)] {
        mknodat(CWD, at(name), kind, Mode::from_raw_mode(0o640), 0).unwrap();
    }
    mknodat(CWD, at("gone"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    std::os::unix::fs::chown(at("a/file"), Some(1000), Some(65_535)).unwrap();
    std::os::unix::fs::lchown(at("a/link"), Some(7), Some(8)).unwrap();
    fs::set_permissions(at("a/file"), fs::Permissions::from_mode(0o6755)).unwrap();
    fs::set_permissions(at("full"), fs::Permissions::from_mode(0o1700)).unwrap();
    setxattr(at("large"), "user.a", b"value", XattrFlags::empty()).unwrap();
    setxattr(at("full"), "trusted.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
    setxattr(at("full"), "trusted.overlay.origin", b"here", XattrFlags::empty()).unwrap();
    fs::write(root.join(std::ffi::OsStr::from_bytes(b".wh.\xff\n")), b"").unwrap();
    let old = File::options().write(true).open(at("large")).unwrap();
    old.set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(1, 123_456_789)).unwrap();
}

fn bytes_of(root: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_tree(root, Ids::Same, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_tree_survives_exactly() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    sample(from.path());
    let bytes = bytes_of(from.path());
    let copied = read_tree(&mut &bytes[..], to.path(), Ids::Same).unwrap();
    assert_eq!(look(from.path()), look(to.path()));
    assert_eq!(bytes_of(to.path()), bytes);
    assert!(copied.bytes >= 8 + 70_000 + 700_000, "{copied:?}");
    assert!(copied.bytes < 1 << 20, "holes were copied: {copied:?}");
}

#[test]
fn owners_are_mapped() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    sample(from.path());
    read_tree(&mut &bytes_of(from.path())[..], to.path(), Ids::From(1 << 20)).unwrap();
    let stat = fs::metadata(to.path().join("a/file")).unwrap();
    assert_eq!((stat.uid(), stat.gid(), stat.mode() & 0o7777), ((1 << 20) + 1000, (1 << 20) + 65_535, 0o6755));
    let mut back = Vec::new();
    write_tree(to.path(), Ids::From(1 << 20), &mut back).unwrap();
    assert_eq!(back, bytes_of(from.path()));
    let refused = write_tree(to.path(), Ids::From(1), &mut back).unwrap_err();
    assert!(matches!(refused, CopyError::Owner { .. }), "{refused}");
}

#[test]
fn devices_are_not_taken_along() {
    let from = tempfile::tempdir().unwrap();
    let number = rustix::fs::makedev(7, 99);
    mknodat(CWD, from.path().join("device"), FileType::BlockDevice, Mode::from_raw_mode(0o600), number).unwrap();
    let error = write_tree(from.path(), Ids::Same, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, CopyError::Device { .. }), "{error}");
    for kind in [NodeKind::Block(8, 0), NodeKind::Character(1, 1)] {
        refused(&[Record::Node { path: "a".into(), kind, meta: Meta::default() }]);
    }
}

#[test]
fn no_more_bytes_come_than_there_is_room_for() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(from.path().join("a"), vec![7; 5000]).unwrap();
    let bytes = bytes_of(from.path());
    let limits = |max_unpacked_bytes| Limits { max_unpacked_bytes, ..Limits::default() };
    let error = read_tree_within(&mut &bytes[..], to.path(), Ids::Same, limits(4999)).unwrap_err();
    assert!(matches!(error, CopyError::Bytes { limit: 4999 }), "{error}");
    let to = tempfile::tempdir().unwrap();
    read_tree_within(&mut &bytes[..], to.path(), Ids::Same, limits(5000)).unwrap();
}

/// The records as bytes.
fn stream(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        bytes.extend(record.to_bytes());
        if let Record::Data { bytes: length, .. } = record {
            bytes.resize(bytes.len() + *length as usize, 1);
        }
    }
    bytes
}

fn root() -> Record {
    Record::Directory { path: Vec::new(), meta: Meta { mode: 0o755, ..Meta::default() } }
}

fn file(path: &str) -> Record {
    Record::File { path: path.into(), meta: Meta::default(), bytes: 1 }
}

fn refused(records: &[Record]) {
    let outer = tempfile::tempdir().unwrap();
    let inner = outer.path().join("inner");
    fs::create_dir(&inner).unwrap();
    fs::write(outer.path().join("precious"), b"x").unwrap();
    let mut all = vec![root()];
    all.extend_from_slice(records);
    all.push(Record::End);
    assert!(read_tree(&mut &stream(&all)[..], &inner, Ids::Same).is_err(), "{records:?}");
    assert_eq!(fs::read(outer.path().join("precious")).unwrap(), b"x");
    assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 2, "{records:?}");
}

#[test]
fn hostile_records_are_refused() {
    let meta = Meta::default;
    let link = |path: &str, target: &str| Record::Symlink { path: path.into(), target: target.into(), meta: meta() };
    let folder = |path: &str| Record::Directory { path: path.into(), meta: meta() };
    for path in ["../precious", "/precious", "a/../../precious", "missing/x", "", ".", "a\0b"] {
        refused(&[file(path)]);
        refused(&[folder(path)]);
        refused(&[Record::Whiteout { path: path.into() }]);
    }
    refused(&[link("out", ".."), file("out/precious")]);
    refused(&[link("out", ".."), folder("out"), file("out/precious")]);
    refused(&[link("out", "../precious"), file("out")]);
    refused(&[file("a"), file("a")]);
    refused(&[Record::Link { path: "a".into(), target: "../precious".into() }]);
    refused(&[link("out", ".."), Record::Link { path: "a".into(), target: "out/precious".into() }]);
    refused(&[folder("a"), Record::Link { path: "b".into(), target: "a".into() }]);
    refused(&[folder("a"), file("b"), file("a/late")]);
    refused(&[Record::Data { offset: 0, bytes: 1 }]);
    refused(&[file("a"), Record::Data { offset: 1, bytes: 1 }]);
    refused(&[file("a"), Record::Data { offset: u64::MAX, bytes: 1 }]);
    refused(&[file("a"), Record::Data { offset: 0, bytes: MOST_DATA_BYTES + 1 }]);
    refused(&[Record::File { path: "a".into(), meta: meta(), bytes: u64::MAX }]);
    refused(&[Record::Node { path: "a".into(), kind: NodeKind::Character(0, 0), meta: meta() }]);
    refused(&[Record::File { path: "a".into(), meta: Meta { mode: 0o100_000, ..meta() }, bytes: 0 }]);
    let xattrs = vec![(b"trusted.overlay.metacopy".to_vec(), Vec::new())];
    refused(&[Record::File { path: "a".into(), meta: Meta { xattrs, ..meta() }, bytes: 0 }]);
    refused(&[root()]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn damaged_streams_stay_inside(at in 0..2000_usize, with in any::<u8>(), length in 0..3000_usize) {
        let (from, outer) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir_all(from.path().join("a/b")).unwrap();
        fs::write(from.path().join("a/file"), b"contents").unwrap();
        fs::hard_link(from.path().join("a/file"), from.path().join("a/b/x")).unwrap();
        symlink("..", from.path().join("a/link")).unwrap();
        let mut bytes = bytes_of(from.path());
        let place = at % bytes.len();
        bytes[place] = with;
        bytes.truncate(length.max(place + 1));
        let inner = outer.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let _ = read_tree(&mut &bytes[..], &inner, Ids::Same);
        prop_assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1);
    }
}

#[test]
fn attributes_of_directories_in_each_other_are_bounded() {
    let with = |path: &str, xattrs: Vec<(Vec<u8>, Vec<u8>)>| Record::Directory {
        path: path.into(),
        meta: Meta { mode: 0o755, xattrs, ..Meta::default() },
    };
    let read = |records: &[Record], max_kept_bytes| {
        let stream: Vec<u8> = records.iter().flat_map(Record::to_bytes).collect();
        let root = tempfile::tempdir().unwrap();
        read_tree_within(&mut &stream[..], root.path(), Ids::Same, Limits { max_kept_bytes, ..Limits::default() })
    };
    // Each takes 5 bytes and the kernel lists no more than 64 KiB of them, but memory takes far more.
    let many = vec![(b"user.".to_vec(), Vec::new()); 20_000];
    assert!(matches!(read(&[with("", many)], u64::MAX), Err(CopyError::Invalid(why)) if why.contains("attributes")));
    let some = || vec![(b"user.a".to_vec(), vec![7; 500])];
    let beside = [with("", some()), with("a", some()), with("b", some()), with("c", some()), Record::End];
    read(&beside, 2500).unwrap();
    let within = [with("", some()), with("a", some()), with("a/b", some()), with("a/b/c", some()), Record::End];
    assert!(matches!(read(&within, 2500), Err(CopyError::Limit { limit: 2500, .. })));
    read(&within, 5000).unwrap();
}
