//! A command whose start is under way, and what is left of it when it does not come about: nothing.
//!
//! The new process is this process's own child, so nobody else can reap it, and unreaped it keeps its sandbox's init from ending.
//! It is this thread's, by its maker's (`CLONE_PARENT`), and known from the first answer on. Where its maker is ended before that
//! answer, it is found among the thread's children.
//!
//! The new process joins the app's pid namespace before it executes the program. From then on, the app's processes can stop it, trace
//! it, or hold a lease on the program's file. Its start therefore has a deadline, after which it gets SIGKILL.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::error::{SandboxError, While};
use crate::exec_child::ExecChild;
use crate::held;
use crate::message::FromSetup;
use crate::process::open;

/// How long the start of a command may take where nobody says otherwise.
pub const EXEC_DEADLINE: Duration = Duration::from_secs(15);
/// How long one that was given up may take to end before that is left to a thread of its own.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// When the start of a command is given up.
#[derive(Clone, Copy, Debug)]
pub struct Patience<'a> {
    /// How long it may take.
    pub within: Duration,
    /// Readable, or hung up, once nobody wants it any more.
    pub given_up: Option<BorrowedFd<'a>>,
}

impl Default for Patience<'_> {
    fn default() -> Self {
        Self { within: EXEC_DEADLINE, given_up: None }
    }
}

/// The start.
#[derive(Debug)]
pub(crate) struct Starting {
    id: String,
    channel: Channel,
    /// Makes the process; ended and reaped on drop.
    maker: Maker,
    /// Children of this thread before the maker's.
    before: BTreeSet<i32>,
    process: Option<(i32, OwnedFd)>,
    terminal: Option<OwnedFd>,
}

#[derive(Debug)]
struct Maker(Child);

impl Drop for Maker {
    fn drop(&mut self) {
        // It has ended by itself after its last answer, or is not to answer any more. It is outside of the app's reach.
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait().map(drop)) {
            tracing::warn!(%error, "ending an exec process");
        }
    }
}

impl Starting {
    /// `begin` starts the maker.
    pub(crate) fn begin(
        id: &str,
        begin: impl FnOnce() -> Result<(Channel, Child), SandboxError>,
    ) -> Result<Self, SandboxError> {
        let before = children();
        let (channel, maker) = begin()?;
        let maker = Maker(maker);
        Ok(Self { id: id.to_owned(), channel, maker, before, process: None, terminal: None })
    }

    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Waits until the command runs.
    pub(crate) fn finish(mut self, patience: Patience<'_>) -> Result<ExecChild, SandboxError> {
        let deadline = Instant::now() + patience.within;
        let outcome = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.next(left, patience) {
                Ok(true) => break Ok(()),
                Ok(false) => {}
                Err(error) => break Err(error),
            }
        };
        let error = match (outcome, self.process.take()) {
            (Ok(()), Some((pid, pidfd))) => {
                self.maker.0.wait().whilst(|| format!("waiting for the exec process of {}", self.id))?;
                return Ok(ExecChild::new(pid, pidfd, self.terminal.take()));
            }
            (Ok(()), None) => self.unfit("no process"),
            (Err(error), process) => {
                self.process = process;
                error
            }
        };
        self.give_up();
        Err(error)
    }

    fn unfit(&self, what: &'static str) -> SandboxError {
        SandboxError::SetupAnswer { id: self.id.clone(), what }
    }

    /// Takes one answer; true: the last one.
    fn next(&mut self, within: Duration, patience: Patience<'_>) -> Result<bool, SandboxError> {
        let message = match self.channel.receive_unless::<FromSetup>(within, patience.given_up) {
            Ok(Some(message)) => message,
            Ok(None) => {
                let status = self.maker.0.wait().whilst(|| format!("waiting for the exec process of {}", self.id))?;
                return Err(SandboxError::SetupDied { id: self.id.clone(), status });
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {
                return Err(SandboxError::ExecGivenUp { id: self.id.clone() });
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let pid = self.process.as_ref().map(|(pid, _)| *pid);
                let held = pid.and_then(held::state).unwrap_or_else(|| "it has no process".to_owned());
                return Err(SandboxError::ExecSilent { id: self.id.clone(), after: patience.within, held });
            }
            Err(error) => return Err(error).whilst(|| format!("hearing from the exec process of {}", self.id)),
        };
        match (message.body, message.descriptors.into_iter().next()) {
            (FromSetup::Made { pid }, Some(pidfd)) => self.process = Some((pid, pidfd)),
            (FromSetup::Terminal, Some(ours)) => self.terminal = Some(ours),
            (FromSetup::Started, None) => return Ok(true),
            (FromSetup::Failed(error), None) => return Err(error.into()),
            _ => return Err(self.unfit("neither started nor failed")),
        }
        Ok(false)
    }

    /// Ends what there is of it.
    fn give_up(self) {
        let Self { maker, before, process, .. } = self;
        // It makes nothing more.
        drop(maker);
        let made = match process {
            Some(process) => vec![process],
            None => new_children(&before),
        };
        for (pid, pidfd) in made {
            ExecChild::new(pid, pidfd, None).end(END_PATIENCE);
        }
    }
}

/// The processes that this thread has made, and what those have made in its name.
fn children() -> BTreeSet<i32> {
    torpor_proc::processes::own_children().unwrap_or_default().into_iter().collect()
}

fn new_children(before: &BTreeSet<i32>) -> Vec<(i32, OwnedFd)> {
    let new = children().into_iter().filter(|pid| !before.contains(pid));
    new.filter_map(|pid| Some((pid, open(pid).ok().flatten()?))).collect()
}
