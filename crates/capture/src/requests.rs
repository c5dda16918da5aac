//! Requests of AIO contexts that are still under way: some wait for a descriptor (`IOCB_CMD_POLL`), and leave no trace outside.
//!
//! A context has so many places for requests, and gives out no more. So the process takes all that are free, by requests of our own
//! that wait for a new eventfd; one write to that ends them all at once, and their answers are taken. What was not free is taken
//! by requests of the program's. All of it is one list of calls, which the thread makes to its end even if we die; afterwards as
//! many answers have gone through the ring as it has places, so that its head and tail are where they were.
//!
//! The kernel hands places to processors in batches (`fs/aio.c`, `req_batch`), and only whole ones: the thread takes those of each
//! processor in turn.
//!
//! Answers that the program has not taken yet hold places, too, and come out before ours. The last call of the list puts them back
//! before the ring's tail, where they were (`process_vm_readv(2)` within the process). Where requests of the program's are under way
//! the tail is elsewhere; then we put them right, and so we do with answers that came meanwhile. If we die just then, such a context
//! lacks answers.

use std::io;

use rustix::thread::sched_getaffinity;
use torpor_image::tree::{IO_EVENT_BYTES, io_event_address, io_event_runs, io_events};
use torpor_linux::uapi::syscall;

use super::call_batch::Asked;
use super::remote::Remote;
use torpor_proc as proc;
use torpor_proc::maps::Area;
use torpor_process::aio;
use torpor_process::trace::TraceError;
use torpor_process::wait::restart::Memory as _;

/// Takes of answers.
const TAKES: u64 = 4;
/// Calls of a list beside two for each processor.
const OTHER_CALLS: usize = 16;
const PAGE: u64 = 4096;
/// The parts of a page of the process's that the calls read: a request, what is written to the eventfd, a time-out of 0, a set of
/// processors for each of them and for the thread as it was.
const ONE: u64 = 64;
const NO_TIME: u64 = 72;
const HEAD_WORD: u64 = 80;
/// Pieces of memory: to where answers are put back, and from where.
const PIECES: u64 = 96;
const SETS: u64 = 256;

/// Whether a context has requests under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UnderWay {
    /// So many.
    Some(u64),
    /// The process cannot find out, and why.
    Unknown(String),
}

/// A ring, from its first byte to behind its last, and what its context has under way.
pub(super) type Busy = ((u64, u64), UnderWay);

/// Contexts among these areas that have requests under way, or where that cannot be told; `dead` are none.
pub(super) fn under_way(remote: &Remote<'_>, areas: &[Area], dead: &[(u64, u64)]) -> Result<Vec<Busy>, TraceError> {
    let is_alive = |area: &&Area| aio::is_ring(area) && !dead.contains(&(area.start, area.end));
    let rings: Vec<&Area> = areas.iter().filter(is_alive).collect();
    // Disk I/O ends by itself, and is told of by its own name if it does not.
    if rings.is_empty() || !aio::drained().map_err(|error| remote.wrong(error))? {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for ring in rings {
        let Some(under_way) = of(remote, ring)? else { continue };
        found.push(((ring.start, ring.end), under_way));
    }
    Ok(found)
}

fn of(remote: &Remote<'_>, ring: &Area) -> Result<Option<UnderWay>, TraceError> {
    let unknown = |why: &str| Ok(Some(UnderWay::Unknown(why.to_owned())));
    if !remote.makes_lists() {
        return unknown("it takes every signal");
    }
    let cpus = processors().map_err(|error| remote.wrong(error))?;
    let (places, cpus) = (io_events(ring.end - ring.start), cpus as u64);
    let untaken = Untaken::of(remote, ring, places).map_err(|error| remote.wrong(error))?;
    let free = Free::of(places, cpus);
    let layout = Layout { cpus, places };
    let Some(map) = map(remote, layout.bytes())? else { return unknown("it can have no more memory") };
    let taken = take(remote, ring, map, &layout, &free, &untaken);
    let mut list = remote.questions();
    list.ask("munmap", syscall::MUNMAP, &[map, layout.bytes()]);
    remote.ask(0, list)?;
    match taken? {
        Err(why) => unknown(&why),
        Ok(taken) => {
            let missing = free.takable.checked_sub(taken + untaken.count);
            Ok(missing.filter(|missing| *missing > 0).map(UnderWay::Some))
        }
    }
}

/// Answers in a ring that the program has not taken.
struct Untaken {
    head: u64,
    tail: u64,
    count: u64,
}

impl Untaken {
    fn of(remote: &Remote<'_>, ring: &Area, places: u64) -> io::Result<Self> {
        let mut words = [0; 8];
        remote.memory().read(ring.start + HEAD, &mut words)?;
        let word = |at: usize| u64::from(u32::from_ne_bytes(std::array::from_fn(|n| words[at + n]))) % places;
        let (head, tail) = (word(0), word(4));
        Ok(Self { head, tail, count: (tail + places - head) % places })
    }
}

/// Places for requests of a context without any.
struct Free {
    /// That can be taken.
    takable: u64,
    /// More answers until the ring has turned once.
    rest: u64,
}

impl Free {
    /// Requests that turn the ring once in all, when all but `untaken` were answered; in rounds, the last of which holds at
    /// least as many as `untaken`: so many places the kernel takes to be theirs again.
    fn rounds(&self, untaken: u64) -> [u64; 2] {
        let all = self.rest + untaken;
        let last = all.min(self.takable);
        [(all - last).min(self.takable), last]
    }
}

impl Free {
    fn of(places: u64, cpus: u64) -> Self {
        let all = places.saturating_sub(1);
        let batch = (all / (cpus * 4)).max(1);
        let takable = all - all % batch;
        Self { takable, rest: places - takable }
    }
}

/// Where what the calls read and write lies behind the start of the mapping.
struct Layout {
    cpus: u64,
    places: u64,
}

impl Layout {
    const fn set_bytes(&self) -> u64 {
        self.cpus.next_multiple_of(64) / 8
    }

    /// Of processor `n`; of all that the thread may run on, the one behind the last.
    const fn set(&self, n: u64) -> u64 {
        SETS + n * self.set_bytes()
    }

    /// Addresses of requests: all of the same one.
    const fn requests(&self) -> u64 {
        self.set(self.cpus + 1).next_multiple_of(PAGE)
    }

    /// As many as the ring holds, of each take: the first, one for each round, and one of what comes late.
    const fn answers(&self, take: u64) -> u64 {
        self.requests() + self.places * 8 + take * self.places * IO_EVENT_BYTES
    }

    /// The list of calls.
    const fn calls(&self) -> u64 {
        self.answers(TAKES)
    }

    const fn most_calls(&self) -> usize {
        2 * self.cpus as usize + OTHER_CALLS
    }

    const fn bytes(&self) -> u64 {
        (self.calls() + Remote::list_bytes(self.most_calls())).next_multiple_of(PAGE)
    }
}

/// `None`: it may have no more.
fn map(remote: &Remote<'_>, bytes: u64) -> Result<Option<u64>, TraceError> {
    const READ_WRITE: u64 = 3;
    const PRIVATE_ANONYMOUS: u64 = 0x22;
    let mut list = remote.questions();
    let asked = list.ask("mmap", syscall::MMAP, &[0, bytes, READ_WRITE, PRIVATE_ANONYMOUS, u64::MAX, 0]);
    let answers = remote.ask(0, list)?;
    Ok(answers.result(asked).ok())
}

/// What puts untaken answers back, when the first take has them and the ring has turned once: pieces to where, and from where, and
/// the head.
fn putting_back(page: &mut [u8], (ring, map): (u64, u64), layout: &Layout, untaken: &Untaken) -> (u64, u64) {
    let mut pieces: Vec<(u64, u64)> = io_event_runs(untaken.head as u32, untaken.tail as u32, layout.places as u32)
        .map(|(first, end)| (io_event_address(ring, first), u64::from(end - first) * IO_EVENT_BYTES))
        .collect();
    pieces.push((ring + HEAD, 4));
    let to = pieces.len() as u64;
    // The head comes last: until then the ring is empty.
    pieces.extend([(map + layout.answers(0), untaken.count * IO_EVENT_BYTES), (map + HEAD_WORD, 4)]);
    page[HEAD_WORD as usize..][..4].copy_from_slice(&(untaken.head as u32).to_ne_bytes());
    for (n, (address, bytes)) in pieces.iter().enumerate() {
        let piece = [address.to_ne_bytes(), bytes.to_ne_bytes()].concat();
        page[PIECES as usize + n * piece.len()..][..piece.len()].copy_from_slice(&piece);
    }
    (to, pieces.len() as u64 - to)
}

/// Takes all that are free; gives how many, or why that cannot be done.
fn take(
    remote: &Remote<'_>,
    ring: &Area,
    map: u64,
    layout: &Layout,
    free: &Free,
    untaken: &Untaken,
) -> Result<Result<u64, String>, TraceError> {
    let look = |error: io::Error| remote.wrong(error);
    let fd = lowest_free(remote.process.pid).map_err(look)?;
    let allowed =
        sched_getaffinity(rustix::thread::Pid::from_raw(remote.process.pid)).map_err(|error| look(error.into()))?;
    let mut page = vec![0; layout.requests() as usize];
    page[..ONE as usize].copy_from_slice(&request(fd));
    page[ONE as usize] = 1;
    for cpu in 0..layout.cpus {
        let (own, all) = (layout.set(cpu), layout.set(layout.cpus));
        page[(own + cpu / 8) as usize] |= 1 << (cpu % 8);
        if allowed.is_set(cpu as usize) {
            page[(all + cpu / 8) as usize] |= 1 << (cpu % 8);
        }
    }
    let (to, from) = putting_back(&mut page, (ring.start, map), layout, untaken);
    page.extend((0..layout.places).flat_map(|_| map.to_ne_bytes()));
    remote.write(map, &page)?;

    let mut list = remote.long_questions(map + layout.calls(), layout.most_calls());
    let (requests, no_time) = (map + layout.requests(), map + NO_TIME);
    let answers = |take: u64| map + layout.answers(take);
    let eventfd = list.ask("eventfd2", syscall::EVENTFD2, &[0, O_NONBLOCK_CLOEXEC]);
    let mut submitted: Vec<Asked> = Vec::with_capacity(layout.cpus as usize);
    for cpu in 0..layout.cpus {
        // One that it may not run on has had none of its requests, as a rule.
        list.ask("sched_setaffinity", syscall::SCHED_SETAFFINITY, &[0, layout.set_bytes(), map + layout.set(cpu)]);
        submitted.push(list.ask("io_submit", syscall::IO_SUBMIT, &[ring.start, free.takable, requests]));
    }
    list.ask("sched_setaffinity", syscall::SCHED_SETAFFINITY, &[0, layout.set_bytes(), map + layout.set(layout.cpus)]);
    list.ask("write", syscall::WRITE, &[fd, map + ONE, 8]);
    let mut took =
        vec![list.ask("io_getevents", syscall::IO_GETEVENTS, &[ring.start, 0, layout.places, answers(0), no_time])];
    // The eventfd is readable now: these are answered at once.
    let mut rest = Vec::new();
    for (round, take) in free.rounds(untaken.count).into_iter().zip(1..) {
        rest.push(list.ask("io_submit", syscall::IO_SUBMIT, &[ring.start, round, requests]));
        let arguments = [ring.start, 0, layout.places, answers(take), no_time];
        took.push(list.ask("io_getevents", syscall::IO_GETEVENTS, &arguments));
    }
    if untaken.count > 0 {
        let own = remote.own_pid() as u64;
        let (pieces, behind) = (map + PIECES, map + PIECES + to * 16);
        list.ask("process_vm_readv", syscall::PROCESS_VM_READV, &[own, pieces, to, behind, from, 0]);
    }
    list.ask("close_range", syscall::CLOSE_RANGE, &[fd, fd, 0]);
    let found = remote.ask(0, list)?;
    if let Err(TraceError::Call { error, .. }) = found.result(eventfd) {
        return Ok(Err(error.to_string()));
    }
    let count = |asked: Asked| found.result(asked).unwrap_or(0);
    let ours: u64 = submitted.into_iter().map(count).sum();
    let submitted = ours + rest.into_iter().map(count).sum::<u64>();
    let mut took: Vec<u64> = took.into_iter().map(count).collect();
    let emptied = |took: &[u64]| (untaken.head + took.iter().sum::<u64>()) % layout.places;
    let missing = (submitted + untaken.count).saturating_sub(took.iter().sum());
    if missing > 0 {
        set_head(remote, ring, emptied(&took))?;
        took.push(late(remote, ring, (answers(TAKES - 1), missing))?);
    }
    let mut strange = Vec::new();
    for (take, count) in (0..).zip(&took) {
        strange.extend(strangers(remote, map, answers(take), *count).map_err(look)?);
    }
    give_back(remote, ring, (layout.places, emptied(&took)), &strange)?;
    Ok(Ok(ours))
}

/// Those of `count` answers that are not to our request, which is at `map`.
fn strangers(remote: &Remote<'_>, map: u64, answers: u64, count: u64) -> io::Result<Vec<u8>> {
    const OBJECT: usize = 8;
    let mut bytes = vec![0; (count * IO_EVENT_BYTES) as usize];
    remote.memory().read(answers, &mut bytes)?;
    let is_strange = |event: &&[u8]| event[OBJECT..OBJECT + 8] != map.to_ne_bytes();
    Ok(bytes.chunks_exact(IO_EVENT_BYTES as usize).filter(is_strange).flatten().copied().collect())
}

/// Puts answers to requests of the program's own into the ring again, before the place up to which it was emptied.
fn give_back(remote: &Remote<'_>, ring: &Area, (places, emptied): (u64, u64), events: &[u8]) -> Result<(), TraceError> {
    let count = events.len() as u64 / IO_EVENT_BYTES;
    if count == 0 {
        return Ok(());
    }
    let first = (emptied + places - count % places) % places;
    for (n, event) in events.chunks_exact(IO_EVENT_BYTES as usize).enumerate() {
        remote.write(io_event_address(ring.start, ((first + n as u64) % places) as u32), event)?;
    }
    set_head(remote, ring, first)
}

fn set_head(remote: &Remote<'_>, ring: &Area, head: u64) -> Result<(), TraceError> {
    remote.write(ring.start + HEAD, &(head as u32).to_ne_bytes())
}

/// Where a ring has its head, and then its tail.
const HEAD: u64 = 8;

/// `O_NONBLOCK | O_CLOEXEC`.
const O_NONBLOCK_CLOEXEC: u64 = 0o2_004_000;

/// Takes answers that the kernel gives a moment later, by a thread of its own; gives how many.
fn late(remote: &Remote<'_>, ring: &Area, (answers, count): (u64, u64)) -> Result<u64, TraceError> {
    let mut list = remote.questions();
    let second = list.place(16);
    remote.write(second.address, &[1_u64.to_ne_bytes(), 0_u64.to_ne_bytes()].concat())?;
    let asked = list.ask("io_getevents", syscall::IO_GETEVENTS, &[ring.start, count, count, answers, second.address]);
    Ok(remote.ask(0, list)?.result(asked).unwrap_or(0))
}

/// A `struct iocb` that waits until a descriptor can be read from.
fn request(fd: u64) -> [u8; 64] {
    const POLL: u64 = 5;
    const POLLIN: u64 = 1;
    // Data; key and flags; operation, priority and descriptor; what is waited for; nothing.
    let words = [0, 0, POLL | fd << 32, POLLIN, 0, 0, 0, 0];
    let mut request = [0; 64];
    request.copy_from_slice(&words.map(u64::to_ne_bytes).concat());
    request
}

/// The number that the kernel gives to the next descriptor of a stopped process.
fn lowest_free(pid: i32) -> io::Result<u64> {
    let mut taken = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        taken.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    Ok(first_missing(taken))
}

fn first_missing(mut taken: Vec<u64>) -> u64 {
    taken.sort_unstable();
    (0..).zip(&taken).find(|(n, fd)| n != *fd).map_or(taken.len() as u64, |(n, _)| n)
}

/// How many processors this machine may ever have.
fn processors() -> io::Result<usize> {
    const PATH: &str = "/sys/devices/system/cpu/possible";
    let text = proc::read(PATH)?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| proc::unexpected(PATH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_as_the_kernel_gives_them_out() {
        // A ring of one page, two processors: batches of 15.
        let free = Free::of(127, 2);
        assert_eq!((free.takable, free.rest), (120, 7));
        let free = Free::of(127, 64);
        assert_eq!((free.takable, free.rest), (126, 1));
    }

    #[test]
    fn rounds_turn_the_ring_and_end_with_as_many_as_are_untaken() {
        for (all, cpus) in [(127, 2), (127, 64), (2047, 4), (7, 1)] {
            let free = Free::of(all, cpus);
            for untaken in 0..=free.takable {
                let [first, last] = free.rounds(untaken);
                assert_eq!(first + last + free.takable - untaken, all);
                assert!(last >= untaken && first <= free.takable && last <= free.takable);
            }
        }
    }

    #[test]
    fn the_parts_of_the_mapping_are_apart() {
        for cpus in [1, 2, 64, 65, 512] {
            let layout = Layout { cpus, places: 500 };
            assert!(layout.set(cpus + 1) <= layout.requests() && layout.requests().is_multiple_of(PAGE));
            assert!(layout.answers(TAKES - 1) + 500 * IO_EVENT_BYTES <= layout.calls());
            assert!(layout.calls() + Remote::list_bytes(2 * cpus as usize + OTHER_CALLS) <= layout.bytes());
        }
    }

    #[test]
    fn the_lowest_free_number_is_found() {
        assert_eq!([vec![], vec![0, 1, 2], vec![4, 0, 1], vec![1]].map(first_missing), [0, 3, 2, 0]);
        assert!(lowest_free(std::process::id() as i32).unwrap() > 0);
    }
}
