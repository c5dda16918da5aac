//! Faults on demand, for tests of crashes: `TORPOR_FAULT=STEP:ACTION[:COUNT]` makes the worker fail (`error`) or kill itself
//! (`kill`) when an app reaches a step of falling asleep or waking for the COUNT-th time. Steps of building processes again
//! begin with `revive-`, those of an import with `import-`.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, getpid, kill_process};
use torpor_engine::{Fault, Faults, RestoreStep, Step};

/// A step of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnyStep {
    Sleep(Step),
    Revive(RestoreStep),
    Import(ImportStep),
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
        match name.strip_prefix("revive-") {
            Some(name) => RestoreStep::ALL.into_iter().find(|step| step.name() == name).map(Self::Revive),
            None => Step::ALL.into_iter().find(|step| step.name() == name).map(Self::Sleep),
        }
    }
}

/// What a test asked for.
#[derive(Debug)]
pub(crate) struct RequestedFault {
    step: AnyStep,
    kill: bool,
    countdown: AtomicU32,
}

/// A value of `TORPOR_FAULT` that is not understood.
#[derive(Debug, thiserror::Error)]
#[error("TORPOR_FAULT={0} is not STEP:kill or STEP:error, with an optional :COUNT")]
pub struct FaultSyntax(String);

/// Faults from the environment; usually none.
#[derive(Debug, Default)]
pub(crate) struct WorkerFaults(Option<RequestedFault>);

impl WorkerFaults {
    pub(crate) fn from_environment() -> Result<Self, FaultSyntax> {
        let Some(text) = std::env::var_os("TORPOR_FAULT") else { return Ok(Self(None)) };
        let text = text.to_string_lossy().into_owned();
        parse(&text).map(|fault| Self(Some(fault))).ok_or(FaultSyntax(text))
    }
}

fn parse(text: &str) -> Option<RequestedFault> {
    let mut parts = text.split(':');
    let step = AnyStep::named(parts.next()?)?;
    let kill = match parts.next()? {
        "kill" => true,
        "error" => false,
        _ => return None,
    };
    let count: u32 = parts.next().map_or(Some(1), |count| count.parse().ok())?;
    Some(RequestedFault { step, kill, countdown: AtomicU32::new(count) })
}

impl WorkerFaults {
    /// Whether to fail at `step`; does not come back if the worker is to be killed there.
    fn fails(&self, step: AnyStep) -> bool {
        let Some(fault) = self.0.as_ref().filter(|fault| fault.step == step) else { return false };
        let left = fault.countdown.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left != Ok(1) {
            return false;
        }
        if fault.kill {
            let own: Pid = getpid();
            // It cannot fail: a process may always signal itself.
            let _ = kill_process(own, Signal::KILL);
        }
        true
    }
}

impl WorkerFaults {
    /// A step of an import has come to its end.
    pub(crate) fn imported(&self, step: ImportStep) -> std::io::Result<()> {
        if self.fails(AnyStep::Import(step)) { Err(std::io::Error::other("a fault was asked for")) } else { Ok(()) }
    }
}

impl Faults for WorkerFaults {
    fn reached(&self, step: Step) -> Result<(), Fault> {
        if self.fails(AnyStep::Sleep(step)) { Err(Fault(step)) } else { Ok(()) }
    }

    fn rebuilt(&self, step: RestoreStep) -> Result<(), Fault<RestoreStep>> {
        if self.fails(AnyStep::Revive(step)) { Err(Fault(step)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_comes_once_at_its_count() {
        let faults = WorkerFaults(parse("dropped:error:2"));
        let outcomes: Vec<bool> = (0..4).map(|_| faults.reached(Step::Dropped).is_err()).collect();
        assert_eq!(outcomes, [false, true, false, false]);
        assert!(faults.reached(Step::Frozen).is_ok());
        let faults = WorkerFaults(parse("revive-opened:error"));
        assert!(faults.reached(Step::Opened).is_ok());
        assert!(faults.rebuilt(RestoreStep::Opened).is_err() && faults.rebuilt(RestoreStep::Opened).is_ok());
        assert!(parse("nowhere:kill").is_none() && parse("frozen:burn").is_none() && parse("frozen").is_none());
    }
}
