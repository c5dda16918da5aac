//! Files with a name: regular files, directories, devices, and what is open with `O_PATH` only.

mod dump;
mod restore;

pub(crate) use self::dump::{describe, device, is_file};
pub(crate) use self::restore::{restore, restore_by_handle};
