//! Archives: their frames, and the trees of files in them.

use std::io::{Cursor, Read};
use std::path::Path;

use torpor_api::archive::Reader;
use torpor_image::checksum;
use torpor_rootfs::{Ids, Limits, read_tree_within};

/// Frames with right checksums: a byte for the kind, two for the length, contents.
pub(crate) fn frames(bytes: &[u8]) {
    let mut archive = [&b"TORPOR-ARCHIVE\r\n"[..], &1_u32.to_le_bytes()].concat();
    let mut rest = bytes;
    while let Some((head, behind)) = rest.split_first_chunk::<3>() {
        let length = usize::from(u16::from_le_bytes([head[1], head[2]])).min(behind.len());
        let (contents, next) = behind.split_at(length);
        archive.push(head[0]);
        archive.extend((length as u32).to_le_bytes());
        archive.extend(contents);
        archive.extend(checksum(&archive).to_le_bytes());
        rest = next;
    }
    let Ok((mut reader, _)) = Reader::open(Box::new(Cursor::new(archive))) else { return };
    while let Ok(Some(_)) = reader.next_section() {
        let _ = reader.read_to_end(&mut Vec::new());
    }
}

/// Whatever the records say, nothing appears beside the directory that they are for.
pub(crate) fn files(bytes: &[u8]) {
    let outer = tempfile::tempdir_in(Path::new("/dev/shm")).expect("there is room in memory");
    let inner = outer.path().join("inner");
    std::fs::create_dir(&inner).expect("the directory is new and ours");
    let limits = Limits { max_members: 100, max_unpacked_bytes: 1 << 20, ..Limits::default() };
    let _ = read_tree_within(&mut &bytes[..], &inner, Ids::From(1 << 20), limits);
    assert_eq!(std::fs::read_dir(outer.path()).expect("the directory is ours").count(), 1);
}
