//! Files by name, for every kind that needs them: opened below the root of a tree, compared with what they were, filled from an
//! image, made where others may write. Nothing here knows a kind of open file.

mod charge;
pub(crate) mod contents;
mod mounts;
mod open;
pub mod opener;
pub(crate) mod private;
mod removed;
mod root;
mod same;
mod state;
mod volumes;

pub use self::charge::Charge;
pub(crate) use self::mounts::{TMPFS_MAGIC, tmpfs_of_app};
pub(crate) use self::open::{below, place, reopened};
pub use self::open::{names, reopen};
pub use self::removed::Removed;
pub(crate) use self::removed::made_and_removed;
pub use self::root::Root;
pub(crate) use self::root::path_of;
pub use self::same::{contents, is_same};
pub(crate) use self::state::{MADE_UP, set_times, text, without_mark};
pub use self::state::{difference, is_made_up, removed, state};
pub use self::volumes::Volumes;
