//! A terminal of the sandbox, made by the process whose terminal it becomes.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{OFlags, Uid, makedev};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::channel::Channel;
use crate::error::{Doing, SetupError};
use crate::inside::{open_inside, take_stdio};
use crate::message::FromSetup;

const PTMX: &str = "/dev/pts/ptmx";
const DEVPTS_MAGIC: u64 = 0x1cd1;

/// A terminal that is still to be made.
pub(crate) struct NewTerminal {
    pub(crate) columns: u16,
    pub(crate) rows: u16,
    /// The user inside that it belongs to.
    pub(crate) owner: u32,
    /// The worker, which gets the other side.
    pub(crate) channel: Channel,
}

impl NewTerminal {
    /// Makes it the controlling one of this process's session and its input and output; its other side goes to the worker.
    pub(crate) fn take(self) -> Result<(), SetupError> {
        let (master, slave) = self.open()?;
        let sent = self.channel.send(&FromSetup::Terminal, &[master.as_fd()]);
        sent.doing(|| "giving the terminal to the worker".to_owned())?;
        let copy = || slave.try_clone().doing(|| "copying the terminal".to_owned());
        take_stdio(&[copy()?, copy()?, copy()?])?;
        rustix::process::ioctl_tiocsctty(&slave).doing(|| "taking the terminal".to_owned())
    }

    /// The worker's side and the program's.
    fn open(&self) -> Result<(OwnedFd, OwnedFd), SetupError> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let master = open_inside(Path::new(PTMX), flags).doing(|| format!("opening {PTMX}"))?;
        // The app's root may have put something else there; the worker must not be given that.
        let stat = rustix::fs::fstat(&master).doing(|| format!("examining {PTMX}"))?;
        let file_system = rustix::fs::fstatfs(&master).doing(|| format!("examining {PTMX}"))?;
        if stat.st_rdev != makedev(5, 2) || file_system.f_type as u64 != DEVPTS_MAGIC {
            return Err(SetupError::Target { path: PTMX.to_owned(), found: "not the terminals' own".to_owned() });
        }
        rustix::fs::fcntl_setfl(&master, OFlags::RDWR).doing(|| format!("preparing {PTMX}"))?;
        unlockpt(&master).doing(|| "unlocking a terminal".to_owned())?;
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let slave = ioctl_tiocgptpeer(&master, flags).doing(|| "opening a terminal".to_owned())?;
        let owner = Some(Uid::from_raw(self.owner));
        rustix::fs::fchown(&slave, owner, None).doing(|| "giving the terminal away".to_owned())?;
        let size = Winsize { ws_row: self.rows, ws_col: self.columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).doing(|| "sizing the terminal".to_owned())?;
        Ok((master, slave))
    }
}
