//! Areas, mapped files and layout of a process's address space.

use std::collections::HashMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use torpor_image::tree::{AddressSpace, Advice, Area, Backing, Executable, Layout, MemoryPolicy, PathState};
use torpor_linux::uapi::memory::MLOCK_ONFAULT;

use super::{CaptureError, Look};
use torpor_descriptors::{SharedArea, removed, state};
use torpor_proc as proc;
use torpor_proc::smaps::Mapping;
use torpor_process::aio;
use torpor_process::blocker::{Blocker, Place};
use torpor_process::threads::RemoteMemory;
use torpor_process::trace::TraceError;
use torpor_process::view::View;

/// Whose userfaultfd contexts memory can be registered with, to bring back missing pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UserfaultContexts {
    /// The program's, which cannot be captured.
    Programs,
    /// Ours: it was seen before that the program has none.
    Ours,
}

/// `MADV_*` for the flags that stay with an area.
const ADVICE: [(&str, i32); 8] = [
    ("rr", 1),  // MADV_RANDOM
    ("sr", 2),  // MADV_SEQUENTIAL
    ("dc", 10), // MADV_DONTFORK
    ("mg", 12), // MADV_MERGEABLE
    ("hg", 14), // MADV_HUGEPAGE
    ("nh", 15), // MADV_NOHUGEPAGE
    ("dd", 16), // MADV_DONTDUMP
    ("wf", 18), // MADV_WIPEONFORK
];
/// Behind the link of a file whose name has been removed, and in front of a memfd's.
const GONE: &[u8] = b" (deleted)";
const MEMFD: &[u8] = b"/memfd:";
/// What anonymous memory in huge pages of a pool is called (`MAP_HUGETLB`).
const ANONYMOUS_HUGE: &str = "/anon_hugepage (deleted)";

/// What a link under `/proc/PID` leads to, if it can be reached by its name again; otherwise why not.
pub(super) fn linked(view: &View, link: &str) -> std::io::Result<Result<PathState, String>> {
    let path = fs::read_link(link)?;
    let found = rustix::fs::stat(link)?;
    let shown = path.display();
    if let Some(removed) = removed(path.as_os_str().as_bytes(), &found) {
        return Ok(Ok(removed));
    }
    let there = view.stat(path.as_os_str().as_bytes()).ok();
    Ok(match there {
        Some(there) if (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino) => {
            Ok(state(path.as_os_str().as_bytes(), &found))
        }
        Some(_) => Err(format!("{shown} is another file now")),
        None => Err(format!("{shown} has no name any more")),
    })
}

/// Makes the address space of a process from its mappings; areas have no pages yet, and there is one for each mapping but
/// `[vsyscall]`. What is neither private nor a file with a name goes to `shared`, and its area names its place there for
/// the time being. What is in the way goes to `obstacles`.
pub(super) fn space(
    view: &View,
    pid: i32,
    (mappings, contexts): (&[Mapping], UserfaultContexts),
    shared: &mut Vec<SharedArea>,
    obstacles: &mut Vec<Blocker>,
) -> Result<AddressSpace, CaptureError> {
    let mut space = AddressSpace { layout: layout(pid, 0)?, ..AddressSpace::default() };
    let mut files = HashMap::new();
    for mapping in mappings.iter().filter(|mapping| mapping.area.name != "[vsyscall]") {
        let place = Place::Memory(mapping.area.start, mapping.area.end);
        let backing = match refused(mapping, contexts) {
            Some((what, remedy)) => {
                let name = &mapping.area.name;
                let what = if name.is_empty() { what.to_owned() } else { format!("{what}: {name}") };
                obstacles.push(Blocker::new(pid, place, what, remedy));
                continue;
            }
            None if aio::is_ring(&mapping.area) => match aio::ring(&mapping.area, &RemoteMemory(pid)).look(pid)? {
                Some(backing) => backing,
                None => {
                    let what = "a part of an AIO context's ring, or one that it has written to (io_setup)";
                    obstacles.push(Blocker::new(pid, place, what, "start it without native AIO"));
                    continue;
                }
            },
            None => backing(view, pid, mapping, &mut space, &mut files, shared)?,
        };
        space.areas.push(area(mapping, backing));
    }
    let exe = format!("/proc/{pid}/exe");
    match linked(view, &exe).look(pid)? {
        Ok(path) => space.executable = Executable::File(file(&mut space, path)),
        Err(why) => match nameless(view, &exe, shared, why).look(pid)? {
            Ok(place) => {
                space.executable = Executable::Memory(place as u32);
                shared[place].executed = true;
            }
            Err(why) => obstacles.push(Blocker::new(pid, Place::Process, format!("its executable {why}"), "")),
        },
    }
    Ok(space)
}

/// Which of the areas maps an executable that has been deleted. If none does, why not. An app's will have its name again for a
/// moment, which must be free.
fn nameless(view: &View, exe: &str, shared: &[SharedArea], why: String) -> std::io::Result<Result<usize, String>> {
    let found = rustix::fs::stat(exe)?;
    let path = fs::read_link(exe)?;
    let name = path.as_os_str().as_bytes();
    let Some(name) = name.strip_suffix(GONE).filter(|_| found.st_nlink == 0) else { return Ok(Err(why)) };
    if view.in_sandbox() && !name.starts_with(MEMFD) && !matches!(view.stat(name), Err(Errno::NOENT)) {
        let name = String::from_utf8_lossy(name);
        return Ok(Err(format!("{name} has been deleted, and another file has its name")));
    }
    for (place, area) in shared.iter().enumerate() {
        let mapped = rustix::fs::stat(format!("/proc/{}/map_files/{:x}-{:x}", area.pid, area.start, area.end))?;
        if (mapped.st_dev, mapped.st_ino) == (found.st_dev, found.st_ino) {
            return Ok(Ok(place));
        }
    }
    Ok(Err(why))
}

/// Lets what the space names by its place among shared areas be named by what `rename` gives.
pub(super) fn rename_shared(space: &mut AddressSpace, rename: impl Fn(u32) -> u32) {
    for area in &mut space.areas {
        if let Backing::Shared { memory, .. } = &mut area.backing {
            *memory = rename(*memory);
        }
    }
    if let Executable::Memory(memory) = &mut space.executable {
        *memory = rename(*memory);
    }
}

/// Place of a file in the space's list.
fn file(space: &mut AddressSpace, path: PathState) -> u32 {
    let known = space.files.iter().position(|file| *file == path);
    let place = known.unwrap_or_else(|| {
        space.files.push(path);
        space.files.len() - 1
    });
    place as u32
}

/// Kinds of memory that cannot be captured.
fn refused(mapping: &Mapping, contexts: UserfaultContexts) -> Option<(&'static str, &'static str)> {
    let name = mapping.area.name.as_str();
    let kernels = mapping.is_kernels();
    let own = contexts == UserfaultContexts::Programs;
    if (mapping.has("um") && own) || mapping.has("uw") || mapping.has("ui") {
        Some(("memory registered with a userfaultfd", "end what uses userfaultfd"))
    } else if mapping.has("ss") {
        Some(("a shadow stack", "start it with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off"))
    } else if name.starts_with("/secretmem") {
        Some(("secret memory (memfd_secret)", ""))
    } else if name.starts_with("anon_inode:[io_uring]") {
        Some(("io_uring", "start it with io_uring off"))
    } else if name.starts_with("anon_inode:") {
        Some(("memory of a kernel object", ""))
    } else if name == "[uprobes]" {
        Some(("a probe is set in it", "end the tracer that set it"))
    } else if !kernels && mapping.has("sl") {
        Some(("sealed memory (mseal)", ""))
    } else if !kernels && (mapping.has("io") || mapping.has("pf")) {
        Some(("memory of a device", ""))
    } else {
        None
    }
}

/// Files that are mapped, by device and inode: places in the space's list, or `None` for those without a name.
type Known = HashMap<((u32, u32), u64), Option<u32>>;

fn backing(
    view: &View,
    pid: i32,
    mapping: &Mapping,
    space: &mut AddressSpace,
    files: &mut Known,
    shared: &mut Vec<SharedArea>,
) -> Result<Backing, CaptureError> {
    let torpor_proc::maps::Area { start, end, access, name } = &mapping.area;
    if mapping.is_kernels() {
        return Ok(Backing::Kernel { name: name.clone() });
    }
    // The inode of a System V segment is its id, and the first one of a namespace has the id 0.
    if mapping.inode == 0 && !name.starts_with("/SYSV") {
        return Ok(Backing::Anonymous {
            grows_down: mapping.has("gd"),
            droppable: mapping.has("dp"),
            no_reserve: mapping.has("nr") && !mapping.has("dp"),
        });
    }
    // Every private mapping of this kind has a file of its own, which nobody else can map.
    if mapping.has("ht") && !access.shared && name == ANONYMOUS_HUGE {
        return Ok(Backing::Huge { page_bytes: mapping.page_bytes, no_reserve: mapping.has("nr") });
    }
    let (offset, may_write) = (mapping.offset, access.shared && mapping.has("mw"));
    let key = (mapping.device, mapping.inode);
    let found = match files.get(&key) {
        Some(found) => *found,
        None => {
            let found = linked(view, &format!("/proc/{pid}/map_files/{start:x}-{end:x}")).look(pid)?;
            let found = found.ok().map(|path| file(space, path));
            files.insert(key, found);
            found
        }
    };
    Ok(match found {
        Some(file) => Backing::File { file, offset, shared: access.shared, may_write },
        None => {
            shared.push(SharedArea { pid, start: *start, end: *end, name: name.clone(), executed: false });
            Backing::Shared { memory: shared.len() as u32 - 1, offset, shared: access.shared, may_write }
        }
    })
}

fn area(mapping: &Mapping, backing: Backing) -> Area {
    let kernels = matches!(backing, Backing::Kernel { .. });
    let droppable = matches!(backing, Backing::Anonymous { droppable: true, .. });
    // MAP_DROPPABLE brings these itself.
    let implied = |flag: &str| droppable && (flag == "dd" || flag == "wf");
    let advice = ADVICE.iter().filter(|(flag, _)| !kernels && mapping.has(flag) && !implied(flag));
    let locked = mapping.has("lo").then(|| if mapping.has("lf") { MLOCK_ONFAULT as u32 } else { 0 });
    let name = mapping.area.name.strip_prefix("[anon:").and_then(|name| name.strip_suffix(']'));
    Area {
        start: mapping.area.start,
        end: mapping.area.end,
        protection: mapping.protection(),
        backing,
        advice: Advice {
            madvise: advice.map(|(_, value)| *value).collect(),
            locked: locked.filter(|_| !kernels),
            name: name.unwrap_or_default().as_bytes().to_owned(),
            policy: MemoryPolicy::default(),
        },
        key: mapping.key,
        pages: Vec::new(),
    }
}

fn layout(pid: i32, heap_end: u64) -> Result<Layout, CaptureError> {
    let look = |error| TraceError::Look(pid, error);
    let path = format!("/proc/{pid}/stat");
    let text = proc::read(&path).map_err(look)?;
    let unexpected = || look(proc::unexpected(&path));
    let fields = proc::stat::Fields::of(&text).ok_or_else(unexpected)?;
    let field = |number| fields.get::<u64>(number).ok_or_else(unexpected);
    let auxiliary = fs::read(format!("/proc/{pid}/auxv")).map_err(look)?;
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
    Ok(Layout {
        code: (field(26)?, field(27)?),
        data: (field(45)?, field(46)?),
        heap: (field(47)?, heap_end),
        stack: field(28)?,
        arguments: (field(48)?, field(49)?),
        environment: (field(50)?, field(51)?),
        auxiliary: auxiliary.chunks_exact(8).map(word).collect(),
    })
}
