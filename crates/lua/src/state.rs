//! A state of Lua in its window, and its image.

use std::ffi::CString;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Once};

use crate::arena::{Arena, GIVEN_BACK, allocate};
use crate::ffi::{self, Lua, RawStep, RawValue, status};
use crate::hashes::PageHashes;
use crate::host::{Host, NoHost, while_answered_by};
use crate::image::{FileImage, Image, ImageError, Newest, Piece, Unit};
use crate::shadows::{Runs, Shadows};
use crate::value::{self, Value};
use crate::windows::{PAGE, WINDOW_BYTES, Windows};

/// Memory that is taken and not used: less is not worth a collection.
const SWOLLEN_BYTES: usize = 256 << 10;
/// Runs of pages of a state that is mapped: each is a mapping, of which a process has some ten thousands.
const MOST_RUNS: usize = 4;

/// Why there is no state.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The window is used, or was not reserved.
    #[error("window {0} is not free")]
    Window(u32),
    /// A new state needs more memory than its limit.
    #[error("its limit of memory is too low for an empty state")]
    Memory,
    /// An image cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// A task of a state: a call of one of its functions, from its beginning to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Task(pub i64);

/// How far a task has come.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It waits for an answer to these values.
    Waits(Vec<Value>),
    /// It has ended with these results.
    Ended(Vec<Value>),
    /// It has failed: the error, with a traceback.
    Failed(String),
}

/// A state. All that it consists of is in its window.
///
/// Between calls it is at rest: nothing of it is on the C stack, and its window holds no address of this process.
#[derive(Debug)]
pub struct State {
    windows: Arc<Windows>,
    window: u32,
    arena: NonNull<Arena>,
    hashes: PageHashes,
    /// Pages of files are mapped into its window.
    is_mapped: bool,
    /// What was written since then was not asked for yet.
    is_fresh: bool,
    /// Of pages that it writes to.
    shadows: Shadows,
}

// SAFETY: a state is used by whoever has it; its window is no other's, and C keeps nothing of it per thread.
unsafe impl Send for State {}

fn begin() {
    static BEGUN: Once = Once::new();
    // SAFETY: once, before all else.
    BEGUN.call_once(|| unsafe { ffi::torpor_begin() });
}

impl State {
    /// A new one, with at most so many bytes of memory. Two with the same seed and program draw the same random numbers.
    ///
    /// # Errors
    /// See [`StateError`].
    pub fn new(windows: &Arc<Windows>, window: u32, most_bytes: usize, seed: u64) -> Result<Self, StateError> {
        begin();
        let at = windows.take(window).ok_or(StateError::Window(window))?;
        // SAFETY: the window was free, so nothing else uses it and it is zero.
        let arena = unsafe { Arena::begin(at, most_bytes, seed) };
        let mut state = Self::at(windows, window, arena, false);
        let shared = state.arena_mut().shared();
        // SAFETY: the arena has been begun, and nothing runs in it.
        let main = unsafe { ffi::torpor_new(shared, allocate) };
        if main.is_null() {
            return Err(StateError::Memory);
        }
        state.arena_mut().main = main;
        // SAFETY: it is a state whose arena is attached.
        unsafe { ffi::torpor_detach(main) };
        Ok(state)
    }

    /// Restores a state, in the window that it had, from a whole image and the images of changes that followed it.
    ///
    /// # Errors
    /// See [`StateError`].
    pub fn restore(windows: &Arc<Windows>, images: &[Image]) -> Result<Self, StateError> {
        begin();
        let Newest { window, pages, later } = Newest::of(images)?;
        let at = windows.take(window).ok_or(StateError::Window(window))?;
        let state = Self::at(windows, window, at.cast(), false);
        for (page, bytes) in pages {
            state.put(&Piece { page, offset: 0, bytes });
        }
        later.iter().for_each(|(_, piece)| state.put(piece));
        state.restored(&images[1..])
    }

    /// As [`State::restore`], from a whole image in a file, whose pages are mapped: they are read when they are used. None where there are too many
    /// mappings already.
    ///
    /// # Errors
    /// See [`StateError`].
    pub fn restore_mapped(
        windows: &Arc<Windows>,
        whole: &FileImage<'_>,
        changes: &[Image],
    ) -> Result<Option<Self>, StateError> {
        begin();
        let window = whole.window();
        changes.iter().try_for_each(|image| image.check(window))?;
        let at = windows.take(window).ok_or(StateError::Window(window))?;
        if whole.runs().count() > MOST_RUNS || !windows.may_map() {
            windows.give(window, 0);
            return Ok(None);
        }
        let state = Self::at(windows, window, at.cast(), true);
        let mut present = vec![0_u64; WINDOW_BYTES / PAGE / 64];
        for (run, offset) in whole.runs() {
            if windows.map(window, run, whole.file(), offset).is_err() {
                // Reading it needs no mappings.
                return Ok(None);
            }
            (run.0..run.0 + run.1).for_each(|page| present[page / 64] |= 1 << (page % 64));
        }
        for piece in changes.iter().flat_map(Image::pieces) {
            let (word, bit) = (&mut present[piece.page / 64], 1 << (piece.page % 64));
            if piece.all_of_page().is_none() && *word & bit == 0 {
                return Err(ImageError::Unsound.into());
            }
            *word |= bit;
            state.put(&piece);
        }
        if present[0] & 1 == 0 || !state.arena().takes_only(&present) {
            return Err(ImageError::Unsound.into());
        }
        state.restored(changes).map(Some)
    }

    fn at(windows: &Arc<Windows>, window: u32, arena: NonNull<Arena>, is_mapped: bool) -> Self {
        let (windows, shadows) = (windows.clone(), Shadows::default());
        Self { windows, window, arena, is_mapped, is_fresh: is_mapped, shadows, hashes: PageHashes::default() }
    }

    fn put(&self, piece: &Piece<'_>) {
        let (at, bytes) = (piece.page * PAGE + piece.offset, piece.bytes);
        // SAFETY: it is within a window, as images are checked, and this one is ours.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.arena.as_ptr().cast::<u8>().add(at), bytes.len()) };
    }

    /// All its pages are there, of which these images are the last changes.
    fn restored(mut self, changes: &[Image]) -> Result<Self, StateError> {
        if !self.arena().is_sound(self.arena.as_ptr().addr()) {
            return Err(ImageError::Unsound.into());
        }
        if !self.is_mapped {
            self.written();
        }
        // What it wrote to last, it will write to again.
        let mut shadows = Shadows::default();
        for Piece { page, .. } in changes.iter().rev().flat_map(Image::pieces) {
            if shadows.is_full() {
                break;
            }
            if self.arena().is_taken(page) && !shadows.has(page) {
                shadows.add(page, self.page(page));
            }
        }
        self.shadows = shadows;
        Ok(self)
    }

    /// All of it, as it is now. Later [changes](State::changes) are not changes of this image, but of those before: see [`State::whole`].
    pub fn image(&self) -> Image {
        let arena = self.arena();
        let mut taken: Runs = Vec::new();
        for page in (0..arena.end_page()).filter(|page| arena.is_taken(*page)) {
            match taken.last_mut() {
                Some((first, count)) if *first + *count == page => *count += 1,
                _ => taken.push((page, 1)),
            }
        }
        self.image_of(Unit::Page, &taken)
    }

    /// All of it, as it is now. What has changed since then is in the next [`State::changes`].
    pub fn whole(&mut self) -> Image {
        self.written();
        let mut shadows = std::mem::take(&mut self.shadows);
        shadows.renew(|page| self.arena().is_taken(page).then(|| self.page(page)));
        self.shadows = shadows;
        self.image()
    }

    /// What has changed since this or [`State::whole`] was last asked, or since it was restored: all of it for the first time. Of pages that were
    /// written to before, it is the lines that differ; it needs all images before it, so a state of which one was lost must be dropped, or
    /// stored as a whole.
    pub fn changes(&mut self) -> Image {
        let written = self.written();
        let mut shadows = std::mem::take(&mut self.shadows);
        let arena = self.arena();
        shadows.begin(|page| arena.is_taken(page), &written);
        let mut lines = Vec::with_capacity(16);
        let pages = written.iter().flat_map(|(first, count)| *first..first + count);
        for page in pages.filter(|page| arena.is_taken(*page)) {
            shadows.take(page, self.page(page), &mut lines);
        }
        self.shadows = shadows;
        self.image_of(Unit::Line, &lines)
    }

    /// A page that is taken.
    fn page(&self, page: usize) -> &[u8; PAGE] {
        assert!(page < WINDOW_BYTES / PAGE, "it is within the window");
        // SAFETY: the window is ours, and nothing runs in it.
        unsafe { &*self.arena.as_ptr().cast::<[u8; PAGE]>().add(page) }
    }

    /// Runs of pages that were written to since this was last asked.
    fn written(&mut self) -> Runs {
        let pages = self.arena().end_page();
        let told = self.windows.written(self.window, pages, std::mem::take(&mut self.is_fresh));
        told.unwrap_or_else(|| {
            let mut hashes = std::mem::take(&mut self.hashes);
            let runs = hashes.take((0..pages).map(|page| self.arena().is_taken(page).then(|| self.page(page))));
            self.hashes = hashes;
            runs
        })
    }

    /// Runs of pages or lines, all of pages that are taken.
    fn image_of(&self, unit: Unit, runs: &[(usize, usize)]) -> Image {
        let base = self.arena.as_ptr().cast::<u8>();
        let bytes = |(first, count): &(usize, usize)| {
            // SAFETY: they are within the window, and nothing runs in it.
            unsafe { std::slice::from_raw_parts(base.add(first * unit.bytes()), count * unit.bytes()) }
        };
        Image::of(self.window, unit, runs, runs.iter().map(bytes))
    }

    /// Its window.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Bytes that its program uses.
    pub fn used_bytes(&self) -> usize {
        // SAFETY: a state at rest.
        unsafe { ffi::torpor_used(self.arena().main) }
    }

    /// Much more memory is taken than its program uses: [`State::collect`] may give some back.
    pub fn is_swollen(&self) -> bool {
        self.arena().taken_pages() * PAGE > 2 * self.used_bytes() + SWOLLEN_BYTES
    }

    /// A number that the host has given it, and that goes with its images; 0 at first.
    pub fn tag(&self) -> u64 {
        self.arena().tag
    }

    /// Gives it a number.
    pub fn set_tag(&mut self, tag: u64) {
        self.arena_mut().tag = tag;
    }

    /// A step of it was ended because it took too much [time](crate::Budget): it must not be used further, nor stored.
    pub fn is_spent(&self) -> bool {
        // SAFETY: a state at rest.
        unsafe { ffi::torpor_was_spent(self.arena.as_ptr().cast()) != 0 }
    }

    /// Frees what its program no longer reaches.
    pub fn collect(&mut self) {
        self.attached(&mut NoHost, |main| {
            // SAFETY: its arena is attached.
            unsafe { ffi::torpor_collect(main) };
        });
        self.arena_mut().give_free_pages(GIVEN_BACK);
    }

    /// Begins a task that runs a chunk of text; `name` is in its error messages.
    pub fn run(&mut self, name: &str, text: &str, arguments: &[Value]) -> (Task, Step) {
        self.run_with(&mut NoHost, name, text, arguments)
    }

    /// As [`State::run`], with a host that answers what it asks.
    pub fn run_with(&mut self, host: &mut dyn Host, name: &str, text: &str, arguments: &[Value]) -> (Task, Step) {
        self.begin_task(host, name, Some(text), arguments)
    }

    /// Begins a task that calls a global function.
    pub fn call(&mut self, function: &str, arguments: &[Value]) -> (Task, Step) {
        self.call_with(&mut NoHost, function, arguments)
    }

    /// As [`State::call`], with a host that answers what it asks.
    pub fn call_with(&mut self, host: &mut dyn Host, function: &str, arguments: &[Value]) -> (Task, Step) {
        self.begin_task(host, function, None, arguments)
    }

    fn begin_task(&mut self, host: &mut dyn Host, name: &str, text: Option<&str>, arguments: &[Value]) -> (Task, Step) {
        let task = Task(self.arena().next_task);
        self.arena_mut().next_task += 1;
        let Ok(name) = CString::new(name) else {
            return (task, Step::Failed("a name with a zero byte".to_owned()));
        };
        let raw = raw(arguments);
        let (source, len) = text.map_or((ptr::null(), 0), |text| (text.as_ptr(), text.len()));
        let step = self.stepped(host, task, |main, step| {
            // SAFETY: its arena is attached, and what is pointed to outlives the call.
            unsafe { ffi::torpor_start(main, task.0, name.as_ptr(), source, len, raw.as_ptr(), arguments.len(), step) };
        });
        (task, step.unwrap_or_else(|| Step::Failed("it did not begin".to_owned())))
    }

    /// Answers a task that waits; none if it does not.
    pub fn answer(&mut self, task: Task, values: &[Value]) -> Option<Step> {
        self.answer_with(&mut NoHost, task, values)
    }

    /// As [`State::answer`], with a host that answers what it asks.
    pub fn answer_with(&mut self, host: &mut dyn Host, task: Task, values: &[Value]) -> Option<Step> {
        let raw = raw(values);
        self.stepped(host, task, |main, step| {
            // SAFETY: its arena is attached, and what is pointed to outlives the call.
            unsafe { ffi::torpor_answer(main, task.0, raw.as_ptr(), values.len(), step) };
        })
    }

    /// Ends a task that waits: what it would close is closed.
    pub fn cancel(&mut self, task: Task) {
        self.attached(&mut NoHost, |main| {
            // SAFETY: its arena is attached.
            unsafe { ffi::torpor_cancel(main, task.0) };
        });
    }

    fn stepped(&mut self, host: &mut dyn Host, task: Task, run: impl FnOnce(*mut Lua, *mut RawStep)) -> Option<Step> {
        let spent = || Some(Step::Failed("it takes too much processor time".to_owned()));
        if self.is_spent() {
            return spent();
        }
        let arena = self.arena.as_ptr().cast();
        let found = self.attached(host, |main| {
            let mut step = RawStep { status: status::NOT_WAITING, at: ptr::null_mut(), count: 0 };
            run(main, &raw mut step);
            // SAFETY: the arena of this state.
            if unsafe { ffi::torpor_was_spent(arena) } != 0 {
                return None;
            }
            let found = match step.status {
                status::NOT_WAITING => return None,
                status::OK => results(&step).map(Step::Ended),
                status::YIELD => results(&step).map(Step::Waits),
                _ => Some(Step::Failed(failure(main, &step))),
            };
            let found = found.unwrap_or_else(|| {
                // What waits for no answer ends.
                step.status = status::ERROR;
                Step::Failed("it gives too many values, or tables in too many tables".to_owned())
            });
            // SAFETY: its arena is attached, and the step is the last one.
            unsafe { ffi::torpor_finish(main, task.0, &raw const step) };
            Some(found)
        });
        // Until it was detached, finalizers may have run.
        if self.is_spent() { spent() } else { found }
    }

    fn attached<T>(&mut self, host: &mut dyn Host, run: impl FnOnce(*mut Lua) -> T) -> T {
        let main = self.arena().main;
        crate::budget::begin();
        // SAFETY: a state at rest.
        unsafe { ffi::torpor_attach(main, allocate) };
        let result = while_answered_by(host, || run(main));
        // SAFETY: nothing runs in it any more.
        unsafe { ffi::torpor_detach(main) };
        result
    }

    fn arena(&self) -> &Arena {
        // SAFETY: it is there as long as the window is ours, and nothing runs in it.
        unsafe { self.arena.as_ref() }
    }

    fn arena_mut(&mut self) -> &mut Arena {
        // SAFETY: as above, and nobody else refers to it.
        unsafe { self.arena.as_mut() }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // Nothing outside refers to anything in it, so nothing of it has to run.
        if self.is_mapped {
            self.windows.give_mapped(self.window);
        } else {
            self.windows.give(self.window, WINDOW_BYTES);
        }
    }
}

fn raw(values: &[Value]) -> Vec<RawValue> {
    let mut raw = Vec::with_capacity(values.len());
    values.iter().for_each(|value| value.add_raw(&mut raw));
    raw
}

fn results(step: &RawStep) -> Option<Vec<Value>> {
    // SAFETY: callers have just made the step, and finish it later.
    unsafe { value::all_of(step) }
}

fn failure(main: *mut Lua, step: &RawStep) -> String {
    let (mut text, mut len) = (ptr::null(), 0);
    // SAFETY: the arena is attached, and the step is the last one.
    if unsafe { ffi::torpor_traceback(main, step, &raw mut text, &raw mut len) } != 0 {
        // SAFETY: the string is there until it is dropped.
        let found = unsafe { std::slice::from_raw_parts(text, len) };
        let found = String::from_utf8_lossy(found).into_owned();
        // SAFETY: it is what was pushed last.
        unsafe { ffi::torpor_drop(main) };
        return found;
    }
    match results(step).as_deref() {
        Some([Value::String(bytes)]) => String::from_utf8_lossy(bytes).into_owned(),
        _ => "not enough memory".to_owned(),
    }
}
