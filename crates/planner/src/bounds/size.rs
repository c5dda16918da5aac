//! How much an image may hold. What is made of it (the plan, its checks, the wake itself) takes memory and time with these
//! numbers, and some of it with their products; so they end where no real program is.

use torpor_image::tree::{Area, Backing, End, FileKind, LiveProcess, Process, Tree};

/// How much there is of what costs most, in all processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Processes, ended ones too, and their threads.
    pub(super) tasks: usize,
    /// Mapped areas.
    pub(super) areas: usize,
    /// Runs of pages, of processes and of shared memory.
    pub(super) regions: usize,
    /// Descriptors.
    pub(super) descriptors: usize,
    /// Locks of files, once for each descriptor of the file.
    pub(super) locks: usize,
    /// Bytes of the rings of AIO contexts; a step of the plan passes over a few of their places.
    pub(super) ring_bytes: usize,
    /// The kernel's areas of the process that has most of them.
    pub(super) kernel_areas: usize,
    /// Numbers of inotify watches, added up: one is given only once all below it have been.
    pub(super) watch_numbers: usize,
}

impl Sizes {
    /// What an image may have.
    pub(super) const MOST: Self = Self {
        tasks: 1 << 17,
        // 32 processes with all that `vm.max_map_count` gives them by default.
        areas: 1 << 21,
        // 64 GiB if no two pages lie together, 4 TiB if all do.
        regions: 1 << 24,
        // Four processes with as many as Torpor gives them.
        descriptors: 1 << 21,
        locks: 1 << 20,
        // `fs.aio-max-nr` is 4 MiB of them by default.
        ring_bytes: 512 << 20,
        // The kernel has three or four, in a few pieces.
        kernel_areas: 64,
        // Some seconds.
        watch_numbers: 1 << 20,
    };

    pub(super) fn of(tree: &Tree) -> Self {
        let memories = tree.memories.iter().map(|memory| memory.pages.len()).sum();
        let mut sizes = Self { regions: memories, ..Self::default() };
        for file in &tree.files {
            if let FileKind::Inotify { watches } = &file.kind {
                let highest = watches.iter().map(|watch| usize::try_from(watch.watch).unwrap_or(0)).max();
                sizes.watch_numbers = sizes.watch_numbers.saturating_add(highest.unwrap_or(0));
            }
        }
        for Process { end, .. } in &tree.processes {
            match end {
                End::Zombie { .. } => sizes.tasks += 1,
                End::Alive(life) => sizes.add(tree, life),
            }
        }
        sizes
    }

    fn add(&mut self, tree: &Tree, life: &LiveProcess) {
        let LiveProcess { threads, space, descriptors, .. } = life;
        self.tasks += threads.len();
        self.areas += space.areas.len();
        self.descriptors += descriptors.len();
        let files = descriptors.iter().filter_map(|descriptor| tree.files.get(descriptor.file as usize));
        self.locks += files.map(|file| file.locks.len()).sum::<usize>();
        let mut kernel_areas = 0;
        for Area { start, end, backing, pages, .. } in &space.areas {
            self.regions += pages.len();
            match backing {
                Backing::Aio { .. } => {
                    self.ring_bytes = self.ring_bytes.saturating_add(end.saturating_sub(*start) as usize);
                }
                Backing::Kernel { .. } => kernel_areas += 1,
                _ => {}
            }
        }
        self.kernel_areas = self.kernel_areas.max(kernel_areas);
    }

    /// What there is more of than in `most`.
    pub(super) fn beyond(&self, most: &Self) -> Vec<String> {
        let Self { tasks, areas, regions, descriptors, locks, ring_bytes, kernel_areas, watch_numbers } = *self;
        let found = [
            (tasks, most.tasks, "processes and threads"),
            (areas, most.areas, "mapped areas"),
            (regions, most.regions, "runs of pages"),
            (descriptors, most.descriptors, "descriptors"),
            (locks, most.locks, "locks of files"),
            (ring_bytes, most.ring_bytes, "bytes in rings of AIO contexts"),
            (kernel_areas, most.kernel_areas, "areas of the kernel in one process"),
            (watch_numbers, most.watch_numbers, "as the sum of inotify watch numbers"),
        ];
        let beyond = found.into_iter().filter(|(count, most, _)| count > most);
        beyond.map(|(count, most, what)| format!("{count} {what}, more than {most}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::golden;
    use super::*;

    #[test]
    fn each_size_has_an_end() {
        let mut tree = golden();
        let End::Alive(life) = &mut tree.processes[0].end else { panic!("the first process lives") };
        let number = life.descriptors[0].file as usize;
        life.space.areas[0].backing = Backing::Aio { head: 0, waiting: Vec::new() };
        life.space.areas[1].backing = Backing::Kernel { name: "[vdso]".to_owned() };
        tree.files[number].locks.push(torpor_image::tree::FileLock {
            kind: torpor_image::tree::LockKind::Flock,
            mode: 0,
            pid: 0,
            start: 0,
            bytes: 0,
        });
        let path = torpor_image::tree::PathState { path: b"/".to_vec(), ..Default::default() };
        let watch = torpor_image::tree::InotifyWatch { watch: 9, mask: 2, path };
        tree.files[number].kind = FileKind::Inotify { watches: vec![watch] };
        let sizes = Sizes::of(&tree);
        assert_eq!(sizes.watch_numbers, 10, "with the one that is there already");
        assert!(sizes.beyond(&Sizes::MOST).is_empty() && sizes.beyond(&sizes).is_empty());
        let told = sizes.beyond(&Sizes::default());
        assert_eq!(told.len(), 8, "{told:?}");
        tree.processes.extend(vec![tree.processes.last().unwrap().clone(); 3]);
        assert_eq!(
            Sizes::of(&tree).beyond(&sizes)[0],
            format!("{} processes and threads, more than {}", Sizes::of(&tree).tasks, sizes.tasks)
        );
    }
}
