//! `clone3(2)`.

/// Nothing asked for: for `..` in literals.
pub(crate) const NO_ARGUMENTS: libc::clone_args = libc::clone_args {
    flags: 0,
    pidfd: 0,
    child_tid: 0,
    parent_tid: 0,
    exit_signal: 0,
    stack: 0,
    stack_size: 0,
    tls: 0,
    set_tid: 0,
    set_tid_size: 0,
    cgroup: 0,
};
