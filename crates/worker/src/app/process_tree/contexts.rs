//! What a dozing app needs to wake before all of its memory is back, for a worker that comes later.
//!
//! It is left with the init of its sandbox, which lives as long as the app has processes: were the last descriptor of a context closed
//! before, the program would read zeros where pages are missing.
//!
//! | message     | descriptors                                                                  | from     | until                     |
//! |-------------|------------------------------------------------------------------------------|----------|---------------------------|
//! | generation  | the records of its contexts, the ledger of its missing pages, the contexts   | it dozes; from warm: it runs | all of its memory is back |
//! | `child`     | the context of a child that was forked meanwhile                             | the fork | all of its memory is back |

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use torpor_engine::{Asleep, ContextRecord, Contexts, MOST_CONTEXTS, ParkedContexts};
use torpor_sandbox::{Deposit, Sandbox};

use super::ProcessTree;
use super::sleep_state::SleepState;
use super::texts::chain;

/// Bytes at most of the records of its contexts.
const MOST_RECORD_BYTES: u64 = 64 << 20;
/// A message with the context of a child.
const CHILD: &[u8] = b"child";

/// A message with the contexts.
#[derive(Serialize, Deserialize)]
struct Header {
    /// Generation of the image that it dozes with, or was built from.
    generation: u64,
}

/// Leaves what it takes with init; whether there is anything, and an init that holds it.
fn deposit(sandbox: &Sandbox, asleep: &Asleep) -> io::Result<bool> {
    sandbox.clear_deposits()?;
    let Some(contexts) = asleep.contexts.as_ref().filter(|contexts| contexts.may_be_lazy()) else { return Ok(false) };
    deposit_contexts(sandbox, asleep.image.generation(), contexts)
}

/// Leaves contexts with init; false where it cannot hold them.
fn deposit_contexts(sandbox: &Sandbox, generation: u64, contexts: &Contexts) -> io::Result<bool> {
    let descriptors = contexts.descriptors();
    // The ledger is one of them.
    if descriptors.len() > MOST_CONTEXTS + 1 {
        return Ok(false);
    }
    let records = contexts.encode_records();
    if records.len() as u64 > MOST_RECORD_BYTES {
        return Ok(false);
    }
    let mut file = File::from(memfd_create("torpor-contexts", MemfdFlags::CLOEXEC)?);
    file.write_all(&records)?;
    let message = serde_json::to_vec(&Header { generation })?;
    let descriptors: Vec<BorrowedFd<'_>> = std::iter::once(file.as_fd()).chain(descriptors).collect();
    sandbox.deposit(&message, &descriptors)
}

/// Leaves contexts of processes that were built again from the image of `generation` with init.
pub(super) fn deposit_built(sandbox: &Sandbox, generation: u64, contexts: &Contexts) -> io::Result<()> {
    sandbox.clear_deposits()?;
    match deposit_contexts(sandbox, generation, contexts)? {
        true => Ok(()),
        false => Err(io::Error::other("it misses too many pages, or has an init that holds no descriptors")),
    }
}

/// Leaves the context of a child with init.
pub(super) fn deposit_child(sandbox: &Sandbox, child: BorrowedFd<'_>) -> io::Result<()> {
    sandbox.deposit(CHILD, &[child]).map(drop)
}

/// An app that runs, or has run, without all of its memory, or was about to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundLazy {
    /// Generation of the image whose pages it misses.
    pub(super) generation: u64,
    /// Its memory is newer than that.
    pub(super) has_run: bool,
}

/// What is known of an app that is lazy, as far as what was left of it says.
pub(super) fn found_lazy(sandbox: &Sandbox) -> io::Result<Option<FoundLazy>> {
    let Some(Deposit { bytes, .. }) = sandbox.deposits()?.into_iter().next() else { return Ok(None) };
    let Header { generation } = serde_json::from_slice(&bytes)?;
    let parked = deposited(sandbox, generation)?.filter(ParkedContexts::has_begun);
    Ok(parked.map(|parked| FoundLazy { generation, has_run: parked.has_run() }))
}

/// What was left of an app that dozes with the image of this generation, or has woken from it.
pub(super) fn deposited(sandbox: &Sandbox, generation: u64) -> io::Result<Option<ParkedContexts>> {
    let mut deposits = sandbox.deposits()?.into_iter();
    let Some(Deposit { bytes, files }) = deposits.next() else { return Ok(None) };
    let message: Header = serde_json::from_slice(&bytes)?;
    let mut files = files.into_iter();
    let Some(file) = files.next().filter(|_| message.generation == generation) else { return Ok(None) };
    let mut file = File::from(file);
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(MOST_RECORD_BYTES).read_to_end(&mut bytes)?;
    let records = ContextRecord::decode_all(&bytes)?;
    let children: Vec<OwnedFd> = deposits.flat_map(|child| child.files).collect();
    Ok(Some(ParkedContexts { records, descriptors: files.collect(), children }))
}

impl ProcessTree {
    /// Leaves what it takes to wake before all memory is back; whether it can wake so.
    pub(super) fn deposit_contexts(&self, asleep: &SleepState) -> bool {
        let Some(sandbox) = &self.run.sandbox else { return false };
        let deposited = match asleep {
            SleepState::Dozing(asleep) if self.shared.config.lazy_wakes && self.learned.may_be_lazy() => {
                deposit(sandbox, asleep)
            }
            SleepState::Dozing(_) => sandbox.clear_deposits().map(|()| false),
            // The contexts of a warm app are made with its processes.
            SleepState::Warm(_) => sandbox.clear_deposits().and_then(|()| {
                Ok(self.shared.config.lazy_wakes && self.learned.may_be_lazy() && sandbox.can_hold_deposits()?)
            }),
        };
        deposited.unwrap_or_else(|error| {
            // All of its memory comes back first then.
            tracing::warn!(app = self.record.spec.name, error = %chain(&error), "keeping its userfaultfd contexts");
            false
        })
    }

    /// All of its memory is back, or it has no processes.
    pub(super) fn clear_contexts(&self) {
        let Some(sandbox) = &self.run.sandbox else { return };
        if let Err(error) = sandbox.clear_deposits() {
            let name = &self.record.spec.name;
            tracing::warn!(app = name, error = %chain(&error), "giving up its userfaultfd contexts");
        }
    }
}
