//! Drives each app of one machine through its levels.
//!
//! [`Worker`] owns the services that apps share: layer store, network, keeper, events. Each app is a task of its own (`app`)
//! around the pure state machine of `torpor-lifecycle`; nothing else touches an app. The hub calls a worker through
//! `torpor_api::worker::WorkerPort`.
//!
//! Killing the worker at any moment neither stops running apps nor loses sleeping ones: what a new worker needs is in the
//! run directory (how to find processes, how far a sleep was), in the keeper (descriptors) and in images. See
//! `app::process_tree::adopt` for how it is put together again.
#![forbid(unsafe_code)]

mod app;
mod app_files;
mod archive;
mod cached;
mod clock;
mod config;
mod disk;
mod doctor;
mod events;
mod exec;
mod faults;
mod files;
mod ids;
mod images;
mod journal;
mod keeper;
mod keeper_watch;
mod left_alone;
mod logs;
mod network;
mod port;
mod pressure;
mod probes;
mod promised;
mod put_away;
mod refused;
mod requests;
mod services;
mod shared;
mod space;
mod support;
mod threads;
mod wakes;
mod worker;

pub use config::{Deadlines, LogConfig, MemoryConfig, WorkerConfig};
pub use doctor::doctor;
pub use faults::{FaultSyntax, RequestedFaults};
pub use worker::{OpenError, Worker};

/// Before a process that will be a worker has any thread: its threads come and go with sleeps and wakes, and shall not leave
/// memory behind.
pub fn prepare_process() {
    torpor_linux::allocator::share_one_arena();
    torpor_linux::allocator::give_back_large_blocks();
}

/// Reads a text as each kind of text that the machine tells of apps is read: for fuzzing.
#[doc(hidden)]
pub fn read_texts(text: &str) {
    app::read_texts(text);
    ids::read_text(text);
}

/// How long a question to an app's task may take before it counts as one that does not answer.
const ANSWER: std::time::Duration = std::time::Duration::from_secs(2);

/// The same for one that has been held up longer than that already.
const ANSWER_OF_HELD_UP: std::time::Duration = std::time::Duration::from_millis(50);

/// Time that apps get to end by themselves when everything is taken down.
const TEARDOWN_GRACE: std::time::Duration = std::time::Duration::from_secs(10);

/// Time that tasks of apps get to end what they are at when the worker ends.
const LAST_STEPS: std::time::Duration = std::time::Duration::from_secs(5);

/// Apps that are stopped at the same time then.
const TEARDOWN_AT_ONCE: usize = 8;
