//! Faults on demand, for tests of crashes: `TORPOR_FAULT=STEP:ACTION[:COUNT]` makes the worker fail (`error`), kill itself
//! (`kill`) or its keeper (`keeper`), panic (`panic`), or stand still (`hang`), when an app reaches a step of falling asleep or waking for the COUNT-th time. Steps of
//! building processes again begin with `resume-`, those of an import with `import-`, those of making a sandbox with `start-`,
//! those of an adoption with `adopt-`, those of a lazy wake with `lazy-`. `torpor checkpoint` obeys it, too.
//!
//! With `TORPOR_PAGER=faults` apps of any size wake lazily, and each of their pages comes alone and only when it is touched, until somebody waits for
//! all of them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, getpid, kill_process};
use torpor_engine::{Fault, Faults, RestoreStep, Step};

/// A step of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnyStep {
    Sleep(Step),
    Resume(RestoreStep),
    Import(ImportStep),
    Sandbox(SandboxStep),
    Lazy(LazyStep),
}

/// Steps of a lazy wake, while the app runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LazyStep {
    /// Messages were taken; what follows is a region, or the end.
    Round,
    /// There is a child, whose context is not parked.
    Forked,
    /// Its context is parked, and the ledger does not know of it.
    Parked,
    /// All memory is back, and nothing says so.
    Complete,
    /// The journal says so, and the contexts are still parked.
    Recorded,
}

impl LazyStep {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Round, "lazy-round"),
        (Self::Forked, "lazy-forked"),
        (Self::Parked, "lazy-parked"),
        (Self::Complete, "lazy-complete"),
        (Self::Recorded, "lazy-recorded"),
    ];
}

/// Steps of making a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SandboxStep {
    /// For a start: it stands, and its program has not begun.
    Prepared,
    /// A new worker has begun to adopt it.
    Begun,
    /// For an app of which only its image is left: there is a record of it.
    Recorded,
    /// Likewise: the app's listeners are there, and not yet parked.
    Reopened,
}

impl SandboxStep {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Prepared, "start-prepared"),
        (Self::Begun, "adopt-begun"),
        (Self::Recorded, "adopt-recorded"),
        (Self::Reopened, "adopt-reopened"),
    ];
}

/// Steps of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImportStep {
    /// The layers are stored.
    Layers,
    /// The app's own files are made.
    Files,
    /// Its image is written.
    Image,
    /// The image is one of this machine, and has its name.
    Placed,
    /// Its sandbox stands; it is warm.
    Taken,
}

impl ImportStep {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Layers, "layers"),
        (Self::Files, "files"),
        (Self::Image, "image"),
        (Self::Placed, "placed"),
        (Self::Taken, "taken"),
    ];
}

impl AnyStep {
    fn named(name: &str) -> Option<Self> {
        if let Some(name) = name.strip_prefix("import-") {
            return ImportStep::ALL.into_iter().find(|(_, known)| *known == name).map(|(step, _)| Self::Import(step));
        }
        if let Some((step, _)) = SandboxStep::ALL.into_iter().find(|(_, known)| *known == name) {
            return Some(Self::Sandbox(step));
        }
        if let Some((step, _)) = LazyStep::ALL.into_iter().find(|(_, known)| *known == name) {
            return Some(Self::Lazy(step));
        }
        match name.strip_prefix("resume-") {
            Some(name) => RestoreStep::ALL.into_iter().find(|step| step.name() == name).map(Self::Resume),
            None => Step::ALL.into_iter().find(|step| step.name() == name).map(Self::Sleep),
        }
    }
}

/// What happens at the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Error,
    /// Until somebody opens the pipe `TORPOR_FAULT_PIPE` for writing: a call of the kernel's that does not return.
    Hang,
    KillWorker,
    KillKeeper,
    Panic,
}

/// What a test asked for.
#[derive(Debug)]
struct RequestedFault {
    step: AnyStep,
    action: Action,
    countdown: AtomicU32,
}

/// A value of `TORPOR_FAULT` or `TORPOR_PAGER` that is not understood.
#[derive(Debug, thiserror::Error)]
pub enum FaultSyntax {
    /// Of the fault.
    #[error(
        "TORPOR_FAULT={0} is not STEP:kill, STEP:keeper, STEP:panic, STEP:hang or STEP:error, with an optional :COUNT"
    )]
    Fault(String),
    /// Of how pages come.
    #[error("TORPOR_PAGER={0} is not \"faults\"")]
    Pager(String),
}

/// Faults from the environment; usually none.
#[derive(Debug, Default)]
pub struct RequestedFaults {
    requested: Option<RequestedFault>,
    /// Where the keeper listens, if there is one.
    keeper: PathBuf,
    /// Missing pages come only by page faults.
    only_page_faults: bool,
}

impl RequestedFaults {
    /// Of a process without a keeper.
    ///
    /// # Errors
    /// Where the variable is not understood.
    pub fn from_environment() -> Result<Self, FaultSyntax> {
        Self::with_keeper(PathBuf::new())
    }

    pub(crate) fn with_keeper(keeper: PathBuf) -> Result<Self, FaultSyntax> {
        let variable = |name| std::env::var_os(name).map(|text| text.to_string_lossy().into_owned());
        let fault = variable("TORPOR_FAULT");
        let requested = fault.map(|text| parse(&text).ok_or(FaultSyntax::Fault(text))).transpose()?;
        let only_page_faults = match variable("TORPOR_PAGER") {
            None => false,
            Some(text) if text == "faults" => true,
            Some(text) => return Err(FaultSyntax::Pager(text)),
        };
        if only_page_faults {
            torpor_image::lazy_size::lower();
        }
        Ok(Self { requested, keeper, only_page_faults })
    }
}

fn parse(text: &str) -> Option<RequestedFault> {
    let mut parts = text.split(':');
    let step = AnyStep::named(parts.next()?)?;
    let action = match parts.next()? {
        "kill" => Action::KillWorker,
        "keeper" => Action::KillKeeper,
        "panic" => Action::Panic,
        "error" => Action::Error,
        "hang" => Action::Hang,
        _ => return None,
    };
    let count: u32 = parts.next().map_or(Some(1), |count| count.parse().ok())?;
    Some(RequestedFault { step, action, countdown: AtomicU32::new(count) })
}

impl RequestedFaults {
    /// Whether to fail at `step`; does not come back if the worker is to be killed there.
    fn fails(&self, step: AnyStep) -> bool {
        let Some(fault) = self.requested.as_ref().filter(|fault| fault.step == step) else { return false };
        let left = fault.countdown.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left != Ok(1) {
            return false;
        }
        match fault.action {
            Action::Error => true,
            Action::Hang => {
                tracing::info!("a fault was asked for: waiting at a pipe");
                if let Err(error) = hang() {
                    tracing::error!(%error, "waiting at a pipe");
                    std::process::abort();
                }
                false
            }
            Action::Panic => panic!("a fault was asked for"),
            Action::KillWorker => {
                let own: Pid = getpid();
                // It cannot fail: a process may always signal itself.
                let _ = kill_process(own, Signal::KILL);
                true
            }
            Action::KillKeeper => {
                // A test must not take a keeper that lives on for one that was killed.
                if let Err(error) = kill_keeper(&self.keeper) {
                    tracing::error!(%error, "killing the keeper");
                    std::process::abort();
                }
                false
            }
        }
    }
}

impl RequestedFaults {
    /// Whether a fault was asked for.
    pub(crate) const fn is_requested(&self) -> bool {
        self.requested.is_some()
    }

    /// Whether missing pages come only by page faults, each alone.
    pub(crate) const fn only_page_faults(&self) -> bool {
        self.only_page_faults
    }

    /// A step of making a sandbox has come to its end.
    pub(crate) fn made(&self, step: SandboxStep) -> std::io::Result<()> {
        if self.fails(AnyStep::Sandbox(step)) { Err(std::io::Error::other("a fault was asked for")) } else { Ok(()) }
    }

    /// A step of a lazy wake has come to its end.
    pub(crate) fn served(&self, step: LazyStep) -> std::io::Result<()> {
        if self.fails(AnyStep::Lazy(step)) { Err(std::io::Error::other("a fault was asked for")) } else { Ok(()) }
    }

    /// A step of an import has come to its end.
    pub(crate) fn imported(&self, step: ImportStep) -> std::io::Result<()> {
        if self.fails(AnyStep::Import(step)) { Err(std::io::Error::other("a fault was asked for")) } else { Ok(()) }
    }
}

/// Does not return before somebody writes to the pipe.
fn hang() -> std::io::Result<()> {
    let pipe = std::env::var_os("TORPOR_FAULT_PIPE").ok_or(std::io::ErrorKind::NotFound)?;
    std::fs::File::open(pipe).map(drop)
}

/// Kills the keeper and waits until it is gone.
fn kill_keeper(socket: &Path) -> std::io::Result<()> {
    let keeper = torpor_keeper::Client::connect(socket).map_err(std::io::Error::other)?;
    let pid = keeper.ping().map_err(std::io::Error::other)?.pid;
    let pid = Pid::from_raw(pid.cast_signed()).ok_or(std::io::ErrorKind::NotFound)?;
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    rustix::process::pidfd_send_signal(&process, Signal::KILL)?;
    let mut ended = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut ended, None))?;
    Ok(())
}

impl Faults for RequestedFaults {
    fn reached(&self, step: Step) -> Result<(), Fault> {
        if self.fails(AnyStep::Sleep(step)) { Err(Fault(step)) } else { Ok(()) }
    }

    fn rebuilt(&self, step: RestoreStep) -> Result<(), Fault<RestoreStep>> {
        if self.fails(AnyStep::Resume(step)) { Err(Fault(step)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_comes_once_at_its_count() {
        let faults = |text| RequestedFaults { requested: parse(text), ..RequestedFaults::default() };
        let dropped = faults("dropped:error:2");
        let outcomes: Vec<bool> = (0..4).map(|_| dropped.reached(Step::Dropped).is_err()).collect();
        assert_eq!(outcomes, [false, true, false, false]);
        assert!(dropped.reached(Step::Frozen).is_ok());
        let opened = faults("resume-opened:error");
        assert!(opened.reached(Step::Opened).is_ok());
        assert!(opened.rebuilt(RestoreStep::Opened).is_err() && opened.rebuilt(RestoreStep::Opened).is_ok());
        assert_eq!(parse("resume-built:hang").map(|fault| fault.action), Some(Action::Hang));
        assert_eq!(parse("files-parked:keeper").map(|fault| fault.action), Some(Action::KillKeeper));
        assert!(parse("nowhere:kill").is_none() && parse("frozen:burn").is_none() && parse("frozen").is_none());
    }
}
