//! Names and ports of apps that are being made but have no row yet.
//!
//! Fetching a source may take minutes; two requests for the same name must not both do it. A reservation ends when it is
//! dropped: after the row is there, or when the work has failed.

use std::sync::{Arc, Mutex, PoisonError};

use torpor_api::spec::{AppSpec, Port};

use crate::store::InsertError;

#[derive(Debug)]
struct Held {
    number: u64,
    name: String,
    ports: Vec<Port>,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    held: Vec<Held>,
}

/// All reservations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reservations(Arc<Mutex<Inner>>);

/// A name and ports that nobody else gets while this lives.
#[derive(Debug)]
pub(crate) struct Reservation {
    number: u64,
    of: Reservations,
}

impl Reservations {
    /// Reserves the name and ports of a spec against other reservations (rows are checked by the store).
    pub(crate) fn reserve(&self, spec: &AppSpec) -> Result<Reservation, InsertError> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for held in &inner.held {
            if held.name == spec.name {
                return Err(InsertError::Name);
            }
            for port in &spec.ports {
                if held.ports.iter().any(|other| port.overlaps(other)) {
                    return Err(InsertError::Port { port: port.clone(), holder: held.name.clone() });
                }
            }
        }
        let number = inner.next;
        inner.next += 1;
        inner.held.push(Held { number, name: spec.name.clone(), ports: spec.ports.clone() });
        Ok(Reservation { number, of: self.clone() })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut inner = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.held.retain(|held| held.number != self.number);
    }
}
