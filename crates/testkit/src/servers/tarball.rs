//! Tarballs of our own files.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use tar::{Builder, EntryType, Header};

use crate::error::Error;

/// A file of ours in a program's tree.
#[derive(Clone, Debug)]
pub(crate) struct Overlay {
    /// Absolute.
    pub(crate) path: String,
    /// Permission bits.
    pub(crate) mode: u32,
    /// What it holds; nothing for a directory.
    pub(crate) content: Option<Vec<u8>>,
}

impl Overlay {
    /// A file that everybody may read.
    pub(crate) fn file(path: &str, content: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), mode: 0o644, content: Some(content.into()) }
    }

    /// A program.
    pub(crate) fn program(path: &str, content: impl Into<Vec<u8>>) -> Self {
        Self { mode: 0o755, ..Self::file(path, content) }
    }

    /// A directory.
    pub(crate) fn directory(path: &str, mode: u32) -> Self {
        Self { path: path.into(), mode, content: None }
    }
}

/// The name of an absolute path in a tarball.
pub(crate) fn named(path: &str) -> String {
    format!(".{path}")
}

/// Adds `overlay`, owned by root.
pub(crate) fn append_overlay<W: Write>(builder: &mut Builder<W>, overlay: &Overlay) -> io::Result<()> {
    let mut header = Header::new_gnu();
    let content = overlay.content.as_deref().unwrap_or_default();
    header.set_entry_type(if overlay.content.is_some() { EntryType::Regular } else { EntryType::Directory });
    header.set_mode(overlay.mode);
    header.set_size(content.len() as u64);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    builder.append_data(&mut header, named(&overlay.path), content)
}

/// The directories and files without which a static program would miss something: users, `/tmp`, mount points.
pub(crate) fn skeleton() -> Vec<Overlay> {
    let mut all: Vec<Overlay> = ["/bin", "/dev", "/etc", "/proc", "/root", "/run", "/sys", "/usr", "/var"]
        .iter()
        .map(|path| Overlay::directory(path, 0o755))
        .collect();
    all.push(Overlay::directory("/tmp", 0o1777));
    all.push(Overlay::file("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"));
    all.push(Overlay::file("/etc/group", "root:x:0:\nnogroup:x:65534:\n"));
    all.push(Overlay::file("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"));
    all
}

/// Writes a tarball of `overlays`, in this order.
pub(crate) fn write(out: &Path, overlays: &[Overlay]) -> Result<(), Error> {
    let step = || -> io::Result<()> {
        let mut builder = Builder::new(BufWriter::new(File::create(out)?));
        for overlay in overlays {
            append_overlay(&mut builder, overlay)?;
        }
        builder.into_inner()?.flush()
    };
    step().map_err(Error::file("write", out))
}
