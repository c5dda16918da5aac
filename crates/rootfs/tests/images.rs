//! Images of every source but registries, and the store that holds them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Head, Layout, Place, Tar, add, chain, gzip, listing, lower, section, upper};
use serde_json::json;
use torpor_rootfs::{Error, ImageConfig, LayerDigest, Limits, no_progress};
use torpor_testkit::skip;

fn config() -> ImageConfig {
    let text = |text: &str| Some(text.to_owned());
    ImageConfig {
        command: vec!["/init".to_owned(), "serve".to_owned(), "80".to_owned()],
        env: vec!["A=1".to_owned(), "B=".to_owned()],
        user: text("web"),
        workdir: text("/srv"),
        stop_signal: text("SIGQUIT"),
    }
}

/// What a read-only overlay of the layers shows, mounted in a namespace that goes away with its process.
fn overlay(place: &Place, layers: &[LayerDigest]) -> Vec<String> {
    let paths: Vec<_> = layers.iter().rev().map(|layer| place.store.layer_path(layer).unwrap()).collect();
    let directories: Vec<_> = paths.iter().map(|path| path.to_str().unwrap()).collect();
    let (mount, empty) = (place.path("mount"), place.path("empty"));
    fs::create_dir_all(&mount).unwrap();
    fs::create_dir_all(&empty).unwrap();
    let script =
        r#"mount -t overlay -o "ro,lowerdir=$1:$3" none "$2" && cd "$2" && find . -printf '%P %m %l\n' | sort"#;
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh", &directories.join(":")])
        .args([&mount, &empty])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn an_oci_layout_becomes_layers_that_overlayfs_stacks() {
    let place = Place::new();
    let layout = place.layout("layout", &[gzip(&lower()), zstd::encode_all(&upper()[..], 1).unwrap()], &section());
    let image = add(&place, &layout);
    assert_eq!(image.config, config());
    let top = place.store.layer_path(&image.layers[1]).unwrap();
    let whiteout = fs::symlink_metadata(top.join("gone")).unwrap();
    assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0);
    assert!(listing(&top)[Path::new("opaque")].contains("trusted.overlay.opaque=y"));
    assert!(!top.join(".wh..wh.plnk").exists());
    assert_eq!(fs::metadata(top.join("tmp")).unwrap().mode() & 0o7777, 0o1777, "as the layer below has it");
    let seen = overlay(&place, &image.layers);
    let expected = [
        "755",
        "bin 777 usr/bin",
        "etc 755",
        "etc/passwd 644",
        "opaque 755",
        "opaque/new 644",
        "tmp 1777",
        "tmp/file 644",
        "usr 755",
        "usr/bin 755",
        "usr/bin/tool 644",
    ];
    assert_eq!(seen, expected);
}

#[test]
fn whiteouts_do_not_depend_on_their_place() {
    let place = Place::new();
    let tree = place.tree(
        &Tar::new()
            .file(".wh.f", "")
            .file("f", "kept")
            .dir("d", 0o755)
            .file(".wh.d", "")
            .file("x/.wh..wh..opq", "")
            .end(),
    );
    assert_eq!(fs::read(tree.join("f")).unwrap(), b"kept");
    let listed = listing(&tree);
    assert!(listed[Path::new("d")].contains("opaque=y") && listed[Path::new("x")].contains("opaque=y"), "{listed:?}");
}

#[test]
fn layers_are_shared_and_known_again() {
    let place = Place::new();
    let first = add(&place, &place.layout("one", &[lower(), upper()], &section()));
    let before = fs::metadata(place.store.layer_path(&first.layers[0]).unwrap()).unwrap().ino();
    // Without its bytes, the layer must come from the store.
    let two = place.layout("two", &[lower(), Tar::new().file("f", "").end()], &json!({}));
    fs::remove_file(two.join("blobs/sha256").join(torpor_rootfs::Digest::of(&lower()).hex())).unwrap();
    let second = add(&place, &two);
    assert_eq!(first.layers[0], second.layers[0]);
    assert_eq!(fs::metadata(place.store.layer_path(&first.layers[0]).unwrap()).unwrap().ino(), before);
    assert_eq!(second.config, ImageConfig::default());
    // The upper layer leaves `tmp` out, so over another base it is another layer.
    let other = Tar::new().dir("tmp", 0o700).end();
    let third = add(&place, &place.layout("three", &[other, upper()], &json!({})));
    assert_ne!(third.layers[1], first.layers[1]);
    let mode = |layer| fs::metadata(place.store.layer_path(layer).unwrap().join("tmp")).unwrap().mode() & 0o7777;
    assert_eq!((mode(&third.layers[1]), mode(&first.layers[1])), (0o700, 0o1777));
}

#[test]
fn a_tarball_goes_where_the_links_of_its_base_lead() {
    let place = Place::new();
    let base = add(&place, &place.layout("base", &[lower(), upper()], &section()));
    place.store.tag("debian:13", &base).unwrap();
    let tar = Tar::new()
        .dir("./", 0o755)
        .dir("./bin", 0o700)
        .file("./bin/mine", "m")
        .hard_link("bin/twin", "bin/mine")
        .file("bin/tool", "new")
        .file("tmp/t", "t")
        .end();
    let image = place.tarball_over(&tar, Some("debian:13")).unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!((image.layers.len(), &image.config), (3, &config()));
    assert_eq!(image.layers[..2], base.layers);
    let seen = overlay(&place, &image.layers);
    for line in [
        "bin 777 usr/bin",
        "usr/bin 755",
        "usr/bin/mine 644",
        "usr/bin/twin 644",
        "usr/bin/tool 644",
        "tmp 1777",
        "tmp/t 644",
    ] {
        assert!(seen.contains(&line.to_owned()), "{line}: {seen:?}");
    }
    let view = place.store.view(&image.layers).unwrap();
    assert_eq!(view.read_file("/bin/tool", 100).unwrap().unwrap(), b"new");
    let missing = place.tarball_over(&tar, Some("nothing")).unwrap_err();
    assert!(matches!(missing, Error::UnknownImage { name } if name == "nothing"));
    assert_ne!(place.tarball(&tar).unwrap().digest, image.digest);
}

#[test]
fn files_and_users_are_found_through_layers_and_links_inside_the_root_only() {
    let place = Place::new();
    let canary = place.write("canary", b"outside");
    let up = format!("{}{}", "../".repeat(30), canary.display().to_string().trim_start_matches('/'));
    let links = Tar::new()
        .symlink("escape", canary.to_str().unwrap())
        .symlink("escape2", &up)
        .symlink("loop", "loop")
        .symlink("absolute", "/etc/passwd")
        .symlink("etc2", "../../etc/")
        .file("big", &"x".repeat(100))
        .member(&Head { path: b"pipe", kind: b'6', ..Head::default() }, b"")
        .end();
    let image = add(&place, &place.layout("layout", &[lower(), upper(), links], &section()));
    let view = place.store.view(&image.layers).unwrap();
    let read = |path| view.read_file(path, 99).map(|content| content.map(|bytes| String::from_utf8(bytes).unwrap()));
    for path in
        ["escape", "escape2", "gone/a", "opaque/hidden", "etc/group", "pipe", "etc", "big/x", "none", "etc/passwd/x"]
    {
        assert_eq!(read(path).unwrap(), None, "{path}");
    }
    for path in ["etc/passwd", "/etc/passwd", "absolute", "etc2/passwd", "../x/../etc/./passwd"] {
        let expected =
            if path.contains("/x/") { None } else { Some("root:x:0:0::/root:\nweb:x:33:34::/srv:\n".to_owned()) };
        assert_eq!(read(path).unwrap(), expected, "{path}");
    }
    assert!(read("loop").is_err() && read("big").is_err());
    let web = place.store.lookup_user(&image.layers, "web").unwrap();
    assert_eq!((web.uid, web.gid, web.extra_gids, web.home.as_str()), (33, 34, vec![], "/srv"), "group is whited out");
    let below = place.store.lookup_user(&image.layers[..1], "web:logs").unwrap();
    assert_eq!((below.gid, below.extra_gids), (40, vec![]));
    assert_eq!(place.store.lookup_user(&image.layers[..1], "web").unwrap().extra_gids, [40]);
    let unknown = place.store.lookup_user(&image.layers, "www:logs").unwrap_err();
    assert_eq!(unknown.to_string(), r#"cannot resolve the user "www:logs": "www" is not in etc/passwd"#);
}

#[test]
fn an_entry_of_an_index_is_chosen_by_name_and_platform() {
    let place = Place::new();
    let root = place.path("layout");
    let mut layout = Layout::new(&root);
    let entry = |layout: &mut Layout, name: &str, platform: Option<&str>, content: &str| {
        let mut entry = layout.image(&[Tar::new().file("f", content).end()], &json!({"Cmd": [content]}));
        entry["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        if let Some(architecture) = platform {
            entry["platform"] = json!({"os": "linux", "architecture": architecture});
        }
        entry
    };
    let (a, b) = (entry(&mut layout, "a", None, "1"), entry(&mut layout, "b", None, "2"));
    layout.index(&[a.clone(), b]);
    let add = |reference| place.store.add_oci_layout(&root, reference, &no_progress());
    assert_eq!(add(Some("b")).unwrap().config.command, ["2"]);
    assert!(chain(&add(None).unwrap_err()).contains("several images; name one of: a, b"));
    assert!(chain(&add(Some("c")).unwrap_err()).contains(r#"no image "c"; it has: a, b"#));
    let (arm, amd) = (entry(&mut layout, "x", Some("arm64"), "arm"), entry(&mut layout, "x", Some("amd64"), "amd"));
    let nested = json!({"schemaVersion": 2, "manifests": [&arm, amd]});
    let nested = layout.blob(nested.to_string().as_bytes(), "application/vnd.oci.image.index.v1+json");
    layout.index(&[nested]);
    assert_eq!(add(None).unwrap().config.command, ["amd"]);
    layout.index(&[arm]);
    assert!(chain(&add(None).unwrap_err()).contains("no variant for linux/amd64"));
    layout.index(&[a]);
    assert_eq!(add(None).unwrap().config.command, ["1"]);
}

#[test]
fn damaged_layouts_are_refused_and_leave_nothing() {
    let place = Place::with(Limits { max_json_bytes: 2000, max_layers: 3, ..Limits::default() });
    let good = [lower(), upper()];
    let config_of = |root: &Path| {
        let read = |path: &Path| serde_json::from_slice::<serde_json::Value>(&fs::read(path).unwrap()).unwrap();
        let blob = |entry: &serde_json::Value| root.join("blobs/sha256").join(&entry["digest"].as_str().unwrap()[7..]);
        let manifest = blob(&read(&root.join("index.json"))["manifests"][0]);
        (manifest.clone(), blob(&read(&manifest)["config"]), blob(&read(&manifest)["layers"][1]))
    };
    let refuse = |root: &Path, words: &str| {
        let error = place.store.add_oci_layout(root, None, &no_progress()).unwrap_err();
        assert!(chain(&error).contains(words), "{words}: {}", chain(&error));
        place.store.gc(&HashSet::new(), Duration::ZERO).unwrap();
        place.assert_empty();
    };
    let flip = |path: &Path| {
        let mut data = fs::read(path).unwrap();
        data[20] ^= 1;
        fs::write(path, data).unwrap();
    };
    for (index, words) in
        ["does not match its description", "does not match its description", "checksum"].iter().enumerate()
    {
        let root = place.layout(&format!("flip{index}"), &good, &section());
        let (manifest, config, layer) = config_of(&root);
        flip([&manifest, &config, &layer][index]);
        refuse(&root, words);
        fs::write([&manifest, &config, &layer][index], "").unwrap();
        refuse(&root, "bytes");
        fs::remove_file([&manifest, &config, &layer][index]).unwrap();
        refuse(&root, "No such file");
    }
    // Content that is valid, but another one.
    let root = place.layout("other", &good, &section());
    let layer = config_of(&root).2;
    let mut other = fs::read(&layer).unwrap();
    let end = other.len() - 1;
    other[end] = 1;
    fs::write(&layer, other).unwrap();
    refuse(&root, "its digest is sha256:");
    // A configuration that promises another content, though every blob is what it says.
    let root = place.path("lying");
    let mut layout = Layout::new(&root);
    let entry = layout.image(&good, &section());
    layout.index(&[entry]);
    let (manifest, config, _) = config_of(&root);
    let text = fs::read_to_string(&config).unwrap();
    let wrong = |new: &str| {
        let blob = layout.blob(new.as_bytes(), "application/vnd.oci.image.config.v1+json");
        let mut document: serde_json::Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
        document["config"] = blob;
        let manifest = layout.blob(document.to_string().as_bytes(), "application/vnd.oci.image.manifest.v1+json");
        fs::write(root.join("index.json"), json!({"manifests": [manifest]}).to_string()).unwrap();
    };
    let first = torpor_rootfs::Digest::of(&lower()).to_string();
    wrong(&text.replace(&first, &torpor_rootfs::Digest::of(b"x").to_string()));
    refuse(&root, "its uncompressed digest is");
    wrong(&text.replace(&format!("\"{first}\","), ""));
    refuse(&root, "2 layers but 1 layer digests");
    wrong(&text.replace("amd64", "arm64"));
    refuse(&root, "linux/arm64, not for linux/amd64");
    wrong(&text.replace(&first, "sha256:../../x"));
    refuse(&root, "is not a sha256 digest");
    wrong("{");
    refuse(&root, "its configuration cannot be read");
    wrong(&format!("{text}{}", " ".repeat(3000)));
    refuse(&root, "larger than 2000 bytes");
    fs::write(root.join("index.json"), "[]").unwrap();
    refuse(&root, "manifest cannot be read");
    fs::write(root.join("index.json"), "{}").unwrap();
    refuse(&root, "list of layers is missing");
    let empty = Tar::new().end();
    refuse(&place.layout("many", &vec![empty; 4], &section()), "more than 3 layers");
    refuse(&place.path("nowhere"), "there is no file or directory");
}

fn docker_archive(place: &Place, links: bool) -> Vec<u8> {
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": section(),
        "rootfs": {"type": "layers", "diff_ids": [torpor_rootfs::Digest::of(&lower()), torpor_rootfs::Digest::of(&upper())]},
    })
    .to_string();
    let name = format!("{}.json", torpor_rootfs::Digest::of(config.as_bytes()).hex());
    let manifest = json!([
        {"Config": name, "RepoTags": ["demo:latest"], "Layers": ["one/layer.tar", "two/layer.tar"]},
        {"Config": name, "RepoTags": ["demo:old"], "Layers": ["one/layer.tar"]},
    ]);
    let tar = Tar::new().dir("one/", 0o755);
    let tar = if links {
        tar.member(&Head { path: b"three/layer.tar", ..Head::default() }, &lower())
            .symlink("one/layer.tar", "../three/layer.tar")
    } else {
        tar.member(&Head { path: b"one/layer.tar", ..Head::default() }, &lower())
    };
    let tar = tar.member(&Head { path: b"two/layer.tar", ..Head::default() }, &gzip(&upper()));
    let data = tar.file(&name, &config).file("manifest.json", &manifest.to_string()).end();
    place.write("docker.tar", &data);
    data
}

#[test]
fn a_docker_archive_gives_the_same_layers_as_a_layout() {
    let place = Place::new();
    let expected = add(&place, &place.layout("layout", &[lower(), upper()], &section()));
    for links in [false, true] {
        let fresh = Place::new();
        let data = docker_archive(&fresh, links);
        for data in [data.clone(), gzip(&data)] {
            let path = fresh.write("archive", &data);
            let add = |reference| fresh.store.add_docker_archive(&path, reference, &no_progress());
            let image = add(Some("demo")).unwrap_or_else(|error| panic!("{}", chain(&error)));
            assert_eq!((image.layers, image.config), (expected.layers.clone(), config()));
            assert!(add(Some("docker.io/library/demo:latest")).is_ok());
            assert!(chain(&add(None).unwrap_err()).contains("several images; name one of: demo:latest, demo:old"));
            assert!(chain(&add(Some("other")).unwrap_err()).contains("it has: demo:latest, demo:old"));
            assert!(chain(&add(Some("demo:old")).unwrap_err()).contains("1 layers but 2 layer digests"));
        }
    }
}

#[test]
fn sources_of_another_kind_are_refused_with_the_right_one() {
    let place = Place::new();
    let layout = place.layout("layout", &[lower()], &section());
    let digest = "0123456789abcdef".repeat(4);
    let old = Tar::new().dir(&format!("{digest}/"), 0o755).file(&format!("{digest}/layer.tar"), "");
    let old = old.file(&format!("{digest}.json"), "{}").file("manifest.json", "[]").file("repositories", "{}");
    place.write("old.tar", &gzip(&old.end()));
    let new = Tar::new().file(&format!("blobs/sha256/{digest}"), "").file("index.json", "{}");
    place.write("new.tar", &new.file("manifest.json", "[]").file("oci-layout", "{}").end());
    let mut packed = tar::Builder::new(Vec::new());
    packed.append_dir_all("", &layout).unwrap();
    place.write("layout.tar", &packed.into_inner().unwrap());

    let tarball = |name: &str| place.store.add_tarball(&place.path(name), None, &no_progress()).unwrap_err();
    let archive = |name: &str| place.store.add_docker_archive(&place.path(name), None, &no_progress()).unwrap_err();
    let named = |name: &str| place.store.add_oci_layout(&place.path(name), None, &no_progress()).unwrap_err();
    for (error, told, advice) in [
        (tarball("old.tar"), "docker save", "--docker-archive /"),
        (tarball("new.tar"), "docker save", "--docker-archive /"),
        (tarball("layout.tar"), "an OCI image layout", "--oci-layout DIRECTORY"),
        (tarball("layout"), "an OCI image layout", "--oci-layout /"),
        (archive("layout"), "an OCI image layout", "--oci-layout /"),
        (tarball("layout/blobs"), "a directory", "tar -C /"),
        (named("new.tar"), "a file", "--docker-archive /"),
    ] {
        assert!(chain(&error).contains(told) && error.advice().unwrap().contains(advice), "{error:?}");
    }
    for error in [tarball("nowhere"), archive("nowhere"), named("nowhere"), tarball("new.tar/below")] {
        assert!(matches!(error, Error::NoSource { .. }), "{error:?}");
    }
    place.assert_empty();
}

/// `skopeo` as the oracle: what it makes of a layout, in the form of `docker save`, is the same image.
#[test]
fn archives_that_skopeo_writes_are_read() {
    let place = Place::new();
    let layout = place.layout("layout", &[gzip(&lower()), gzip(&upper())], &section());
    let expected = add(&place, &layout);
    let archive = place.path("skopeo.tar");
    let copied = Command::new("skopeo")
        .args(["--insecure-policy", "copy", "--quiet", &format!("oci:{}", layout.display())])
        .arg(format!("docker-archive:{}:demo:1", archive.display()))
        .output();
    let copied = match copied {
        Err(error) => skip!("skopeo: {error}"),
        Ok(copied) => copied,
    };
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    let fresh = Place::new();
    let image = fresh
        .store
        .add_docker_archive(&archive, None, &no_progress())
        .unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!((image.layers, image.config), (expected.layers, expected.config));
}

#[test]
fn damaged_docker_archives_are_refused_and_leave_nothing() {
    let place = Place::new();
    let good = docker_archive(&place, false);
    let refuse = |data: &[u8], words: &str| {
        let path = place.write("bad.tar", data);
        let error = place.store.add_docker_archive(&path, Some("demo"), &no_progress()).unwrap_err();
        assert!(chain(&error).contains(words), "{words}: {}", chain(&error));
        place.store.gc(&HashSet::new(), Duration::ZERO).unwrap();
        place.assert_empty();
    };
    let manifest = |text: &str| Tar::new().file("manifest.json", text).end();
    refuse(&good[..5000], "cut off");
    refuse(&Tar::new().file("x", "").end(), r#"the member "manifest.json" is missing"#);
    refuse(&manifest("{"), "manifest.json cannot be read");
    refuse(&manifest("[]"), "no image \"demo\"");
    let naming = |config: &str| json!([{"Config": config, "RepoTags": ["demo:latest"], "Layers": []}]).to_string();
    refuse(&manifest(&naming("../../etc/passwd")), "\"..\"");
    refuse(&manifest(&naming("/etc/passwd")), "absolute");
    refuse(&manifest(&naming("none")), r#"the member "none" is missing"#);
    let looped = Tar::new().symlink("c", "d").symlink("d", "c").file("manifest.json", &naming("c")).end();
    refuse(&looped, r#"the member "c" is missing"#);
    refuse(&Tar::new().symlink("a/c", "../../x").end(), "symbolic link");
    let hex = torpor_rootfs::Digest::of(b"other").hex();
    let config = r#"{"architecture":"amd64","os":"linux","rootfs":{"diff_ids":[]}}"#;
    let lying =
        Tar::new().file(&format!("{hex}.json"), config).file("manifest.json", &naming(&format!("{hex}.json"))).end();
    refuse(&lying, "does not match its description");
}
