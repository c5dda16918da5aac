//! Rest: a host of which nobody wants anything has no Clef awake, and nothing that keeps its process from sleeping.
//!
//! ```text
//! active ── nobody calls ─▶ all Clefs are stored; no windows, no userfaultfd context, no timer ── the next call ─▶ active
//! ```
//! The process of a host is put to sleep as a whole. Memory that is registered with a userfaultfd of its own cannot be captured, and Clefs that
//! sleep by themselves need no memory in its image.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use torpor_lua::{Budget, MOST_WINDOWS, Windows};

use super::{Host, HostError};

/// What Clefs need to be awake.
#[derive(Debug)]
pub(super) struct Machinery {
    windows: Arc<Windows>,
    _budget: Budget,
}

impl Machinery {
    pub(super) fn new(step: Duration) -> io::Result<Self> {
        let windows = Arc::new(Windows::reserve(0, MOST_WINDOWS)?);
        Ok(Self { windows, _budget: Budget::of_steps(step)? })
    }
}

impl Host {
    /// Whether no Clef can be awake.
    pub fn is_resting(&self) -> bool {
        self.machinery.is_none()
    }

    /// Puts all Clefs to sleep, makes their states durable, and gives back what they need to be awake. The next call ends the rest.
    ///
    /// # Errors
    /// See [`HostError`]: what cannot be stored is what it was when it was last stored.
    pub fn rest(&mut self) -> Result<(), HostError> {
        let slept = self.sleep();
        if self.awake.is_empty() {
            self.machinery = None;
        }
        slept
    }

    pub(super) fn end_rest(&mut self) -> Result<(), HostError> {
        if self.machinery.is_none() {
            self.machinery = Some(Machinery::new(self.class.limits.step)?);
        }
        Ok(())
    }

    pub(super) fn windows(&self) -> Result<&Arc<Windows>, HostError> {
        let none = || io::Error::other("the host of the Clefs rests");
        Ok(&self.machinery.as_ref().ok_or_else(none)?.windows)
    }
}
