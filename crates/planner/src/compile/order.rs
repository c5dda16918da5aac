//! Who makes whom: parents, sessions and process groups.
//!
//! A process is in the session that its maker is in at that moment, unless it makes one of its own. So its maker is its
//! parent where the sessions agree, before or after the parent's own `setsid`; else a sibling in the right session, which
//! makes it with `CLONE_PARENT`; else, where the session's leader has ended, a helper that has its id for as long as the tree
//! is being made. Groups are joined when all processes are there; groups whose leader has ended have a helper, too.

use std::collections::{BTreeMap, HashMap};

use torpor_image::tree::Tree;

use super::CompileError;

/// Who makes a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Maker {
    /// The restorer.
    Launch,
    /// A process, as its own child.
    Parent {
        /// Its place.
        by: usize,
        /// Before it makes its own session.
        early: bool,
    },
    /// A process, as its parent's child.
    Sibling {
        /// Its place.
        by: usize,
    },
    /// A helper, as its parent's child.
    Helper {
        /// Its place in [`Order::helpers`].
        by: usize,
    },
}

/// A process that is only there while the tree is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Helper {
    /// Its id.
    pub(super) pid: i32,
    /// Its parent, which waits for its end; `None`: the root's parent, and the root makes it.
    pub(super) parent: Option<usize>,
    /// It makes a session; otherwise a group.
    pub(super) session: bool,
}

/// Who makes others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// A process, by its place.
    Process(usize),
    /// A helper, by its place.
    Helper(usize),
}

/// One that is made by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Birth {
    pub(super) node: Node,
    /// As its maker's parent's child.
    pub(super) sibling: bool,
}

/// How a process comes to its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// It is in it: its own session's, or the restorer's.
    Inherited,
    /// It makes it.
    Own,
    /// It joins it when all are there.
    Join(i32),
}

/// The order in which processes are made.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// For each process of the tree.
    pub(super) makers: Vec<Maker>,
    /// For each process of the tree.
    pub(super) groups: Vec<Group>,
    /// Helpers.
    pub(super) helpers: Vec<Helper>,
    /// Whom each process makes.
    by_process: Vec<Births>,
    /// Whom each helper makes.
    by_helper: Vec<Births>,
}

/// Whom one node makes, in this order.
#[derive(Clone, Debug, Default)]
struct Births {
    /// Before it makes its own session.
    early: Vec<Birth>,
    /// Afterwards.
    late: Vec<Birth>,
}

impl Order {
    pub(super) fn of(tree: &Tree) -> Result<Self, CompileError> {
        let processes = &tree.processes;
        let places: HashMap<i32, usize> = processes.iter().enumerate().map(|(n, process)| (process.pid, n)).collect();
        let mut order = Self { makers: vec![Maker::Launch], ..Self::default() };
        // The session that each is in before it makes its own.
        let mut born_in =
            vec![processes.first().map_or(0, |root| if root.session == root.pid { -1 } else { root.session })];
        let mut helpers: BTreeMap<i32, usize> = BTreeMap::new();
        // The first process of each session and parent.
        let mut siblings: HashMap<(i32, i32), usize> = HashMap::new();
        for (n, process) in processes.iter().enumerate() {
            let sibling = siblings.get(&(process.session, process.parent)).copied();
            siblings.entry((process.session, process.parent)).or_insert(n);
            if n == 0 {
                continue;
            }
            let parent = places.get(&process.parent).copied();
            let leads = process.session == process.pid;
            let maker = match parent {
                Some(by) if leads || processes[by].session == process.session => Maker::Parent { by, early: false },
                Some(by) if born_in[by] == process.session => Maker::Parent { by, early: true },
                None if leads || processes[0].session == process.session => Maker::Sibling { by: 0 },
                _ => match (sibling, parent) {
                    (Some(by), _) => Maker::Sibling { by },
                    (None, parent) if process.session > 0 && !places.contains_key(&process.session) => {
                        let helper = *helpers.entry(process.session).or_insert_with(|| {
                            order.helpers.push(Helper { pid: process.session, parent, session: true });
                            order.helpers.len() - 1
                        });
                        if order.helpers[helper].parent != parent {
                            return Err(CompileError::Session { pid: process.pid, session: process.session });
                        }
                        Maker::Helper { by: helper }
                    }
                    _ => return Err(CompileError::Session { pid: process.pid, session: process.session }),
                },
            };
            born_in.push(match maker {
                Maker::Parent { by, early: true } => born_in[by],
                _ if leads => parent.map_or(0, |by| processes[by].session),
                _ => process.session,
            });
            order.makers.push(maker);
        }
        order.groups(tree, &places, &helpers)?;
        order.index();
        Ok(order)
    }

    /// Whom it makes before it makes its own session, and whom afterwards, in this order.
    pub(super) fn births(&self, maker: Node) -> (&[Birth], &[Birth]) {
        let births = match maker {
            Node::Process(n) => &self.by_process[n],
            Node::Helper(h) => &self.by_helper[h],
        };
        (&births.early, &births.late)
    }

    /// Sorts all births by their makers, once: looking for the children of each process by itself would take the square of
    /// their number.
    fn index(&mut self) {
        self.by_process = vec![Births::default(); self.makers.len()];
        self.by_helper = vec![Births::default(); self.helpers.len()];
        for (child, made) in self.makers.iter().enumerate() {
            let node = Node::Process(child);
            let list = match *made {
                Maker::Launch => continue,
                Maker::Parent { by, early: true } => &mut self.by_process[by].early,
                Maker::Parent { by, early: false } | Maker::Sibling { by } => &mut self.by_process[by].late,
                Maker::Helper { by } => &mut self.by_helper[by].late,
            };
            list.push(Birth { node, sibling: !matches!(made, Maker::Parent { .. }) });
        }
        // The root's own helpers come before those that it makes beside itself.
        for beside in [false, true] {
            for (h, helper) in self.helpers.iter().enumerate().filter(|(_, helper)| helper.parent.is_none() == beside) {
                let births = &mut self.by_process[helper.parent.unwrap_or(0)];
                births.late.push(Birth { node: Node::Helper(h), sibling: beside });
            }
        }
    }

    fn groups(
        &mut self,
        tree: &Tree,
        places: &HashMap<i32, usize>,
        sessions: &BTreeMap<i32, usize>,
    ) -> Result<(), CompileError> {
        let root = &tree.processes[0];
        let mut helpers: BTreeMap<i32, usize> = BTreeMap::new();
        // The first living process of each session.
        let mut living: HashMap<i32, usize> = HashMap::new();
        for (n, process) in tree.processes.iter().enumerate().filter(|(_, process)| process.alive().is_some()) {
            living.entry(process.session).or_insert(n);
        }
        for (n, process) in tree.processes.iter().enumerate() {
            let group = process.group;
            let outside = root.session != root.pid && process.session == root.session;
            self.groups.push(if process.session == process.pid {
                Group::Inherited
            } else if group == process.pid {
                Group::Own
            } else if places.contains_key(&group) || sessions.contains_key(&group) {
                Group::Join(group)
            } else if n == 0 || (outside && group == root.group) {
                Group::Inherited
            } else {
                // Its leader has ended: a child of a process in the same session makes it again.
                let parent = living.get(&process.session).copied();
                let parent = parent.ok_or(CompileError::Group { pid: process.pid, group })?;
                helpers.entry(group).or_insert_with(|| {
                    self.helpers.push(Helper { pid: group, parent: Some(parent), session: false });
                    self.helpers.len() - 1
                });
                Group::Join(group)
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use torpor_image::tree::{End, Process};

    fn tree(processes: &[(i32, i32, i32, i32)]) -> Tree {
        let process = |&(pid, parent, group, session)| Process {
            pid,
            parent,
            group,
            session,
            end: End::Zombie { status: 0, name: Vec::new() },
        };
        Tree { processes: processes.iter().map(process).collect(), ..Tree::default() }
    }

    fn late(by: usize) -> Maker {
        Maker::Parent { by, early: false }
    }

    #[test]
    fn children_stay_in_the_session_or_make_their_own() {
        let order = Order::of(&tree(&[(10, 0, 10, 10), (11, 10, 10, 10), (12, 10, 12, 12), (13, 12, 13, 12)])).unwrap();
        assert_eq!(order.makers, [Maker::Launch, late(0), late(0), late(2)]);
        assert_eq!(order.groups, [Group::Inherited, Group::Join(10), Group::Inherited, Group::Own]);
        assert!(order.helpers.is_empty());
    }

    #[test]
    fn a_child_from_before_setsid_is_made_before_it() {
        let order = Order::of(&tree(&[(10, 0, 10, 5), (11, 10, 11, 11), (12, 11, 10, 5)])).unwrap();
        assert_eq!(order.makers[2], Maker::Parent { by: 1, early: true });
        assert_eq!(order.groups[2], Group::Join(10));
    }

    #[test]
    fn an_orphan_is_made_by_a_sibling_in_its_session() {
        let order = Order::of(&tree(&[(10, 0, 10, 10), (11, 10, 11, 11), (12, 10, 11, 11)])).unwrap();
        assert_eq!(order.makers[2], Maker::Sibling { by: 1 });
    }

    #[test]
    fn a_session_without_leader_has_a_helper() {
        let order = Order::of(&tree(&[(10, 0, 10, 10), (12, 10, 11, 11), (13, 10, 13, 11)])).unwrap();
        assert_eq!(order.helpers, [Helper { pid: 11, parent: Some(0), session: true }]);
        assert_eq!(order.makers[1..], [Maker::Helper { by: 0 }, Maker::Sibling { by: 1 }]);
        assert_eq!(order.groups[1..], [Group::Join(11), Group::Own]);
    }

    #[test]
    fn a_daemon_whose_maker_has_ended_has_a_helper_beside_the_root() {
        let order = Order::of(&tree(&[(10, 0, 10, 10), (12, 0, 11, 11), (13, 12, 11, 11)])).unwrap();
        assert_eq!(order.helpers, [Helper { pid: 11, parent: None, session: true }]);
        assert_eq!(order.makers[1..], [Maker::Helper { by: 0 }, late(1)]);
        assert_eq!(order.groups[1..], [Group::Join(11), Group::Join(11)]);
    }

    /// Sizes that take minutes if each process is compared with each other one.
    #[test]
    fn large_trees_take_no_more_than_their_size() {
        const MANY: i32 = 200_000;
        let root = (10, 0, 10, 10);
        let children: Vec<_> = std::iter::once(root).chain((0..MANY).map(|n| (1000 + n, 10, 10, 10))).collect();
        let orphans = (0..MANY).map(|n| (1000 + n, 10, 1_000_000 + n, 1_000_000 + n));
        let orphans: Vec<_> = std::iter::once(root).chain(orphans).collect();
        for (processes, helpers) in [(children, 0), (orphans, MANY as usize)] {
            let order = Order::of(&tree(&processes)).unwrap();
            assert_eq!(order.helpers.len(), helpers);
            let nodes = (0..order.makers.len()).map(Node::Process).chain((0..helpers).map(Node::Helper));
            let made: usize = nodes.map(|node| order.births(node)).map(|(early, late)| early.len() + late.len()).sum();
            assert_eq!(made, MANY as usize + helpers);
        }
    }

    #[test]
    fn foreign_sessions_and_groups_are_the_restorers() {
        let order = Order::of(&tree(&[(10, 0, 7, 5), (11, 10, 7, 5), (12, 10, 12, 5)])).unwrap();
        assert_eq!(order.groups, [Group::Inherited, Group::Inherited, Group::Own]);
        assert!(Order::of(&tree(&[(10, 0, 7, 5), (11, 10, 8, 8), (12, 0, 9, 8)])).is_err());
    }
}
