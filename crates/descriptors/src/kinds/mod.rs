//! The kinds of open files: a folder for each, with its dump and its restore.
//!
//! `socket` and `watched` are what several kinds share: options, queues and lists of sockets; finding what inotify and fanotify
//! watch.

pub(crate) mod epoll;
pub(crate) mod eventfd;
pub(crate) mod fanotify;
pub(crate) mod inet;
pub(crate) mod inotify;
pub(crate) mod memory;
pub(crate) mod netlink;
pub(crate) mod packet;
pub(crate) mod path;
pub(crate) mod pidfd;
pub(crate) mod pipe;
pub(crate) mod signalfd;
pub(crate) mod socket;
pub(crate) mod terminal;
pub(crate) mod timerfd;
pub(crate) mod unix;
pub(crate) mod watched;
