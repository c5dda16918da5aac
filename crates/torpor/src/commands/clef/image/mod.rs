//! The image of a class: an OCI layout of two layers, made on the spot.
//!
//! ```text
//! layer 1   /torpor, its interpreter and libraries, /etc, /tmp, /run/clefs, /var/lib/clefs     the same for all classes of this version
//! layer 2   /class/class.json, /class/program/…; certificates, if it may send requests          the class
//! ```
//! So a class keeps the program of Torpor with which it was deployed, whatever becomes of the one on the machine.

mod elf;
mod objects;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};
use torpor_clef::{Deployment, Program};

use super::host;
use crate::failure::Failure;

/// The user that hosts run as, inside.
pub(super) const USER: u32 = 1000;
const PASSWD: &str = "root:x:0:0::/:/torpor\nclefs:x:1000:1000::/:/torpor\n";
const GROUP: &str = "root:x:0:\nclefs:x:1000:\n";
/// Where TLS looks for the certificates of authorities, inside.
const CERTIFICATES: &str = "etc/ssl/certs/ca-certificates.crt";
/// Where distributions have them.
const CERTIFICATES_OF_MACHINE: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Bytes of them at most.
const MOST_CERTIFICATE_BYTES: u64 = 8 << 20;
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// Writes the image into an empty directory.
pub(super) fn write(folder: &Path, deployment: &Deployment, program: &Program) -> Result<(), Failure> {
    let failed = |source| Failure::Write { path: folder.to_owned(), source };
    let objects = objects::objects()?;
    let blobs = Blobs::new(folder).map_err(failed)?;
    let written = || -> io::Result<()> {
        let layers = [blobs.layer(|tar| runtime(tar, &objects))?, blobs.layer(|tar| class(tar, deployment, program))?];
        let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.digest.as_str()).collect();
        let env = [format!("LD_LIBRARY_PATH=/{}", objects::LIBRARIES), "HOME=/var/lib/clefs".to_owned()];
        let config = blobs.json(&json!({
            "architecture": "amd64",
            "os": "linux",
            "config": { "Cmd": host::COMMAND, "Env": env, "User": format!("{USER}:{USER}") },
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        }))?;
        let manifest = blobs.json(&json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor(CONFIG),
            "layers": layers.iter().map(|layer| layer.descriptor(LAYER)).collect::<Vec<_>>(),
        }))?;
        let index = json!({ "schemaVersion": 2, "manifests": [manifest.descriptor(MANIFEST)] });
        fs::write(folder.join("index.json"), index.to_string())?;
        fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#)
    };
    written().map_err(failed)
}

/// Who has a file, and who may do what with it.
#[derive(Clone, Copy)]
enum Owner {
    /// Root; everybody reads.
    Root,
    /// The host alone.
    Host,
    /// Everybody.
    All,
}

type Tar<'b> = Builder<&'b mut dyn Write>;

fn runtime(tar: &mut Tar<'_>, objects: &[objects::Object]) -> io::Result<()> {
    let mut made = Vec::new();
    for object in objects {
        parents(tar, &object.path, &mut made)?;
        add(tar, &object.path, EntryType::Regular, Owner::Root, 0o755, [&object.header, &object.rest])?;
    }
    for path in ["etc", "var", "var/lib", "run"] {
        directory(tar, path, Owner::Root)?;
    }
    directory(tar, "tmp", Owner::All)?;
    for path in [host::DATA, host::RUN] {
        directory(tar, path.trim_start_matches('/'), Owner::Host)?;
    }
    add(tar, "etc/passwd", EntryType::Regular, Owner::Root, 0o644, [PASSWD.as_bytes(), &[]])?;
    add(tar, "etc/group", EntryType::Regular, Owner::Root, 0o644, [GROUP.as_bytes(), &[]])
}

fn class(tar: &mut Tar<'_>, deployment: &Deployment, program: &Program) -> io::Result<()> {
    let (root, description) = (host::PROGRAM.trim_start_matches('/'), serde_json::to_vec_pretty(deployment)?);
    let mut made = Vec::new();
    parents(tar, &format!("{root}/x"), &mut made)?;
    add(tar, host::DEPLOYMENT.trim_start_matches('/'), EntryType::Regular, Owner::Root, 0o644, [&description, &[]])?;
    if !deployment.allow.0.is_empty()
        && let Some(found) = CERTIFICATES_OF_MACHINE.iter().find_map(|path| File::open(path).ok())
    {
        let mut contents = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(found, MOST_CERTIFICATE_BYTES), &mut contents)?;
        parents(tar, CERTIFICATES, &mut made)?;
        add(tar, CERTIFICATES, EntryType::Regular, Owner::Root, 0o644, [&contents, &[]])?;
    }
    for (path, contents) in program.files() {
        let path = format!("{root}/{path}");
        parents(tar, &path, &mut made)?;
        add(tar, &path, EntryType::Regular, Owner::Root, 0o644, [contents, &[]])?;
    }
    Ok(())
}

/// Adds the directories of a path that are not there.
fn parents(tar: &mut Tar<'_>, path: &str, made: &mut Vec<String>) -> io::Result<()> {
    for (end, _) in path.match_indices('/') {
        let parent = &path[..end];
        if !made.iter().any(|known| known == parent) {
            made.push(parent.to_owned());
            directory(tar, parent, Owner::Root)?;
        }
    }
    Ok(())
}

fn directory(tar: &mut Tar<'_>, path: &str, owner: Owner) -> io::Result<()> {
    let mode = match owner {
        Owner::Root => 0o755,
        Owner::Host => 0o700,
        Owner::All => 0o1777,
    };
    add(tar, &format!("{path}/"), EntryType::Directory, owner, mode, [&[], &[]])
}

/// Adds a file. Everything but the contents is the same each time, so that equal layers have equal digests.
fn add(tar: &mut Tar<'_>, path: &str, kind: EntryType, owner: Owner, mode: u32, parts: [&[u8]; 2]) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(parts.iter().map(|part| part.len() as u64).sum());
    header.set_mtime(0);
    let user = if matches!(owner, Owner::Host) { USER } else { 0 };
    header.set_uid(user.into());
    header.set_gid(user.into());
    let [first, rest] = parts;
    tar.append_data(&mut header, path, io::Read::chain(first, rest))
}

/// The blobs of a layout.
struct Blobs<'f>(&'f Path);

/// A blob that is written.
struct Blob {
    digest: String,
    bytes: u64,
}

impl Blob {
    fn descriptor(&self, media_type: &str) -> Value {
        json!({ "mediaType": media_type, "digest": self.digest, "size": self.bytes })
    }
}

impl<'f> Blobs<'f> {
    const FOLDER: &'static str = "blobs/sha256";

    fn new(folder: &'f Path) -> io::Result<Self> {
        fs::create_dir_all(folder.join(Self::FOLDER))?;
        Ok(Self(folder))
    }

    fn layer(&self, fill: impl FnOnce(&mut Tar<'_>) -> io::Result<()>) -> io::Result<Blob> {
        let part = self.0.join("layer.part");
        let mut out = Hashed { to: BufWriter::new(File::create_new(&part)?), hash: Sha256::new(), bytes: 0 };
        {
            let mut tar = Builder::new(&mut out as &mut dyn Write);
            fill(&mut tar)?;
            tar.finish()?;
        }
        out.flush()?;
        let blob = Blob { digest: format!("sha256:{}", hex(&out.hash.finalize())), bytes: out.bytes };
        fs::rename(&part, self.path(&blob))?;
        Ok(blob)
    }

    fn json(&self, document: &Value) -> io::Result<Blob> {
        let text = document.to_string();
        let blob = Blob { digest: format!("sha256:{}", hex(&Sha256::digest(&text))), bytes: text.len() as u64 };
        fs::write(self.path(&blob), text)?;
        Ok(blob)
    }

    fn path(&self, blob: &Blob) -> std::path::PathBuf {
        self.0.join(Self::FOLDER).join(blob.digest.trim_start_matches("sha256:"))
    }
}

/// What goes by is hashed and counted.
struct Hashed<W> {
    to: W,
    hash: Sha256,
    bytes: u64,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
