//! Pages for a program that already runs: whoever touches one that is missing waits until it is here, and the others follow.
//!
//! ```text
//! program ──fault──▶ userfaultfd ──▶ Pager ──fetch──▶ PageSource
//!    ▲                                 │
//!    └──────── UFFDIO_COPY ────────────┘   Layout: what is missing where; Ledger: what the program did to it
//! ```
#![forbid(unsafe_code)]

mod layout;
mod ledger;
mod serve;

pub use layout::{Layout, Piece};
pub use ledger::{Change, Ledger, LedgerError, replay};
pub use serve::{Host, Pager, ServeError, Served, Space};
