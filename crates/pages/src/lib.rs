//! Pages on their way between processes and images: which pages an image needs, how they get there, how they come back.
//!
//! ```text
//! process ──scan──▶ copy ──▶ sink ──write_mode──▶ image ──▶ source ──fetch──▶ place ──▶ process
//!                   ▲                                                         ▲
//!                   droppable: dozing                             refill: waking in place, by each process's context
//! ```
//! Checkpoints and apps that go warm copy by [`copy`] directly, restores place by [`place`]. Contents of files and shared memory use
//! the same [`sink`], and come back by [`source::fetch`]. Nothing here opens an image by its name, or knows where it is kept.
#![forbid(unsafe_code)]

pub mod absent;
pub mod buffer;
pub mod context;
pub mod copy;
pub mod droppable;
pub mod helpers;
pub mod parts;
pub mod place;
pub mod ranges;
pub mod refill;
pub mod scan;
pub mod sink;
pub mod source;
pub mod write_mode;
