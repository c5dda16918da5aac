//! The allocator of one state. It manages a window of addresses, and keeps its own data within that window.
//!
//! ```text
//! ┌─ page 0 ───────────────────────────────┬─ pages ────────────────────────────────────────────┐
//! │ Shared (C), lists of free blocks,      │ small blocks, carved from chunks of a page;        │
//! │ which pages are taken                  │ large blocks, each some pages in a row             │
//! └────────────────────────────────────────┴────────────────────────────────────────────────────┘
//! ```
//! Lua says the size of what it frees, so blocks have no headers. Blocks of up to [`SMALL_BYTES`] are of a class, a multiple of 16 bytes; free
//! ones are in a list per class, linked by their first bytes. Where a list is empty, a block comes from the chunk that is being carved, then from
//! the next larger class that has one, and at last from a new page. Larger blocks are pages, the lowest that are free, so that an arena stays
//! short; their memory is given back to the machine when they are freed.
//!
//! Everything is an offset within the window: an image of the pages is a complete state.

use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr::{self, NonNull};

use crate::ffi::{Lua, Shared};
use crate::windows::{PAGE, WINDOW_BYTES};

/// A block of at most this many bytes is small.
const SMALL_BYTES: usize = 2048;
const UNIT: usize = 16;
const CLASSES: usize = SMALL_BYTES / UNIT;
const PAGES: usize = WINDOW_BYTES / PAGE;
/// Freed pages in a row that are given back at once. What is less is likely to be needed again soon.
pub(crate) const GIVEN_BACK: usize = 16;

/// The first page of an arena.
#[repr(C)]
pub(crate) struct Arena {
    shared: Shared,
    /// Its main thread.
    pub(crate) main: *mut Lua,
    /// The number of the next task.
    pub(crate) next_task: i64,
    /// Of the host's.
    pub(crate) tag: u64,
    /// Pages at most, this one included.
    most_pages: u64,
    /// Behind the last page that is taken, or was.
    end_page: u64,
    /// What is left of the chunk: offsets.
    chunk: u32,
    chunk_end: u32,
    /// Bit n: list n is not empty.
    lists: u128,
    /// The first block of each list: offset in the window; 0: none.
    free: [u32; CLASSES],
    /// A bit for each page: taken.
    taken: [u64; PAGES / 64],
}

const _: () = assert!(size_of::<Arena>() <= PAGE && WINDOW_BYTES <= u32::MAX as usize + 1 && CLASSES == 128);

/// Pages that are taken, by the bytes of an arena's first page, ascending.
pub(crate) fn taken_by(header: &[u8; PAGE]) -> impl Iterator<Item = usize> {
    let (words, _) = header[offset_of!(Arena, taken)..][..PAGES / 8].as_chunks();
    let words = words.iter().map(|word| u64::from_le_bytes(*word)).enumerate().filter(|(_, word)| *word != 0);
    words.flat_map(|(number, word)| {
        let mut left = word;
        std::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(number * 64 + bit)
        })
    })
}

fn class_of(bytes: usize) -> usize {
    bytes.div_ceil(UNIT) - 1
}

fn pages_of(bytes: usize) -> usize {
    bytes.div_ceil(PAGE)
}

impl Arena {
    /// Makes one of memory that is zero.
    ///
    /// # Safety
    /// `at` is the beginning of a window that nothing else uses.
    pub(crate) unsafe fn begin(at: NonNull<u8>, most_bytes: usize, seed: u64) -> NonNull<Self> {
        let arena = at.cast::<Self>();
        // SAFETY: a window is larger than an arena's first page, page-aligned and zero, which is a valid value of all fields.
        let first = unsafe { &mut *arena.as_ptr() };
        first.shared.seed = seed;
        first.most_pages = most_bytes.clamp(2 * PAGE, WINDOW_BYTES).div_ceil(PAGE) as u64;
        first.end_page = 1;
        first.taken[0] = 1;
        first.next_task = 1;
        arena
    }

    /// Where C knows it.
    pub(crate) fn shared(&mut self) -> *mut Shared {
        &raw mut self.shared
    }

    /// Whether its header can be that of an arena at rest.
    pub(crate) fn is_sound(&self, at: usize) -> bool {
        let main = self.main as usize;
        let inside = (at..at + self.end_page() * PAGE).contains(&main) && main.is_multiple_of(8);
        let sizes = self.end_page <= self.most_pages && self.most_pages <= PAGES as u64 && self.chunk <= self.chunk_end;
        inside
            && sizes
            && self.taken[0] & 1 == 1
            && self.shared.nested == 0
            && self.shared.spent == 0
            && self.shared.target.is_null()
    }

    /// Behind the last page that is taken.
    pub(crate) fn end_page(&self) -> usize {
        (self.end_page as usize).min(PAGES)
    }

    pub(crate) fn taken_pages(&self) -> usize {
        self.taken.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether only pages of a set are taken: a bit for each.
    pub(crate) fn takes_only(&self, pages: &[u64]) -> bool {
        self.taken.iter().zip(pages).all(|(taken, present)| taken & !present == 0)
    }

    pub(crate) fn is_taken(&self, page: usize) -> bool {
        self.taken[page / 64] & (1 << (page % 64)) != 0
    }

    fn set_taken(&mut self, pages: std::ops::Range<usize>, taken: bool) {
        for page in pages {
            let bit = 1 << (page % 64);
            let word = &mut self.taken[page / 64];
            *word = if taken { *word | bit } else { *word & !bit };
        }
    }

    /// The window, which is more than this page of it.
    fn base(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(ptr::from_ref(self).addr())
    }

    /// The lowest `count` free pages in a row.
    fn take_pages(&mut self, count: usize) -> Option<usize> {
        let most = self.most_pages as usize;
        let (mut start, mut page) = (1, 1);
        while page < most && page - start < count {
            if page % 64 == 0 && self.taken[page / 64] == u64::MAX {
                (start, page) = (page + 64, page + 64);
            } else if self.is_taken(page) {
                (start, page) = (page + 1, page + 1);
            } else {
                page += 1;
            }
        }
        if start + count > most {
            return None;
        }
        self.begin_pages(start..start + count);
        Some(start)
    }

    /// Free pages are taken. They count as written, so that they are in the next image, whatever becomes of them.
    fn begin_pages(&mut self, pages: std::ops::Range<usize>) {
        self.set_taken(pages.clone(), true);
        self.end_page = self.end_page.max(pages.end as u64);
        for page in pages {
            // SAFETY: it is a page of the window, which was free.
            unsafe { self.base().add(page * PAGE).write_volatile(0) };
        }
    }

    fn give_pages(&mut self, pages: std::ops::Range<usize>) {
        self.set_taken(pages.clone(), false);
        while self.end_page > 1 && !self.is_taken(self.end_page as usize - 1) {
            self.end_page -= 1;
        }
        if pages.len() >= GIVEN_BACK {
            // SAFETY: they are whole pages of this window, and nothing is in them any more.
            let range = unsafe { self.base().add(pages.start * PAGE) };
            crate::windows::give_back(range, pages.len() * PAGE);
        }
    }

    fn pop(&mut self, class: usize) -> Option<usize> {
        let offset = self.free[class] as usize;
        if offset == 0 {
            return None;
        }
        self.free[class] = self.next(offset) as u32;
        if self.free[class] == 0 {
            self.lists &= !(1 << class);
        }
        Some(offset)
    }

    fn push(&mut self, class: usize, offset: usize) {
        // SAFETY: the block is free memory of the window, of at least 16 bytes.
        unsafe { self.base().add(offset).cast::<u32>().write(self.free[class]) };
        self.free[class] = offset as u32;
        self.lists |= 1 << class;
    }

    /// What follows a block in its list; 0: none.
    fn next(&self, offset: usize) -> usize {
        // SAFETY: a block in a list is free memory of the window, and begins with the offset of the next.
        unsafe { self.base().add(offset).cast::<u32>().read() as usize }
    }

    /// Pages with nothing but free small blocks become free pages, if there are at least so many. If not, nothing is written.
    pub(crate) fn give_free_pages(&mut self, least: usize) {
        let mut free = vec![0; self.end_page()];
        for class in 0..CLASSES {
            let (mut offset, bytes) = (self.free[class] as usize, (class + 1) * UNIT);
            while offset != 0 {
                // A small block is in two pages at most.
                let in_first = bytes.min(PAGE - offset % PAGE);
                free[offset / PAGE] += in_first;
                if in_first < bytes {
                    free[offset / PAGE + 1] += bytes - in_first;
                }
                offset = self.next(offset);
            }
        }
        let is_free = |page: usize| free[page] == PAGE;
        if (0..free.len()).filter(|page| is_free(*page)).count() < least {
            return;
        }
        for class in 0..CLASSES {
            let (mut before, mut offset, bytes) = (0, self.free[class] as usize, (class + 1) * UNIT);
            while offset != 0 {
                let next = self.next(offset);
                let (first, last) = (offset / PAGE, (offset + bytes - 1) / PAGE);
                if is_free(first) || is_free(last) {
                    if before == 0 {
                        self.free[class] = next as u32;
                    } else {
                        // SAFETY: as above.
                        unsafe { self.base().add(before).cast::<u32>().write(next as u32) };
                    }
                    // The part that stays is of a smaller class, whose list is done.
                    let middle = last * PAGE;
                    if !is_free(first) {
                        self.push(class_of(middle - offset), offset);
                    } else if !is_free(last) {
                        self.push(class_of(offset + bytes - middle), middle);
                    }
                } else {
                    before = offset;
                }
                offset = next;
            }
            if self.free[class] == 0 {
                self.lists &= !(1 << class);
            }
        }
        for run in (0..free.len()).collect::<Vec<_>>().chunk_by(|one, other| is_free(*one) == is_free(*other)) {
            if is_free(run[0]) {
                self.give_pages(run[0]..run[0] + run.len());
            }
        }
    }

    fn small(&mut self, class: usize) -> Option<usize> {
        if let Some(offset) = self.pop(class) {
            return Some(offset);
        }
        let bytes = (class + 1) * UNIT;
        if (self.chunk_end - self.chunk) as usize >= bytes {
            let offset = self.chunk as usize;
            self.chunk += bytes as u32;
            return Some(offset);
        }
        // Shifting by all bits is no shift.
        let larger = self.lists.checked_shr(class as u32 + 1).unwrap_or(0);
        if larger != 0 {
            let found = class + 1 + larger.trailing_zeros() as usize;
            let offset = self.pop(found)?;
            self.push(found - class - 1, offset + bytes);
            return Some(offset);
        }
        let page = self.take_pages(1)?;
        let left = (self.chunk_end - self.chunk) as usize;
        if page * PAGE == self.chunk_end as usize && left > 0 {
            self.chunk_end += PAGE as u32;
        } else {
            if left > 0 {
                self.push(class_of(left), self.chunk as usize);
            }
            (self.chunk, self.chunk_end) = ((page * PAGE) as u32, ((page + 1) * PAGE) as u32);
        }
        let offset = self.chunk as usize;
        self.chunk += bytes as u32;
        Some(offset)
    }

    fn take(&mut self, bytes: usize) -> Option<usize> {
        if bytes <= SMALL_BYTES {
            self.small(class_of(bytes))
        } else {
            self.take_pages(pages_of(bytes)).map(|page| page * PAGE)
        }
    }

    fn give(&mut self, offset: usize, bytes: usize) {
        if bytes <= SMALL_BYTES {
            self.push(class_of(bytes), offset);
        } else {
            self.give_pages(offset / PAGE..offset / PAGE + pages_of(bytes));
        }
    }

    /// Changes the size of a block where it is.
    fn resize(&mut self, offset: usize, from: usize, to: usize) -> bool {
        if from <= SMALL_BYTES || to <= SMALL_BYTES {
            return from <= SMALL_BYTES && to <= SMALL_BYTES && class_of(from) == class_of(to);
        }
        let (page, from, to) = (offset / PAGE, pages_of(from), pages_of(to));
        if to <= from {
            if to < from {
                self.give_pages(page + to..page + from);
            }
            return true;
        }
        let end = page + to;
        if end > self.most_pages as usize || (page + from..end).any(|next| self.is_taken(next)) {
            return false;
        }
        self.begin_pages(page + from..end);
        true
    }

    /// Makes a small block of a larger one, where it is.
    fn cut(&mut self, offset: usize, from: usize, to: usize) -> usize {
        let mut end = offset + (class_of(from) + 1) * UNIT;
        if from > SMALL_BYTES {
            let first = offset / PAGE;
            self.give_pages(first + 1..first + pages_of(from));
            end = offset + PAGE;
        }
        let mut rest = offset + (class_of(to) + 1) * UNIT;
        while rest < end {
            let bytes = (end - rest).min(SMALL_BYTES);
            self.push(class_of(bytes), rest);
            rest += bytes;
        }
        offset
    }

    fn reallocate(&mut self, offset: usize, from: usize, to: usize) -> Option<usize> {
        if self.resize(offset, from, to) {
            return Some(offset);
        }
        let Some(new) = self.take(to) else {
            // Lua relies on it that a block can become smaller.
            return (to < from).then(|| self.cut(offset, from, to));
        };
        // SAFETY: both are blocks of the window, the new one has just been taken, and both have so many bytes.
        unsafe { ptr::copy_nonoverlapping(self.base().add(offset), self.base().add(new), from.min(to)) };
        self.give(offset, from);
        Some(new)
    }
}

/// `lua_Alloc`, for an arena.
///
/// # Safety
/// `arena` is one, nobody else uses it, and `block`, if there is one, is a block of it of `from` bytes.
pub(crate) unsafe extern "C" fn allocate(
    arena: *mut c_void,
    block: *mut c_void,
    from: usize,
    to: usize,
) -> *mut c_void {
    // SAFETY: as the caller says.
    let arena = unsafe { &mut *arena.cast::<Arena>() };
    let base = arena.base();
    let offset = (block as usize).wrapping_sub(base as usize);
    let found = match (block.is_null() || from == 0, to) {
        (true, 0) => None,
        (true, _) => arena.take(to),
        (false, 0) => {
            arena.give(offset, from);
            None
        }
        (false, _) => arena.reallocate(offset, from, to),
    };
    // SAFETY: offsets are within the window.
    found.map_or(ptr::null_mut(), |offset| unsafe { base.add(offset) }.cast())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::windows::Windows;

    /// A block, by the number that fills it.
    struct Block {
        at: *mut c_void,
        bytes: usize,
        fill: u8,
    }

    impl Block {
        fn fill(&self) {
            // SAFETY: it is a block of so many bytes.
            unsafe { ptr::write_bytes(self.at.cast::<u8>(), self.fill, self.bytes) };
        }

        fn is_filled(&self, bytes: usize) -> bool {
            // SAFETY: as above.
            let contents = unsafe { std::slice::from_raw_parts(self.at.cast::<u8>(), bytes.min(self.bytes)) };
            contents.iter().all(|byte| *byte == self.fill)
        }
    }

    /// What is done: which block, by its place among those that there are, and its new size.
    fn steps() -> impl Strategy<Value = Vec<(usize, usize)>> {
        let size = prop_oneof![3 => 0_usize..300, 1 => 0_usize..5000, 1 => 0_usize..100_000, 1 => Just(0)];
        proptest::collection::vec((0_usize..60, size), 1..400)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn blocks_never_overlap_and_all_memory_comes_back(steps in steps()) {
            let windows = Windows::reserve(900, 1).unwrap();
            let at = windows.take(900).unwrap();
            // SAFETY: the window is ours, and zero.
            let arena = unsafe { Arena::begin(at, 4 << 20, 1) }.as_ptr();
            let mut blocks: Vec<Block> = Vec::new();
            let change = |block: *mut c_void, from, to| {
                // SAFETY: blocks are of this arena, with the sizes that they have.
                unsafe { allocate(arena.cast(), block, from, to) }
            };
            for (n, (which, bytes)) in steps.iter().copied().enumerate() {
                let fill = n as u8;
                if which < blocks.len() {
                    let Block { at, bytes: from, .. } = blocks[which];
                    let new = change(at, from, bytes);
                    if bytes == 0 {
                        prop_assert!(new.is_null());
                        blocks.swap_remove(which);
                    } else if !new.is_null() {
                        blocks[which].at = new;
                        prop_assert!(blocks[which].is_filled(bytes), "it keeps what was in it");
                        blocks[which] = Block { at: new, bytes, fill };
                        blocks[which].fill();
                    } else {
                        prop_assert!(bytes > from, "it can always become smaller");
                    }
                } else if bytes > 0 {
                    let new = change(ptr::null_mut(), 0, bytes);
                    if !new.is_null() {
                        let block = Block { at: new, bytes, fill };
                        block.fill();
                        blocks.push(block);
                    }
                }
                if n % 16 == 0 || n == steps.len() - 1 {
                    // SAFETY: nobody else uses it.
                    unsafe { (*arena).give_free_pages(1) };
                    prop_assert!(blocks.iter().all(|block| block.is_filled(block.bytes)), "nobody writes to another's block");
                }
            }
            for Block { at, bytes, .. } in blocks {
                change(at, bytes, 0);
            }
            // Large blocks leave nothing; small ones the pages that they were carved from.
            // SAFETY: nothing runs in it.
            let large = unsafe { (*arena).take_pages(512) };
            prop_assert!(large.is_some());
        }
    }
}
