//! The pager of a tree that misses pages.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use torpor_linux::meminfo::Memory;
use torpor_linux::socket::{Sent, send};
use torpor_linux::userfault::Userfault;
use torpor_pager::{BLOCK_PAGES, Host as PagerHost};

use super::{CHILD, LateTree, RestoredError, take, tell_ready};
use crate::lazy::{LazyApp, ParkedContexts};

/// Serves the tree that the socket at standard input brings, until its memory is complete.
///
/// # Errors
/// Why that cannot be: the tree must be ended before its contexts are closed.
pub fn pager_main() -> Result<(), RestoredError> {
    let mut tree = LateTree::taken(io::stdin())?;
    let records = tree.records()?;
    let mut children: Vec<OwnedFd> = Vec::new();
    while let Some((word, files)) = take(io::stdin())? {
        if word == CHILD {
            children.extend(files);
        }
    }
    let parked = ParkedContexts { records, descriptors: tree.contexts, children };
    let tree = LazyApp::of_parked(tree.image, parked)?;
    tell_ready(io::stdin().as_fd())?;
    tree.serve(&Host)?;
    Ok(())
}

struct Host;

impl PagerHost for Host {
    fn forked(&self, child: &Userfault) -> io::Result<()> {
        send(io::stdin(), &Sent { bytes: CHILD, files: &[child.as_fd()], ..Sent::default() }).map(drop)
    }

    fn has_room(&self, bytes: u64) -> bool {
        Memory::now().is_ok_and(|memory| memory.available / 2 > bytes)
    }

    fn stalled(&self, error: &io::Error) {
        tracing::warn!(%error, "the image cannot be read; the tree waits for its memory");
    }

    fn complete(&self) -> io::Result<()> {
        Ok(())
    }

    fn block_pages(&self) -> u64 {
        BLOCK_PAGES
    }

    fn fills(&self) -> bool {
        true
    }

    fn is_awaited(&self) -> bool {
        false
    }

    fn is_over(&self) -> bool {
        false
    }
}
