//! Archives that an enemy made, with right checksums: `torpor image import` refuses each of them by name, nothing of it is left, and
//! nothing outside of the app's own directory is touched.
//!
//! `crates/api`, `crates/rootfs` and `crates/engine` try what their parts of an archive can be; here it goes through the API.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod python;
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use python::{Place, said};
use support::{PATIENCE, say};
use torpor_image::tree::{
    FanotifyMark, FileKind, InetSocket, InetState, MarkExtent, OpenFile, Owner, PacketSocket, PathState, Terminal, Tree,
};
use torpor_image::{HEADER_BYTES, Header, checksum};
use torpor_rootfs::{Meta, NodeKind, Record};
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native::{self, LineSession};
use torpor_testkit::wait::eventually_ok;

/// Kinds of frames.
const MANIFEST: u8 = 1;
const SECTION: u8 = 2;
const DATA: u8 = 3;
const SECTION_END: u8 = 4;
const END: u8 = 5;
const FAILED: u8 = 6;

/// Frames of an archive, each with its kind.
type Frames = Vec<(u8, Vec<u8>)>;

/// As bytes, with every checksum right.
fn sealed(frames: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = [&b"TORPOR-ARCHIVE\r\n"[..], &1_u32.to_le_bytes()].concat();
    for (kind, contents) in frames {
        bytes.push(*kind);
        bytes.extend((contents.len() as u32).to_le_bytes());
        bytes.extend(contents);
        bytes.extend(checksum(&bytes).to_le_bytes());
    }
    bytes
}

fn frames(mut archive: &[u8]) -> Frames {
    let mut found = Vec::new();
    archive = &archive[20..];
    while !archive.is_empty() {
        let length = u32::from_le_bytes(archive[1..5].try_into().unwrap()) as usize;
        found.push((archive[0], archive[5..5 + length].to_vec()));
        archive = &archive[5 + length + 8..];
    }
    found
}

/// Contents of the section whose beginning holds this word.
fn section(frames: &Frames, word: &str) -> Vec<u8> {
    let begins = |frame: &(u8, Vec<u8>)| frame.0 == SECTION && String::from_utf8_lossy(&frame.1).contains(word);
    let at = frames.iter().position(begins).unwrap();
    let data = frames[at + 1..].iter().take_while(|frame| frame.0 == DATA);
    data.flat_map(|frame| frame.1.clone()).collect()
}

/// The archive of an app that was put to sleep, in parts.
#[derive(Clone)]
struct Parts {
    manifest: serde_json::Value,
    /// The frames of its layers.
    layers: Frames,
    files: Vec<u8>,
    image: Vec<u8>,
}

fn parts() -> &'static Parts {
    static PARTS: OnceLock<Parts> = OnceLock::new();
    PARTS.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut from = Daemon::start().unwrap();
        let ledger = native::program("ledger", &["7000"], &[7000]).unwrap();
        let address = from.run_program(&ledger, "ledger", "[idle]\nsleep = false\n").unwrap()[0];
        eventually_ok("the ledger answers", PATIENCE, || LineSession::open(address)).unwrap();
        let archive = folder.path().join("ledger.torpor");
        let line = ["image", "export", "ledger", "-o", archive.to_str().unwrap()];
        eventually_ok("it is exported", PATIENCE, || from.ok(&line)).unwrap();
        let frames = frames(&fs::read(archive).unwrap());
        let files_at = frames.iter().position(|frame| frame.0 == SECTION && frame.1 == b"\"files\"").unwrap();
        Parts {
            manifest: serde_json::from_slice(&frames[0].1).unwrap(),
            layers: frames[1..files_at].to_vec(),
            files: section(&frames, "files"),
            image: section(&frames, "image"),
        }
    })
}

/// A section with these contents.
fn part(begin: String, contents: &[u8]) -> Frames {
    let pieces = contents.chunks(256 << 10).map(|piece| (DATA, piece.to_vec()));
    [(SECTION, begin.into_bytes())].into_iter().chain(pieces).chain([(SECTION_END, Vec::new())]).collect()
}

fn files(contents: &[u8]) -> Frames {
    part("\"files\"".to_owned(), contents)
}

fn image(contents: &[u8], bytes: u64) -> Frames {
    part(format!("{{\"image\": {{\"bytes\": {bytes}}}}}"), contents)
}

impl Parts {
    fn manifest(&self) -> Frames {
        vec![(MANIFEST, serde_json::to_vec(&self.manifest).unwrap())]
    }

    fn image(&self) -> Frames {
        image(&self.image, self.image.len() as u64)
    }

    fn archive(&self) -> Vec<u8> {
        sealed(
            &[self.manifest(), self.layers.clone(), files(&self.files), self.image(), vec![(END, Vec::new())]].concat(),
        )
    }

    /// With other files: these records behind the root's.
    fn with_files(&self, records: &[Record]) -> Vec<u8> {
        let root = Record::Directory { path: Vec::new(), meta: Meta { mode: 0o755, ..Meta::default() } };
        let mut bytes = root.to_bytes();
        for record in records {
            bytes.extend(record.to_bytes());
            if let Record::Data { bytes: length, .. } = record {
                // What says too much is refused before that is there.
                bytes.resize(bytes.len() + (*length).min(9) as usize, b'x');
            }
        }
        bytes.extend(Record::End.to_bytes());
        Self { files: bytes, ..self.clone() }.archive()
    }

    /// With a state, and a header, that were changed.
    fn with_state(&self, change: impl FnOnce(&mut Tree, &mut Header)) -> Vec<u8> {
        let mut header = Header::decode(&self.image, self.image.len() as u64).unwrap();
        let state = &self.image[header.state_offset() as usize..header.plan_offset() as usize];
        let plan = &self.image[header.plan_offset() as usize..];
        let pages = &self.image[HEADER_BYTES as usize..header.state_offset() as usize];
        let mut tree = Tree::read(state, &header).unwrap();
        let (pages, plan) = (pages.to_vec(), plan.to_vec());
        change(&mut tree, &mut header);
        let state = tree.encode();
        if header.state_bytes == (self.image.len() as u64 - header.state_offset() - plan.len() as u64) {
            header.state_bytes = state.len() as u64;
        }
        header.state_checksum = checksum(&state);
        Self { image: [header.encode(), pages, state, plan].concat(), ..self.clone() }.archive()
    }

    fn with_manifest(&self, change: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
        let mut changed = self.clone();
        change(&mut changed.manifest);
        changed.archive()
    }
}

/// A daemon that is given archives, and files of others around the places that they may touch.
struct Target {
    daemon: Daemon,
    folder: tempfile::TempDir,
    precious: Vec<PathBuf>,
    tried: u32,
    /// Archives that were not refused as they should.
    wrong: Vec<String>,
}

impl Target {
    fn new() -> Self {
        let daemon = Daemon::start().unwrap();
        let data = daemon.data_dir();
        let precious: Vec<PathBuf> =
            ["precious", "apps/precious", "files/precious"].iter().map(|name| data.join(name)).collect();
        for path in &precious {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "precious").unwrap();
        }
        Self { daemon, folder: tempfile::tempdir().unwrap(), precious, tried: 0, wrong: Vec::new() }
    }

    fn try_import(&mut self, archive: &[u8]) -> std::process::Output {
        self.tried += 1;
        let path = self.folder.path().join("hostile.torpor");
        fs::write(&path, archive).unwrap();
        self.daemon.cli(&["image", "import", path.to_str().unwrap(), "--no-publish"]).unwrap()
    }

    /// It is refused with these words among others, and nothing is left of it.
    fn refuses(&mut self, what: &str, archive: &[u8], words: &str) {
        let output = self.try_import(archive);
        let text = said(&output);
        let printable = !text.chars().any(|c| c.is_control() && c != '\n');
        if !matches!(output.status.code(), Some(2 | 4)) || !text.contains(words) || !printable {
            self.wrong.push(format!("{what}, with {words:?}: {text:?}"));
        }
        if output.status.success() {
            self.daemon.ok(&["rm", "-f", "ledger"]).unwrap();
        }
        let apps = self.daemon.json(&["ps"]).unwrap();
        assert_eq!(apps.as_array().map(Vec::len), Some(0), "{what}: {apps}");
        let apps = self.daemon.data_dir().join("apps");
        eventually_ok(&format!("{what}: no directory is left"), PATIENCE, || match python::names(&apps) {
            left if left == ["precious"] => Ok(()),
            left => Err(format!("{left:?}")),
        })
        .unwrap();
        assert_eq!(python::names(&self.daemon.data_dir().join("files/tmp")), [""; 0], "{what}");
        for path in &self.precious {
            assert_eq!(fs::read_to_string(path).unwrap(), "precious", "{what}");
        }
        assert!(!Path::new("/torpor-hostile").exists(), "{what}");
    }

    fn end(self, what: &str) {
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
        say(&format!("hostile {what}: {} archives", self.tried));
    }
}

fn file(path: &str) -> Record {
    Record::File { path: path.into(), meta: Meta { mode: 0o644, ..Meta::default() }, bytes: 1 }
}

fn data(bytes: u32) -> Record {
    Record::Data { offset: 0, bytes }
}

fn directory(path: &str) -> Record {
    Record::Directory { path: path.into(), meta: Meta { mode: 0o755, ..Meta::default() } }
}

fn symlink(path: &str, target: &str) -> Record {
    Record::Symlink { path: path.into(), target: target.into(), meta: Meta::default() }
}

fn node(kind: NodeKind) -> Record {
    Record::Node { path: "node".into(), kind, meta: Meta { mode: 0o666, ..Meta::default() } }
}

#[test]
fn files_that_lead_out_are_refused() {
    let (parts, mut target) = (parts(), Target::new());
    let link = |target: &str| Record::Link { path: "link".into(), target: target.into() };
    let with = |meta: Meta| Record::File { path: "a".into(), meta, bytes: 0 };
    let attribute = |name: &str| Meta { xattrs: vec![(name.into(), b"y".to_vec())], ..Meta::default() };
    let up = "../../precious";
    let cases: Vec<(&str, Vec<Record>, &str)> = vec![
        ("a path up", vec![file(up), data(1)], "damaged"),
        ("a path from the root", vec![file("/torpor-hostile"), data(1)], "damaged"),
        ("a path up from below", vec![directory("a"), file("a/../../../precious"), data(1)], "damaged"),
        ("a directory up", vec![directory(up)], "damaged"),
        ("a mark of deletion up", vec![Record::Whiteout { path: up.into() }], "damaged"),
        (
            "a symlink as directory",
            vec![symlink("out", "../.."), file("out/precious"), data(1)],
            "before its directory",
        ),
        ("a symlink made a directory", vec![symlink("out", "../.."), directory("out"), file("out/x")], "File exists"),
        ("a symlink written through", vec![symlink("out", up), file("out"), data(1)], "File exists"),
        ("a link to outside", vec![link(up)], "damaged"),
        ("a link through a symlink", vec![symlink("out", "../.."), link("out/precious")], "Not a directory"),
        ("a link to a directory", vec![directory("a"), link("a")], "a second name of nothing"),
        ("a device", vec![node(NodeKind::Block(8, 0))], "a device"),
        ("a device of memory", vec![node(NodeKind::Character(1, 1))], "a device"),
        ("a mark in disguise", vec![node(NodeKind::Character(0, 0))], "a device"),
        ("a file twice", vec![file("a"), data(1), file("a"), data(1)], "File exists"),
        ("two roots", vec![directory("")], "which is empty"),
        ("a file behind its directory", vec![directory("a"), directory("b"), file("a/x")], "before its directory"),
        ("data of nothing", vec![data(1)], "data of no file"),
        ("more data than it says", vec![file("a"), data(2)], "data of no file"),
        (
            "a piece too long",
            vec![Record::File { path: "a".into(), meta: Meta::default(), bytes: 1 << 30 }, data(1 << 29)],
            "a piece",
        ),
        (
            "an enormous file",
            vec![Record::File { path: "a".into(), meta: Meta::default(), bytes: u64::MAX }],
            "too long",
        ),
        ("an owner beyond", vec![with(Meta { uid: 65_536, ..Meta::default() })], "65536"),
        ("a mode that is none", vec![with(Meta { mode: 0o100_755, ..Meta::default() })], "mode"),
        ("a label", vec![with(attribute("security.selinux"))], "security.selinux"),
        ("a mark of overlayfs", vec![with(attribute("trusted.overlay.metacopy"))], "metacopy"),
        (
            "a redirection",
            vec![with(Meta {
                xattrs: vec![("trusted.overlay.redirect".into(), b"/../..".to_vec())],
                ..Meta::default()
            })],
            "redirect",
        ),
        ("a name that writes to terminals", vec![file("a\x1b[2J"), data(1), file("a\x1b[2J"), data(1)], "File exists"),
        ("a name too long", vec![file(&"n".repeat(300)), data(1)], ""),
        ("a path too deep", vec![file(&"d/".repeat(300))], ""),
    ];
    for (what, records, words) in cases {
        target.refuses(what, &parts.with_files(&records), words);
    }
    let cut = Parts { files: parts.files[..parts.files.len() - 3].to_vec(), ..parts.clone() }.archive();
    target.refuses("records that are cut off", &cut, "cut off");
    let long = Parts { files: [&parts.files[..], b"more"].concat(), ..parts.clone() }.archive();
    target.refuses("bytes behind the records", &long, "longer than it says");
    let enormous = Parts { files: u32::MAX.to_le_bytes().to_vec(), ..parts.clone() }.archive();
    target.refuses("an enormous record", &enormous, "too long");
    // What an app may have of its own does no harm outside.
    let root = Meta { mode: 0o6755, ..Meta::default() };
    let own = parts.with_files(&[Record::File { path: "setuid".into(), meta: root, bytes: 1 }, data(1)]);
    let output = target.try_import(&own);
    assert!(output.status.success(), "{}", said(&output));
    let apps = target.daemon.data_dir().join("apps");
    let id = python::names(&apps).into_iter().find(|name| name != "precious").unwrap();
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(apps.join(id).join("upper/setuid")).unwrap());
    assert!(owner >= 65_536, "a set-uid file of the machine's root: {owner}");
    target.daemon.ok(&["rm", "-f", "ledger"]).unwrap();
    target.end("files");
}

#[test]
fn archives_out_of_order_are_refused() {
    let (parts, mut target) = (parts(), Target::new());
    let (manifest, layers, all) = (parts.manifest(), parts.layers.clone(), files(&parts.files));
    let (image, end) = (parts.image(), vec![(END, Vec::new())]);
    let json = |text: &str| vec![(MANIFEST, text.as_bytes().to_vec())];
    let cases: Vec<(&str, Vec<&Frames>, &str)> = vec![
        ("no manifest", vec![&layers, &all, &image, &end], "manifest"),
        ("two manifests", vec![&manifest, &manifest, &layers, &all, &image, &end], "out of place"),
        ("no layers", vec![&manifest, &all, &image, &end], "layers"),
        ("layers twice", vec![&manifest, &layers, &layers, &all, &image, &end], "files do not follow"),
        ("no files", vec![&manifest, &layers, &image, &end], "files do not follow"),
        ("files twice", vec![&manifest, &layers, &all, &all, &image, &end], "image does not follow"),
        ("the image first", vec![&manifest, &layers, &image, &all, &end], "files do not follow"),
        ("two images", vec![&manifest, &layers, &all, &image, &image, &end], "more follows"),
        ("no image", vec![&manifest, &layers, &all, &end], "image does not follow"),
        ("no end", vec![&manifest, &layers, &all, &image], "cut off"),
        ("two ends", vec![&manifest, &layers, &all, &image, &end, &end], "bytes follow"),
    ];
    for (what, order, words) in cases {
        let frames: Frames = order.into_iter().flatten().cloned().collect();
        target.refuses(what, &sealed(&frames), words);
    }
    let wrapped = |inner: (u8, Vec<u8>)| sealed(&[manifest.clone(), vec![inner], end.clone()].concat());
    target.refuses("data of no section", &wrapped((DATA, vec![1])), "out of place");
    target.refuses("the end of no section", &wrapped((SECTION_END, Vec::new())), "out of place");
    target.refuses("an unknown frame", &wrapped((99, Vec::new())), "unknown kind");
    target.refuses("an unknown section", &wrapped((SECTION, b"\"secrets\"".to_vec())), "cannot be understood");
    target.refuses("a frame too long", &wrapped((SECTION, vec![b' '; (1 << 20) + 1])), "too long");
    target.refuses("no description", &sealed(&json("{}")), "cannot be understood");
    target.refuses("a deep description", &sealed(&json(&"[".repeat(100_000))), "cannot be understood");
    let failed = br#"{"kind": "invalid", "message": "\u001b[2Jnothing\u0007 is wrong", "hint": "\u001b]0;x\u0007"}"#;
    target.refuses("a message for the terminal", &sealed(&[(FAILED, failed.to_vec())]), "nothing");
    target.end("order");
}

#[test]
fn hostile_descriptions_are_refused() {
    let (parts, mut target) = (parts(), Target::new());
    for name in ["a\u{1b}[2J", "../up", "", "a/b", "A B"] {
        let archive = parts.with_manifest(|manifest| manifest["spec"]["name"] = name.into());
        target.refuses(name, &archive, "name");
    }
    for layer in ["../../precious", "/etc/passwd", "sha256:..", "\u{1b}[2J"] {
        let archive = parts.with_manifest(|manifest| manifest["resolved"]["layers"][0] = layer.into());
        target.refuses(layer, &archive, "");
    }
    let many: Vec<String> = (0..2_000).map(|n| format!("sha256:{n:064x}")).collect();
    let archive = parts.with_manifest(|manifest| manifest["resolved"]["layers"] = many.into());
    target.refuses("layers that are not there", &archive, "layers");
    let archive = parts.with_manifest(|manifest| manifest["spec"]["security"]["seccomp"] = false.into());
    target.refuses("no filter", &archive, "--trust");
    let volumes = serde_json::json!([{ "host": "/etc", "app": "/v", "read_only": true }]);
    let archive = parts.with_manifest(|manifest| manifest["spec"]["volumes"] = volumes);
    target.refuses("a volume", &archive, "--trust");
    target.end("descriptions");
}

/// A regular file, device or anything else with this name, open with these flags.
fn open_file(path: &str, flags: u32) -> OpenFile {
    let state = PathState { path: path.into(), mode: 0o100_600, ..PathState::default() };
    let (owner, locks) = (Owner::default(), Vec::new());
    OpenFile { kind: FileKind::Path(state), flags, position: 0, owner, locks }
}

#[test]
fn images_that_name_what_is_not_theirs_are_refused() {
    let (parts, mut target) = (parts(), Target::new());
    let opens = |path: &str| parts.with_state(|tree, _| tree.files.push(open_file(path, 2)));
    for path in ["/../../../precious", "precious", "/proc/1/mem", "/proc/1/root/etc/shadow", "/a//b", "/a\u{1b}[2J/.."]
    {
        target.refuses(path, &opens(path), "which no app has");
    }
    let of_process = |path: &str, flags: u32| {
        let kind = FileKind::OfProcess { path: path.into() };
        parts.with_state(|tree, _| tree.files.push(OpenFile { kind, ..open_file("/", flags) }))
    };
    target.refuses("a file of init", &of_process("/proc/1/maps", 0), "which no app has");
    target.refuses("memory to write", &of_process("/proc/2/mem", 2), "which no app has");
    let handle = parts.with_state(|tree, _| {
        let state = PathState { path: b"/x".to_vec(), ..PathState::default() };
        tree.files.push(OpenFile { kind: FileKind::Handle { state, handle: (1, vec![7; 8]) }, ..open_file("/", 2) });
    });
    target.refuses("a handle", &handle, "has another name by now");
    let current = parts.with_state(|tree, _| tree.for_each_path(|path| path.path = b"/proc/1/cwd".to_vec()));
    target.refuses("directories of init", &current, "which no app has");
    let empty = parts.with_state(|tree, _| tree.processes.clear());
    target.refuses("no processes", &empty, "initial process");
    let beyond = parts.with_state(|_, header| header.state_bytes = u64::MAX / 2);
    target.refuses("an enormous state", &beyond, "");
    let future = parts.with_state(|_, header| header.needs.cpu = [u64::MAX; 4]);
    target.refuses("another processor", &future, "cannot be woken on this machine");
    let caps = parts.with_state(|tree, _| {
        for process in &mut tree.processes {
            if let torpor_image::tree::End::Alive(life) = &mut process.end {
                life.threads.iter_mut().for_each(|thread| thread.credentials.capabilities[1] = u64::MAX);
            }
        }
    });
    target.refuses("all capabilities", &caps, "--trust");
    let short = Parts { image: parts.image[..100].to_vec(), ..parts.clone() }.archive();
    target.refuses("a short image", &short, "");
    for (bytes, words) in [(u64::MAX, "free"), (parts.image.len() as u64 + 1, "shorter")] {
        let lies = [parts.manifest(), parts.layers.clone(), files(&parts.files), image(&parts.image, bytes)].concat();
        target.refuses("an image that says more", &sealed(&[lies, vec![(END, Vec::new())]].concat()), words);
    }
    // What only the wake can see: it stays warm, says why, and gives nothing away.
    let output = target.try_import(&opens("/proc/kmsg"));
    assert!(output.status.success(), "{}", said(&output));
    let woken = target.daemon.cli(&["wake", "ledger"]).unwrap();
    assert!(!woken.status.success() && said(&woken).contains("/proc/kmsg"), "{}", said(&woken));
    target.daemon.ok(&["rm", "-f", "ledger"]).unwrap();
    // As it is it is taken.
    let output = target.try_import(&parts.archive());
    assert!(output.status.success(), "{}", said(&output));
    target.daemon.ok(&["wake", "ledger"]).unwrap();
    target.daemon.ok(&["rm", "-f", "ledger"]).unwrap();
    target.end("images");
}

#[test]
fn images_with_what_no_app_can_make_are_refused() {
    let (parts, mut target) = (parts(), Target::new());
    let with = |kind: FileKind, flags: u32| {
        parts.with_state(|tree, _| tree.files.push(OpenFile { kind, ..open_file("/", flags) }))
    };
    let path = PathState { path: b"/sys/fs/cgroup".to_vec(), mode: 0o040_755, ..PathState::default() };
    let mark = FanotifyMark { extent: MarkExtent::FileSystem, flags: 0, mask: 0x20, ignored: 0, path };
    let fanotify = FileKind::Fanotify { flags: 3, event_flags: 0o2, marks: vec![mark] };
    target.refuses("a fanotify group", &with(fanotify, 2), "a fanotify group");
    let (local, remote, options, queue) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let raw = InetSocket { kind: (2, 3, 255), local, remote, state: InetState::Idle, options, queue, shut: 0 };
    target.refuses("a raw socket", &with(FileKind::Inet(Box::new(raw)), 2), "without the capability");
    let (interface, memberships, options) = (Vec::new(), Vec::new(), Vec::new());
    let packets = PacketSocket { kind: 3, protocol: 3, interface, memberships, options };
    target.refuses("a packet socket", &with(FileKind::Packet(Box::new(packets)), 2), "CAP_NET_RAW");
    let multiplexer = PathState { path: b"/dev/ptmx".to_vec(), mode: 0o020_666, ..PathState::default() };
    let terminal = Terminal { path: multiplexer, number: 4000, settings: vec![0; 44], ..Terminal::default() };
    target.refuses("a terminal", &with(FileKind::Master(Box::new(terminal)), 2), "terminal number 4000");
    for flags in [0o102, 0o1002] {
        target.refuses("a file to be made or emptied", &with(open_file("/x", 0).kind, flags), "with flags");
    }
    let signals = parts.with_state(|tree, _| {
        let owner = Owner { kind: 1, id: 1, signal: 9 };
        tree.files.push(OpenFile { owner, ..open_file("/", 0) });
    });
    target.refuses("signals to init", &signals, "told to process 1");
    target.end("kinds");
}

#[test]
fn images_do_not_raise_privileges() {
    let (parts, mut target) = (parts(), Target::new());
    let greedy = parts.with_state(|tree, _| {
        for process in &mut tree.processes {
            let torpor_image::tree::End::Alive(life) = &mut process.end else { continue };
            life.oom_score_adjustment = -1000;
            // memlock, nice, rtprio.
            for n in [8, 13, 14] {
                (life.limits[n].soft, life.limits[n].hard) = (u64::MAX, u64::MAX);
            }
            for thread in &mut life.threads {
                (thread.scheduling.nice, thread.scheduling.io_priority) = (-20, 1 << 13);
                (thread.scheduling.policy, thread.scheduling.priority) = (1, 50);
            }
        }
    });
    let output = target.try_import(&greedy);
    assert!(output.status.success(), "{}", said(&output));
    // Who imports it is told.
    let lowered = ["oom_score_adj is 0", "the hard limit rtprio is ", "there is no real-time priority"];
    for what in lowered {
        assert!(said(&output).contains(&format!("torpor: lowered: {what}")), "{what}: {}", said(&output));
    }
    target.daemon.ok(&["rm", "-f", "ledger"]).unwrap();
    let path = target.folder.path().join("hostile.torpor");
    let told = target.daemon.json(&["image", "import", path.to_str().unwrap(), "--no-publish"]).unwrap();
    let list = told["lowered"].as_array().unwrap_or_else(|| panic!("{told}"));
    assert!(lowered.iter().all(|what| list.iter().any(|line| line.as_str().unwrap().starts_with(what))), "{told}");
    assert_eq!(told["name"], "ledger");
    target.daemon.ok(&["wake", "ledger"]).unwrap();
    let app = target.daemon.json(&["inspect", "ledger"]).unwrap();
    let pid = app["pid"].as_u64().or_else(|| app["status"]["pid"].as_u64()).unwrap_or_else(|| panic!("{app}"));
    let proc = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    assert_eq!(proc("oom_score_adj").trim(), "0");
    let line = |text: &str, of: &str| {
        let line = text.lines().find(|line| line.starts_with(of)).unwrap_or_else(|| panic!("{of}: {text}"));
        line.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    let ours = fs::read_to_string("/proc/self/limits").unwrap();
    for limit in ["Max locked memory", "Max nice priority", "Max realtime priority"] {
        let hard = |text: &str| {
            line(text, limit).split(' ').nth_back(if limit.contains("locked") { 1 } else { 0 }).map(str::to_owned)
        };
        assert_eq!(hard(&proc("limits")), hard(&ours), "{limit}");
    }
    let stat = proc("stat");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_ascii_whitespace().collect();
    // Behind state (3): nice is 19, real-time priority 40, policy 41.
    assert_eq!((fields[16], fields[37], fields[38]), ("0", "0", "0"), "{stat}");
    target.daemon.ok(&["rm", "-f", "ledger"]).unwrap();
    target.end("privileges");
}

#[test]
fn ports_of_strangers_are_confirmed() {
    let (parts, mut target) = (parts(), Target::new());
    let port = target.daemon.port().unwrap();
    let archive = parts.with_manifest(|manifest| {
        manifest["spec"]["ports"] = serde_json::json!([{ "host": port, "app": 7000, "protocol": "tcp" }]);
    });
    let path = target.folder.path().join("ports.torpor");
    fs::write(&path, archive).unwrap();
    let import = |more: &[&str]| {
        let line = [&["image", "import", path.to_str().unwrap()], more].concat();
        target.daemon.cli(&line).unwrap()
    };
    let refused = import(&[]);
    let text = said(&refused);
    assert!(refused.status.code() == Some(4) && text.contains(&port.to_string()) && text.contains("--yes"), "{text}");
    assert_eq!(target.daemon.json(&["ps"]).unwrap().as_array().map(Vec::len), Some(0));
    let taken = import(&["--yes"]);
    assert!(taken.status.success(), "{}", said(&taken));
    let address = (std::net::Ipv4Addr::LOCALHOST, port).into();
    eventually_ok("the ledger answers", PATIENCE, || LineSession::open(address)).unwrap();
    target.daemon.ok(&["rm", "-f", "ledger"]).unwrap();
    target.tried += 2;
    target.end("ports");
}

#[test]
fn an_app_with_files_that_no_other_machine_would_find_is_not_exported() {
    let place = Place::new();
    place.run("holder", "unlinked_in_tmpfs.py", &["--no-sleep"]);
    place.wait_log("holder", "ready");
    let out = place.path("holder.torpor");
    let said = eventually_ok("it is refused", PATIENCE, || {
        let output = place.daemon.cli(&["image", "export", "holder", "-o", out.to_str().unwrap()]).unwrap();
        let said = said(&output);
        if output.status.code() == Some(4) && said.contains("cannot be exported") { Ok(said) } else { Err(said) }
    });
    let said = said.unwrap();
    assert!(said.contains("/dev/shm/a") && said.contains("closed that file"), "{said}");
    assert!(!out.exists());
}
