//! What good archives become.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use common::{Head, Place, Tar, gzip, listing};

#[test]
fn owners_modes_times_and_contents_are_kept() {
    let place = Place::new();
    let setuid = Head { path: b"bin/su", mode: 0o4755, uid: 0, gid: 65535, mtime: 1_234_567_890, ..Head::default() };
    let tar = Tar::new()
        .dir("./", 0o711)
        .dir("bin/", 0o755)
        .member(&setuid, b"program")
        .symlink("bin/link", "../../outside/of/it")
        .hard_link("bin/twin", "bin/su")
        .member(&Head { path: b"run/pipe", kind: b'6', mode: 0o622, uid: 7, gid: 8, ..Head::default() }, b"")
        .member(&Head { path: b"tmp", kind: b'5', mode: 0o1777, uid: 1, gid: 2, mtime: 5, ..Head::default() }, b"")
        .file("tmp/inner", "x")
        .end();
    let tree = place.tree(&tar);
    let stat = |name: &str| fs::symlink_metadata(tree.join(name)).unwrap();
    let su = stat("bin/su");
    assert_eq!((su.mode() & 0o7777, su.uid(), su.gid(), su.mtime()), (0o4755, 0, 65535, 1_234_567_890));
    assert_eq!(fs::read(tree.join("bin/su")).unwrap(), b"program");
    assert_eq!(stat("bin/twin").ino(), su.ino());
    assert_eq!(fs::read_link(tree.join("bin/link")).unwrap(), Path::new("../../outside/of/it"));
    assert!(stat("run/pipe").file_type().is_fifo());
    assert_eq!((stat("run/pipe").mode() & 0o7777, stat("run/pipe").uid()), (0o622, 7));
    let tmp = stat("tmp");
    assert_eq!((tmp.mode() & 0o7777, tmp.uid(), tmp.gid(), tmp.mtime()), (0o1777, 1, 2, 5), "filling it changed it");
    assert_eq!((stat("run").mode() & 0o7777, stat("run").mtime()), (0o755, 0), "left out of the archive");
    assert_eq!(stat("").mode() & 0o7777, 0o711);
    let store = fs::metadata(place.path("store")).unwrap();
    assert_eq!(store.permissions().mode() & 0o7777, 0o700);
}

#[test]
fn every_compression_gives_the_same_layer() {
    let place = Place::new();
    let tar = Tar::new().file("a", "b").end();
    let plain = place.tarball(&tar).unwrap();
    assert_eq!(place.tarball(&gzip(&tar)).unwrap(), plain);
    assert_eq!(place.tarball(&zstd::encode_all(&tar[..], 3).unwrap()).unwrap(), plain);
    let two_members = [gzip(&tar[..700]), gzip(&tar[700..])].concat();
    assert_eq!(place.tarball(&two_members).unwrap(), plain);
    assert_eq!(place.store.layer_bytes(&plain.layers[0]).unwrap(), 1);
    assert_eq!(plain.layers[0].to_string(), torpor_rootfs::Digest::of(&tar).to_string());
}

#[test]
fn later_members_win() {
    let place = Place::new();
    let tar = Tar::new()
        .file("a", "first")
        .hard_link("b", "a")
        .file("a", "second")
        .dir("d/", 0o700)
        .file("d/x", "gone")
        .file("d/sub/y", "gone")
        .file("d", "now a file")
        .file("e", "a file")
        .dir("e/", 0o750)
        .file("e/inner", "x")
        .file("late/child", "x")
        .dir("late/", 0o705)
        .symlink("s", "a")
        .file("s", "no longer a link")
        .dir("twice", 0o700)
        .file("twice/kept", "x")
        .dir("twice", 0o755)
        .end();
    let tree = place.tree(&tar);
    let read = |name: &str| fs::read_to_string(tree.join(name)).unwrap();
    let mode = |name: &str| fs::symlink_metadata(tree.join(name)).unwrap().mode() & 0o7777;
    assert_eq!((read("a"), read("b")), ("second".to_owned(), "first".to_owned()));
    assert_eq!(read("d"), "now a file");
    assert_eq!((read("e/inner"), mode("e")), ("x".to_owned(), 0o750));
    assert_eq!((mode("late"), mode("twice"), read("twice/kept")), (0o705, 0o755, "x".to_owned()));
    assert_eq!(read("s"), "no longer a link");
    assert!(!fs::symlink_metadata(tree.join("s")).unwrap().is_symlink());
}

#[test]
fn odd_names_are_kept() {
    let place = Place::new();
    let long = ["n".repeat(255), "m".repeat(200)].join("/");
    let tar = Tar::new()
        .file("new\nline", "1")
        .member(&Head { path: b"not\xffutf8", ..Head::default() }, b"2")
        .file(&long, "3")
        .pax(&[(b"path", b"from/pax\n\xfe"), (b"mtime", b"12.000000005")])
        .file("ignored", "4")
        .file(" ", "5")
        .file("..a/...", "6")
        .file(".//x///y", "7")
        .end();
    let tree = place.tree(&tar);
    let read = |name: &[u8]| fs::read_to_string(tree.join(std::ffi::OsStr::from_bytes(name))).unwrap();
    let names: [&[u8]; 7] =
        [b"new\nline", b"not\xffutf8", long.as_bytes(), b"from/pax\n\xfe", b" ", b"..a/...", b"x/y"];
    for (index, name) in names.into_iter().enumerate() {
        assert_eq!(read(name), (index + 1).to_string());
    }
    let pax = fs::metadata(tree.join(std::ffi::OsStr::from_bytes(b"from/pax\n\xfe"))).unwrap();
    assert_eq!((pax.mtime(), pax.mtime_nsec()), (12, 5));
    assert!(!tree.join("ignored").exists());
}

#[test]
fn only_harmless_extended_attributes_are_kept() {
    let place = Place::new();
    // With a newline byte inside: CAP_DAC_OVERRIDE and CAP_FOWNER.
    let capability: &[u8] = b"\x01\0\0\x02\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let records: [(&[u8], &[u8]); 5] = [
        (b"SCHILY.xattr.user.note", b"a\nb"),
        (b"SCHILY.xattr.security.capability", capability),
        (b"SCHILY.xattr.trusted.overlay.opaque", b"y"),
        (b"SCHILY.xattr.user.overlay.opaque", b"y"),
        (b"SCHILY.xattr.security.selinux", b"x"),
    ];
    let tree = place.tree(&Tar::new().pax(&records).file("f", "x").pax(&records[..1]).dir("d", 0o755).end());
    let listed = listing(&tree);
    let file = &listed[Path::new("f")];
    assert!(file.contains(r"user.note=a\nb"), "{file}");
    assert!(file.contains(r"security.capability=\x01\x00\x00\x02\n"), "{file}");
    assert!(!file.contains("overlay"), "{file}");
    assert!(listed[Path::new("d")].contains("user.note"));
}

#[test]
fn devices_below_dev_are_left_out() {
    let place = Place::new();
    let tar = Tar::new().dir("dev", 0o755).device("dev/null", b'3', (1, 3)).device("dev/sda", b'4', (8, 0)).end();
    let tree = place.tree(&tar);
    assert_eq!(fs::read_dir(tree.join("dev")).unwrap().count(), 0);
}

/// Archives that GNU tar makes of a real directory come out as that directory, in each of its formats.
#[test]
fn archives_of_gnu_tar_come_out_as_they_went_in() {
    let place = Place::new();
    let source = place.path("source");
    make_source(&source);
    let mut formats = vec![
        vec!["--format=gnu"],
        vec!["--format=gnu", "--sparse"],
        vec!["--format=posix", "--xattrs", "--xattrs-include=*"],
    ];
    for version in ["--sparse-version=0.0", "--sparse-version=0.1", "--sparse-version=1.0"] {
        formats.push(vec!["--format=posix", "--sparse", version, "--xattrs", "--xattrs-include=*"]);
    }
    for format in formats {
        let archive = place.path("made.tar");
        let made = Command::new("tar").args(&format).arg("-cf").arg(&archive).arg("-C").arg(&source).arg(".").status();
        assert!(made.unwrap().success());
        let tree = place.tree(&fs::read(&archive).unwrap());
        let (mut expected, mut found) = (listing(&source), listing(&tree));
        let with_xattrs = format.contains(&"--xattrs");
        for listed in [&mut expected, &mut found] {
            for text in listed.values_mut() {
                if !with_xattrs {
                    *text = text.split(" user.note").next().unwrap().to_owned();
                    // The GNU format has whole seconds.
                    *text = text.replace(".500000000", ".0");
                }
            }
        }
        assert_eq!(found, expected, "{format:?}");
        if format.contains(&"--sparse") {
            let sparse = fs::metadata(tree.join("sparse")).unwrap();
            assert_eq!(sparse.len(), 8 << 20);
            assert!(sparse.blocks() * 512 < 1 << 20, "{format:?}: {} blocks", sparse.blocks());
        }
    }
}

fn make_source(source: &Path) {
    use std::os::unix::fs::FileExt as _;
    fs::create_dir_all(source.join("a/b")).unwrap();
    fs::write(source.join("a/file"), "content").unwrap();
    fs::hard_link(source.join("a/file"), source.join("a/b/twin")).unwrap();
    std::os::unix::fs::symlink("x".repeat(300), source.join("long-link")).unwrap();
    let deep = source.join("d".repeat(120)).join("e".repeat(120));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("f".repeat(120)), "deep").unwrap();
    let sparse = fs::File::create(source.join("sparse")).unwrap();
    for index in 0..30 {
        sparse.write_all_at(b"island", 4096 + index * 200_000).unwrap();
    }
    sparse.set_len(8 << 20).unwrap();
    fs::write(source.join("empty"), "").unwrap();
    fs::File::create(source.join("hole")).unwrap().set_len(1 << 20).unwrap();
    let note = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(source.join("a/file"), "user.note", b"kept", note).unwrap();
    fs::set_permissions(source.join("a/file"), fs::Permissions::from_mode(0o6711)).unwrap();
    std::os::unix::fs::chown(source.join("a"), Some(1000), Some(1001)).unwrap();
    let all =
        Command::new("find").arg(source).args(["-exec", "touch", "-h", "-d", "@1000000000.5", "{}", "+"]).status();
    assert!(all.unwrap().success());
}
