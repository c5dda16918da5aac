//! Reading ahead what a program uses of the files that it maps, while its processes are built.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Advice, fadvise};
use torpor_image::PAGE;
use torpor_image::tree::{Tree, UsedPages};
use torpor_planner::staged::{Access, Staged};

/// Begins to read what is not in the page cache, in a thread of its own: `posix_fadvise(2)` waits where the disk has too much to do. `paths` are those of
/// `staged`, opened. Where it fails, pages are read when the program touches them.
///
/// Files that are mapped for writing are left out: nobody can execute a file that is open for writing (`ETXTBSY`), and the thread may hold it until after the
/// processes run.
pub fn begin(tree: &Tree, staged: &Staged<'_>, paths: &[OwnedFd]) {
    if let Err(error) = try_begin(tree, staged, paths) {
        tracing::debug!(%error, "mapped files are not read ahead");
    }
}

fn try_begin(tree: &Tree, staged: &Staged<'_>, paths: &[OwnedFd]) -> io::Result<()> {
    if tree.used.is_empty() {
        return Ok(());
    }
    let opened = staged.paths.iter().zip(paths).filter(|((_, access), _)| *access == Access::Read);
    let opened: HashMap<&[u8], &OwnedFd> = opened.map(|((path, _), file)| (path.path.as_slice(), file)).collect();
    let found = tree.used.iter().filter_map(|UsedPages { path, runs }| Some((opened.get(path.as_slice())?, runs)));
    let parts = found.map(|(file, runs)| Ok((file.try_clone()?, runs.clone()))).collect::<io::Result<Vec<_>>>()?;
    if parts.is_empty() {
        return Ok(());
    }
    std::thread::Builder::new()
        .name("read-ahead".into())
        .spawn(move || parts.into_iter().for_each(read_ahead))
        .map(drop)
}

fn read_ahead((file, runs): (OwnedFd, Vec<(u32, u32)>)) {
    for (first, pages) in runs {
        let (start, bytes) = (u64::from(first) * PAGE, u64::from(pages) * PAGE);
        if let Err(error) = fadvise(&file, start, bytes.try_into().ok(), Advice::WillNeed) {
            tracing::debug!(%error, "reading a mapped file ahead");
            return;
        }
    }
}
