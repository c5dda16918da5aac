//! How a request closes its own connection.

use std::sync::Arc;

use tokio::sync::Notify;

/// Closes the connection of a request, which finds it among its extensions.
#[derive(Clone, Debug, Default)]
pub(crate) struct HangUp(Arc<Notify>);

impl HangUp {
    /// Closes it now, whatever is still to be sent.
    pub(crate) fn now(&self) {
        self.0.notify_one();
    }

    /// Resolves when the connection is to be closed.
    pub(crate) async fn asked(&self) {
        self.0.notified().await;
    }
}
