//! What an engine makes of a program.

use std::fmt;
use std::time::Duration;

use super::{Begun, Engine, Execution, Program, Step};
use crate::error::Error;

/// How long a program may take to check itself.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(120);
/// Tries where the machine has given an id to somebody else meanwhile, where a program is late, or where the disks are busy.
const TRIES: usize = 10;

/// How a program is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Captured, ended, restored.
    Restored,
    /// Captured and left running.
    LeftRunning,
}

/// What became of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It found everything as it was.
    Ok,
    /// The engine refused it, and it went on untouched.
    Refused(String),
    /// Something went wrong.
    Failed {
        /// At which step.
        stage: &'static str,
        /// What.
        why: String,
    },
    /// This machine cannot do what it is about.
    Skipped(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => f.write_str("ok"),
            Self::Refused(why) => write!(f, "refused: {why}"),
            Self::Failed { stage, why } => write!(f, "failed {stage}: {why}"),
            Self::Skipped(why) => write!(f, "skipped: {why}"),
        }
    }
}

pub(super) fn failed(stage: &'static str, why: impl fmt::Display) -> Verdict {
    Verdict::Failed { stage, why: why.to_string() }
}

/// Runs `program` without any capture.
///
/// # Errors
/// Where it cannot be compiled, started, or gives no answer.
pub fn native(program: &Program) -> Result<Verdict, Error> {
    let mut running = Execution::start(program)?;
    if let Begun::Answered(answer) = running.begun()? {
        return Ok(verdict(&answer, "at set-up"));
    }
    running.go()?;
    Ok(finish(&running, "natively"))
}

/// Runs `program` over a capture by `engine`.
///
/// # Errors
/// Where the program cannot be compiled or started, or the engine cannot be run at all.
pub fn captured(program: &Program, engine: &dyn Engine, mode: Mode) -> Result<Verdict, Error> {
    let mut verdict = Verdict::Ok;
    for _ in 0..TRIES {
        verdict = once(program, engine, mode)?;
        let taken = matches!(&verdict, Verdict::Failed { stage: "at restore", why } if says_taken(why));
        let late = matches!(&verdict, Verdict::Failed { why, .. } if says_late(why));
        let busy = matches!(&verdict, Verdict::Refused(why) if says_busy(why));
        if !taken && !late && !busy {
            break;
        }
    }
    Ok(verdict)
}

/// Processes and terminals of the machine come and go while a tree is only an image: its ids and numbers may be in use.
fn says_taken(why: &str) -> bool {
    ["taken", "another terminal's now", "in use", "Can't fork", "File exists"].iter().any(|words| why.contains(words))
}

/// A program's call has ended later than it should: because of the engine, or of what else the machine had to do.
pub fn says_late(why: &str) -> bool {
    why.contains("late: ")
}

/// The engine waits until no disk of the machine has anything to do, which a busy one may not reach in time: it asks to try again.
fn says_busy(why: &str) -> bool {
    why.contains("disk I/O under way")
}

fn once(program: &Program, engine: &dyn Engine, mode: Mode) -> Result<Verdict, Error> {
    let mut running = Execution::start(program)?;
    if let Begun::Answered(answer) = running.begun()? {
        return Ok(verdict(&answer, "at set-up"));
    }
    let image = running.image();
    let stopped = match engine.checkpoint(running.pid(), &image, mode == Mode::LeftRunning)? {
        Step::Done => None,
        Step::Refused(why) => Some(Verdict::Refused(why)),
        Step::Failed(why) => Some(failed("at checkpoint", why)),
    };
    if let Some(stopped) = stopped {
        // Whatever the reason: the program must go on as it was.
        running.go()?;
        return Ok(match finish(&running, "after a checkpoint that did not happen") {
            Verdict::Ok => stopped,
            Verdict::Failed { stage, why } => failed(stage, format!("{why} (the checkpoint: {stopped})")),
            other => other,
        });
    }
    if mode == Mode::LeftRunning {
        running.go()?;
        return Ok(finish(&running, "left running"));
    }
    if let Err(error) = running.gone() {
        return Ok(failed("after checkpoint", error));
    }
    match engine.restore(&image)? {
        Step::Done => {}
        Step::Refused(why) | Step::Failed(why) => return Ok(failed("at restore", why)),
    }
    running.go()?;
    let verdict = finish(&running, "restored");
    if verdict == Verdict::Ok && running.was_left_running() {
        return Ok(failed("restored", "there was state that must not outlive a restore"));
    }
    Ok(verdict)
}

fn finish(running: &Execution, stage: &'static str) -> Verdict {
    match running.answer(ANSWER_WITHIN) {
        Ok(answer) => verdict(&answer, stage),
        Err(error) => failed(stage, error),
    }
}

pub(super) fn verdict(answer: &str, stage: &'static str) -> Verdict {
    match answer.split_once(": ") {
        None if answer == "ok" => Verdict::Ok,
        Some(("skip", why)) => Verdict::Skipped(why.to_owned()),
        Some(("wrong", why)) => failed(stage, why),
        _ => failed(stage, format!("no answer that is known: {answer}")),
    }
}
