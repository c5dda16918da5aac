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
//! A fault brings its page and a few pages beside it; then the next messages are read. The rest of the region is filled first, and all others
//! follow in the order of the image, which has at its front what is needed first.
//!
//! A wake may be *recorded*, to see which pages the program needs: each page comes alone, and none without being touched until the program has
//! not touched a missing page for some time. Some of the pages that it is expected to need are *staged*: read before the program runs, so
//! that each is placed quickly.
//!
//! Every region is compared with its checksum before a page of it is placed. A page that cannot be had is never replaced by zeros: its
//! thread waits.

mod fill;

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use torpor_image::{FormatError, PAGE};
use torpor_linux::userfault::{Message, NotPlaced};
use torpor_pages::buffer::Buffer;
use torpor_pages::source::{FetchError, PageSource, Stored, fetch};

use self::fill::Filled;
use crate::host::{Host, MOST_SPACES, ServeError, Told};
use crate::layout::{Layout, Piece};
use crate::ledger::{Change, Ledger, most_pieces};
use crate::served::{Served, Touch};
use crate::space::{Space, Step, place};

/// Messages that are taken before a region is filled: a program that faults all the time cannot keep the rest from coming.
const MESSAGES: usize = 16;
/// Touches that are remembered, 32 MiB: a program that needs more at once gains nothing by knowing them. Then recording is cut short, too.
const MOST_TOUCHES: usize = 1 << 13;
/// Regions that are held while it is recorded: a program touches pages of several in turn, each of which comes alone.
const MOST_HELD: usize = 4;
/// How long to look for another message before the thread sleeps: waking it takes ten times as long as a fault.
const SPIN: Duration = Duration::from_micros(100);
/// Pages of zeros that are placed for one fault, where nothing of the image belongs.
const ZERO_PAGES: u64 = 16;
/// How long to wait for memory, for the source to be read again, or until untouched pages are wanted.
const AGAIN: Duration = Duration::from_millis(20);
/// Children with contexts of their own from which on memory is completed before much else is received: each costs descriptors.
const CROWD: usize = 64;
/// Where programs have memory: from the least address that an unprivileged one may map, to the end of its half (x86-64).
const EVERYWHERE: Range<u64> = 0x1_0000..0x7fff_ffff_f000;
/// How long to wait for faults of a program that does not run yet.
const HELD: Duration = Duration::from_millis(1);
/// Rounds of messages that are taken before it is told what is missing.
const MOST_DRAINED: usize = 1 << 10;
/// Between two looks at whether there is room to fill children, and for a host without a bell.
const LOOK: Duration = Duration::from_secs(1);

/// Pages that are read already.
#[derive(Debug)]
pub struct Staged {
    /// Where they are in the source.
    pub range: Range<u64>,
    /// Them, compared with their checksums.
    pub bytes: Buffer,
}

/// Serves an app.
pub struct Pager<'a> {
    source: &'a dyn PageSource,
    /// What pieces name.
    regions: &'a [Stored],
    spaces: Vec<Space>,
    ledger: &'a Ledger,
    host: &'a dyn Host,
    staged: Vec<Staged>,
    /// It is recorded which pages are touched.
    is_recording: bool,
    /// When the program was first seen to run.
    begun: Option<Instant>,
    /// Regions that were read, the last one last.
    held: Vec<(u32, Buffer)>,
    /// Where that lies which the last fault has fetched: what is missing there comes next.
    beside: Option<(usize, Range<u64>)>,
    /// Faults that came while their address space was being changed, or for which there was no memory.
    postponed: Vec<(usize, u64)>,
    /// There was no memory for a page, or the source could not be read.
    short: bool,
    /// There was no descriptor for a message, which stays.
    is_full: bool,
    /// When it was last told that the source cannot be read.
    stalled: Option<Instant>,
    /// Pieces of all spaces at most.
    most_pieces: usize,
    /// The space whose messages come next.
    turn: usize,
    /// What is filled, in this order: space, and the addresses of a region. Memory that is moved meanwhile comes behind.
    order: Vec<(usize, Range<u64>)>,
    /// Where filling goes on, in `order` and behind it by space.
    next: usize,
    cursor: (usize, u64),
    /// When the program last touched a page that is stored; at first, the beginning.
    faulted: Instant,
    /// When a message was last received; at first, the beginning.
    heard: Instant,
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
        let of_space = |(n, space): (usize, &Space)| {
            let pieces = space.layout.pieces().map(move |(start, piece)| (n, start, piece));
            space.owner.is_some().then(|| pieces.collect::<Vec<_>>())
        };
        let most_pieces = most_pieces(spaces.iter().map(|space| &space.layout));
        let mut pieces: Vec<(usize, u64, Piece)> = spaces.iter().enumerate().filter_map(of_space).flatten().collect();
        pieces.sort_by_key(|(_, _, piece)| regions.get(piece.region as usize).map(|stored| stored.offset));
        let missing_pages = spaces.iter().map(|space| space.layout.missing_pages()).sum();
        let order: Vec<_> = pieces.iter().map(|(n, start, piece)| (*n, *start..*start + piece.bytes())).collect();
        Self {
            source,
            regions,
            spaces,
            ledger,
            host,
            staged: Vec::new(),
            is_recording: false,
            begun: None,
            held: Vec::new(),
            beside: None,
            postponed: Vec::new(),
            short: false,
            is_full: false,
            stalled: None,
            most_pieces,
            turn: 0,
            order,
            next: 0,
            cursor: (0, 0),
            faulted: Instant::now(),
            heard: Instant::now(),
            served: Served { missing_pages, ..Served::default() },
        }
    }

    /// Records what the program touches; `staged` is read already, and ascends. `all`: nothing that was expected is in place.
    #[must_use]
    pub fn recording(self, staged: Vec<Staged>, all: bool) -> Self {
        let mut recording = Self { is_recording: true, staged, ..self };
        let mut ranges = Vec::new();
        for (n, space) in recording.spaces.iter().enumerate() {
            let pieces = space.layout.pieces().filter(|(_, piece)| recording.is_staged(*piece));
            ranges.extend(pieces.map(|(start, piece)| (n, start..start + piece.bytes())));
        }
        (recording.served.recorded, recording.served.all_staged, recording.served.staged) = (true, all, ranges);
        recording
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
            if !self.host.has_begun() {
                self.wait(HELD)?;
                continue;
            }
            if self.begun.is_none() {
                self.ledger.set_run();
                let now = Instant::now();
                (self.begun, self.faulted) = (Some(now), now);
            }
            if self.host.is_held() {
                self.answer()?;
                self.wait(self.unless_postponed(AGAIN))?;
            } else if self.spaces.iter().all(|space| space.layout.is_complete()) {
                match self.host.complete() {
                    Ok(()) => return Ok(()),
                    Err(error) => tracing::error!(%error, "recording that all memory is back"),
                }
                self.wait(LOOK)?;
            } else if self.is_full {
                self.is_full = false;
                // What waits for a descriptor can be polled all the time. Those of ended children may be enough.
                std::thread::sleep(AGAIN);
                self.forget_ended();
                self.fill_some()?;
            } else if self.short {
                self.short = false;
                self.wait(AGAIN)?;
            } else if !self.is_to_fill() {
                let left = self.records_for();
                self.wait(self.unless_postponed(left.unwrap_or(LOOK)))?;
            } else if let Filled::Not(time) = self.fill_some()? {
                self.wait(time)?;
            }
        }
    }

    /// Whether pages come that nobody has touched. With children, or after very many changes, to be lazy costs more than it spares.
    fn is_to_fill(&self) -> bool {
        let has_children = || self.spaces.iter().any(|space| space.owner.is_none());
        self.host.fills() || self.host.is_awaited() || self.ledger.is_long() || has_children()
    }

    /// How long to wait for messages: not long while faults wait for the end of a change.
    fn unless_postponed(&self, time: Duration) -> Duration {
        if self.postponed.is_empty() { time } else { HELD }
    }

    /// Tells whoever asks what is missing.
    fn answer(&mut self) -> Result<(), ServeError> {
        if !self.host.is_asked() {
            return Ok(());
        }
        // A program that runs can go on for ever.
        for _ in 0..MOST_DRAINED {
            if !self.messages()? && self.postponed.is_empty() {
                break;
            }
        }
        let _cut = self.records_for();
        self.forget_ended();
        self.host.tell(Told { regions: self.regions, spaces: &self.spaces, served: &self.served });
        Ok(())
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
        let bell = self.host.bell();
        let contexts = self.spaces.iter().filter_map(|space| space.userfault.as_ref());
        let contexts = contexts.map(|userfault| PollFd::new(userfault, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> =
            bell.iter().map(|bell| PollFd::new(bell, PollFlags::IN)).chain(contexts).collect();
        let mut poll_for = |time: Timespec| match poll(&mut fds, Some(&time)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(true),
            Err(error) => Err(ServeError::Context(error.into())),
        };
        let mut is_ready = false;
        while self.heard.elapsed() < SPIN && !is_ready {
            is_ready = poll_for(Timespec::default())?;
            std::thread::yield_now();
        }
        if !is_ready {
            poll_for(time)?;
        }
        if let Some(bell) = bell {
            // Where it has not been written to there is nothing to read.
            let _ = rustix::io::read(bell, &mut [0; 8]);
        }
        Ok(())
    }

    /// Takes some messages of each space, and what was postponed once there are no more; whether there were any. In a crowd, few of all: what they fork is
    /// filled first.
    fn messages(&mut self) -> Result<bool, ServeError> {
        let (most, mut left) = if self.is_crowded() { (1, MESSAGES) } else { (MESSAGES, usize::MAX) };
        // Children that come meanwhile are behind.
        let (mut looked, mut any) = (0, false);
        while looked < self.spaces.len() && left > 0 {
            let n = self.turn % self.spaces.len();
            let mut taken = 0;
            // What is postponed waits for a change, which comes behind all faults.
            while (taken < most || !self.postponed.is_empty()) && self.message(n)? {
                taken += 1;
            }
            left = left.saturating_sub(taken);
            any |= taken > 0;
            looked += 1;
            self.turn = n + 1;
        }
        for (space, page) in std::mem::take(&mut self.postponed) {
            self.fault(space, page)?;
        }
        Ok(any)
    }

    /// Takes a message of a space; whether there was one.
    fn message(&mut self, n: usize) -> Result<bool, ServeError> {
        let Some(userfault) = &self.spaces[n].userfault else { return Ok(false) };
        match self.ledger.receive(n, userfault) {
            Ok(None) => Ok(false),
            Ok(Some(message)) => {
                self.heard = Instant::now();
                match message {
                    Message::Fault(page) => self.fault(n, page)?,
                    change => self.change(n, change)?,
                }
                Ok(true)
            }
            // A child waits in fork(2) until there is a descriptor.
            Err(error) if is_full(&error) => {
                self.is_full = true;
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
                if self.pieces() + layout.piece_count() > self.most_pieces {
                    self.forget_ended();
                }
                if self.pieces() + layout.piece_count() > self.most_pieces {
                    return Err(ServeError::TooManyPieces(self.most_pieces));
                }
                self.spaces.push(Space { userfault: Some(child), layout, owner: None });
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

    fn pieces(&self) -> usize {
        self.spaces.iter().map(|space| space.layout.piece_count()).sum()
    }

    /// What ended processes miss is nothing.
    fn forget_ended(&mut self) {
        for n in 0..self.spaces.len() {
            if self.spaces[n].has_ended() {
                self.ended(n);
            }
        }
    }

    /// Somebody waits for a page.
    fn fault(&mut self, n: usize, page: u64) -> Result<(), ServeError> {
        let Some((start, piece)) = self.spaces[n].layout.at(page) else {
            self.served.zero_faults += 1;
            return self.zero(n, page);
        };
        self.faulted = Instant::now();
        let staged = self.is_staged(piece);
        let own = ((page - start) / PAGE) as u32;
        let block = if self.is_recording {
            own..own + 1
        } else {
            let block = self.host.block_pages().max(1);
            let begin = (page / PAGE / block * block).saturating_sub(start / PAGE) as u32;
            let end = (page / PAGE / block + 1) * block - start / PAGE;
            self.beside = Some((n, start..start + piece.bytes()));
            begin..piece.pages.min(end as u32)
        };
        let (placed, pages) = self.bring(n, start, piece, &block)?;
        self.served.faulted_pages += pages;
        *(if staged { &mut self.served.staged_faults } else { &mut self.served.faults }) += 1;
        if pages > 0 && self.spaces[n].owner.is_some() && self.served.touches.len() < MOST_TOUCHES {
            self.served.touches.push(Touch { space: n, page, staged });
        }
        if let Placed::Postponed = placed
            && self.spaces[n].layout.at(page).is_some()
        {
            self.postponed.push((n, page));
        }
        Ok(())
    }

    fn is_staged(&self, piece: Piece) -> bool {
        self.regions.get(piece.region as usize).is_some_and(|stored| Staged::with(&self.staged, stored).is_some())
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

    /// Reads a region, unless it is held, and makes it the last of those; false if it cannot be read now.
    fn fetch(&mut self, region: u32) -> Result<bool, ServeError> {
        let Some(stored) = self.regions.get(region as usize) else {
            return Err(ServeError::Context(io::ErrorKind::InvalidInput.into()));
        };
        if Staged::with(&self.staged, stored).is_some() {
            return Ok(true);
        }
        if let Some(n) = self.held.iter().position(|(held, _)| *held == region) {
            let last = self.held.remove(n);
            self.held.push(last);
            return Ok(true);
        }
        // Filling comes to no region twice.
        let most = if self.is_recording { MOST_HELD } else { 1 };
        let mut buffer = Buffer::default();
        while self.held.len() >= most {
            (_, buffer) = self.held.remove(0);
        }
        match fetch(self.source, std::slice::from_ref(stored), &mut buffer) {
            Ok(_) => {
                self.held.push((region, buffer));
                Ok(true)
            }
            Err(FetchError::Damaged { offset, error }) => Err(ServeError::Damaged { offset, error }),
            Err(FetchError::Read(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(ServeError::Damaged { offset: stored.offset, error: FormatError::Truncated("its pages") })
            }
            Err(FetchError::Read(error)) => {
                if self.stalled.is_none_or(|told| told.elapsed() > LOOK) {
                    self.stalled = Some(Instant::now());
                    self.host.stalled(&error);
                    // Nobody would see otherwise that an app has ended.
                    self.forget_ended();
                }
                self.short = true;
                Ok(false)
            }
        }
    }

    /// Brings the missing ones of some pages of a piece; gives how many came.
    fn bring(&mut self, n: usize, start: u64, piece: Piece, pages: &Range<u32>) -> Result<(Placed, u64), ServeError> {
        if !self.fetch(piece.region)? {
            return Ok((Placed::Postponed, 0));
        }
        let stored = &self.regions[piece.region as usize];
        let (buffer, begin) = match (Staged::with(&self.staged, stored), self.held.last()) {
            (Some(staged), _) => (&staged.bytes, stored.offset - staged.range.start),
            (None, Some((_, buffer))) => (buffer, 0),
            (None, None) => return Ok((Placed::Postponed, 0)),
        };
        let missing = self.spaces[n].layout.missing_pages();
        let runs = piece.runs().map(|(from, count)| from.max(pages.start)..(from + count).min(pages.end));
        let mut outcome = Placed::Done;
        for run in runs.filter(|run| run.start < run.end) {
            let at = |page: u32| (begin + u64::from(piece.first + page) * PAGE) as usize;
            let address = start + u64::from(run.start) * PAGE;
            let placed = place(&mut self.spaces[n], address, buffer.part(at(run.start)..at(run.end)));
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

    /// The process of a space is gone, or runs another program.
    fn ended(&mut self, n: usize) {
        self.spaces[n].layout = Layout::default();
        self.spaces[n].userfault = None;
    }
}

impl Staged {
    /// The one that has a region, of some that ascend.
    fn with<'a>(staged: &'a [Self], stored: &Stored) -> Option<&'a Self> {
        let behind = staged.partition_point(|one| one.range.start <= stored.offset);
        staged.get(behind.checked_sub(1)?).filter(|one| stored.offset + stored.bytes <= one.range.end)
    }
}

/// There are no more descriptors, here or on the machine.
fn is_full(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let full = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    error.raw_os_error().is_some_and(|number| full.iter().any(|one| one.raw_os_error() == number))
}
