//! Errors and reasons as the state machine and users are told of them.

use std::io;

use torpor_lifecycle::Text;

pub(super) fn text(words: impl std::fmt::Display) -> Text {
    words.to_string().into()
}

pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> Text {
    torpor_api::error::chain(error).into()
}

/// Why it did not go to sleep; a full disk first, and what to do about it.
pub(super) fn why_not(error: &(dyn std::error::Error + 'static)) -> Text {
    let mut source = Some(error);
    while let Some(cause) = source {
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) {
            return text(format!("{}: {}", crate::space::NO_ROOM, chain(error)));
        }
        source = cause.source();
    }
    chain(error)
}
