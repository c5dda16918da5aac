//! What a capture knows of an app's processes.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::codec::{FormatError, Reader, Writer};
use crate::loading_set::{self, LoadingPart};
use crate::{Header, PAGE, REGION_PAGES, checksum};

/// Highest address of user memory, plus one (x86-64 with five-level page tables).
pub(crate) const ADDRESS_END: u64 = 1 << 56;

/// Words of general registers.
pub(crate) const REGISTER_WORDS: usize = 27;

/// Everything behind the pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Its processes, by ascending process id.
    pub processes: Vec<Process>,
    /// Its loading set: parts of the pages that a wake needs first, at the front of them.
    pub loading: Vec<LoadingPart>,
}

/// One process: an address space and the threads in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process id, as the machine sees it.
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`: tells a process from a later one with the same id.
    pub start_ticks: u64,
    /// Where this process' threads wait while its memory is incomplete: the loop in its vDSO.
    pub park_address: u64,
    /// Memory that left it, by ascending address, without overlap. Empty if it shares another's address space.
    pub regions: Vec<Region>,
    /// Its threads.
    pub threads: Vec<Thread>,
}

/// A run of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// First byte in memory, page-aligned.
    pub start: u64,
    /// 1 to [`REGION_PAGES`] where pages are stored; any number of zero pages.
    pub pages: u32,
    /// The process itself may write there.
    pub writable: bool,
    /// What is in it.
    pub content: Content,
}

/// What a region holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// Zeros: nothing is stored.
    Zero,
    /// Pages at this offset of the file, with this checksum.
    Stored {
        /// Offset in the file, page-aligned.
        offset: u64,
        /// Their checksum.
        checksum: u64,
    },
}

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Thread id, as the machine sees it.
    pub tid: i32,
    /// General registers, in the order of the kernel's `user_regs_struct`.
    pub registers: [u64; REGISTER_WORDS],
    /// Mask of blocked signals.
    pub signal_mask: u64,
    /// The time-out that it waits with, if any.
    pub wait: Option<Wait>,
}

/// A time-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// `CLOCK_MONOTONIC` at its end, nanoseconds.
    pub deadline_ns: u64,
    /// How long it was in all, nanoseconds.
    pub total_ns: u64,
}

impl Region {
    /// Bytes in memory.
    pub const fn bytes(&self) -> u64 {
        self.pages as u64 * PAGE
    }
}

impl State {
    /// The state as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::new());
        out.count(self.processes.len());
        for process in &self.processes {
            process.encode(&mut out);
        }
        // Without one the state is as it was before there were any.
        if !self.loading.is_empty() {
            out.count(self.loading.len());
            for part in &self.loading {
                out.count(part.cause.len());
                part.cause.bytes().for_each(|byte| out.u8(byte));
                out.u64(part.start);
                out.u64(part.end);
            }
        }
        out.0
    }

    /// Reads and checks the state of an image with this header.
    pub fn decode(bytes: &[u8], header: &Header) -> Result<Self, FormatError> {
        if bytes.len() as u64 != header.state_bytes {
            return Err(FormatError::Truncated("its state"));
        }
        if checksum(bytes) != header.state_checksum {
            return Err(FormatError::Checksum("the state"));
        }
        let mut reader = Reader::new(bytes, "its state");
        let processes = reader.list(32, |reader| Process::decode(reader, header))?;
        let loading = if reader.end().is_ok() { Vec::new() } else { reader.list(20, decode_part)? };
        reader.end()?;
        loading_set::check(&loading, &header.pages())?;
        if processes.windows(2).any(|pair| pair[0].pid >= pair[1].pid) {
            return Err(FormatError::Invalid("order of processes"));
        }
        Ok(Self { processes, loading })
    }

    /// Bytes of memory that the image gives back.
    pub fn memory_bytes(&self) -> u64 {
        self.processes.iter().flat_map(|process| &process.regions).map(Region::bytes).fold(0, u64::saturating_add)
    }
}

fn decode_part(reader: &mut Reader<'_>) -> Result<LoadingPart, FormatError> {
    let cause = String::from_utf8(reader.list(1, Reader::u8)?);
    let cause = cause.map_err(|_| FormatError::Invalid("the cause of a part of the loading set"))?;
    Ok(LoadingPart { cause, start: reader.u64()?, end: reader.u64()? })
}

impl Process {
    fn encode(&self, out: &mut Writer) {
        out.i32(self.pid);
        out.u64(self.start_ticks);
        out.u64(self.park_address);
        out.count(self.regions.len());
        for region in &self.regions {
            out.u64(region.start);
            out.u32(region.pages);
            out.u8(u8::from(region.writable));
            match region.content {
                Content::Zero => out.u8(0),
                Content::Stored { offset, checksum } => {
                    out.u8(1);
                    out.u64(offset);
                    out.u64(checksum);
                }
            }
        }
        out.count(self.threads.len());
        for thread in &self.threads {
            thread.encode(out);
        }
    }

    fn decode(reader: &mut Reader<'_>, header: &Header) -> Result<Self, FormatError> {
        let pid = positive(reader.i32()?)?;
        let start_ticks = reader.u64()?;
        let park_address = address(reader.u64()?)?;
        let regions = reader.list(14, |reader| Region::decode(reader, header))?;
        for pair in regions.windows(2) {
            if pair[0].start + pair[0].bytes() > pair[1].start {
                return Err(FormatError::Invalid("order of regions"));
            }
        }
        let threads = reader.list(4 + 8 * REGISTER_WORDS + 9, Thread::decode)?;
        if threads.is_empty() {
            return Err(FormatError::Invalid("a process without threads"));
        }
        Ok(Self { pid, start_ticks, park_address, regions, threads })
    }
}

impl Region {
    fn decode(reader: &mut Reader<'_>, header: &Header) -> Result<Self, FormatError> {
        let start = address(reader.u64()?)?;
        let pages = reader.u32()?;
        let writable = flag(reader.u8()?)?;
        let content = if flag(reader.u8()?)? {
            Content::Stored { offset: reader.u64()?, checksum: reader.u64()? }
        } else {
            Content::Zero
        };
        let region = Self { start, pages, writable, content };
        region.check(ADDRESS_END, &header.pages())?;
        Ok(region)
    }

    /// It lies below `end`, and what is stored of it within `pages` of the file.
    pub(crate) fn check(&self, end: u64, pages: &Range<u64>) -> Result<(), FormatError> {
        if let Content::Stored { offset, .. } = self.content {
            let stored_end = offset.checked_add(self.bytes());
            let inside = offset >= pages.start && stored_end.is_some_and(|end| end <= pages.end);
            if !inside || !offset.is_multiple_of(PAGE) || self.pages > REGION_PAGES {
                return Err(FormatError::Invalid("place of a region's pages"));
            }
        }
        let inside = self.start.checked_add(self.bytes()).is_some_and(|last| last <= end);
        if self.pages == 0 || !self.start.is_multiple_of(PAGE) || !inside {
            return Err(FormatError::Invalid("address of a region"));
        }
        Ok(())
    }
}

impl Thread {
    fn encode(&self, out: &mut Writer) {
        out.i32(self.tid);
        for word in self.registers {
            out.u64(word);
        }
        out.u64(self.signal_mask);
        out.u8(u8::from(self.wait.is_some()));
        if let Some(wait) = self.wait {
            out.u64(wait.deadline_ns);
            out.u64(wait.total_ns);
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let tid = positive(reader.i32()?)?;
        let mut registers = [0; REGISTER_WORDS];
        for word in &mut registers {
            *word = reader.u64()?;
        }
        let signal_mask = reader.u64()?;
        let wait = flag(reader.u8()?)?
            .then(|| Ok(Wait { deadline_ns: reader.u64()?, total_ns: reader.u64()? }))
            .transpose()?;
        Ok(Self { tid, registers, signal_mask, wait })
    }
}

fn positive(id: i32) -> Result<i32, FormatError> {
    if id > 0 { Ok(id) } else { Err(FormatError::Invalid("a process or thread id")) }
}

fn address(value: u64) -> Result<u64, FormatError> {
    if value < ADDRESS_END { Ok(value) } else { Err(FormatError::Invalid("an address")) }
}

fn flag(value: u8) -> Result<bool, FormatError> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(FormatError::Invalid("a flag")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HEADER_BYTES;
    use proptest::prelude::*;

    fn header(state: &[u8], pages_bytes: u64) -> Header {
        Header {
            app: 1,
            generation: 1,
            boot: [0, 0],
            pages_bytes,
            state_bytes: state.len() as u64,
            state_checksum: checksum(state),
            ..Header::default()
        }
    }

    fn region() -> impl Strategy<Value = (u32, bool, bool)> {
        (1..=REGION_PAGES, any::<bool>(), any::<bool>())
    }

    prop_compose! {
        fn process(pid: i32)(
            start_ticks in any::<u64>(),
            park_address in 0..ADDRESS_END,
            shapes in prop::collection::vec(region(), 0..8),
            threads in prop::collection::vec((1..i32::MAX, any::<[u64; REGISTER_WORDS]>(), any::<Option<(u64, u64)>>()), 1..4),
        ) -> Process {
            let mut start = 0x1000;
            let mut offset = HEADER_BYTES;
            let regions = shapes.into_iter().map(|(pages, writable, stored)| {
                let content = if stored {
                    Content::Stored { offset, checksum: start }
                } else {
                    Content::Zero
                };
                let region = Region { start, pages, writable, content };
                start += region.bytes() + PAGE;
                offset += if stored { region.bytes() } else { 0 };
                region
            }).collect();
            let threads = threads.into_iter().map(|(tid, registers, wait)| Thread {
                tid, registers, signal_mask: 5,
                wait: wait.map(|(deadline_ns, total_ns)| Wait { deadline_ns, total_ns }),
            }).collect();
            Process { pid, start_ticks, park_address, regions, threads }
        }
    }

    proptest! {
        #[test]
        fn survives_its_bytes(a in process(1), b in process(9), parts in prop::collection::vec((".{0,9}", 0..3_u64), 0..4)) {
            let mut end = HEADER_BYTES;
            let part = |(cause, pages)| { let start = end; end += pages * PAGE; LoadingPart { cause, start, end } };
            let state = State { processes: vec![a, b], loading: parts.into_iter().map(part).collect() };
            let bytes = state.encode();
            let header = header(&bytes, 8 * u64::from(REGION_PAGES) * PAGE);
            prop_assert_eq!(State::decode(&bytes, &header).unwrap(), state);
        }

        #[test]
        fn damage_with_a_right_checksum_never_panics(a in process(1), place in any::<prop::sample::Index>(), value in any::<u8>()) {
            let loading = vec![LoadingPart { cause: "timer".into(), start: HEADER_BYTES, end: HEADER_BYTES }];
            let mut bytes = State { processes: vec![a], loading }.encode();
            let at = place.index(bytes.len());
            bytes[at] = value;
            let _ = State::decode(&bytes, &header(&bytes, 1 << 20));
        }

        #[test]
        fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            let _ = State::decode(&bytes, &header(&bytes, 1 << 20));
            let _ = Header::decode(&bytes, bytes.len() as u64);
        }
    }

    #[test]
    fn a_loading_set_outside_the_pages_is_refused() {
        let loading = vec![LoadingPart { cause: String::new(), start: HEADER_BYTES, end: HEADER_BYTES + 8 * PAGE }];
        let bytes = State { processes: Vec::new(), loading }.encode();
        assert!(State::decode(&bytes, &header(&bytes, 7 * PAGE)).is_err());
        assert!(State::decode(&bytes, &header(&bytes, 8 * PAGE)).is_ok());
    }

    #[test]
    fn a_count_beyond_the_bytes_is_refused_before_it_is_allocated() {
        let bytes = u32::MAX.to_le_bytes();
        assert_eq!(State::decode(&bytes, &header(&bytes, 0)), Err(FormatError::Truncated("its state")));
    }

    #[test]
    fn pages_outside_the_file_are_refused() {
        let content = Content::Stored { offset: HEADER_BYTES + PAGE, checksum: 0 };
        let region = Region { start: PAGE, pages: 1, writable: true, content };
        let thread = Thread { tid: 1, registers: [0; REGISTER_WORDS], signal_mask: 0, wait: None };
        let process = Process { pid: 1, start_ticks: 0, park_address: 0, regions: vec![region], threads: vec![thread] };
        let bytes = State { processes: vec![process], loading: Vec::new() }.encode();
        assert!(State::decode(&bytes, &header(&bytes, PAGE)).is_err());
        assert!(State::decode(&bytes, &header(&bytes, 2 * PAGE)).is_ok());
    }
}
