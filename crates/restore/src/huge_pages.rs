//! Huge pages that a tree needs of the machine's pools (hugetlb).
//!
//! A mapping takes its pages when it is made, so a pool without room would end the restore half-way with "Cannot allocate memory".
//! It is looked at before: the refusal says what is missing, and the image stays.

use std::collections::BTreeMap;

use torpor_image::PAGE;
use torpor_image::tree::{Backing, SharedMemoryKind, Tree};
use torpor_linux::hugepages;

/// What of the pools is in the way. `is_there` says of a System V segment that it need not be made.
pub fn lacking(tree: &Tree, is_there: impl Fn(i32) -> bool) -> Vec<String> {
    let lacks = |(size, needed): (u64, u64)| {
        let there = hugepages::available(size).unwrap_or(0);
        let (kilobytes, mib) = (size >> 10, size >> 20);
        (there < needed).then(|| {
            format!(
                "it needs {needed} huge pages of {mib} MiB, and the machine's pool has {there} to give \
                 (/sys/kernel/mm/hugepages/hugepages-{kilobytes}kB/nr_hugepages)"
            )
        })
    };
    needed(tree, is_there).into_iter().filter_map(lacks).collect()
}

/// Pages by their size. A private mapping takes as many as it is long, unless it said `MAP_NORESERVE`; shared memory is counted once.
fn needed(tree: &Tree, is_there: impl Fn(i32) -> bool) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    let mut add = |size: u64, bytes: u64| *found.entry(size).or_default() += bytes.div_ceil(size);
    for area in tree.processes.iter().filter_map(|process| process.alive()).flat_map(|life| &life.space.areas) {
        if let Backing::Huge { page_bytes, no_reserve } = area.backing {
            let touched = || {
                let mut pages: Vec<u64> = area.pages.iter().map(|region| region.start / page_bytes).collect();
                pages.dedup();
                pages.len() as u64 * page_bytes
            };
            add(page_bytes, if no_reserve { touched() } else { area.end - area.start });
        }
    }
    for memory in tree.memories.iter().filter(|memory| memory.page_bytes() != PAGE) {
        let there = matches!(memory.kind, SharedMemoryKind::SystemV { id, .. } if is_there(id));
        add(memory.page_bytes(), if there { 0 } else { memory.bytes });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use torpor_image::tree::SharedMemory;

    #[test]
    fn pages_are_counted_by_their_size() {
        const MIB: u64 = 1 << 20;
        let memory =
            |page_bytes, bytes| SharedMemory { kind: SharedMemoryKind::Huge { page_bytes }, bytes, pages: Vec::new() };
        let mut tree = Tree { memories: vec![memory(2 * MIB, 6 * MIB), memory(1 << 30, 1 << 30)], ..Tree::default() };
        assert_eq!(needed(&tree, |_| false), BTreeMap::from([(2 * MIB, 3), (1 << 30, 1)]));
        // No machine has so much.
        tree.memories.push(memory(2 * MIB, 1 << 60));
        let told = lacking(&tree, |_| false).join("; ");
        assert!(told.contains("huge pages of 2 MiB") && told.contains("hugepages-2048kB"), "{told}");
        tree.memories.clear();
        assert_eq!(lacking(&tree, |_| false), [""; 0]);
    }
}
