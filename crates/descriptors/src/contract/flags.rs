//! Status flags of open files that need care.

/// `O_ASYNC`: set when it is known who is to be told.
pub(crate) const ASYNC: u32 = 0o20_000;

/// `O_CLOEXEC`, which `fdinfo` shows among the flags although it is the descriptor's own.
pub(crate) const CLOSE_ON_EXEC: u32 = 0o2_000_000;

/// `O_PATH`.
pub(crate) const PATH_ONLY: u32 = 0o10_000_000;

/// `O_NONBLOCK`.
pub(crate) const NONBLOCK: u32 = 0o4_000;
