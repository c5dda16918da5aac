//! Until `files::make` is there.
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use torpor_image::tree::*;
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct MakeError(String);
pub(crate) struct Made {
    pub(crate) files: Vec<Option<OwnedFd>>,
    pub(crate) memories: Vec<OwnedFd>,
}
pub(crate) type Given = BTreeMap<FileId, OwnedFd>;
pub(crate) fn make(tree: &Tree, _image: &File, mut given: Given) -> Result<Made, MakeError> {
    let mut files = Vec::new();
    for (n, file) in tree.files.iter().enumerate() {
        files.push(match &file.kind {
            FileKind::Path(path) => {
                let flags = rustix::fs::OFlags::from_bits_retain(file.flags & !0o300);
                let fd = rustix::fs::open(
                    std::path::Path::new(std::ffi::OsStr::from_bytes(&path.path)),
                    flags | rustix::fs::OFlags::CLOEXEC,
                    rustix::fs::Mode::empty(),
                )
                .map_err(|e| MakeError(format!("{e} {path:?}")))?;
                let _ = rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(file.position));
                Some(fd)
            }
            FileKind::Outside { .. } => Some(given.remove(&(n as u32)).ok_or_else(|| MakeError("missing".to_owned()))?),
            FileKind::Process { .. } => None,
            FileKind::Epoll { .. } => {
                Some(rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap())
            }
            other => return Err(MakeError(format!("{other:?}"))),
        });
    }
    Ok(Made { files, memories: Vec::new() })
}
impl Made {
    pub(crate) fn finish(&mut self, _tree: &Tree) -> Result<(), MakeError> {
        Ok(())
    }
}
