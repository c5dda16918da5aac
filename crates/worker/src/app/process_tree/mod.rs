//! A sandboxed process tree: the kind of app that there is today.
pub(crate) mod adopt;
pub(crate) mod boot_image;
pub(crate) mod connection_resets;
pub(crate) mod freezer;
pub(crate) mod hibernate;
pub(crate) mod images;
pub(crate) mod infer_phase;
pub(crate) mod kill;
pub(crate) mod operate;
pub(crate) mod parked;
pub(crate) mod resume;
pub(crate) mod sleep_state;
pub(crate) mod start;
pub(crate) mod usage;
pub(crate) mod wake_labels;
