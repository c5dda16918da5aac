//! Archives, layouts and stores for the tests.
#![allow(dead_code, unused_imports, unreachable_pub, clippy::unwrap_used, reason = "each test uses its part")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use torpor_rootfs::{Digest, Limits, Store};
pub use torpor_testkit::error::chain;

/// A tar archive being written, byte by byte where a test wants it.
#[derive(Clone, Default)]
pub struct Tar(pub Vec<u8>);

/// A header's fields.
#[derive(Clone)]
pub struct Head<'h> {
    pub path: &'h [u8],
    pub kind: u8,
    pub link: &'h [u8],
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    pub mtime: u64,
    pub device: (u32, u32),
    /// What the header says, if not the data's length.
    pub size: Option<u64>,
}

impl Default for Head<'_> {
    fn default() -> Self {
        let device = (0, 0);
        Self { path: b"", kind: b'0', link: b"", mode: 0o644, uid: 0, gid: 0, mtime: 1_000_000_000, device, size: None }
    }
}

impl Tar {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn member(mut self, head: &Head<'_>, data: &[u8]) -> Self {
        if head.path.len() > 100 {
            self =
                self.raw(&Head { path: b"././@LongLink", kind: b'L', ..Head::default() }, &[head.path, b"\0"].concat());
        }
        if head.link.len() > 100 {
            self =
                self.raw(&Head { path: b"././@LongLink", kind: b'K', ..Head::default() }, &[head.link, b"\0"].concat());
        }
        self.raw(head, data)
    }

    pub fn raw(mut self, head: &Head<'_>, data: &[u8]) -> Self {
        let mut header = tar::Header::new_gnu();
        let gnu = header.as_gnu_mut().unwrap();
        let cut = |bytes: &[u8]| bytes.len().min(100);
        gnu.name[..cut(head.path)].copy_from_slice(&head.path[..cut(head.path)]);
        gnu.linkname[..cut(head.link)].copy_from_slice(&head.link[..cut(head.link)]);
        gnu.typeflag = [head.kind];
        header.set_mode(head.mode);
        header.set_uid(head.uid);
        header.set_gid(head.gid);
        header.set_mtime(head.mtime);
        header.set_size(head.size.unwrap_or(data.len() as u64));
        if matches!(head.kind, b'3' | b'4') {
            header.set_device_major(head.device.0).unwrap();
            header.set_device_minor(head.device.1).unwrap();
        }
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub fn pax(self, records: &[(&[u8], &[u8])]) -> Self {
        let mut data = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length = rest + length.to_string().len();
            }
            data.extend_from_slice(&[length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat());
        }
        self.raw(&Head { path: b"PaxHeaders/x", kind: b'x', ..Head::default() }, &data)
    }

    pub fn file(self, path: &str, data: &str) -> Self {
        self.member(&Head { path: path.as_bytes(), ..Head::default() }, data.as_bytes())
    }

    pub fn dir(self, path: &str, mode: u32) -> Self {
        self.member(&Head { path: path.as_bytes(), kind: b'5', mode, ..Head::default() }, b"")
    }

    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.member(&Head { path: path.as_bytes(), kind: b'2', link: target.as_bytes(), ..Head::default() }, b"")
    }

    pub fn hard_link(self, path: &str, target: &str) -> Self {
        self.member(&Head { path: path.as_bytes(), kind: b'1', link: target.as_bytes(), ..Head::default() }, b"")
    }

    pub fn device(self, path: &str, kind: u8, device: (u32, u32)) -> Self {
        self.member(&Head { path: path.as_bytes(), kind, device, ..Head::default() }, b"")
    }

    pub fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}

/// A store in a directory of its own, beside room for a test's files.
pub struct Place {
    pub directory: TempDir,
    pub store: Store,
}

impl Place {
    pub fn new() -> Self {
        Self::with(Limits::default())
    }

    pub fn with(limits: Limits) -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests give files away: run them as root");
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open_with(directory.path().join("store"), limits).unwrap();
        Self { directory, store }
    }

    /// In memory where the machine has such a place: every layer is synced to disk.
    pub fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let store = Store::open(directory.path().join("store")).unwrap();
        Self { directory, store }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn write(&self, name: &str, data: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, data).unwrap();
        path
    }

    pub fn tarball(&self, data: &[u8]) -> Result<torpor_rootfs::Image, torpor_rootfs::Error> {
        self.tarball_over(data, None)
    }

    pub fn tarball_over(&self, data: &[u8], base: Option<&str>) -> Result<torpor_rootfs::Image, torpor_rootfs::Error> {
        let path = self.write("input.tar", data);
        self.store.add_tarball(&path, base, &torpor_rootfs::no_progress())
    }

    /// The only layer of a tarball.
    pub fn tree(&self, data: &[u8]) -> PathBuf {
        let image = self.tarball(data).unwrap_or_else(|error| panic!("{}", chain(&error)));
        self.store.layer_path(image.layers.last().unwrap()).unwrap()
    }

    pub fn refusal(&self, data: &[u8]) -> String {
        let error = self.tarball(data).expect_err("it should be refused");
        self.assert_empty();
        chain(&error)
    }

    pub fn assert_empty(&self) {
        for name in ["layers", "images", "names", "tmp"] {
            let left: Vec<_> = fs::read_dir(self.path("store").join(name)).unwrap().collect();
            assert!(left.is_empty(), "left in {name}: {left:?}");
        }
    }

    /// An OCI layout with one image of these layers.
    pub fn layout(&self, name: &str, layers: &[Vec<u8>], section: &serde_json::Value) -> PathBuf {
        let root = self.path(name);
        let mut layout = Layout::new(&root);
        let manifest = layout.image(layers, section);
        layout.index(&[manifest]);
        root
    }
}

/// An OCI layout being written.
pub struct Layout {
    pub root: PathBuf,
}

impl Layout {
    pub fn new(root: &Path) -> Self {
        fs::create_dir_all(root.join("blobs/sha256")).unwrap();
        fs::write(root.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Self { root: root.to_owned() }
    }

    pub fn blob(&self, data: &[u8], media_type: &str) -> serde_json::Value {
        let digest = Digest::of(data);
        fs::write(self.root.join("blobs/sha256").join(digest.hex()), data).unwrap();
        serde_json::json!({"mediaType": media_type, "digest": digest.to_string(), "size": data.len()})
    }

    pub fn image(&mut self, layers: &[Vec<u8>], section: &serde_json::Value) -> serde_json::Value {
        let diff_ids: Vec<_> = layers.iter().map(|layer| Digest::of(&plain(layer)).to_string()).collect();
        let config = serde_json::json!({
            "architecture": "amd64", "os": "linux", "config": section,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = self.blob(config.to_string().as_bytes(), "application/vnd.oci.image.config.v1+json");
        let media = |layer: &Vec<u8>| match layer.first() {
            Some(0x1f) => "application/vnd.oci.image.layer.v1.tar+gzip",
            Some(0x28) => "application/vnd.oci.image.layer.v1.tar+zstd",
            _ => "application/vnd.oci.image.layer.v1.tar",
        };
        let layers: Vec<_> = layers.iter().map(|layer| self.blob(layer, media(layer))).collect();
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config, "layers": layers,
        });
        self.blob(manifest.to_string().as_bytes(), "application/vnd.oci.image.manifest.v1+json")
    }

    pub fn index(&mut self, manifests: &[serde_json::Value]) {
        let index = serde_json::json!({"schemaVersion": 2, "manifests": manifests});
        fs::write(self.root.join("index.json"), index.to_string()).unwrap();
    }
}

pub fn gzip(data: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

fn plain(data: &[u8]) -> Vec<u8> {
    use std::io::Read as _;
    let mut plain = Vec::new();
    match data.first() {
        Some(0x1f) => drop(flate2::read::GzDecoder::new(data).read_to_end(&mut plain).unwrap()),
        Some(0x28) => plain = zstd::decode_all(data).unwrap(),
        _ => plain = data.to_vec(),
    }
    plain
}

/// What a tree holds: everything that unpacking must keep, by path.
pub fn listing(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    walk(root, root, &mut found, &mut inodes);
    found
}

fn walk(root: &Path, at: &Path, found: &mut BTreeMap<PathBuf, String>, inodes: &mut BTreeMap<u64, PathBuf>) {
    let metadata = fs::symlink_metadata(at).unwrap();
    let name = at.strip_prefix(root).unwrap().to_owned();
    let mut text = format!(
        "{:o} {}:{} {}.{}",
        metadata.mode(),
        metadata.uid(),
        metadata.gid(),
        metadata.mtime(),
        metadata.mtime_nsec()
    );
    if metadata.file_type().is_symlink() {
        text += &format!(" -> {:?}", fs::read_link(at).unwrap());
    } else if metadata.is_file() {
        let first = inodes.entry(metadata.ino()).or_insert_with(|| name.clone());
        text += &format!(" {} {} link of {first:?}", metadata.len(), Digest::of(&fs::read(at).unwrap()));
    } else if !metadata.is_dir() {
        text += &format!(" {}", metadata.rdev());
    }
    for attribute in ["user.note", "security.capability", "trusted.overlay.opaque", "user.overlay.opaque"] {
        let mut value = [0; 256];
        if let Ok(length) = rustix::fs::lgetxattr(at, attribute, &mut value[..]) {
            text += &format!(" {attribute}={}", value[..length].escape_ascii());
        }
    }
    found.insert(name, text);
    if metadata.is_dir() {
        let mut names: Vec<_> = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
        names.iter().for_each(|inner| walk(root, inner, found, inodes));
    }
}

pub fn lower() -> Vec<u8> {
    Tar::new()
        .dir("usr/bin", 0o755)
        .file("usr/bin/tool", "old")
        .symlink("bin", "usr/bin")
        .member(&Head { path: b"tmp", kind: b'5', mode: 0o1777, ..Head::default() }, b"")
        .dir("gone", 0o755)
        .file("gone/a", "a")
        .dir("opaque", 0o755)
        .file("opaque/hidden", "h")
        .file("etc/passwd", "root:x:0:0::/root:\nweb:x:33:34::/srv:\n")
        .file("etc/group", "web:x:34:\nlogs:x:40:web\n")
        .end()
}

pub fn upper() -> Vec<u8> {
    Tar::new()
        .file(".wh.gone", "")
        .file("opaque/.wh..wh..opq", "")
        .dir("opaque", 0o755)
        .file("opaque/new", "n")
        .file("tmp/file", "x")
        .file("etc/.wh.group", "")
        .file(".wh..wh.plnk", "")
        .end()
}

pub fn section() -> serde_json::Value {
    serde_json::json!({
        "Entrypoint": ["/init"], "Cmd": ["serve", "80"], "Env": ["A=1", "B="], "User": "web", "WorkingDir": "/srv",
        "StopSignal": "SIGQUIT", "Volumes": null, "ExposedPorts": {"80/tcp": {}}, "Labels": null,
    })
}

pub fn add(place: &Place, layout: &Path) -> torpor_rootfs::Image {
    place
        .store
        .add_oci_layout(layout, None, &torpor_rootfs::no_progress())
        .unwrap_or_else(|error| panic!("{}", chain(&error)))
}
