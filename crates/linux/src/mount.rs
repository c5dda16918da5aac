//! The mount calls that rustix lacks: `mount_setattr(2)` with an id mapping.
