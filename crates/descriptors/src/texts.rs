//! The parsers of this folder, each on the same text: for fuzzing.

use std::time::Duration;

use crate::kinds::inet::raw;
use crate::kinds::socket::multicast;
use crate::kinds::{epoll, eventfd, fanotify, inotify, signalfd, timerfd};
use crate::list::Info;
use crate::locks;
use crate::namespaces::ipc;

/// `fdinfo` of every kind, the tables of a network namespace and of System V objects.
pub fn parse(text: &str) {
    for line in text.lines() {
        let _ = (epoll::line(line), inotify::line(line), fanotify::line(line), raw::entry(line), multicast::v6(line));
    }
    let _ = (multicast::v4(text), ipc::listed(text), locks::parse(text, 1));
    let Some(info) = Info::parse(text.to_owned()) else { return };
    let _ = (eventfd::describe(&info), signalfd::describe(&info), timerfd::timer_of(&info, Duration::from_secs(1)));
}
