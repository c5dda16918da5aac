//! What a stopped thread was waiting for: until when, and on which descriptors.
//!
//! Freezing and tracing interrupt system calls. Most are restarted by the kernel exactly; some would give the program an
//! `EINTR` that it would not have seen, or begin their time-out anew. [`restart`] knows each of them; [`sources`] knows
//! which descriptors' events the thread waits for.

mod limit;
pub mod prior;
pub mod restart;
pub mod since;
pub mod socket;
pub mod sources;
