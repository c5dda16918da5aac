//! `torpor image`: what an image holds, and how two differ.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;
use torpor_image::tree::{Backing, End, Executable, LiveProcess, Tree};
use torpor_image::{Content, Kind, PAGE, Region};
use torpor_store::{Contents, ImageFile, MemoryDifference};

use super::descriptors::{open_file, shared_memory, text};
use super::units::{size, when};
use super::{Cells, table};

/// What `torpor image inspect` tells.
#[derive(Debug, Serialize)]
pub(crate) struct ImageView {
    image: String,
    /// `complete` or `dozing`.
    kind: &'static str,
    written: Timestamp,
    bytes: u64,
    app: Option<u64>,
    generation: u64,
    /// Kernel that it was captured on; complete images only.
    kernel: Option<String>,
    needs: Option<NeedsView>,
    state_bytes: u64,
    plan_bytes: u64,
    pages_bytes: u64,
    processes: Vec<ProcessView>,
    shared_memory: Vec<SharedView>,
    /// What a reboot would cost it.
    lost: Vec<String>,
}

#[derive(Debug, Serialize)]
struct NeedsView {
    /// Oldest kernel.
    kernel: String,
    /// Words of CPUID bits.
    cpu: [String; 4],
    xstate_mask: String,
}

#[derive(Debug, Serialize)]
struct ProcessView {
    pid: i32,
    parent: Option<i32>,
    group: Option<i32>,
    session: Option<i32>,
    /// `alive`, `stopped` or `zombie`.
    state: &'static str,
    name: Option<String>,
    user: Option<u32>,
    executable: Option<String>,
    threads: Vec<ThreadView>,
    areas: usize,
    mapped_bytes: u64,
    /// Private bytes in the image.
    stored_bytes: u64,
    /// Private bytes that are zero, and therefore not in it.
    zero_bytes: u64,
    /// Bytes of areas that are shared with others or with files.
    shared_bytes: u64,
    descriptors: Vec<DescriptorView>,
}

#[derive(Debug, Serialize)]
struct ThreadView {
    tid: i32,
    name: Option<String>,
}

#[derive(Debug, Serialize)]
struct DescriptorView {
    fd: i32,
    what: String,
    close_on_exec: bool,
}

#[derive(Debug, Serialize)]
struct SharedView {
    what: String,
    bytes: u64,
    stored_bytes: u64,
}

fn stored<'a>(regions: impl IntoIterator<Item = &'a Region>) -> (u64, u64) {
    regions.into_iter().fold((0, 0), |(stored, zero), region| match region.content {
        Content::Stored { .. } => (stored + region.bytes(), zero),
        Content::Zero => (stored, zero + region.bytes()),
    })
}

impl ImageView {
    /// What `image` holds.
    pub(crate) fn of(image: &ImageFile, contents: &Contents) -> Self {
        let header = image.header();
        let complete = header.kind == Kind::Complete;
        let needs = complete.then(|| NeedsView {
            kernel: format!("{}.{}", header.needs.kernel.0, header.needs.kernel.1),
            cpu: header.needs.cpu.map(|word| format!("{word:#018x}")),
            xstate_mask: format!("{:#x}", header.needs.xstate_mask),
        });
        let (kernel, processes, shared_memory) = match contents {
            Contents::Dozing(state) => (None, state.processes.iter().map(dozing).collect(), Vec::new()),
            Contents::Complete(tree) => (Some(tree.machine.kernel.clone()), tree_view(tree), shared_view(tree)),
        };
        Self {
            image: image.path().display().to_string(),
            kind: if complete { "complete" } else { "dozing" },
            written: image.modified().try_into().unwrap_or_default(),
            bytes: image.bytes(),
            app: (header.app != 0).then_some(header.app),
            generation: header.generation,
            kernel,
            needs,
            state_bytes: header.state_bytes,
            plan_bytes: header.plan_bytes,
            pages_bytes: header.pages_bytes,
            processes,
            shared_memory,
            lost: match contents {
                Contents::Complete(tree) => tree.surroundings.lost.clone(),
                Contents::Dozing(_) => Vec::new(),
            },
        }
    }
}

fn dozing(process: &torpor_image::Process) -> ProcessView {
    let (stored_bytes, zero_bytes) = stored(&process.regions);
    ProcessView {
        pid: process.pid,
        parent: None,
        group: None,
        session: None,
        state: "alive",
        name: None,
        user: None,
        executable: None,
        threads: process.threads.iter().map(|thread| ThreadView { tid: thread.tid, name: None }).collect(),
        areas: 0,
        mapped_bytes: 0,
        stored_bytes,
        zero_bytes,
        shared_bytes: 0,
        descriptors: Vec::new(),
    }
}

fn tree_view(tree: &Tree) -> Vec<ProcessView> {
    let view = |process: &torpor_image::tree::Process| {
        let mut view = match &process.end {
            End::Zombie { name, .. } => zombie(text(name)),
            End::Alive(life) => alive(tree, life),
        };
        view.pid = process.pid;
        view.parent = (process.parent != 0).then_some(process.parent);
        view.group = (process.group != 0).then_some(process.group);
        view.session = (process.session != 0).then_some(process.session);
        view
    };
    tree.processes.iter().map(view).collect()
}

fn zombie(name: String) -> ProcessView {
    ProcessView {
        pid: 0,
        parent: None,
        group: None,
        session: None,
        state: "zombie",
        name: Some(name),
        user: None,
        executable: None,
        threads: Vec::new(),
        areas: 0,
        mapped_bytes: 0,
        stored_bytes: 0,
        zero_bytes: 0,
        shared_bytes: 0,
        descriptors: Vec::new(),
    }
}

fn alive(tree: &Tree, life: &LiveProcess) -> ProcessView {
    let areas = &life.space.areas;
    let (stored_bytes, zero_bytes) = stored(areas.iter().flat_map(|area| &area.pages));
    let is_shared = |backing: &Backing| {
        matches!(backing, Backing::File { shared: true, .. } | Backing::Shared { shared: true, .. })
    };
    let executable = match life.space.executable {
        Executable::File(file) => life.space.files.get(file as usize).map(|file| text(&file.path)),
        Executable::Memory(memory) => tree.memories.get(memory as usize).map(shared_memory),
    };
    let leader = life.threads.first();
    ProcessView {
        state: if life.stopped_by.is_some() { "stopped" } else { "alive" },
        name: leader.map(|thread| text(&thread.name)),
        user: leader.map(|thread| thread.credentials.users[1]),
        executable,
        threads: life
            .threads
            .iter()
            .map(|thread| ThreadView { tid: thread.tid, name: Some(text(&thread.name)) })
            .collect(),
        areas: areas.len(),
        mapped_bytes: areas.iter().map(|area| area.end - area.start).sum(),
        stored_bytes,
        zero_bytes,
        shared_bytes: areas.iter().filter(|area| is_shared(&area.backing)).map(|area| area.end - area.start).sum(),
        descriptors: life
            .descriptors
            .iter()
            .map(|descriptor| DescriptorView {
                fd: descriptor.fd,
                what: open_file(tree, descriptor.file),
                close_on_exec: descriptor.close_on_exec,
            })
            .collect(),
        ..zombie(String::new())
    }
}

fn shared_view(tree: &Tree) -> Vec<SharedView> {
    let view = |memory: &torpor_image::tree::SharedMemory| SharedView {
        what: shared_memory(memory),
        bytes: memory.bytes,
        stored_bytes: stored(&memory.pages).0,
    };
    let tmpfs = tree.surroundings.tmpfs.iter().map(|tmpfs| SharedView {
        what: format!("memory file system {} with {} files", text(&tmpfs.path), tmpfs.nodes.len() - 1),
        bytes: tmpfs.regions().map(Region::bytes).sum(),
        stored_bytes: stored(tmpfs.regions()).0,
    });
    tree.memories.iter().map(view).chain(tmpfs).collect()
}

/// How deep each process is in the tree.
fn depths(processes: &[ProcessView]) -> Vec<usize> {
    let mut depths: BTreeMap<i32, usize> = BTreeMap::new();
    let mut depth = |process: &ProcessView| {
        let depth = process.parent.and_then(|parent| depths.get(&parent)).map_or(0, |above| above + 1);
        depths.insert(process.pid, depth);
        depth
    };
    processes.iter().map(&mut depth).collect()
}

/// `torpor image inspect`.
pub(crate) fn inspected(image: &ImageView, now: Timestamp) -> String {
    let what = if image.kind == "complete" { "complete image" } else { "memory of a dozing app" };
    let mut out = format!("{}: {what}, {}, {}\n", image.image, size(Some(image.bytes)), when(image.written, now));
    if let Some(app) = image.app {
        out.push_str(&format!("of app {app:x}, generation {}\n", image.generation));
    }
    if let (Some(kernel), Some(needs)) = (&image.kernel, &image.needs) {
        out.push_str(&format!(
            "captured on Linux {}, needs Linux {} and this processor's features\n",
            super::safe(kernel),
            needs.kernel
        ));
    }
    let sizes = [image.pages_bytes, image.state_bytes, image.plan_bytes].map(|bytes| size(Some(bytes)));
    out.push_str(&format!("pages {}, state {}, plan of the restore {}\n\n", sizes[0], sizes[1], sizes[2]));
    let optional = |value: Option<i32>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    let row = |(process, depth): (&ProcessView, usize)| -> Cells {
        let name = process.name.as_deref().unwrap_or("-");
        let state = if process.state == "alive" { String::new() } else { format!(" ({})", process.state) };
        vec![
            process.pid.to_string(),
            optional(process.group),
            optional(process.session),
            optional(process.user.map(|user| user as i32)),
            process.threads.len().to_string(),
            process.areas.to_string(),
            size(Some(process.mapped_bytes)),
            size(Some(process.shared_bytes)),
            size(Some(process.stored_bytes)),
            size(Some(process.zero_bytes)),
            format!("{}{name}{state}", "  ".repeat(depth)),
        ]
    };
    let rows: Vec<Cells> = image.processes.iter().zip(depths(&image.processes)).map(row).collect();
    let head =
        [">PID", ">GROUP", ">SESSION", ">USER", ">THREADS", ">AREAS", ">MAPPED", ">SHARED", ">STORED", ">ZERO", "NAME"];
    out.push_str(&table(&head, &rows));
    for memory in &image.shared_memory {
        out.push_str(&format!("\n{}, {} stored", memory.what, size(Some(memory.stored_bytes))));
    }
    if !image.shared_memory.is_empty() {
        out.push('\n');
    }
    for process in &image.processes {
        details(process, &mut out);
    }
    for what in &image.lost {
        out.push_str(&format!("\na reboot costs it: {}", super::safe(what)));
    }
    if !image.lost.is_empty() {
        out.push('\n');
    }
    out
}

fn details(process: &ProcessView, out: &mut String) {
    if process.threads.len() < 2 && process.descriptors.is_empty() {
        return;
    }
    out.push_str(&format!("\nprocess {} ({})", process.pid, process.name.as_deref().unwrap_or("-")));
    if let Some(executable) = &process.executable {
        out.push_str(&format!(", {executable}"));
    }
    out.push('\n');
    if process.threads.len() > 1 {
        let thread = |thread: &ThreadView| format!("{} {}", thread.tid, thread.name.as_deref().unwrap_or(""));
        let threads: Vec<String> = process.threads.iter().map(thread).collect();
        out.push_str(&format!("  threads: {}\n", threads.join(", ")));
    }
    for descriptor in &process.descriptors {
        out.push_str(&format!("  {:>4}  {}\n", descriptor.fd, descriptor.what));
    }
}

/// What `torpor image verify` tells of an image that is sound.
#[derive(Debug, Serialize)]
pub(crate) struct VerifiedView {
    pub(crate) image: String,
    pub(crate) regions: u64,
    pub(crate) page_bytes: u64,
}

/// `torpor image verify`.
pub(crate) fn verified(images: &[VerifiedView]) -> String {
    let line = |image: &VerifiedView| {
        format!("{}: sound, {} regions with {}\n", image.image, image.regions, size(Some(image.page_bytes)))
    };
    images.iter().map(line).collect()
}

/// How two images differ.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ImageDifference {
    /// Processes of the second image only.
    new_processes: Vec<String>,
    /// Processes of the first image only.
    gone_processes: Vec<String>,
    processes: Vec<ProcessDifference>,
}

#[derive(Debug, Serialize)]
struct ProcessDifference {
    pid: i32,
    name: Option<String>,
    same_pages: u64,
    changed_pages: u64,
    new_pages: u64,
    gone_pages: u64,
    new_threads: Vec<i32>,
    gone_threads: Vec<i32>,
    /// Descriptors with what they were and are; empty where there was or is none.
    descriptors: Vec<(i32, String, String)>,
}

impl ProcessDifference {
    fn is_none(&self) -> bool {
        self.changed_pages + self.new_pages + self.gone_pages == 0
            && self.new_threads.is_empty()
            && self.gone_threads.is_empty()
            && self.descriptors.is_empty()
    }
}

impl ImageDifference {
    /// How `second` differs from `first`.
    pub(crate) fn of(first: &ImageView, second: &ImageView, memory: &[MemoryDifference]) -> Self {
        let find = |image: &'_ ImageView, pid: i32| image.processes.iter().position(|process| process.pid == pid);
        let only = |one: &ImageView, other: &ImageView| {
            let missing = one.processes.iter().filter(|process| find(other, process.pid).is_none());
            missing.map(|process| format!("{} ({})", process.pid, process.name.as_deref().unwrap_or("-"))).collect()
        };
        let both = first.processes.iter().filter_map(|before| {
            let after = &second.processes[find(second, before.pid)?];
            let memory = memory.iter().find(|memory| memory.pid == before.pid).copied().unwrap_or_default();
            Some(process_difference(before, after, memory))
        });
        Self {
            new_processes: only(second, first),
            gone_processes: only(first, second),
            processes: both.filter(|difference| !difference.is_none()).collect(),
        }
    }
}

fn process_difference(before: &ProcessView, after: &ProcessView, memory: MemoryDifference) -> ProcessDifference {
    let tids = |process: &ProcessView| process.threads.iter().map(|thread| thread.tid).collect::<BTreeSet<i32>>();
    let (old, new) = (tids(before), tids(after));
    let open = |process: &ProcessView| -> BTreeMap<i32, String> {
        process.descriptors.iter().map(|descriptor| (descriptor.fd, descriptor.what.clone())).collect()
    };
    let (was, is) = (open(before), open(after));
    let numbers: BTreeSet<i32> = was.keys().chain(is.keys()).copied().collect();
    let of = |open: &BTreeMap<i32, String>, fd: i32| open.get(&fd).cloned().unwrap_or_default();
    let changed = numbers.into_iter().filter(|fd| was.get(fd) != is.get(fd));
    ProcessDifference {
        pid: before.pid,
        name: after.name.clone(),
        same_pages: memory.same_pages,
        changed_pages: memory.changed_pages,
        new_pages: memory.new_pages,
        gone_pages: memory.gone_pages,
        new_threads: new.difference(&old).copied().collect(),
        gone_threads: old.difference(&new).copied().collect(),
        descriptors: changed.map(|fd| (fd, of(&was, fd), of(&is, fd))).collect(),
    }
}

/// `torpor image diff`.
pub(crate) fn difference(difference: &ImageDifference) -> String {
    let mut out = String::new();
    for process in &difference.new_processes {
        out.push_str(&format!("+ process {process}\n"));
    }
    for process in &difference.gone_processes {
        out.push_str(&format!("- process {process}\n"));
    }
    for process in &difference.processes {
        out.push_str(&format!("process {} ({})\n", process.pid, process.name.as_deref().unwrap_or("-")));
        let pages = |pages: u64| size(Some(pages * PAGE));
        let (changed, new, gone) = (process.changed_pages, process.new_pages, process.gone_pages);
        if changed + new + gone > 0 {
            out.push_str(&format!(
                "  memory: {} changed, {} new, {} gone, {} the same\n",
                pages(changed),
                pages(new),
                pages(gone),
                pages(process.same_pages)
            ));
        }
        for (sign, threads) in [("+", &process.new_threads), ("-", &process.gone_threads)] {
            for thread in threads {
                out.push_str(&format!("  {sign} thread {thread}\n"));
            }
        }
        for (fd, was, is) in &process.descriptors {
            match (was.is_empty(), is.is_empty()) {
                (true, _) => out.push_str(&format!("  + descriptor {fd}: {is}\n")),
                (_, true) => out.push_str(&format!("  - descriptor {fd}: {was}\n")),
                _ => out.push_str(&format!("  descriptor {fd}: {was} → {is}\n")),
            }
        }
    }
    if out.is_empty() { "no difference in processes, memory, threads or descriptors\n".to_owned() } else { out }
}
