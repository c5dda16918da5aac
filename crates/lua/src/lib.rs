//! Lua whose whole state can be stored at every wait, and goes on from there in another process.
//!
//! A [`State`] lies in a window of addresses that is its own in every process of the same build ([`Windows`]). Its program runs as tasks, which
//! are coroutines; what they wait for they ask of their host by yielding, wherever they stand: within `pcall`, metamethods, iterators and
//! coroutines of their own. While all tasks wait, the C stack holds nothing of a state, and the state holds no address outside its window. A copy
//! of the pages that are in use is therefore a complete [`Image`].
//!
//! ```text
//! c/all.c      compiles Lua's source, as edited by build.rs, and our own C as one unit
//! arena        the memory of a state: an allocator whose bookkeeping lies within it
//! state        tasks, steps, images: what hosts use
//! image        a state as bytes, or the lines of its pages that have changed
//! shadows      pages as they were in the last image, to tell these lines
//! host         what programs ask of their host while they run
//! ```
//! This crate and `linux` are the only ones with unsafe code.
#![allow(unsafe_code, reason = "Lua is C, and an arena is memory that Rust does not manage")]

mod arena;
mod budget;
mod digest;
mod ffi;
mod hashes;
mod host;
mod image;
mod shadows;
mod state;
mod value;
mod windows;

pub use budget::Budget;
pub use host::{Host, NoHost};
pub use image::{BUILD, FileImage, FileImageError, Image, ImageError};
pub use state::{State, StateError, Step, Task};
pub use value::Value;
pub use windows::{MOST_WINDOWS, WINDOW_BYTES, Windows};
