//! What bad archives become: an error that names the culprit, and nothing else.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{Head, Place, Tar, gzip};
use torpor_rootfs::Limits;

/// Each archive is refused with a message that holds the words.
fn all_refused(cases: Vec<(&str, Vec<u8>, &str)>) {
    let place = Place::new();
    for (name, archive, words) in cases {
        let refusal = place.refusal(&archive);
        assert!(refusal.contains(words), "{name}: {refusal}");
    }
}

fn member(path: &[u8], kind: u8, link: &[u8]) -> Vec<u8> {
    Tar::new().member(&Head { path, kind, link, ..Head::default() }, b"").end()
}

#[test]
fn paths_that_lead_outside_are_refused() {
    all_refused(vec![
        ("absolute", Tar::new().file("/etc/passwd", "x").end(), "absolute path \"/etc/passwd\""),
        ("parent", Tar::new().file("a/../../b", "x").end(), "\"..\""),
        ("bare parent", Tar::new().dir("..", 0o755).end(), "\"..\""),
        ("through its own link", Tar::new().symlink("l", "/etc").file("l/x", "x").end(), "a symbolic link"),
        ("through a relative link", Tar::new().symlink("l", "..").file("l/x", "x").end(), "a symbolic link"),
        ("deeper", Tar::new().symlink("a/l", "/").file("a/l/b/c", "x").end(), "a symbolic link"),
        ("directory through a link", Tar::new().symlink("l", "/tmp").dir("l/x", 0o777).end(), "a symbolic link"),
        ("whiteout through a link", Tar::new().symlink("l", "/tmp").file("l/.wh.x", "").end(), "a symbolic link"),
        (
            "through a file",
            Tar::new().file("f", "x").file("f/x", "x").end(),
            "below \"f\", which the archive made a file",
        ),
        ("pax path", Tar::new().pax(&[(b"path", b"../x")]).file("x", "x").end(), "\"..\""),
        ("pax sparse name", Tar::new().pax(&[(b"GNU.sparse.name", b"/x")]).file("x", "x").end(), "absolute"),
        ("root as a file", Tar::new().file("./", "x").end(), "root but no directory"),
        ("root as a link", Tar::new().symlink(".", "/etc").end(), "root but no directory"),
    ]);
}

#[test]
fn links_that_lead_outside_are_refused() {
    all_refused(vec![
        ("hard, absolute", Tar::new().hard_link("h", "/etc/passwd").end(), "absolute"),
        ("hard, parent", Tar::new().hard_link("h", "../../etc/passwd").end(), "\"..\""),
        ("hard, missing", Tar::new().hard_link("h", "nothing").end(), "hard link \"h\" leads to \"nothing\""),
        ("hard, to a directory", Tar::new().dir("d", 0o755).hard_link("h", "d").end(), "hard link"),
        ("hard, to the root", Tar::new().hard_link("h", ".").end(), "hard link"),
        ("hard, to itself", Tar::new().file("h", "x").hard_link("h", "h").end(), "hard link"),
        ("hard, through a link", Tar::new().symlink("l", "/etc").hard_link("h", "l/passwd").end(), "a symbolic link"),
        ("hard, into what it replaces", Tar::new().file("d/f", "x").hard_link("d", "d/f").end(), "hard link"),
        ("hard, empty", member(b"h", b'1', b""), "is empty"),
        ("symbolic, empty", member(b"s", b'2', b""), "symbolic link \"s\""),
        ("symbolic, long", Tar::new().symlink("s", &"x".repeat(4096)).end(), "symbolic link \"s\""),
        ("symbolic, zero byte", Tar::new().pax(&[(b"linkpath", b"a\0b")]).symlink("s", "x").end(), "symbolic link"),
    ]);
}

#[test]
fn a_hard_link_to_a_symbolic_link_does_not_follow_it() {
    let place = Place::new();
    let canary = place.write("canary", b"untouched");
    let target = canary.to_str().unwrap();
    let tree = place.tree(&Tar::new().symlink("s", target).hard_link("h", "s").file("h", "mine").end());
    assert_eq!(std::fs::read(&canary).unwrap(), b"untouched");
    assert_eq!(std::fs::read(tree.join("h")).unwrap(), b"mine");
    assert!(std::fs::symlink_metadata(tree.join("s")).unwrap().is_symlink());
}

#[test]
fn names_that_no_file_can_have_are_refused() {
    all_refused(vec![
        ("zero byte", Tar::new().pax(&[(b"path", b"a\0b")]).file("x", "").end(), "zero byte"),
        ("long name", Tar::new().file(&"n".repeat(256), "").end(), "more than 255 bytes"),
        ("long path", Tar::new().file(&"abc/".repeat(1024), "").end(), "longer than 4095"),
        ("deep", Tar::new().file(&"a/".repeat(300), "").end(), "256 directories"),
        ("empty", member(b"", b'0', b""), "is empty"),
        ("whiteout of nothing", Tar::new().file("a/.wh.", "").end(), "whiteout"),
        ("whiteout of parent", Tar::new().file("a/.wh...", "").end(), "whiteout"),
        ("whiteout of itself", Tar::new().file(".wh..", "").end(), "whiteout"),
    ]);
}

#[test]
fn devices_and_unknown_kinds_are_refused() {
    all_refused(vec![
        ("block", Tar::new().device("disk", b'4', (8, 0)).end(), "\"disk\" is a block device (8:0)"),
        ("block 0:0", Tar::new().device("disk", b'4', (0, 0)).end(), "block device (0:0)"),
        ("character", Tar::new().device("a/kmsg", b'3', (1, 11)).end(), "character device (1:11)"),
        ("unknown", member(b"x", b'Z', b""), "unknown kind 'Z'"),
        ("multi-volume", member(b"x", b'M', b""), "unknown kind 'M'"),
        ("owner", Tar::new().member(&Head { path: b"x", uid: 65536, ..Head::default() }, b"").end(), "user 65536"),
        ("group", Tar::new().member(&Head { path: b"x", gid: 1 << 40, ..Head::default() }, b"").end(), "group"),
        ("pax owner", Tar::new().pax(&[(b"uid", b"4294967296")]).file("x", "").end(), "user 4294967296"),
    ]);
}

#[test]
fn garbage_and_cut_off_archives_are_refused() {
    let good = Tar::new().file("a", &"x".repeat(3000)).file("b", "y").end();
    let mut flipped = good.clone();
    flipped[10] ^= 1;
    let zipped = gzip(&good);
    let zstd = zstd::encode_all(&good[..], 3).unwrap();
    let mut damaged = zipped.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x55;
    let garbage: Vec<u8> = (0..5000_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    all_refused(vec![
        ("empty file", Vec::new(), "cut off after 0 bytes"),
        ("garbage", garbage, "not a tar archive"),
        ("text", b"hello, world\n".to_vec(), "cut off"),
        ("zeros", vec![0; 10240], "holds no files"),
        ("flipped", flipped, "checksum at byte 0"),
        ("in a header", good[..300].to_vec(), "cut off"),
        ("in data", good[..2000].to_vec(), "cut off after 2000"),
        ("in padding", good[..3550].to_vec(), "cut off"),
        ("between members", good[..3584].to_vec(), "cut off after 3584"),
        ("without its end", good[..good.len() - 1024].to_vec(), "cut off"),
        ("gzip", zipped[..zipped.len() - 9].to_vec(), "gzip data is damaged or cut off"),
        ("gzip, flipped", damaged, "damaged"),
        ("zstd", zstd[..zstd.len() - 5].to_vec(), "zstd data is damaged or cut off"),
        ("xz", b"\xfd7zXZ\0rest".to_vec(), "compressed with xz"),
    ]);
}

#[test]
fn damaged_headers_are_refused() {
    let sparse = |records: &[(&[u8], &[u8])], data: &[u8]| {
        Tar::new().pax(records).member(&Head { path: b"s", ..Head::default() }, data).end()
    };
    let inline: &[(&[u8], &[u8])] =
        &[(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"9")];
    let map = |map| [(&b"GNU.sparse.size"[..], &b"9"[..]), (b"GNU.sparse.map", map)];
    let twice = Head { path: b"././@LongLink", kind: b'L', ..Head::default() };
    let pax = Head { path: b"p", kind: b'x', ..Head::default() };
    all_refused(vec![
        ("pax", Tar::new().raw(&pax, b"99 a=b\n").file("x", "").end(), "PAX header at byte 0"),
        ("pax without a member", Tar::new().pax(&[(b"path", b"x")]).end(), "describes nothing"),
        ("long name twice", Tar::new().raw(&twice, b"a\0").raw(&twice, b"b\0").file("x", "").end(), "repeated"),
        ("pax twice", Tar::new().pax(&[]).pax(&[]).file("x", "").end(), "repeated"),
        ("huge pax", Tar::new().raw(&Head { size: Some(1 << 40), ..pax.clone() }, b"").end(), "extension header"),
        (
            "huge file",
            Tar::new().raw(&Head { path: b"x", size: Some(1 << 62), ..Head::default() }, b"").end(),
            "bytes when unpacked",
        ),
        (
            "impossible file",
            Tar::new().raw(&Head { path: b"x", size: Some(u64::MAX), ..Head::default() }, b"").end(),
            "size of",
        ),
        ("sparse beyond its end", sparse(&map(b"5,5"), b"12345"), "sparse map"),
        ("sparse, overlapping", sparse(&map(b"0,3,2,3"), b"123456"), "sparse map"),
        ("sparse, overflowing", sparse(&map(b"18446744073709551615,2"), b"12"), "sparse map"),
        ("sparse, too little data", sparse(&map(b"0,3"), b"12"), "sparse map"),
        ("sparse, no lines", sparse(inline, &[b'1'; 512]), "sparse map"),
        ("sparse, endless map", sparse(inline, b"99999999999\n"), "sparse map"),
        (
            "sparse, huge",
            sparse(&[(b"GNU.sparse.size", b"9223372036854775807"), (b"GNU.sparse.map", b"0,1")], b"1"),
            "bytes when unpacked",
        ),
        ("gnu sparse of nothing", member(b"s", b'S', b""), "sparse map"),
    ]);
}

#[test]
fn limits_stop_bombs() {
    let limits = Limits {
        max_members: 10,
        max_unpacked_bytes: 1 << 20,
        max_ratio: 10,
        ratio_floor_bytes: 1 << 18,
        ..Limits::default()
    };
    let place = Place::with(limits);
    let many = (0..11).fold(Tar::new(), |tar, index| tar.file(&index.to_string(), "")).end();
    assert!(place.refusal(&many).contains("more than 10 members"));
    let large = Tar::new().file("a", &"x".repeat(600_000)).file("b", &"x".repeat(600_000)).end();
    assert!(place.refusal(&large).contains("more than 1048576 bytes"));
    // The bomb is in what follows the archive's end.
    let mut tail = Tar::new().file("a", "").end();
    tail.resize(1 << 20, 0);
    assert!(place.refusal(&gzip(&tail)).contains("uncompressed bytes for each compressed one"));
    let zeros = Tar::new().file("z", &"\0".repeat(500_000)).end();
    assert!(place.refusal(&zstd::encode_all(&zeros[..], 3).unwrap()).contains("for each compressed one"));
    place.tree(&zeros);
}

#[test]
fn memory_taken_by_an_archive_is_bounded() {
    let place = Place::with(Limits { max_kept_bytes: 2000, ..Limits::default() });
    let words = "more than 2000 bytes of names to be remembered";
    let fill = |one: fn(Tar, String) -> Tar| (0..20).fold(Tar::new(), |tar, index| one(tar, index.to_string())).end();
    for hostile in [
        fill(|tar, name| tar.dir(&name, 0o755)),
        fill(|tar, name| tar.file(&format!("{name}/implied"), "")),
        fill(|tar, name| tar.file(&format!(".wh.{name}"), "")),
        fill(|tar, name| tar.device(&name, b'3', (0, 0))),
        fill(|tar, _| tar.file(".wh..wh..opq", "")),
    ] {
        let refusal = place.refusal(&hostile);
        assert!(refusal.contains(words), "{refusal}");
    }
    let path = place.write("save.tar", &fill(|tar, name| tar.file(&name, "")));
    let error = place.store.add_docker_archive(&path, None, &torpor_rootfs::no_progress()).unwrap_err();
    assert!(common::chain(&error).contains(words), "{}", common::chain(&error));
    // Files are not remembered, and neither are attributes of directories.
    place.tree(&fill(|tar, name| tar.file(&name, "")));
    let large = [b'x'; 3000];
    let tree = place.tree(&Tar::new().pax(&[(b"SCHILY.xattr.user.note", &large)]).dir("d", 0o755).end());
    let mut value = [0; 4000];
    assert_eq!(rustix::fs::getxattr(tree.join("d"), "user.note", &mut value[..]).unwrap(), 3000);
}

#[test]
fn a_directory_has_the_attributes_of_its_last_member() {
    let note = |key: &'static [u8]| [(key, &b"1"[..])];
    let (first, second) = (note(b"SCHILY.xattr.user.first"), note(b"SCHILY.xattr.user.second"));
    let place = Place::new();
    let tree = place.tree(&Tar::new().pax(&first).dir("d", 0o755).pax(&second).dir("d", 0o700).end());
    let has = |name: &str| rustix::fs::getxattr(tree.join("d"), name, &mut [0_u8; 9][..]).is_ok();
    assert!(!has("user.first") && has("user.second"));
}

#[test]
fn replacing_a_directory_forgets_what_was_in_it_and_nothing_else() {
    let place = Place::new();
    let tar = Tar::new().file("d/.wh.a", "").file("d.x/.wh.b", "").file("d/e/.wh.c", "").dir("d/f", 0o700);
    let tree = place.tree(&tar.file("d", "now a file").end());
    assert_eq!(std::fs::read(tree.join("d")).unwrap(), b"now a file");
    assert!(std::fs::symlink_metadata(tree.join("d.x/b")).is_ok());
}

/// Runs itself again in a mount namespace of its own, on a disk of 1 MiB.
#[test]
fn a_full_disk_leaves_nothing() {
    if let Some(small) = std::env::var_os("TORPOR_TEST_SMALL_DISK") {
        return fill_the_disk(std::path::Path::new(&small));
    }
    let place = Place::new();
    let small = place.path("small");
    std::fs::create_dir(&small).unwrap();
    let script = r#"mount -t tmpfs -o size=1m none "$1" && exec "$2" --exact a_full_disk_leaves_nothing"#;
    let output = std::process::Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(&small)
        .arg(std::env::current_exe().unwrap())
        .env("TORPOR_TEST_SMALL_DISK", &small)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

fn fill_the_disk(small: &std::path::Path) {
    let store = torpor_rootfs::Store::open(small.join("store")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large.tar");
    std::fs::write(&path, Tar::new().file("small", "x").file("large", &"x".repeat(3 << 20)).end()).unwrap();
    let error = store.add_tarball(&path, None, &torpor_rootfs::no_progress()).unwrap_err();
    assert!(common::chain(&error).contains("cannot write \"large\": No space left"), "{}", common::chain(&error));
    for name in ["layers", "images", "tmp"] {
        assert_eq!(std::fs::read_dir(small.join("store").join(name)).unwrap().count(), 0, "{name}");
    }
    std::fs::write(&path, Tar::new().file("small", "x").end()).unwrap();
    store.add_tarball(&path, None, &torpor_rootfs::no_progress()).unwrap();
}
