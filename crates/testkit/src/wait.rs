//! Waiting on a condition, with a deadline.

use std::time::{Duration, Instant};

use crate::error::Error;

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
    fn true_at_once_costs_nothing_and_false_ends() {
        eventually("truth", Duration::ZERO, || true).unwrap();
        let mut looks = 0;
        let error = eventually("lies", Duration::from_millis(20), || {
            looks += 1;
            false
        });
        assert!(looks > 2);
        assert!(error.unwrap_err().to_string().contains("lies"));
        let error = eventually_ok::<(), _>("x", Duration::ZERO, || Err("the reason")).unwrap_err();
        assert!(error.to_string().ends_with("x: the reason"));
    }
}
