//! An app's memory: which pages must go into the image, how they get there, how they leave, how they come back.

pub(crate) mod buffer;
pub(crate) mod copy;
pub(crate) mod layout;
pub(crate) mod refill;
pub(crate) mod sink;
pub(crate) mod ways;
