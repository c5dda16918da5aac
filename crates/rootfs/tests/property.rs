//! Whatever an archive holds, nothing outside the store is touched, and a refusal leaves nothing inside.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use common::{Head, Place, Tar, listing};
use proptest::prelude::*;

const NAMES: [&str; 8] = ["a", "b", "c", ".", "..", "", ".wh.a", ".wh..wh..opq"];

#[derive(Clone, Debug)]
struct Entry {
    path: String,
    link: String,
    kind: u8,
    in_pax: bool,
    data: usize,
}

fn path(canary: &str) -> impl Strategy<Value = String> {
    let name = prop_oneof![6 => prop::sample::select(&NAMES[..3]), 1 => prop::sample::select(&NAMES[3..])];
    let inside = prop::collection::vec(name, 1..4).prop_map(|names| names.join("/"));
    let up = format!("../../../../../..{canary}");
    let outside = prop::sample::select(vec![
        canary.to_owned(),
        format!("{canary}/file"),
        up.clone(),
        format!("{up}/file"),
        "../../..".to_owned(),
    ]);
    prop_oneof![9 => inside, 1 => outside]
}

fn target(canary: &str) -> impl Strategy<Value = String> {
    let links =
        vec![canary.to_owned(), format!("{canary}/file"), "..".to_owned(), "../../../..".to_owned(), "/".to_owned()];
    prop_oneof![1 => path(canary), 1 => prop::sample::select(links)]
}

fn entries(canary: &str) -> impl Strategy<Value = Vec<Entry>> {
    let kind = prop_oneof![
        6 => prop::sample::select(vec![b'0', b'5', b'2']),
        2 => Just(b'1'),
        1 => prop::sample::select(vec![b'6', b'3', b'4', b'7', b'g'])
    ];
    let entry = (path(canary), target(canary), kind, any::<bool>(), 0_usize..600)
        .prop_map(|(path, link, kind, in_pax, data)| Entry { path, link, kind, in_pax, data });
    prop::collection::vec(entry, 1..14)
}

fn archive(entries: &[Entry]) -> Vec<u8> {
    let mut tar = Tar::new();
    for entry in entries {
        let data = if entry.kind == b'0' { vec![b'x'; entry.data] } else { Vec::new() };
        let head = Head { kind: entry.kind, mode: 0o777, uid: 3, ..Head::default() };
        tar = if entry.in_pax {
            tar.pax(&[(b"path", entry.path.as_bytes()), (b"linkpath", entry.link.as_bytes())])
                .raw(&Head { path: b"x", link: b"y", ..head }, &data)
        } else {
            tar.member(&Head { path: entry.path.as_bytes(), link: entry.link.as_bytes(), ..head }, &data)
        };
    }
    tar.end()
}

/// Everything beside the store and the archive itself.
fn outside(place: &Place) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(place.directory.path()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_owned();
        if name != "store" && name != "input.tar" {
            found.extend(listing(&path).into_iter().map(|(inner, text)| (Path::new(&name).join(inner), text)));
        }
    }
    found
}

fn check(place: &Place, before: &BTreeMap<PathBuf, String>, data: &[u8], base: Option<&str>) -> bool {
    let layers = || fs::read_dir(place.path("store/layers")).unwrap().count();
    let count = layers();
    let result = place.tarball_over(data, base);
    assert_eq!(outside(place), *before, "something outside was touched");
    assert_eq!(fs::read_dir(place.path("store/tmp")).unwrap().count(), 0, "temporaries are left");
    if result.is_err() {
        assert_eq!(layers(), count, "a refused archive left a layer");
    }
    for name in fs::read_dir(place.path("store")).unwrap() {
        let name = name.unwrap().file_name().into_string().unwrap();
        assert!(["layers", "images", "names", "tmp"].contains(&name.as_str()), "{name} in the store");
    }
    result.is_ok()
}

#[test]
fn no_sequence_of_members_reaches_outside() {
    let place = Place::in_memory();
    let canary = place.path("canary");
    fs::create_dir(&canary).unwrap();
    fs::write(canary.join("file"), "untouched").unwrap();
    std::os::unix::fs::symlink("file", canary.join("link")).unwrap();
    let outward = Tar::new()
        .symlink("a", canary.to_str().unwrap())
        .symlink("b", "../../../../..")
        .dir("c", 0o755)
        .symlink("c/a", "/c");
    let base = place.tarball(&outward.end()).unwrap();
    place.store.tag("base", &base).unwrap();
    let before = outside(&place);
    let accepted = std::cell::Cell::new(0);
    let config = ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(entries in entries(canary.to_str().unwrap()), over in any::<bool>())| {
        let fine = check(&place, &before, &archive(&entries), over.then_some("base"));
        accepted.set(accepted.get() + u32::from(fine));
    });
    assert!(accepted.get() > 100, "only {} archives were accepted: the test tests refusals only", accepted.get());
    println!("{} of 1500 archives were accepted", accepted.get());
}

#[test]
fn no_bytes_make_it_panic() {
    let place = Place::in_memory();
    let good = Tar::new()
        .dir("d", 0o755)
        .pax(&[(b"mtime", b"1.5"), (b"SCHILY.xattr.user.note", b"x")])
        .file("d/f", "data")
        .file(&"l".repeat(150), "long")
        .pax(&[(b"GNU.sparse.size", b"9"), (b"GNU.sparse.map", b"1,2,5,2")])
        .file("s", "abcd")
        .hard_link("h", "d/f")
        .end();
    let before = outside(&place);
    let config = ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() };
    let changes = prop::collection::vec((0..good.len(), any::<u8>()), 1..4);
    proptest!(config, |(changes in changes, cut in 0..good.len() * 2, mend in any::<bool>())| {
        let mut data = good.clone();
        for (at, byte) in changes {
            data[at] = byte;
        }
        if mend {
            mend_checksums(&mut data);
        }
        data.truncate(cut);
        check(&place, &before, &data, None);
    });
}

/// Makes the checksums of what look like headers right, so that changes get past them.
fn mend_checksums(data: &mut [u8]) {
    for block in data.chunks_exact_mut(512).filter(|block| &block[257..262] == b"ustar") {
        let header: &mut [u8; 512] = block.try_into().unwrap();
        let mut copy = tar::Header::from_byte_slice(header).clone();
        copy.set_cksum();
        header.copy_from_slice(copy.as_bytes());
    }
}
