//! Why an app did not become warm, and where it is instead.

use crate::recover::RecoverError;
use crate::sleep::{Failure, SleepError};

/// Why an app is not warm.
#[derive(Debug, thiserror::Error)]
pub enum HibernateError {
    /// Nothing was touched: it dozes on, for these reasons.
    #[error("it dozes on: {}", .0.join("; "))]
    Dozing(Vec<String>),
    /// It is awake; its dozing image is gone.
    #[error(transparent)]
    Awake(SleepError),
    /// The complete image is the truth, but its processes could not be ended, or the journal not be written. [`crate::recover`]
    /// tries again.
    #[error("the image is complete, but its processes could not be ended")]
    Ending(#[source] Box<Failure>),
    /// Its memory could not be brought back: it stays frozen, with its dozing image.
    #[error("its memory cannot be brought back")]
    Lost(#[source] Box<RecoverError>),
}
