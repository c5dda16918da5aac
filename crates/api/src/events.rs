//! The fixed list of kinds of events; `docs/reference/events.md` explains each.
//!
//! The worker reports what happens to processes and images; the hub adds what happens to names. A test keeps the page
//! and this list together.

/// An app was made (hub).
pub const CREATED: &str = "created";
/// An app was removed (hub).
pub const REMOVED: &str = "removed";
/// It is sent as an archive (hub).
pub const EXPORTED: &str = "exported";
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
/// Adopted by a new daemon, running or asleep (worker).
pub const ADOPTED: &str = "adopted";
/// It was asked to end (worker).
pub const STOPPING: &str = "stopping";
/// It did not end in time and is killed (worker).
pub const KILLED: &str = "killed";
/// Its initial process ended, for whatever reason (worker).
pub const EXITED: &str = "exited";
/// It will be started again by its restart policy (worker).
pub const RESTARTING: &str = "restarting";
/// It is being captured (worker).
pub const FALLING_ASLEEP: &str = "falling-asleep";
/// Its memory is in an image; it sleeps (worker).
pub const DOZING: &str = "dozing";
/// It dozes and is being taken to warm (worker).
pub const GOING_WARM: &str = "going-warm";
/// Its processes have ended; it sleeps as an image (worker).
pub const WARM: &str = "warm";
/// It was not taken to warm, with the reason (worker).
pub const WARM_REFUSED: &str = "warm-refused";
/// Traffic stopped a capture before its commit (worker).
pub const SLEEP_ABORTED: &str = "sleep-aborted";
/// It was not put to sleep, with the reason (worker).
pub const SLEEP_REFUSED: &str = "sleep-refused";
/// It runs again where it stopped (worker).
pub const WOKEN: &str = "woken";
/// It could not be woken; it sleeps on and is tried again (worker).
pub const WAKE_FAILED: &str = "wake-failed";
/// It cannot be woken as things are; it sleeps on until somebody asks again (worker).
pub const WAKE_REFUSED: &str = "wake-refused";
/// An operation has not ended in its time (worker).
pub const OVERDUE: &str = "overdue";
/// It cannot be woken as things are, and its policy gives up its memory for that (worker).
pub const GIVEN_UP: &str = "given-up";
/// Its files take more on disk than its limit allows: it is not started again so (worker).
pub const DISK_OVER: &str = "disk-over";
/// Its files are within its disk limit again (worker).
pub const DISK_UNDER: &str = "disk-under";
/// Its image was damaged: its memory is lost, and its restart policy decides what follows (worker).
pub const LOST: &str = "lost";
/// It has as many connections as one app may have: packets that would have begun more were dropped (worker).
pub const CONNECTIONS_REFUSED: &str = "connections-refused";
/// Our nftables table was removed by somebody, and written anew or not (worker); `app` is empty.
pub const NETWORK_REPAIRED: &str = "network-repaired";

/// All of them.
pub const ALL: [&str; 31] = [
    CREATED,
    REMOVED,
    EXPORTED,
    PINNED,
    UNPINNED,
    IMAGE_STORED,
    IMAGE_REMOVED,
    STARTED,
    START_FAILED,
    ADOPTED,
    STOPPING,
    KILLED,
    EXITED,
    RESTARTING,
    FALLING_ASLEEP,
    DOZING,
    GOING_WARM,
    WARM,
    WARM_REFUSED,
    SLEEP_ABORTED,
    SLEEP_REFUSED,
    WOKEN,
    WAKE_FAILED,
    WAKE_REFUSED,
    OVERDUE,
    GIVEN_UP,
    DISK_OVER,
    DISK_UNDER,
    LOST,
    CONNECTIONS_REFUSED,
    NETWORK_REPAIRED,
];

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_has_every_kind_in_order() {
        let page = include_str!("../../../docs/reference/events.md");
        let kinds: Vec<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .filter_map(|line| line.split('`').next())
            .collect();
        assert_eq!(kinds, super::ALL);
    }
}
