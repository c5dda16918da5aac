//! Namespaces, cgroups, root file system and seccomp of one app.
//!
//! [`Sandbox::prepare`] makes a sandbox from a [`SandboxSpec`] and stops before the program starts, so that its network
//! can be connected; [`Prepared::start`] lets it go. All calls block. What runs where is in `setup.rs`, how the file
//! system is built in `root.rs`, the order of giving up privileges in `confine.rs`, the cgroups in `cgroup/mod.rs`.
//!
//! The worker has many threads and must not fork complicated code, so everything happens in fresh copies of its program:
//! the binary calls [`setup_main`] and [`exec_main`] for two hidden subcommands ([`SETUP_COMMAND`], [`EXEC_COMMAND`])
//! before it makes any thread.
#![forbid(unsafe_code)]

mod build;
mod capabilities;
pub mod cgroup;
mod channel;
mod child;
mod confine;
mod deposit;
mod error;
mod exec;
mod exec_child;
mod exec_start;
mod first;
mod held;
mod inside;
mod labels;
mod launcher;
mod message;
mod mounts;
mod owner;
mod prepare;
mod probe;
mod process;
mod program;
mod root;
mod sandbox;
mod seccomp;
mod setup;
mod spec;
mod status;
mod target;
mod terminal;

pub use capabilities::Capabilities;
pub use confine::hard_limits;
pub use deposit::Deposit;
pub use error::{CgroupError, SandboxError, SetupError};
pub use exec::{ExecIo, exec, exec_main, exec_within, resize_terminal};
pub use exec_child::{Before, ExecChild};
pub use exec_start::{EXEC_DEADLINE, Patience};
pub use labels::Labels;
pub use launcher::{EXEC_COMMAND, Launcher, SETUP_COMMAND};
pub use prepare::Prepared;
pub use probe::probe;
pub use process::{ExitStatus, Identity};
pub use sandbox::{HeldOutput, Sandbox, SandboxRecord, destroy_leftovers};
pub use seccomp::default_filter_words;
pub use setup::setup_main;
pub use spec::{
    Clocks, EtcFiles, ID_COUNT, IdRange, Limits, Program, SandboxSpec, Security, TmpfsMount, User, VolumeMount,
};

/// Reads a text of the kernel's about control groups as each kind of text is read: for fuzzing.
#[doc(hidden)]
pub fn read_texts(text: &str) {
    cgroup::parse(text);
}
