//! What the end-to-end tests and benchmarks share; never part of the product.
//!
//! - [`servers`]: real servers as tarballs, built once from the distribution's packages and cached.
//! - [`client`]: small clients that measure and that prove a server's in-memory state ([`client::Session`]).
//! - [`native`]: small C programs that check themselves.
//! - [`programs`]: small Python and shell programs, on the machine or in an app.
//! - [`namespaces`]: namespaces with an init that only reaps.
//! - [`conformance`]: one small program per kind of state, captured and restored by an engine.
//! - [`daemon`]: a `torpor up` of a test's own, and what it leaves behind.
//! - [`disk`]: a file system whose power can be cut.
//! - [`bare`]: the same programs without Torpor, in namespaces of their own: the baseline.
//! - [`pool`]: huge pages for a test.
//! - [`wait`]: waiting for a condition with a deadline, and how long. [`skip!`]: skipping a test so that everybody sees it.
#![forbid(unsafe_code)]

pub mod bare;
pub mod client;
pub mod conformance;
pub mod daemon;
pub mod disk;
pub mod error;
pub mod namespaces;
pub mod native;
pub mod pool;
pub mod programs;
pub mod servers;
pub mod skip;
pub mod stalls;
pub mod wait;

pub use error::Error;
