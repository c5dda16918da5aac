//! Pages on their way between processes and images: which pages an image needs, how they get there, how they come back.
#![forbid(unsafe_code)]

pub mod buffer;
pub mod copy;
pub mod droppable;
pub mod place;
pub mod refill;
pub mod scan;
pub mod sink;
pub mod source;
pub mod write_mode;
