//! Pages for a program that already runs: whoever touches one that is missing waits until it is here, and the others follow.
//!
//! ```text
//! program ──fault──▶ userfaultfd ──▶ Pager ──fetch──▶ PageSource
//!    ▲                                 │
//!    └──────── UFFDIO_COPY ────────────┘   Layout: what is missing where; Ledger: what the program did to it
//! ```
#![forbid(unsafe_code)]

mod host;
mod layout;
mod ledger;
mod serve;
mod served;
mod space;

pub use host::{BLOCK_PAGES, Host, ServeError, Told};
pub use layout::{Layout, Piece};
pub use ledger::{Change, Ledger, LedgerError, replay};
pub use serve::{Pager, Staged};
pub use served::{Served, Touch};
pub use space::{Owner, Space};
