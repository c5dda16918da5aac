//! What must hold in a tree, whoever wrote it.

use std::collections::HashSet;
use std::ops::Range;

use super::memory::{HUGE_SIZE, MFD_HUGETLB, SHM_HUGETLB};
use super::{
    AddressSpace, Area, Backing, End, Executable, FileId, FileKind, IO_EVENT_BYTES, InetState, LiveProcess,
    NamespaceState, PacketMembership, PacketSocket, PipeId, Process, SharedMemoryKind, Thread, Tree, UnixState,
    io_events, used_pages,
};
use crate::state::{ADDRESS_END, REGISTER_WORDS};
use crate::{FormatError, PAGE, Region};

/// Signals of the kernel.
const SIGNALS: usize = 64;
/// `siginfo_t`, bytes.
const SIGINFO_BYTES: usize = 128;
/// Resources with limits.
const LIMITS: usize = 16;
/// More than any processor's XSAVE area.
const XSTATE_BYTES: usize = 64 << 10;
/// More than the kernel's largest ring of an AIO context.
const AIO_RING_BYTES: u64 = 512 << 20;

/// `__NEW_UTS_LEN`.
const NAME_BYTES: usize = 64;

/// `IFNAMSIZ`, `MAX_ADDR_LEN`.
const INTERFACE_BYTES: usize = 16;
const HARDWARE_ADDRESS_BYTES: usize = 32;
/// Memberships of one packet socket at most.
const MEMBERSHIPS: u32 = 1 << 16;

/// `AF_INET`, `AF_INET6`.
const INET_FAMILIES: [i32; 2] = [2, 10];

pub(super) type Checked = Result<(), FormatError>;

pub(super) fn sure(holds: bool, what: &'static str) -> Checked {
    if holds { Ok(()) } else { Err(FormatError::Invalid(what)) }
}

impl Tree {
    /// Runs the checks of [`Tree::decode`]; `pages` is the part of the file that its pages may lie in. Call it before an image is committed,
    /// because a program can have state that exceeds the limits of the format.
    ///
    /// # Errors
    /// The first thing that a reader would refuse.
    pub fn check(&self, pages: &Range<u64>) -> Result<(), FormatError> {
        used_pages::check(&self.used)?;
        let mut ids = HashSet::new();
        for process in &self.processes {
            sure(process.parent == 0 || ids.contains(&process.parent), "order of processes")?;
            sure(process.pid > 0 && process.group >= 0 && process.session >= 0, "a process id")?;
            sure(ids.insert(process.pid), "a process id that is there twice")?;
        }
        for process in &self.processes {
            self.process(process, &mut ids, pages)?;
        }
        self.open_files(&ids)?;
        for pipe in &self.pipes {
            let waiting: usize = pipe.contents.iter().map(Vec::len).sum();
            sure(waiting <= pipe.capacity as usize, "contents of a pipe")?;
        }
        let mut segments = HashSet::new();
        for memory in &self.memories {
            sure(memory.bytes <= ADDRESS_END, "size of shared memory")?;
            let huge = match memory.kind {
                SharedMemoryKind::SystemV { id, mode, .. } => {
                    sure(id >= 0 && segments.insert(id), "id of a System V segment")?;
                    let known = if mode & SHM_HUGETLB == 0 { 0o3777 } else { 0o7777 | HUGE_SIZE };
                    sure(mode & !known == 0 && memory.bytes > 0, "a System V segment")?;
                    mode & SHM_HUGETLB != 0
                }
                SharedMemoryKind::Memfd { flags, .. } => flags & MFD_HUGETLB != 0,
                SharedMemoryKind::Huge { .. } => true,
                _ => false,
            };
            sure(!huge || is_huge(memory.page_bytes()), "size of huge pages")?;
            regions(&memory.pages, 0..memory.bytes.next_multiple_of(memory.page_bytes()), pages)?;
        }
        self.details.check(self)?;
        self.surroundings.check(pages)
    }

    fn file(&self, file: FileId) -> Checked {
        sure((file as usize) < self.files.len(), "place of an open file")
    }

    fn pipe(&self, pipe: PipeId) -> Checked {
        sure((pipe as usize) < self.pipes.len(), "place of a pipe")
    }

    fn process(&self, process: &Process, ids: &mut HashSet<i32>, pages: &Range<u64>) -> Checked {
        let End::Alive(life) = &process.end else { return Ok(()) };
        let LiveProcess { threads, space, descriptors, actions, limits, pending, .. } = &**life;
        sure(threads.first().is_some_and(|leader| leader.tid == process.pid), "the first thread of a process")?;
        for (n, thread) in threads.iter().enumerate() {
            sure(n == 0 || (thread.tid > 0 && ids.insert(thread.tid)), "a thread id")?;
            check_thread(thread)?;
        }
        sure(actions.len() == SIGNALS && limits.len() <= LIMITS, "tables of a process")?;
        sure(pending.iter().all(|signal| signal.info.len() == SIGINFO_BYTES), "a pending signal")?;
        sure(descriptors.first().is_none_or(|first| first.fd >= 0), "a descriptor")?;
        sure(descriptors.windows(2).all(|pair| pair[0].fd < pair[1].fd), "order of descriptors")?;
        descriptors.iter().try_for_each(|descriptor| self.file(descriptor.file))?;
        if let Some((slave, _)) = life.terminal {
            let is_slave =
                self.files.get(slave as usize).is_some_and(|file| matches!(file.kind, FileKind::Slave { .. }));
            sure(is_slave, "a controlling terminal")?;
        }
        self.space(space, pages)
    }

    fn space(&self, space: &AddressSpace, pages: &Range<u64>) -> Checked {
        let executable = match space.executable {
            Executable::File(file) => (file as usize) < space.files.len(),
            Executable::Memory(memory) => self.memories.get(memory as usize).is_some_and(|memory| {
                matches!(memory.kind, SharedMemoryKind::Deleted { .. } | SharedMemoryKind::Memfd { .. })
            }),
        };
        sure(executable, "the executable")?;
        sure(space.areas.windows(2).all(|pair| pair[0].end <= pair[1].start), "order of areas")?;
        for area in &space.areas {
            let Area { start, end, .. } = *area;
            let aligned = start.is_multiple_of(PAGE) && end.is_multiple_of(PAGE);
            sure(aligned && start < end && end <= ADDRESS_END, "address of an area")?;
            regions(&area.pages, start..end, pages)?;
            match area.backing {
                Backing::File { file, offset, .. } => {
                    sure((file as usize) < space.files.len() && offset.is_multiple_of(PAGE), "file of an area")?;
                }
                Backing::Shared { memory, offset, .. } => {
                    sure((memory as usize) < self.memories.len() && offset.is_multiple_of(PAGE), "memory of an area")?;
                }
                Backing::Aio { head, ref waiting } => {
                    let (places, bytes) = (io_events(end - start), waiting.len() as u64);
                    sure(end - start <= AIO_RING_BYTES && area.pages.is_empty(), "ring of an AIO context")?;
                    sure(u64::from(head) < places, "head of an AIO context's ring")?;
                    let fit = bytes.is_multiple_of(IO_EVENT_BYTES) && bytes / IO_EVENT_BYTES < places;
                    sure(fit, "answers of an AIO context")?;
                }
                Backing::Huge { page_bytes, .. } => {
                    let whole = |address: u64| address.is_multiple_of(page_bytes);
                    sure(is_huge(page_bytes) && whole(start) && whole(end), "huge pages of an area")?;
                }
                Backing::Anonymous { .. } | Backing::Kernel { .. } => {}
            }
        }
        Ok(())
    }

    fn open_files(&self, ids: &HashSet<i32>) -> Checked {
        for file in &self.files {
            match &file.kind {
                FileKind::Pipe { pipe, .. } | FileKind::Fifo { pipe, .. } => self.pipe(*pipe)?,
                FileKind::Epoll { members } => members.iter().try_for_each(|member| self.file(member.file))?,
                FileKind::Slave { master } => {
                    let other = self.files.get(*master as usize).map(|file| &file.kind);
                    sure(matches!(other, Some(FileKind::Master(_))), "the master of a terminal")?;
                }
                FileKind::Memory { memory } => {
                    sure((*memory as usize) < self.memories.len(), "place of shared memory")?;
                }
                FileKind::OfProcess { path } => {
                    let climbs = path.windows(2).any(|two| two == b"..") || path.contains(&0);
                    sure(path.starts_with(b"/proc/") && !climbs, "path of a process's file")?;
                }
                FileKind::Process { pid } => sure(ids.contains(pid), "process of a descriptor")?,
                FileKind::Unix(socket) => {
                    match &socket.state {
                        UnixState::Connected { peer } => {
                            let other = self.files.get(*peer as usize).map(|file| &file.kind);
                            sure(matches!(other, Some(FileKind::Unix(_))), "the other end of a socket")?;
                        }
                        UnixState::Listening { waiting, .. } => waiting.iter().try_for_each(|file| self.file(*file))?,
                        UnixState::Idle | UnixState::Lost { .. } => {}
                    }
                    let flying = socket.queue.iter().flat_map(|message| &message.files);
                    flying.copied().try_for_each(|file| self.file(file))?;
                }
                FileKind::Inet(socket) => {
                    sure(INET_FAMILIES.contains(&socket.kind.0), "family of a socket")?;
                    sure(socket.queue.iter().all(|message| message.files.is_empty()), "a descriptor in flight")?;
                    if let InetState::Established { repair: Some(connection) } = &socket.state {
                        sure(connection.sent as usize <= connection.written.len(), "what a connection has sent")?;
                    }
                }
                FileKind::Packet(socket) => packets(socket)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// It can be the size of a page that is larger than the usual one.
const fn is_huge(page_bytes: u64) -> bool {
    page_bytes.is_power_of_two() && page_bytes > PAGE && page_bytes < ADDRESS_END
}

/// What is asked of interfaces is asked call by call.
fn packets(socket: &PacketSocket) -> Checked {
    let is_name = |name: &[u8]| name.len() < INTERFACE_BYTES && !name.contains(&0);
    sure(is_name(&socket.interface), "name of an interface")?;
    let asked = socket.memberships.iter().fold(0_u32, |sum, one| sum.saturating_add(one.count));
    let whole = |one: &PacketMembership| is_name(&one.interface) && one.address.len() <= HARDWARE_ADDRESS_BYTES;
    sure(asked <= MEMBERSHIPS && socket.memberships.iter().all(whole), "memberships of a packet socket")
}

impl NamespaceState {
    fn check(&self, pages: &Range<u64>) -> Checked {
        self.tmpfs.iter().try_for_each(|tmpfs| tmpfs.check(pages))?;
        let mut ids = HashSet::new();
        self.semaphores.iter().try_for_each(|set| set.check(&mut ids))?;
        ids.clear();
        self.queues.iter().try_for_each(|queue| queue.check(&mut ids))?;
        let is_name = |name: &[u8]| name.len() <= NAME_BYTES && !name.contains(&0);
        sure(is_name(&self.host_name) && is_name(&self.domain_name), "name of a machine")
    }
}

fn check_thread(thread: &Thread) -> Checked {
    sure(thread.registers.len() == REGISTER_WORDS, "registers")?;
    sure(thread.xstate.len() <= XSTATE_BYTES, "vector registers")?;
    sure(thread.rseq.is_none_or(|(address, ..)| address < ADDRESS_END), "an rseq area")?;
    sure(thread.pending.iter().all(|signal| signal.info.len() == SIGINFO_BYTES), "a pending signal")
}

/// Regions ascend without overlap within `inside`.
pub(super) fn regions(regions: &[Region], inside: Range<u64>, pages: &Range<u64>) -> Checked {
    let mut end = inside.start;
    for region in regions {
        region.check(inside.end, pages)?;
        sure(region.start >= end, "order of regions")?;
        end = region.start + region.bytes();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Content;
    use crate::tree::{Action, Descriptor, Limit, OpenFile, Owner};
    use proptest::prelude::*;

    const PAGES: Range<u64> = 4096..40960;

    fn sample() -> Tree {
        let region = |start, offset| Region {
            start,
            pages: 2,
            writable: true,
            content: Content::Stored { offset, checksum: 1 },
        };
        let area = Area {
            start: 0x1000,
            end: 0x9000,
            protection: 3,
            backing: Backing::Anonymous { grows_down: false, droppable: false, no_reserve: false },
            advice: crate::tree::Advice::default(),
            key: 0,
            pages: vec![region(0x1000, 4096), region(0x4000, 8192)],
        };
        let space = AddressSpace {
            areas: vec![area],
            files: vec![crate::tree::PathState::default()],
            ..AddressSpace::default()
        };
        let thread = Thread {
            tid: 5,
            registers: vec![0; REGISTER_WORDS],
            xstate: vec![0; 832],
            wait: None,
            signal_mask: 0,
            signal_stack: crate::tree::SignalStack::default(),
            pending: Vec::new(),
            name: b"a".to_vec(),
            robust_list: (0, 0),
            clear_tid_address: 0,
            rseq: None,
            credentials: crate::tree::Credentials::default(),
            no_new_privileges: false,
            seccomp: Vec::new(),
            parent_death_signal: 0,
            scheduling: crate::tree::Scheduling {
                policy: 0,
                priority: 0,
                flags: 0,
                nice: 0,
                processors: Vec::new(),
                io_priority: 0,
            },
            timer_slack_ns: 50_000,
            time_stamp_counter: 1,
            strict: false,
            memory_error_policy: 2,
            memory_policy: crate::tree::MemoryPolicy::default(),
        };
        let life = LiveProcess {
            threads: vec![thread],
            space,
            descriptors: vec![Descriptor { fd: 3, file: 0, close_on_exec: true }],
            cwd: crate::tree::PathState::default(),
            root: None,
            umask: 0o22,
            limits: vec![Limit { soft: 1, hard: u64::MAX }; LIMITS],
            oom_score_adjustment: 0,
            actions: vec![Action::default(); SIGNALS],
            pending: Vec::new(),
            interval_timers: Default::default(),
            posix_timers: Vec::new(),
            dumpable: 1,
            subreaper: false,
            no_huge_pages: false,
            personality: 0,
            stopped_by: None,
            terminal: None,
            shares: crate::tree::Shares::default(),
            switches: crate::tree::Switches::default(),
        };
        let process = Process { pid: 5, parent: 0, group: 5, session: 5, end: End::Alive(Box::new(life)) };
        let file = OpenFile {
            kind: FileKind::Event { count: 3, semaphore: false },
            flags: 2,
            position: 0,
            owner: Owner::default(),
            locks: Vec::new(),
        };
        Tree { processes: vec![process], files: vec![file], ..Tree::default() }
    }

    fn life(tree: &mut Tree) -> &mut LiveProcess {
        match &mut tree.processes[0].end {
            End::Alive(life) => life,
            End::Zombie { .. } => unreachable!(),
        }
    }

    #[test]
    fn survives_its_bytes() {
        let tree = sample();
        assert_eq!(Tree::decode(&tree.encode(), PAGES).unwrap(), tree);
    }

    #[test]
    fn places_outside_are_refused() {
        let broken: [fn(&mut Tree); 10] = [
            |tree| life(tree).descriptors[0].file = 1,
            |tree| life(tree).descriptors[0].fd = -1,
            |tree| life(tree).space.executable = Executable::File(1),
            |tree| life(tree).space.executable = Executable::Memory(0),
            |tree| life(tree).space.areas[0].pages[1].start = 0x2000,
            |tree| life(tree).space.areas[0].end = 0x5000,
            |tree| life(tree).threads[0].tid = 6,
            |tree| tree.processes[0].parent = 9,
            |tree| tree.files[0].kind = FileKind::Pipe { pipe: 0, end: super::super::PipeEnd::Read },
            |tree| {
                let ask = PacketMembership { interface: b"lo".to_vec(), kind: 1, address: Vec::new(), count: u32::MAX };
                let (interface, options) = (b"lo".to_vec(), Vec::new());
                let socket = PacketSocket { kind: 3, protocol: 3, interface, memberships: vec![ask], options };
                tree.files[0].kind = FileKind::Packet(Box::new(socket));
            },
        ];
        for (n, breaks) in broken.iter().enumerate() {
            let mut tree = sample();
            breaks(&mut tree);
            assert!(Tree::decode(&tree.encode(), PAGES).is_err(), "{n}");
        }
        assert!(Tree::decode(&sample().encode(), 4096..8192).is_err());
    }

    proptest! {
        #[test]
        fn damage_never_panics(place in any::<prop::sample::Index>(), value in any::<u8>()) {
            let mut bytes = sample().encode();
            let at = place.index(bytes.len());
            bytes[at] = value;
            let _ = Tree::decode(&bytes, PAGES);
        }

        #[test]
        fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            let _ = Tree::decode(&bytes, PAGES);
        }
    }
}
