//! Addresses, veth pairs, published ports and packet counts of apps.
//!
//! [`Network`] keeps one nftables table and one veth pair per app ([`link`](self) says how they are laid out,
//! `ruleset` which packets go where). [`sock_diag`] looks into listening sockets of sleeping apps, [`probe`] says what
//! the machine lacks.
//!
//! Beside other firewalls: our table accepts and drops only packets from and to our own interfaces, and drops between
//! interfaces on which only we have switched forwarding on. A packet must pass every table, so a machine whose own
//! FORWARD chain drops by policy (Docker's does) must let our interfaces through; `probe` finds that and says how.
//!
//! Where something removes our table, `network::upkeep` writes it anew, and `guard` keeps traffic closed meanwhile.
//!
//! Several instances may share a machine, with pools of their own; whichever goes last puts the machine's settings back.
#![forbid(unsafe_code)]

mod app;
mod config;
mod connections;
mod conntrack;
mod error;
mod expression;
mod guard;
mod link;
mod live;
mod monitor;
pub mod names;
mod netlink;
pub mod netns;
mod network;
mod nft;
mod owned;
mod ports;
mod probe;
mod published;
mod ruleset;
mod sets;
pub mod sock_diag;
mod sysctl;

pub use app::{AppNetwork, MAX_IGNORED, MAX_JOINED, MAX_PORTS};
pub use config::{APP_INTERFACE, Addresses, GATEWAY_V4, GATEWAY_V6, MAX_BLOCKED, MAX_INDEX, METADATA, NetworkConfig};
pub use connections::HeldConnections;
pub use error::NetworkError;
pub use network::{Incident, Network};
pub use probe::probe;
pub use published::{Protocol, Published};
