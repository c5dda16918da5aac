//! Steps that build an address space.
//!
//! What was inherited and is not to stay goes first, then the kernel's own areas move to their places, then everything is
//! mapped that is not there yet. An area whose stored pages the program itself may not write is mapped writable, filled and
//! protected. Pages are read from the page source's descriptor straight into place, unless there are many ([`FILL`]). Pages of
//! zeros are nothing in anonymous memory; over a file they are read from behind the end of the blob's data, which is a hole.

use torpor_image::tree::{Area, Backing, Executable, Layout, LiveProcess, MemoryPolicy, SharedMemoryKind, Tree};
use torpor_image::{Content, lazy_size};
use torpor_linux::hugepages;
use torpor_linux::uapi::memory::{
    MADV_DONTNEED, MAP_ANONYMOUS, MAP_DROPPABLE, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, SHM_EXEC, SHM_RDONLY,
};
use torpor_linux::uapi::prctl::{PR_SET_MM, PR_SET_MM_MAP, PR_SET_VMA};

use super::addresses::{MREMAP_MAYMOVE_FIXED, ScratchArea};
use super::build::{Argument, Builder, Steps};
use super::kernel::{KernelAreas, is_kernel};
use super::mapping::Mapped;
use super::page_reads::{Batch, READ_MAX, read};
use super::runs::Run;
use super::shared_pages::{Kept, Move, PROTECTION};
use super::{CompileError, HOLE_OFFSET, aio};
use crate::calls;
use crate::plan::FILL;
use crate::staged::{Access, Staged};

const WRITE: u32 = 2;
/// What is there when a process begins to build its memory.
pub(super) struct BaselineLayout<'a> {
    pub(super) room: ScratchArea,
    pub(super) kernel: &'a KernelAreas<'a>,
    pub(super) kept: &'a Kept,
}

/// Steps that make `life`'s memory.
pub(super) fn space(
    tree: &Tree,
    pid: i32,
    life: &LiveProcess,
    staged: &Staged<'_>,
    ground: &BaselineLayout<'_>,
    builder: &mut Builder,
    steps: &mut Steps,
) -> Result<(), CompileError> {
    let kept = ground.kept;
    for Move { from, to, bytes, .. } in &kept.moves {
        let arguments = [*from, *bytes, *bytes, MREMAP_MAYMOVE_FIXED, *to].map(Argument::Value);
        steps.exact(calls::MREMAP, *to, &arguments);
    }
    for gone in &kept.unmapped {
        steps.call(calls::MUNMAP, &[gone.start.into(), (gone.end - gone.start).into()]);
    }
    ground.kernel.settle(pid, life, steps)?;
    aio::contexts(life, staged, ground.room, kept, builder, steps);
    keys(life, steps);
    for (n, area) in life.space.areas.iter().enumerate() {
        if kept.areas.contains(&n) {
            advise(area, builder, steps);
        } else if !is_kernel(area) {
            map(tree, pid, life, area, staged, builder, steps)?;
        }
    }
    for gone in &kept.stale {
        steps.call(calls::MADVISE, &[gone.start.into(), (gone.end - gone.start).into(), MADV_DONTNEED.into()]);
    }
    fill(life, kept, staged, builder, steps);
    for (n, area) in life.space.areas.iter().enumerate() {
        let (start, bytes) = (Argument::Value(area.start), Argument::Value(area.end - area.start));
        let protection = u64::from(area.protection).into();
        if area.key != 0 {
            steps.call(calls::PKEY_MPROTECT, &[start, bytes, protection, u64::from(area.key).into()]);
        } else if mapped_writable(area) || (kept.areas.contains(&n) && area.protection != PROTECTION) {
            steps.call(calls::MPROTECT, &[start, bytes, protection]);
        }
        if let Some(flags) = area.advice.locked {
            // Pages that cannot be locked now are locked when they are touched: what counts is the area's flag.
            steps.any(calls::MLOCK2, &[start, bytes, u64::from(flags).into()]);
        }
    }
    layout(&life.space.layout, executable(life, staged), builder, steps);
    Ok(())
}

fn executable(life: &LiveProcess, staged: &Staged<'_>) -> i32 {
    match life.space.executable {
        Executable::File(file) => staged.path(&life.space.files[file as usize], Access::Read),
        Executable::Memory(memory) => staged.memory(memory),
    }
}

/// Allocates the protection keys that areas have; those between are given back.
fn keys(life: &LiveProcess, steps: &mut Steps) {
    let used = |key: u32| life.space.areas.iter().any(|area| area.key == key);
    let highest = life.space.areas.iter().map(|area| area.key).max().unwrap_or(0);
    for key in 1..=u64::from(highest) {
        steps.exact(calls::PKEY_ALLOC, key, &[0_u64.into(), 0_u64.into()]);
    }
    for key in (1..=highest).filter(|key| !used(*key)) {
        steps.call(calls::PKEY_FREE, &[u64::from(key).into()]);
    }
}

fn has_contents(area: &Area) -> bool {
    let over_file = !area.backing.is_zeros();
    area.pages.iter().any(|region| over_file || matches!(region.content, Content::Stored { .. }))
}

fn mapped_writable(area: &Area) -> bool {
    area.protection & WRITE == 0 && has_contents(area)
}

fn map(
    tree: &Tree,
    pid: i32,
    life: &LiveProcess,
    area: &Area,
    staged: &Staged<'_>,
    builder: &mut Builder,
    steps: &mut Steps,
) -> Result<(), CompileError> {
    let protection = area.protection | if mapped_writable(area) { WRITE } else { 0 };
    let mapped = Mapped { start: area.start, end: area.end, protection };
    let kind = |shared: bool| if shared { MAP_SHARED } else { MAP_PRIVATE };
    let (flags, fd, offset) = match area.backing {
        Backing::Anonymous { droppable: true, .. } => (MAP_DROPPABLE | MAP_ANONYMOUS, -1, 0),
        Backing::Anonymous { grows_down, no_reserve, .. } => {
            mapped.anonymous(grows_down, no_reserve, steps);
            advise(area, builder, steps);
            return Ok(());
        }
        Backing::Huge { page_bytes, no_reserve } => {
            let size = u64::from(hugepages::MAP_HUGETLB | hugepages::size_flags(page_bytes));
            let reserve = if no_reserve { MAP_NORESERVE } else { 0 };
            (MAP_PRIVATE | MAP_ANONYMOUS | size | reserve, -1, 0)
        }
        Backing::File { file, offset, shared, may_write } => {
            let access = if shared && may_write { Access::ReadWrite } else { Access::Read };
            (kind(shared), staged.path(&life.space.files[file as usize], access), offset)
        }
        Backing::Shared { memory, offset, shared, may_write } => {
            let about = &tree.memories[memory as usize];
            if let SharedMemoryKind::SystemV { id, .. } = about.kind {
                let bytes = about.bytes.next_multiple_of(about.page_bytes());
                attach(pid, area, id, offset, may_write, bytes, steps)?;
                advise(area, builder, steps);
                return Ok(());
            }
            (kind(shared), staged.memory(memory), offset)
        }
        Backing::Kernel { .. } => return Ok(()),
        Backing::Aio { .. } => {
            aio::protect(area, steps);
            advise(area, builder, steps);
            return Ok(());
        }
    };
    mapped.map(flags, fd, offset, steps);
    advise(area, builder, steps);
    Ok(())
}

fn advise(area: &Area, builder: &mut Builder, steps: &mut Steps) {
    let bytes = area.end - area.start;
    for advice in &area.advice.madvise {
        steps.call(calls::MADVISE, &[area.start.into(), bytes.into(), (*advice).into()]);
    }
    let policy = &area.advice.policy;
    if policy.mode != 0 {
        let (nodes, count) = nodes(policy, builder);
        let arguments = [area.start.into(), bytes.into(), u64::from(policy.mode).into(), nodes, count, 0_u64.into()];
        steps.call(calls::MBIND, &arguments);
    }
    if !area.advice.name.is_empty() {
        let name = builder.bytes(&[&area.advice.name[..], &[0]].concat());
        // Only for people; kernels without CONFIG_ANON_VMA_NAME have no names.
        steps.any(calls::PRCTL, &[PR_SET_VMA.into(), 0_u64.into(), area.start.into(), bytes.into(), name]);
    }
}

/// The nodes of a policy and their number, as the kernel wants them.
pub(super) fn nodes(policy: &MemoryPolicy, builder: &mut Builder) -> (Argument, Argument) {
    if policy.nodes.is_empty() {
        return (Argument::Value(0), Argument::Value(0));
    }
    let bits = policy.nodes.len() as u64 * 64;
    // It takes one less than it is told.
    (builder.numbers(&policy.nodes), Argument::Value(bits + 1))
}

/// Attaches System V shared memory, which is mapped whole or not at all. What it is attached for stays with the mapping
/// (`may_write`); what the program has protected since is protected again.
fn attach(
    pid: i32,
    area: &Area,
    id: i32,
    offset: u64,
    may_write: bool,
    bytes: u64,
    steps: &mut Steps,
) -> Result<(), CompileError> {
    const READ: u32 = 1;
    const EXECUTE: u32 = 4;
    if offset != 0 || area.end - area.start != bytes {
        return Err(CompileError::PartOfSegment { pid, start: area.start });
    }
    let execute = area.protection & EXECUTE;
    let attached = READ | if may_write { WRITE } else { 0 } | execute;
    let flags = if may_write { 0 } else { SHM_RDONLY } | if execute != 0 { SHM_EXEC } else { 0 };
    steps.exact(calls::SHMAT, area.start, &[id.into(), area.start.into(), flags.into()]);
    if area.protection != attached {
        let arguments = [area.start.into(), (area.end - area.start).into(), u64::from(area.protection).into()];
        steps.call(calls::MPROTECT, &arguments);
    }
    Ok(())
}

fn fill(life: &LiveProcess, kept: &Kept, staged: &Staged<'_>, builder: &mut Builder, steps: &mut Steps) {
    let mut stored: Vec<Run> = Vec::new();
    let mut zeros = Batch::default();
    for area in &life.space.areas {
        for region in &area.pages {
            match region.content {
                Content::Stored { offset, .. } => stored.push(Run::new(region.start, region.bytes(), offset)),
                Content::Zero if area.backing.is_zeros() => {}
                Content::Zero => {
                    let mut done = 0;
                    while done < region.bytes() {
                        let bytes = (region.bytes() - done).min(READ_MAX);
                        let at = HOLE_OFFSET + zeros.bytes;
                        if !zeros.take(at, region.start + done, bytes) {
                            zeros.read(staged.blob(), builder, steps);
                            zeros = Batch::default();
                            zeros.take(HOLE_OFFSET, region.start + done, bytes);
                        }
                        done += bytes;
                    }
                }
            }
        }
    }
    zeros.read(staged.blob(), builder, steps);
    let missing = kept.missing(stored);
    // One that shares its descriptors has its memory before all processes are there, and nobody fills it then.
    let is_early = life.shares.descriptors;
    if is_early || missing.iter().map(|run| run.bytes()).sum::<u64>() < lazy_size::least_bytes() {
        read(&missing, staged.pages(), builder, steps);
        return;
    }
    let words: Vec<u64> = missing.iter().flat_map(|run| [run.start, run.bytes(), run.offset()]).collect();
    let table = builder.numbers(&words);
    steps.stop_for(FILL, &[table, (missing.len() as u64).into()]);
}

fn layout(layout: &Layout, executable: i32, builder: &mut Builder, steps: &mut Steps) {
    let auxiliary = builder.numbers(&layout.auxiliary);
    let bytes = size_of_val(layout.auxiliary.as_slice()) as u64;
    let Layout { code, data, heap, stack, arguments, environment, .. } = layout;
    let numbers = [
        code.0,
        code.1,
        data.0,
        data.1,
        heap.0,
        heap.1,
        *stack,
        arguments.0,
        arguments.1,
        environment.0,
        environment.1,
    ];
    let mut words: Vec<Argument> = numbers.iter().map(|number| Argument::Value(*number)).collect();
    words.push(auxiliary);
    // Two numbers of four bytes: bytes of the auxiliary vector, the executable's descriptor.
    words.push(Argument::Value(bytes | (executable as u64) << 32));
    let size = Argument::Value(words.len() as u64 * 8);
    let place = builder.words(&words);
    steps.call(calls::PRCTL, &[PR_SET_MM.into(), PR_SET_MM_MAP.into(), place, size, 0_u64.into()]);
}
