//! What an error says of an app that is to be adopted: that its memory is lost, or nothing.

use std::error::Error;
use std::io;

use torpor_engine::{Failure, RecoverError, RefillError, WakeError};
use torpor_lifecycle::Text;

/// Why an app was not found as it was.
#[derive(Debug)]
pub(super) enum AdoptError {
    /// Its memory cannot be brought back.
    Lost(Text),
    /// It cannot be told now.
    Unknown(Text),
}

/// Whether an error of reading a file is ours, rather than says that the file is gone or not what it was.
pub(super) fn is_ours(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidData
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
    )
}

/// Whether an error says that the app's memory cannot be brought back: its image is gone or damaged, or (where it has processes) they
/// are not all there.
pub(super) fn is_lost(error: &RecoverError, has_processes: bool) -> bool {
    match error {
        RecoverError::Image(WakeError::Image(_, read)) | RecoverError::Failed(Failure::Image(_, read)) => {
            !is_ours(read)
        }
        RecoverError::Image(error) if error.is_lost() => true,
        RecoverError::Lazy(_) => true,
        RecoverError::Failed(Failure::Refill(RefillError::Damaged { .. })) => true,
        RecoverError::Image(_) | RecoverError::Failed(_) => has_processes && says_gone(error),
    }
}

/// Whether an error says that a process is not there.
fn says_gone(error: &(dyn Error + 'static)) -> bool {
    let mut source = Some(error);
    while let Some(cause) = source {
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            return match error.get_ref() {
                Some(inner) => says_gone(inner),
                None => matches!(error.raw_os_error(), Some(ENOENT | ESRCH)),
            };
        }
        source = cause.source();
    }
    false
}

const ENOENT: i32 = 2;
const ESRCH: i32 = 3;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn only_what_is_gone_or_damaged_is_lost() {
        let os = io::Error::from_raw_os_error;
        let image = |errno| RecoverError::Image(WakeError::Image(PathBuf::new(), os(errno)));
        let look = |errno| RecoverError::Failed(Failure::Look(io::Error::other(os(errno))));
        const EIO: i32 = 5;
        const EMFILE: i32 = 24;
        assert!(is_lost(&image(ENOENT), true) && is_lost(&image(ENOENT), false));
        assert!(!is_lost(&image(EIO), true) && !is_lost(&image(EMFILE), false));
        assert!(is_lost(&look(ESRCH), true) && !is_lost(&look(EMFILE), true));
        assert!(!is_lost(&look(ESRCH), false), "the memory of one without processes is in its image");
        assert!(!is_lost(&RecoverError::Failed(Failure::End(io::Error::other("not in time"))), true));
    }
}
