//! What ends a sleep that has not committed: an event on what the app waits for, or somebody who asks for it.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::Abort;
use super::error::describe;
use crate::watch::Watch;

/// What has happened, in words.
pub(crate) fn happened(watch: &Watch, abort: &Abort) -> io::Result<Option<String>> {
    if abort.asked() {
        return Ok(Some("asked to".to_owned()));
    }
    Ok(watch.fired()?.as_ref().map(describe))
}

/// What is to be on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The file.
    File,
    /// All of its file system: an app's files lie beside its images.
    FileSystem,
}

/// Waits until a file, or what is around it, is on disk, but no longer than until something happens, which is given.
pub(crate) fn sync(file: Arc<File>, extent: Extent, watch: &Watch, abort: &Abort) -> io::Result<Option<String>> {
    let done = eventfd(0, EventfdFlags::CLOEXEC)?;
    let tell = done.try_clone()?;
    let syncing = std::thread::Builder::new().name("image-sync".to_owned()).spawn(move || {
        let result = match extent {
            Extent::File => file.sync_data(),
            Extent::FileSystem => rustix::fs::syncfs(&file).map_err(io::Error::from).and_then(|()| file.sync_all()),
        };
        // The reader holds the other duplicate; a counter of one cannot overflow.
        let _ = rustix::io::write(&tell, &1_u64.to_ne_bytes());
        result
    })?;
    loop {
        let mut fds = [
            PollFd::new(&done, PollFlags::IN),
            PollFd::new(watch, PollFlags::IN),
            PollFd::new(&abort.0.1, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
            Ok(_) => {}
        }
        let synced = !fds[0].revents().is_empty();
        if let Some(by) = happened(watch, abort)? {
            return Ok(Some(by));
        }
        if synced {
            break;
        }
    }
    syncing.join().unwrap_or_else(|_| Err(io::Error::other("the syncing thread panicked")))?;
    Ok(None)
}
