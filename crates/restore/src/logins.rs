//! Login ids of threads, which each must set itself: by calls that are made in it when it stands at the end of its steps.
//!
//! To set one needs no privilege where the thread has none yet. Else, or where the thread does not see `/proc`, it keeps what it
//! has inherited, and that is told.

use std::io;
use std::os::fd::BorrowedFd;

use torpor_image::tree::{LiveProcess, Thread, Tree};
use torpor_linux::restorer::{BuildingTask, CODE_BYTES, Halt, interpreter};
use torpor_linux::uapi::file::{AT_FDCWD, O_WRONLY};

use super::error::RestoreError;
use super::run::Building;
use torpor_planner::calls;
use torpor_planner::plan::Plan;
use torpor_proc::login::{OWN, UNSET, of, own, set_own};

const WRITE: i64 = 1;
/// Bytes for what the calls read, behind the interpreter's code.
const ROOM_BYTES: usize = 64;
const PATH_BYTES: usize = 40;

/// Which threads must be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logins {
    /// None: there are no login ids, here or there.
    None,
    /// Those of plain processes, which have exactly what the image says.
    Exact,
    /// An app's, in whose namespace most of them have none.
    Inside,
}

impl Logins {
    /// Gives up the calling thread's login id where that of a plain tree's threads is another one: what inherits none can set its own.
    pub(super) fn prepare(tree: &Tree) -> io::Result<Self> {
        let Some(ours) = own()? else { return Ok(Self::None) };
        if ours == UNSET && tree.details.logins.is_empty() {
            return Ok(Self::None);
        }
        let same = |thread: &Thread| tree.details.login(thread.tid).unwrap_or(UNSET) == ours;
        if ours != UNSET && !tree.threads().all(same) {
            // Where it may not, that shows in every thread.
            let _ = set_own(UNSET);
        }
        Ok(Self::Exact)
    }

    /// For an app's tree.
    pub fn inside(tree: &Tree) -> Self {
        if tree.details.logins.is_empty() { Self::None } else { Self::Inside }
    }

    /// Lets the threads of a process have theirs; `n` is the leader's task, `quiet` that calls must be made without a signal.
    pub(super) fn set(
        self,
        building: &Building<'_>,
        (plan, blob): (&Plan, BorrowedFd<'_>),
        (n, life, quiet): (usize, &LiveProcess, bool),
        warnings: &mut Vec<String>,
    ) -> Result<(), RestoreError> {
        for (t, thread) in life.threads.iter().enumerate() {
            let wanted = building.tree().details.login(thread.tid);
            let wanted = match self {
                Self::None => None,
                Self::Inside => wanted,
                Self::Exact => {
                    let is = of(building.id(n), building.id(n + t))
                        .map_err(|error| RestoreError::Own("reading login ids", error))?;
                    Some(wanted.unwrap_or(UNSET)).filter(|wanted| is.is_some_and(|is| is != *wanted))
                }
            };
            let (Some(wanted), Some(newborn)) = (wanted, building.newborns[n + t].as_ref()) else { continue };
            let done = if quiet && t > 0 {
                Err(io::ErrorKind::Unsupported.into())
            } else {
                write_in(newborn, (plan, blob), wanted, quiet).map_err(|error| RestoreError::Halt {
                    pid: thread.tid,
                    name: String::from_utf8_lossy(&thread.name).into_owned(),
                    error,
                })?
            };
            if let Err(error) = done {
                warnings.push(format!("thread {}: its login id is not {wanted} as it was: {error}", thread.tid));
            }
        }
        Ok(())
    }
}

/// Lets a thread write its login id.
fn write_in(
    newborn: &BuildingTask,
    (plan, blob): (&Plan, BorrowedFd<'_>),
    user: u32,
    quiet: bool,
) -> Result<io::Result<()>, Halt> {
    let place = plan.address + (CODE_BYTES - ROOM_BYTES) as u64;
    debug_assert!(interpreter().len() <= CODE_BYTES - ROOM_BYTES && OWN.len() < PATH_BYTES);
    let mut room = [0; ROOM_BYTES];
    room[..OWN.len()].copy_from_slice(OWN.as_bytes());
    let digits = user.to_string();
    room[PATH_BYTES..PATH_BYTES + digits.len()].copy_from_slice(digits.as_bytes());
    // All processes have mapped the same one.
    if let Err(error) = rustix::io::pwrite(blob, &room, (CODE_BYTES - ROOM_BYTES) as u64) {
        return Ok(Err(error.into()));
    }
    let call = |number, arguments: &[u64]| {
        let made = if quiet {
            newborn.quiet_call(plan.address, number, arguments)
        } else {
            newborn.call(plan.address, number, arguments)
        };
        made.map(|answer| match answer {
            -4095..0 => Err(io::Error::from_raw_os_error(-answer as i32)),
            answer => Ok(answer as u64),
        })
    };
    let fd = match call(calls::OPENAT, &[AT_FDCWD, place, O_WRONLY])? {
        Ok(fd) => fd,
        Err(error) => return Ok(Err(error)),
    };
    let written = call(WRITE, &[fd, place + PATH_BYTES as u64, digits.len() as u64])?;
    let closed = call(calls::CLOSE_RANGE, &[fd, fd, 0])?;
    Ok(written.and(closed).map(drop))
}
