//! The fixed list of kinds of events; `docs/reference/events.md` explains each.
//!
//! The worker reports what happens to processes and images; the hub adds what happens to names. A test keeps the page
//! and this list together.

/// An app was made (hub).
pub const CREATED: &str = "created";
/// An app was removed (hub).
pub const REMOVED: &str = "removed";
/// `torpor pin` (hub).
pub const PINNED: &str = "pinned";
/// `torpor unpin` (hub).
pub const UNPINNED: &str = "unpinned";
/// An image of files was stored under a name (hub); `app` is the image's name.
pub const IMAGE_STORED: &str = "image-stored";
/// A stored image was removed (hub); `app` is the image's name.
pub const IMAGE_REMOVED: &str = "image-removed";
/// Its initial process runs (worker).
pub const STARTED: &str = "started";
/// A start failed (worker).
pub const START_FAILED: &str = "start-failed";
/// Taken over, running or dozing, by a new daemon (worker).
pub const ADOPTED: &str = "adopted";
/// It was told to end and has ended (worker).
pub const STOPPED: &str = "stopped";
/// Its initial process ended by itself or by a limit (worker).
pub const EXITED: &str = "exited";
/// It will be started again by its restart policy (worker).
pub const RESTARTING: &str = "restarting";
/// Its memory is in an image; it sleeps (worker).
pub const DOZING: &str = "dozing";
/// Traffic stopped a capture before its commit (worker).
pub const SLEEP_ABORTED: &str = "sleep-aborted";
/// It was not put to sleep, with the reason (worker).
pub const SLEEP_REFUSED: &str = "sleep-refused";
/// It runs again where it stopped (worker).
pub const WOKEN: &str = "woken";
/// Its image was damaged: it is reported lost, and started again by its restart policy (worker).
pub const LOST: &str = "lost";

/// All of them.
pub const ALL: [&str; 17] = [
    CREATED,
    REMOVED,
    PINNED,
    UNPINNED,
    IMAGE_STORED,
    IMAGE_REMOVED,
    STARTED,
    START_FAILED,
    ADOPTED,
    STOPPED,
    EXITED,
    RESTARTING,
    DOZING,
    SLEEP_ABORTED,
    SLEEP_REFUSED,
    WOKEN,
    LOST,
];
