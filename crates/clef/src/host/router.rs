//! Asks the class which Clef a request is for.
//!
//! The function `route` of its program runs in a state of its own, the router. That is no Clef: it has no key, is never stored, and is lost when the host
//! rests, when there is new code, when a Clef needs its window, and when it fails. So `route` can keep nothing for sure, and nothing follows from it but
//! what it returns.

use torpor_lua::{State, Value};

use super::asks::NotEnded;
use super::{Host, HostError, SharedKey};
use crate::log::MOST_KEY_BYTES;
use crate::note::Note;

/// The function that says it.
const ROUTE: &str = "route";

impl Host {
    /// The key of the Clef that a request is for; none: there is no such Clef.
    ///
    /// # Errors
    /// [`HostError::Code`] of the program, [`HostError::RouteWaits`], [`HostError::Routed`]; and where there is no place for a state.
    pub fn route(&mut self, request: Value) -> Result<Option<Vec<u8>>, HostError> {
        // Nobody's: a key has a byte at least.
        let (key, mut note) = (SharedKey::from([]), Note::default());
        let mut router = match self.router.take() {
            Some(router) => router,
            None => self.new_router(&key)?,
        };
        let mut asks = self.asks(&key, &mut note);
        let begun = router.call_with(&mut asks, ROUTE, &[request]);
        let values = asks.end_at_once(&mut router, begun).map_err(|ended| match ended {
            NotEnded::Failed(error) => HostError::Code(error),
            NotEnded::Waits => HostError::RouteWaits,
        })?;
        let routed = match values.into_iter().next() {
            None | Some(Value::Nil) => None,
            Some(Value::String(key)) if (1..=MOST_KEY_BYTES).contains(&key.len()) => Some(key),
            Some(_) => return Err(HostError::Routed),
        };
        // Only one that has not failed is used again.
        self.router = Some(router);
        Ok(routed)
    }

    fn new_router(&mut self, key: &SharedKey) -> Result<State, HostError> {
        let window = self.new_window();
        self.vacate(window)?;
        let mut router = self.empty(window)?;
        self.load_program(key, &mut router, &mut Note::default(), &[])?;
        Ok(router)
    }
}
