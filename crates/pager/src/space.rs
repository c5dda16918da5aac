//! An address space that misses pages, and how they are placed in it while its program runs.

use std::io;

use torpor_image::PAGE;
use torpor_linux::userfault::{NotPlaced, UNUSED_PAGE, Userfault};

use crate::layout::Layout;

/// One address space.
#[derive(Debug)]
pub struct Space {
    /// Its context, registered with every area that misses a page; none once its process is gone.
    pub userfault: Option<Userfault>,
    /// What it misses.
    pub layout: Layout,
    /// Whose it is; none: it was forked while its parent missed pages. Filled, it has copies of its own of what it would share with its parent.
    pub owner: Option<Owner>,
}

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its id.
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`: tells it from a later process with the same id.
    pub start_ticks: u64,
}

impl Space {
    /// Whether its process is gone, or runs another program, as far as can be seen now.
    pub(crate) fn has_ended(&self) -> bool {
        // What is stored there must not be asked for with zeros.
        self.layout.at(UNUSED_PAGE).is_none() && self.userfault.as_ref().is_none_or(Userfault::has_ended)
    }
}

/// How far placing has come.
pub(crate) enum Step {
    Done,
    Changing,
    NoMemory,
    Ended,
}

/// Places pages at an address; what is in place is not missing any more.
pub(crate) fn place(space: &mut Space, mut address: u64, mut bytes: &[u8]) -> io::Result<Step> {
    let Some(userfault) = &space.userfault else { return Ok(Step::Ended) };
    let mut at_once = bytes.len();
    // Where nothing of ours was mapped when it was tried last.
    let mut unmapped = None;
    while !bytes.is_empty() {
        let (done, why) = match userfault.copy(address, &bytes[..at_once.min(bytes.len())]) {
            Ok(()) => (at_once.min(bytes.len()) as u64, None),
            Err((done, why)) => (done, Some(why)),
        };
        space.layout.remove(&(address..address + done));
        address += done;
        bytes = &bytes[done as usize..];
        let own = address..address + PAGE;
        match why {
            None => {}
            // Cut off: the next page says why.
            Some(_) if done > 0 => {}
            Some(NotPlaced::Changing) => return Ok(Step::Changing),
            Some(NotPlaced::NoMemory) => return Ok(Step::NoMemory),
            Some(NotPlaced::Ended) => return Ok(Step::Ended),
            // An area ends within: page by page.
            Some(NotPlaced::Unmapped) if at_once > PAGE as usize => at_once = PAGE as usize,
            // Memory may have been moved away of which we were not told yet; then a second try says so: the kernel looks for changes before
            // it looks for the area.
            Some(NotPlaced::Unmapped) if unmapped != Some(address) => unmapped = Some(address),
            // The program has something there already; or its area is not what it was, of which it has told.
            Some(NotPlaced::Present | NotPlaced::Unmapped) => {
                userfault.wake(&own)?;
                space.layout.remove(&own);
                address = own.end;
                bytes = &bytes[PAGE as usize..];
            }
            Some(NotPlaced::Other(number)) => return Err(io::Error::from_raw_os_error(number)),
        }
    }
    Ok(Step::Done)
}
