//! What the new processes inherit, and at which numbers.
//!
//! The restorer opens everything itself and hands it down by inheritance: the seed has these descriptors and nothing else,
//! every fork has copies, and each process puts its own table together from them by `dup3` before it closes them all. So no
//! descriptor is sent, and what is shared is shared by itself. The order is a function of the tree: its open files, its
//! shared memory, files and directories by path, the home's init if the tree enters namespaces, the page source's descriptor, the blob.

use std::collections::HashMap;

use torpor_image::tree::{Backing, Executable, Namespaces, PathState, Tree};
use torpor_linux::restorer::SPARE_NUMBERS;

/// How a path is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// For reading and mapping.
    Read,
    /// For mapping where it may be written.
    ReadWrite,
    /// As a place.
    Place,
}

/// What is inherited.
#[derive(Debug)]
pub struct Staged<'t> {
    /// Number of the first.
    pub first: i32,
    files: usize,
    memories: usize,
    /// The descriptor of the home's init is among them.
    home: bool,
    /// Paths to open.
    pub paths: Vec<(&'t PathState, Access)>,
    places: HashMap<(&'t [u8], u64, u64, Access), usize>,
}

impl<'t> Staged<'t> {
    /// For this tree; `None` if there is no room for their numbers.
    pub fn of(tree: &'t Tree) -> Option<Self> {
        let mut staged = Self {
            first: 0,
            files: tree.files.len(),
            memories: tree.memories.len(),
            home: tree.namespaces != Namespaces::default(),
            paths: Vec::new(),
            places: HashMap::new(),
        };
        for life in tree.processes.iter().filter_map(|process| process.alive()) {
            for area in &life.space.areas {
                if let Backing::File { file, shared, may_write, .. } = area.backing {
                    let access = if shared && may_write { Access::ReadWrite } else { Access::Read };
                    staged.add(&life.space.files[file as usize], access);
                }
            }
            if let Executable::File(file) = life.space.executable {
                staged.add(&life.space.files[file as usize], Access::Read);
            }
            staged.add(&life.cwd, Access::Place);
            life.root.iter().for_each(|root| staged.add(root, Access::Place));
        }
        staged.first = staged.gap(tree)?;
        Some(staged)
    }

    fn add(&mut self, path: &'t PathState, access: Access) {
        let next = self.paths.len();
        self.places.entry((&path.path, path.device, path.inode, access)).or_insert_with(|| {
            self.paths.push((path, access));
            next
        });
    }

    /// The first numbers that no process uses, enough for all of them and the seed.
    fn gap(&self, tree: &Tree) -> Option<i32> {
        let mut used: Vec<i32> = tree
            .processes
            .iter()
            .filter_map(|process| process.alive())
            .flat_map(|life| life.descriptors.iter().map(|descriptor| descriptor.fd))
            .collect();
        for file in &tree.files {
            if let torpor_image::tree::FileKind::Epoll { members } = &file.kind {
                used.extend(members.iter().map(|member| member.fd));
            }
        }
        used.sort_unstable();
        used.dedup();
        let wanted = i32::try_from(self.count()).ok()?.checked_add(SPARE_NUMBERS)?;
        let mut first = 3;
        for fd in used {
            if fd >= first {
                if fd - first >= wanted {
                    break;
                }
                first = fd.checked_add(1)?;
            }
        }
        first.checked_add(wanted).map(|_| first)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.files + self.memories + self.paths.len() + usize::from(self.home) + 2
    }

    fn number(&self, place: usize) -> i32 {
        self.first + place as i32
    }

    /// Number of an open file.
    pub fn file(&self, file: u32) -> i32 {
        self.number(file as usize)
    }

    pub(crate) fn memory(&self, memory: u32) -> i32 {
        self.number(self.files + memory as usize)
    }

    /// One of the paths that [`Self::of`] found.
    pub(crate) fn path(&self, path: &PathState, access: Access) -> i32 {
        let place = self.places[&(path.path.as_slice(), path.device, path.inode, access)];
        self.number(self.files + self.memories + place)
    }

    /// The home's init, if the tree enters namespaces by itself.
    pub(crate) fn home(&self) -> Option<i32> {
        self.home.then(|| self.number(self.count() - 3))
    }

    /// What processes read their pages from, at the offsets of the image: the descriptor of the restorer's page source.
    pub(crate) fn pages(&self) -> i32 {
        self.number(self.count() - 2)
    }

    /// Number of the plan.
    pub fn blob(&self) -> i32 {
        self.number(self.count() - 1)
    }
}
