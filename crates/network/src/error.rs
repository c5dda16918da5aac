//! How the network refuses.

use std::io;
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net};

use crate::published::Published;

/// Why something in the network could not be done.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The instance's name cannot name a table and interfaces.
    #[error("instance name `{name}` is not 1 to 32 of a-z and 0-9 with a letter first")]
    Instance {
        /// The name.
        name: String,
    },
    /// A pool that cannot hold apps.
    #[error("{key} {pool} cannot be used: it needs {need}")]
    Pool {
        /// Its name in the configuration.
        key: &'static str,
        /// The pool.
        pool: IpNet,
        /// What it needs.
        need: &'static str,
    },
    /// A pool overlaps what the machine already routes.
    #[error("address pool {pool} overlaps the machine's route {route} on {interface}; configure another pool")]
    Collision {
        /// The pool.
        pool: IpNet,
        /// The route.
        route: IpNet,
        /// Where it leads.
        interface: String,
    },
    /// An index outside of the pool.
    #[error("app index {index} is outside of 1 to {max} (pool {pool})")]
    Index {
        /// The index.
        index: u32,
        /// The pool.
        pool: Ipv4Net,
        /// Largest index.
        max: u32,
    },
    /// What was asked for an app is wrong in itself.
    #[error("{what}")]
    Invalid {
        /// What is wrong, with its operands.
        what: String,
    },
    /// A port is published by another app.
    #[error("port {port} of the machine is already published by app {owner}")]
    Published {
        /// The port that was asked for.
        port: Published,
        /// Index of the app that has it.
        owner: u32,
    },
    /// A port is bound by a process of the machine.
    #[error("port {port} of the machine is already in use by {owner}")]
    Bound {
        /// The port that was asked for.
        port: Published,
        /// The process, as `nginx (pid 12)`, or the address where no process could be found.
        owner: String,
    },
    /// The app is not attached.
    #[error("app {index} is not attached to the network")]
    NotAttached {
        /// Its index.
        index: u32,
    },
    /// There is no `nft`.
    #[error("the program nft was not found; install the package nftables")]
    NftMissing,
    /// `nft` could not be run.
    #[error("cannot run nft")]
    NftRun(#[source] io::Error),
    /// `nft` took too long.
    #[error("nft did not end within {seconds} s")]
    NftTimeout {
        /// Seconds waited.
        seconds: u64,
    },
    /// The kernel or `nft` refused a transaction; nothing of it was applied.
    #[error("nft refused to {what} in table {table}: {message}")]
    Nft {
        /// What was being done.
        what: String,
        /// Our table.
        table: String,
        /// First lines of what `nft` said.
        message: String,
    },
    /// Our table is not there any more.
    #[error("the nftables table {table} is gone (has something run `nft flush ruleset`?)")]
    TableGone {
        /// Our table.
        table: String,
    },
    /// A netlink request failed.
    #[error("cannot {what}")]
    Netlink {
        /// What was being done.
        what: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A route netlink request failed.
    #[error("cannot {what}")]
    Link {
        /// What was being done.
        what: String,
        /// Why not.
        #[source]
        source: Box<rtnetlink::Error>,
    },
    /// A namespace could not be entered.
    #[error("cannot enter the network namespace")]
    Namespace(#[source] io::Error),
    /// A file of ours or of `/proc` could not be read or written.
    #[error("cannot {what} {path}")]
    File {
        /// `read` or `write`.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The state file is damaged.
    #[error("state file {path} is damaged")]
    State {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

impl NetworkError {
    pub(crate) fn netlink(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Netlink { what, source }
    }

    pub(crate) fn link(what: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> Self {
        let what = what.into();
        move |source| Self::Link { what, source: Box::new(source) }
    }
}
