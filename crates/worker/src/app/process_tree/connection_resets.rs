//! Clients of a warm app that cannot be woken as things are: their connections are closed, so that none waits without end.
//!
//! Its listeners are parked, so the kernel goes on completing handshakes for it. As long as the wake is refused, each connection that
//! reaches one of them is accepted here and reset, those that wait already too. Connections that the program had accepted
//! before, and datagrams, wait for it: they are its state. Whoever tries to wake it ends this first.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::sockopt;
use tokio::io::Interest;
use tokio::task::JoinSet;
use torpor_network::sock_diag::refuse;

use super::texts::chain;
use super::{ProcessTree, parked};

/// Connections that are closed in one go.
const MOST_AT_ONCE: u32 = 1024;

/// Ends with this value.
#[derive(Debug)]
pub(super) struct ConnectionResets(#[expect(dead_code, reason = "its tasks end with it")] JoinSet<()>);

impl ProcessTree {
    /// Begins, or ends.
    pub(super) fn update_connection_resets(&mut self, refuse: bool) {
        if !refuse {
            self.connection_resets = None;
        } else if self.connection_resets.is_none() {
            let parked = tokio::task::block_in_place(|| parked::parked_files(&self.shared, &self.record.id));
            let parked = parked.unwrap_or_else(|error| {
                tracing::warn!(app = self.record.spec.name, error = %chain(&error), "fetching its listeners");
                Default::default()
            });
            let mut tasks = JoinSet::new();
            for file in parked.into_values().filter(|file| sockopt::socket_acceptconn(file).unwrap_or(false)) {
                let name = self.record.spec.name.clone();
                tasks.spawn(async move {
                    if let Err(error) = close_all(file.into()).await {
                        tracing::warn!(app = name, %error, "closing connections that nobody will answer");
                    }
                });
            }
            self.connection_resets = Some(ConnectionResets(tasks));
        }
    }
}

/// Resets every connection that reaches a listener.
async fn close_all(listener: OwnedFd) -> io::Result<()> {
    let listener = torpor_linux::readable::register(listener)?;
    loop {
        listener.ready(Interest::READABLE).await?.clear_ready();
        while refuse(listener.get_ref().as_fd(), MOST_AT_ONCE)? == MOST_AT_ONCE {
            tokio::task::yield_now().await;
        }
    }
}
