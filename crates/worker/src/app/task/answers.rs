//! Who waits for the answer to a request.

use std::collections::HashMap;

use tokio::sync::oneshot;
use torpor_lifecycle::{Refusal, Ticket};

/// Where the answer to a request goes.
pub(super) type Answer = oneshot::Sender<Result<(), Refusal>>;

/// The requests that the machine has and has not answered.
#[derive(Debug, Default)]
pub(super) struct Answers {
    waiting: HashMap<Ticket, Answer>,
    last: u64,
}

impl Answers {
    /// Keeps the way to whoever asks.
    pub(super) fn expect(&mut self, answer: Answer) -> Ticket {
        self.last += 1;
        let ticket = Ticket(self.last);
        self.waiting.insert(ticket, answer);
        ticket
    }

    /// Answers.
    pub(super) fn give(&mut self, ticket: Ticket, answer: Result<(), Refusal>) {
        if let Some(waiting) = self.waiting.remove(&ticket) {
            // Whoever asked may have hung up.
            let _ = waiting.send(answer);
        }
    }
}
