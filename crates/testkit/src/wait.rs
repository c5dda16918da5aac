//! Waiting for a condition, with a deadline.
//!
//! A deadline says how long a test waits before it fails. It asserts nothing about speed: the machine may be busy with other tests. A
//! test that measures time says so in a constant of its own.

use std::time::{Duration, Instant};

use crate::error::Error;

/// For what follows at once: a process starts or ends, a file appears, a descriptor becomes ready.
pub const SOON: Duration = Duration::from_secs(60);
/// For an operation of a daemon or a server: an app starts, sleeps or wakes, a server answers for the first time.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Between two looks at a condition that raises no event.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Looks at `condition` until it is true; an error that names `what` when `within` is over.
///
/// Only for conditions that raise no event a test could wait on (another process's state, a file in `/proc`).
///
/// # Errors
/// [`Error::Deadline`].
pub fn eventually(what: &str, within: Duration, mut condition: impl FnMut() -> bool) -> Result<(), Error> {
    eventually_ok(what, within, || if condition() { Ok(()) } else { Err(String::new()) })
}

/// Looks at `condition` until it is true, for at most [`SOON`].
///
/// # Panics
/// With `what` when the time is over.
#[track_caller]
pub fn soon(what: &str, condition: impl FnMut() -> bool) {
    if let Err(error) = eventually(what, SOON, condition) {
        panic!("{error}");
    }
}

/// As [`eventually`], for steps that give a value or say why not yet; the last reason is part of the error.
///
/// # Errors
/// [`Error::Deadline`].
pub fn eventually_ok<T, E: std::fmt::Display>(
    what: &str,
    within: Duration,
    mut step: impl FnMut() -> Result<T, E>,
) -> Result<T, Error> {
    let deadline = Instant::now() + within;
    loop {
        match step() {
            Ok(value) => return Ok(value),
            Err(reason) if Instant::now() >= deadline => {
                let reason = reason.to_string();
                let last = if reason.is_empty() { reason } else { format!(": {reason}") };
                return Err(Error::Deadline { what: what.to_owned(), seconds: within.as_secs(), last });
            }
            Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_true_condition_returns_at_once_and_a_false_one_ends_at_the_deadline() {
        eventually("truth", Duration::ZERO, || true).unwrap();
        let mut looks = 0;
        let error = eventually("lies", Duration::from_millis(20), || {
            looks += 1;
            false
        });
        assert!(looks > 0);
        assert!(error.unwrap_err().to_string().contains("lies"));
        let error = eventually_ok::<(), _>("x", Duration::ZERO, || Err("the reason")).unwrap_err();
        assert!(error.to_string().ends_with("x: the reason"));
    }
}
