//! Doing something inside another network namespace.
//!
//! A namespace belongs to a thread, and a thread of a runtime must never be left in a foreign one. So the work is done
//! on a thread of its own, which ends afterwards. Sockets opened there stay in that namespace and may be used anywhere.

use std::io;
use std::os::fd::BorrowedFd;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Runs `work` on a new thread inside the network namespace `netns`, and waits for it.
///
/// # Errors
/// The namespace could not be entered, or the thread not be made, or `work` panicked.
pub fn run_in<T: Send>(netns: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, move || {
            move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))?;
            Ok(work())
        })?;
        worker.join().map_err(|_| io::Error::other("the thread in the network namespace panicked"))?
    })
}
