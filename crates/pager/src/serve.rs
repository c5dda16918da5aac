//! Serving the faults of one app until nothing of it is missing.
//!
//! ```text
//!            ┌────────────── nothing is missing: done ─────────────┐
//! messages ──┤ a fault ──▶ fetch its region, verify, place          │
//!  (faults   │ a change ─▶ ledger, layout                           ├─▶ next
//!   first)   └ none ─────▶ fill: the next region that is missing    │
//! ```
//! One thread serves all address spaces of an app, so a change is applied before anything else is placed. The kernel helps: from the
//! time at which a program begins a change until its message is taken, it places nothing ([`NotPlaced::Changing`]). Such a fault is tried
//! again when all messages are taken, not before: faults are told before changes, and one that is raised anew each time would hide them.
//!
//! Every region is compared with its checksum before a page of it is placed. A page that cannot be had is never replaced by zeros: its
//! thread waits.

use std::io;
use std::ops::Range;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use torpor_image::{FormatError, PAGE};
use torpor_linux::userfault::{Message, NotPlaced, Userfault};
use torpor_pages::buffer::Buffer;
use torpor_pages::source::{FetchError, PageSource, Stored, fetch};

use crate::layout::{Layout, Piece};
use crate::ledger::{Change, Ledger};

/// Messages that are taken before a region is filled: a program that faults all the time cannot keep the rest from coming.
const MESSAGES: usize = 16;
/// Pages of zeros that are placed for one fault, where nothing of the image belongs.
const ZERO_PAGES: u64 = 16;
/// How long to wait for memory, or for the source to be read again.
const AGAIN: Duration = Duration::from_millis(20);
/// Children with contexts of their own from which on memory is completed before much else is received: each costs descriptors.
const CROWD: usize = 64;
/// Regions that are filled between two looks at messages then.
const CROWD_FILLS: usize = 64;
/// Address spaces of an app that are served: no program forks so often in so short a time, but to use up descriptors.
const MOST_SPACES: usize = 4096;
/// Where programs have memory: from the least address that an unprivileged one may map, to the end of its half (x86-64).
const EVERYWHERE: Range<u64> = 0x1_0000..0x7fff_ffff_f000;
/// Between two looks at whether there is room to fill children.
const LOOK: Duration = Duration::from_secs(1);

/// One address space.
#[derive(Debug)]
pub struct Space {
    /// Its context, registered with every area that misses a page; none once its process is gone.
    pub userfault: Option<Userfault>,
    /// What it misses.
    pub layout: Layout,
    /// It was forked while its parent missed pages: filled, it has copies of its own of what it would share with its parent.
    pub is_forked: bool,
}

/// What whoever serves an app needs of the worker.
pub trait Host {
    /// Keeps a child's context beyond our own end.
    ///
    /// # Errors
    /// Why not: should we be killed, its memory is lost, for there is one context less than the ledger has children.
    fn forked(&self, child: &Userfault) -> io::Result<()>;
    /// Whether there is room for so many bytes more: children are filled only then.
    fn has_room(&self, bytes: u64) -> bool;
    /// The source cannot be read now; it is tried again.
    fn stalled(&self, error: &io::Error);
    /// Nothing is missing any more: records that, before the contexts are closed.
    ///
    /// # Errors
    /// Why not; it is tried again, and the contexts are still needed.
    fn complete(&self) -> io::Result<()>;
    /// Whether to stop: what is missing stays missing.
    fn is_over(&self) -> bool;
}

/// Why an app cannot be served any further: its memory is not whole.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Stored pages are not what was written.
    #[error("the pages at {offset:#x} of the image")]
    Damaged {
        /// Where they are.
        offset: u64,
        /// What is wrong.
        #[source]
        error: FormatError,
    },
    /// A context does not work.
    #[error("handling page faults")]
    Context(#[source] io::Error),
    /// The ledger cannot be written.
    #[error("writing the ledger of missing pages")]
    Ledger(#[source] io::Error),
    /// It forks faster than its memory comes.
    #[error("{MOST_SPACES} processes were forked while memory was missing")]
    TooManyForks,
}

/// What serving an app took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Faults on stored pages.
    pub faults: u64,
    /// Faults where nothing is stored.
    pub zero_faults: u64,
    /// Pages that came by faults, neighbours included.
    pub faulted_pages: u64,
    /// Pages that came without.
    pub filled_pages: u64,
    /// Children that were forked meanwhile.
    pub forks: u64,
}

/// Serves an app.
pub struct Pager<'a> {
    source: &'a dyn PageSource,
    /// What pieces name.
    regions: &'a [Stored],
    spaces: Vec<Space>,
    ledger: &'a Ledger,
    host: &'a dyn Host,
    buffer: Buffer,
    /// Faults that came while their address space was being changed, or for which there was no memory.
    postponed: Vec<(usize, u64)>,
    /// There was no memory for a page, no descriptor, or the source could not be read.
    short: bool,
    /// The space whose messages come next.
    turn: usize,
    /// Where filling goes on, by space.
    cursor: (usize, u64),
    served: Served,
}

/// What came of placing pages.
enum Placed {
    /// Nothing is in the way.
    Done,
    /// Not now.
    Postponed,
}

impl<'a> Pager<'a> {
    /// For `spaces`, whose pieces name `regions`, which are in `source`.
    pub fn new(
        source: &'a dyn PageSource,
        regions: &'a [Stored],
        spaces: Vec<Space>,
        ledger: &'a Ledger,
        host: &'a dyn Host,
    ) -> Self {
        Self {
            source,
            regions,
            spaces,
            ledger,
            host,
            buffer: Buffer::default(),
            postponed: Vec::new(),
            short: false,
            turn: 0,
            cursor: (0, 0),
            served: Served::default(),
        }
    }

    /// Serves until nothing is missing, or it [is over](Host::is_over), and closes the contexts. While others hold them, whoever waits for a
    /// page goes on waiting.
    ///
    /// # Errors
    /// See [`ServeError`]: the app must be ended before the last descriptors of its contexts are closed.
    pub fn serve(mut self) -> Result<Served, ServeError> {
        self.serve_all().map(|()| self.served)
    }

    fn serve_all(&mut self) -> Result<(), ServeError> {
        // A pager that was killed may have taken faults and answered none.
        self.wake_everybody();
        loop {
            self.messages()?;
            if self.host.is_over() {
                return Ok(());
            }
            if self.spaces.iter().all(|space| space.layout.is_complete()) {
                match self.host.complete() {
                    Ok(()) => return Ok(()),
                    Err(error) => tracing::error!(%error, "recording that all memory is back"),
                }
                self.wait(LOOK)?;
            } else if self.short {
                self.short = false;
                self.wait(AGAIN)?;
            } else if !self.fill_some()? {
                self.wait(LOOK)?;
            }
        }
    }

    fn is_crowded(&self) -> bool {
        self.spaces.len() > CROWD
    }

    fn wake_everybody(&self) {
        for userfault in self.spaces.iter().filter_map(|space| space.userfault.as_ref()) {
            if let Err(error) = userfault.wake(&EVERYWHERE) {
                // Whose process is gone has nobody who waits.
                tracing::debug!(%error, "waking all who wait for a page");
            }
        }
    }

    /// Waits for a message.
    fn wait(&self, time: Duration) -> Result<(), ServeError> {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let mut fds: Vec<PollFd<'_>> = self
            .spaces
            .iter()
            .filter_map(|space| Some(PollFd::new(space.userfault.as_ref()?, PollFlags::IN)))
            .collect();
        match poll(&mut fds, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(ServeError::Context(error.into())),
        }
    }

    /// Takes some messages of each space, and what was postponed once there are no more. In a crowd, few of all: what they fork is filled first.
    fn messages(&mut self) -> Result<(), ServeError> {
        let (most, mut left) = if self.is_crowded() { (1, MESSAGES) } else { (MESSAGES, usize::MAX) };
        // Children that come meanwhile are behind.
        let mut looked = 0;
        while looked < self.spaces.len() && left > 0 {
            let n = self.turn % self.spaces.len();
            let mut taken = 0;
            // What is postponed waits for a change, which comes behind all faults.
            while (taken < most || !self.postponed.is_empty()) && self.message(n)? {
                taken += 1;
            }
            left = left.saturating_sub(taken);
            looked += 1;
            self.turn = n + 1;
        }
        for (space, page) in std::mem::take(&mut self.postponed) {
            self.fault(space, page)?;
        }
        Ok(())
    }

    /// Takes a message of a space; whether there was one.
    fn message(&mut self, n: usize) -> Result<bool, ServeError> {
        let Some(userfault) = &self.spaces[n].userfault else { return Ok(false) };
        match self.ledger.receive(n, userfault) {
            Ok(None) => Ok(false),
            Ok(Some(Message::Fault(page))) => self.fault(n, page).map(|()| true),
            Ok(Some(change)) => self.change(n, change).map(|()| true),
            // A child waits in fork(2) until there is a descriptor.
            Err(error) if is_full(&error) => {
                self.short = true;
                Ok(false)
            }
            Err(error) => Err(ServeError::Context(error)),
        }
    }

    /// Applies a change of a space.
    fn change(&mut self, n: usize, change: Message) -> Result<(), ServeError> {
        let change = match change {
            Message::Fault(_) => return Ok(()),
            Message::Removed(range) | Message::Unmapped(range) => {
                Change::Gone { space: n, start: range.start, end: range.end }
            }
            Message::Moved { from, to, len } => Change::Moved { space: n, from, to, len },
            Message::Forked(child) => {
                if let Err(error) = self.host.forked(&child) {
                    tracing::warn!(%error, "parking the userfaultfd context of a forked process");
                }
                let layout = self.spaces[n].layout.clone();
                self.spaces.push(Space { userfault: Some(child), layout, is_forked: true });
                self.served.forks += 1;
                if self.spaces.len() > MOST_SPACES {
                    return Err(ServeError::TooManyForks);
                }
                Change::Forked { space: n }
            }
        };
        let layout = &mut self.spaces[n].layout;
        match change {
            Change::Gone { start, end, .. } => layout.remove(&(start..end)),
            Change::Moved { from, to, len, .. } => layout.move_to(from, to, len),
            Change::Forked { .. } => {}
        }
        self.ledger.record(&change).map_err(ServeError::Ledger)
    }

    /// Somebody waits for a page.
    fn fault(&mut self, n: usize, page: u64) -> Result<(), ServeError> {
        match self.spaces[n].layout.at(page) {
            Some((start, piece)) => {
                self.served.faults += 1;
                let first = ((page - start) / PAGE) as u32;
                let (placed, pages) = self.bring(n, start, piece, first)?;
                self.served.faulted_pages += pages;
                if let Placed::Postponed = placed
                    && self.spaces[n].layout.at(page).is_some()
                {
                    self.postponed.push((n, page));
                }
                Ok(())
            }
            None => {
                self.served.zero_faults += 1;
                self.zero(n, page)
            }
        }
    }

    /// Places zeros where nothing of the image belongs: at `page`, and behind it where nothing is.
    fn zero(&mut self, n: usize, page: u64) -> Result<(), ServeError> {
        let space = &self.spaces[n];
        let Some(userfault) = &space.userfault else { return Ok(()) };
        let own = page..page + PAGE;
        let most = page..page + space.layout.free_from(page, ZERO_PAGES) * PAGE;
        // Behind it may be other memory: then the page alone.
        let placed = userfault.zero(&most).or_else(|why| match why {
            (0, NotPlaced::Unmapped) => userfault.zero(&own),
            other => Err(other),
        });
        match placed {
            Ok(()) | Err((1.., _)) => Ok(()),
            Err((0, NotPlaced::Changing)) => {
                self.postponed.push((n, page));
                Ok(())
            }
            Err((0, NotPlaced::NoMemory)) => {
                self.short = true;
                self.postponed.push((n, page));
                Ok(())
            }
            Err((0, NotPlaced::Ended)) => {
                self.ended(n);
                Ok(())
            }
            // It is there, or nothing of ours is: the thread looks again.
            Err((0, NotPlaced::Present | NotPlaced::Unmapped)) => userfault.wake(&own).map_err(ServeError::Context),
            Err((0, NotPlaced::Other(number))) => Err(ServeError::Context(io::Error::from_raw_os_error(number))),
        }
    }

    /// Brings the missing pages of a piece, beginning with page `first` of it; gives how many came.
    fn bring(&mut self, n: usize, start: u64, piece: Piece, first: u32) -> Result<(Placed, u64), ServeError> {
        let Some(stored) = self.regions.get(piece.region as usize) else {
            return Err(ServeError::Context(io::ErrorKind::InvalidInput.into()));
        };
        match fetch(self.source, std::slice::from_ref(stored), &mut self.buffer) {
            Ok(_) => {}
            Err(FetchError::Damaged { offset, error }) => return Err(ServeError::Damaged { offset, error }),
            Err(FetchError::Read(error)) => {
                self.host.stalled(&error);
                self.short = true;
                return Ok((Placed::Postponed, 0));
            }
        }
        let missing = self.spaces[n].layout.missing_pages();
        // From the page that is waited for to the end, then what is before it.
        let parts = [first..piece.pages, 0..first];
        let runs = parts.into_iter().flat_map(|part| {
            piece.runs().filter_map(move |(from, count)| {
                let (from, to) = (from.max(part.start), (from + count).min(part.end));
                (from < to).then_some((from, to - from))
            })
        });
        let mut outcome = Placed::Done;
        for (from, count) in runs {
            let bytes = ((piece.first + from) as usize) * PAGE as usize
                ..((piece.first + from + count) as usize) * PAGE as usize;
            let address = start + u64::from(from) * PAGE;
            let placed = place(&mut self.spaces[n], address, self.buffer.part(bytes));
            match placed.map_err(ServeError::Context)? {
                Step::Done => {}
                Step::Ended => {
                    self.ended(n);
                    break;
                }
                Step::Changing => {
                    outcome = Placed::Postponed;
                    break;
                }
                Step::NoMemory => {
                    self.short = true;
                    outcome = Placed::Postponed;
                    break;
                }
            }
        }
        Ok((outcome, missing - self.spaces[n].layout.missing_pages()))
    }

    /// Brings some of what is missing; false where nothing may be filled now.
    fn fill_some(&mut self) -> Result<bool, ServeError> {
        for n in 0..if self.is_crowded() { CROWD_FILLS } else { 1 } {
            if !self.fill()? {
                return Ok(n > 0);
            }
        }
        Ok(true)
    }

    /// Brings the next region that is missing; false where nothing may be filled now.
    fn fill(&mut self) -> Result<bool, ServeError> {
        let (at, address) = self.cursor;
        let own = |space: &Space| !space.layout.is_complete() && !space.is_forked;
        let n = match self.spaces.get(at).filter(|space| own(space)) {
            Some(_) => at,
            None => match self.spaces.iter().position(own) {
                Some(n) => n,
                None => match self.spaces.iter().position(|space| !space.layout.is_complete()) {
                    Some(n) if self.host.has_room(self.spaces[n].layout.missing_pages() * PAGE) => n,
                    _ => return Ok(false),
                },
            },
        };
        let Some((start, piece)) = self.spaces[n].layout.next_from(if n == at { address } else { 0 }) else {
            return Ok(false);
        };
        let (_, pages) = self.bring(n, start, piece, 0)?;
        self.served.filled_pages += pages;
        self.cursor = (n, start + PAGE);
        Ok(true)
    }

    /// The process of a space is gone, or runs another program.
    fn ended(&mut self, n: usize) {
        self.spaces[n].layout = Layout::default();
        self.spaces[n].userfault = None;
    }
}

/// How far placing has come.
enum Step {
    Done,
    Changing,
    NoMemory,
    Ended,
}

/// Places pages at an address; what is in place is not missing any more.
fn place(space: &mut Space, mut address: u64, mut bytes: &[u8]) -> io::Result<Step> {
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

/// There are no more descriptors, here or on the machine.
fn is_full(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let full = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    error.raw_os_error().is_some_and(|number| full.iter().any(|one| one.raw_os_error() == number))
}
