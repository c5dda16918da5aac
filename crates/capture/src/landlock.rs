//! Threads that have restricted themselves with Landlock, which nothing tells of.
//!
//! Who is in a Landlock domain may not look at processes outside of it, even those of the same user. So a process of that
//! user is started beside the tree, and each thread tries whether it may compare itself with it (`kcmp(2)`).

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;

use torpor_linux::ptrace_probe::{PtraceProbe, landlock_is_on};
use torpor_linux::uapi::syscall;

use super::call_batch::{Answers, Asked, CallBatch};
use super::credentials::Status;
use torpor_process::trace::TraceError;
use torpor_process::view::View;

/// `KCMP_VM`.
const ADDRESS_SPACES: u64 = 1;

/// Processes that threads of a tree try to look at.
pub(super) struct Bystanders<'a> {
    view: &'a View,
    is_on: bool,
    /// By user and group of the machine; their ids as the tree sees them.
    started: RefCell<HashMap<(u32, u32), (PtraceProbe, i32)>>,
}

/// Whom a thread tries to look at, as it sees ids.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    own: i32,
    bystander: i32,
}

impl<'a> Bystanders<'a> {
    pub(super) fn new(view: &'a View) -> Self {
        Self { view, is_on: landlock_is_on(), started: RefCell::default() }
    }

    /// The trial of a thread.
    pub(super) fn trial(&self, status: &Status) -> io::Result<Option<Trial>> {
        if !self.is_on {
            return Ok(None);
        }
        let who = (status.credentials.users[0], status.credentials.groups[0]);
        let mut started = self.started.borrow_mut();
        let bystander = match started.get(&who) {
            Some((_, id)) => *id,
            None => {
                let found = self.view.bystander(who.0, who.1)?;
                let id = found.1;
                started.insert(who, found);
                id
            }
        };
        Ok(Some(Trial { own: status.ids.1, bystander }))
    }
}

impl Trial {
    pub(super) fn ask(self, list: &mut CallBatch) -> Asked {
        list.ask("kcmp", syscall::KCMP, &[self.own as u64, self.bystander as u64, ADDRESS_SPACES, 0, 0])
    }

    /// It may not.
    pub(super) fn is_restricted(answers: &Answers, asked: Asked) -> bool {
        const EPERM: i32 = 1;
        matches!(answers.result(asked), Err(TraceError::Call { error, .. }) if error.raw_os_error() == Some(EPERM))
    }
}
