//! Whether a file has the contents that it had, where its times or its inode say nothing.
//!
//! Files in an app's volumes are others' to change. Somebody who copies a data set over itself, or touches it, changes nothing
//! that the program has mapped. So of each mapped file of a volume the image has a checksum, up to [`MOST_BYTES`] of all of them
//! together: the app is held meanwhile, and what it maps lies in the page cache. It is computed again only where a wake
//! finds other times or another inode. It finds changes by accident or on purpose of those who may write the file, and need not
//! do more: they could have changed the file under the running program.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags, fstat, statx};
use torpor_image::Checksums;
use torpor_image::tree::{End, FileContents, PathState, Tree};

use crate::filesystem::{difference, is_made_up};
use torpor_process::view::View;

/// Bytes that are read at a capture for it.
const MOST_BYTES: u64 = 64 << 20;

/// The contents of files that an app's tree maps from its volumes. What cannot be read is left out, as is what changes
/// meanwhile: a wake then goes by times.
pub fn contents(view: &View, tree: &Tree, go_on: &dyn Fn() -> bool) -> Vec<FileContents> {
    let own = if view.in_sandbox() { view.open(b"/").and_then(|root| mount(&root)) } else { return Vec::new() };
    let Ok(own) = own else { return Vec::new() };
    let memory: HashSet<u64> = tree.surroundings.tmpfs.iter().map(|tmpfs| tmpfs.device).collect();
    let lives = tree.processes.iter().filter_map(|process| match &process.end {
        End::Alive(life) => Some(life),
        End::Zombie { .. } => None,
    });
    let mut seen = HashSet::new();
    let (mut found, mut left) = (Vec::new(), MOST_BYTES);
    for state in lives.flat_map(|life| &life.space.files) {
        let wanted = FileType::from_raw_mode(state.mode) == FileType::RegularFile && state.gone.is_none();
        if !wanted || memory.contains(&state.device) || state.bytes > left || !seen.insert(&state.path) || !go_on() {
            continue;
        }
        if let Ok(Some(checksum)) = of_volume(view, state, own) {
            left -= state.bytes;
            found.push(FileContents { path: state.path.clone(), checksum });
        }
    }
    found
}

fn mount(file: &OwnedFd) -> rustix::io::Result<u64> {
    Ok(statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id)
}

/// The checksum of a file that is not in the mount `own`.
fn of_volume(view: &View, state: &PathState, own: u64) -> io::Result<Option<u64>> {
    if mount(&view.open(&state.path)?)? == own {
        return Ok(None);
    }
    let file = view.open_as(&state.path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    if is_made_up(&file)? || difference(state, &fstat(&file)?, false, true).is_some() {
        return Ok(None);
    }
    let file = File::from(file);
    let checksum = checksum(&file, state.bytes)?;
    Ok(checksum.filter(|_| fstat(&file).is_ok_and(|now| difference(state, &now, false, true).is_none())))
}

/// The checksum of a file that is as long; `None` if it is shorter.
fn checksum(file: &File, bytes: u64) -> io::Result<Option<u64>> {
    let mut sums = Checksums::default();
    let mut buffer = vec![0; Checksums::PIECE_BYTES.min(bytes as usize)];
    let mut at = 0;
    while at < bytes {
        let piece = &mut buffer[..(bytes - at).min(Checksums::PIECE_BYTES as u64) as usize];
        match file.read_exact_at(piece, at) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        sums.add(piece);
        at += piece.len() as u64;
    }
    Ok(Some(sums.total()))
}

/// Whether a file that differs from what was at a path, by its times or its inode, has the contents that it had. Where the
/// program writes to it, it must be the same file: what else of the program leads to it leads to that one.
pub fn is_same(was: &PathState, fd: &OwnedFd, written: bool, contents: &[FileContents]) -> io::Result<bool> {
    let Some(known) = contents.iter().find(|known| known.path == was.path) else { return Ok(false) };
    let now = fstat(fd)?;
    let is_file = |mode: u32| FileType::from_raw_mode(mode) == FileType::RegularFile;
    let alike = is_file(was.mode) && is_file(now.st_mode) && was.bytes == now.st_size as u64;
    if !alike || (written && !was.is_inode(now.st_ino)) {
        return Ok(false);
    }
    let file = File::from(fd.try_clone()?);
    Ok(checksum(&file, was.bytes)? == Some(known.checksum))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::time::SystemTime;

    use super::*;
    use crate::filesystem::state;

    fn open(path: &Path) -> OwnedFd {
        File::open(path).unwrap().into()
    }

    #[test]
    fn contents_decide_where_times_differ() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes = vec![7; Checksums::PIECE_BYTES + 5000];
        fs::write(&path, &bytes).unwrap();
        let name = path.as_os_str().as_bytes().to_vec();
        let was = state(&name, &fstat(open(&path)).unwrap());
        let sum = checksum(&File::open(&path).unwrap(), was.bytes).unwrap().unwrap();
        let contents = [FileContents { path: name, checksum: sum }];
        let is_same = |written| is_same(&was, &open(&path), written, &contents).unwrap();

        File::open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(is_same(true) && is_same(false));
        fs::write(folder.path().join("other"), &bytes).unwrap();
        fs::rename(folder.path().join("other"), &path).unwrap();
        assert!(is_same(false) && !is_same(true), "another file with the same contents");
        let mut changed = bytes.clone();
        *changed.last_mut().unwrap() = 8;
        fs::write(&path, &changed).unwrap();
        assert!(!is_same(false));
        fs::write(&path, &bytes[1..]).unwrap();
        assert!(!is_same(false));
        assert!(!super::is_same(&was, &open(&path), false, &[]).unwrap());
    }
}
