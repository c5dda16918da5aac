//! The guard of a tree that misses pages.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, setsid};
use torpor_linux::socket::{Sent, send};

use super::{CHILD, LateTree, PAGER_COMMAND, RestoredError, TREE, pair, ready, start, take, tell_ready};

/// Pagers that it starts for one tree, at most: an end without a reason will come again.
const MOST_PAGERS: usize = 100;

/// Guards the tree that the socket at standard input brings, until its memory is complete.
///
/// # Errors
/// Why that cannot be: the tree was ended, unless it had not begun to run.
pub fn guard_main() -> Result<(), RestoredError> {
    // What ends the one who restores, from its terminal, does not end us.
    let _ = setsid();
    let mut tree = LateTree::taken(io::stdin())?;
    let open = |pid| Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let processes: Vec<OwnedFd> = tree.records()?.iter().filter_map(|record| open(record.pid)).collect();
    let mut children: Vec<OwnedFd> = Vec::new();
    let mut is_served = false;
    for _ in 0..MOST_PAGERS {
        let (socket, theirs) = pair()?;
        send(&socket, &Sent { bytes: TREE, files: &tree.files(), ..Sent::default() })?;
        for child in &children {
            send(&socket, &Sent { bytes: CHILD, files: &[child.as_fd()], ..Sent::default() })?;
        }
        let mut pager = start(PAGER_COMMAND, theirs, true)?;
        if !is_served {
            match ready(&socket) {
                Ok(()) => {
                    tell_ready(io::stdin().as_fd())?;
                    is_served = true;
                }
                // It has ended; or it hangs, and ends now.
                Err(_) => pager.kill()?,
            }
        }
        let status = pager.wait()?;
        if status.success() {
            return Ok(());
        }
        if status.code().is_some() {
            break;
        }
        // It was killed. A child's context that it has sent is one of the tree's from now on.
        while let Some((word, files)) = take(&socket)? {
            if word == CHILD {
                children.extend(files);
            }
        }
    }
    // It must not read zeros: it ends while its contexts are open.
    for process in &processes {
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
    Err(RestoredError::Ended)
}
