//! Memory file systems: what lies in them goes with the image, for it is gone with the machine's memory.

use std::collections::HashSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::Bytes;
use super::check::{Checked, regions, sure};
use super::frugal;
use crate::state::ADDRESS_END;
use crate::{PAGE, Region};

/// Bits of [`Node::mode`] that say what it is, as `stat(2)` has them.
pub const KIND_BITS: u32 = 0o170_000;
/// A directory, by these bits.
pub const DIRECTORY: u32 = 0o040_000;
const FIFO: u32 = 0o010_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const BLOCK_DEVICE: u32 = 0o060_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const SOCKET: u32 = 0o140_000;

/// Bytes of the longest name.
const NAME_BYTES: usize = 255;
/// Bytes of the longest path.
const PATH_BYTES: usize = 4096;
/// Directories within each other.
pub const MOST_DEPTH: u32 = 128;
/// Extended attributes of one node.
const MOST_ATTRIBUTES: usize = 1024;

/// A memory file system of an app's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tmpfs {
    /// Where it is mounted.
    #[serde(deserialize_with = "frugal::list")]
    pub path: Bytes,
    /// Its device number at the capture, which [`super::PathState`]s name.
    pub device: u64,
    /// What lies in it: its root first, parents before what is in them.
    #[serde(deserialize_with = "frugal::list")]
    pub nodes: Vec<Node>,
}

/// A file of any kind in a memory file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its directory's place in the list; 0 for the root itself.
    pub parent: u32,
    /// Its name there; empty for the root.
    #[serde(deserialize_with = "frugal::list")]
    pub name: Bytes,
    /// Its number at the capture.
    pub inode: u64,
    /// What it is, and permission bits, as `stat(2)` has them.
    pub mode: u32,
    /// Its user and group.
    pub owner: (u32, u32),
    /// When it was read and when its contents were changed, nanoseconds since 1970.
    pub times_ns: [i64; 2],
    /// Extended attributes by name.
    #[serde(deserialize_with = "frugal::list")]
    pub attributes: Vec<(Bytes, Bytes)>,
    /// What is in it.
    pub content: NodeContent,
}

/// What is in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeContent {
    /// Nothing of its own: a directory, a FIFO, the name of a socket.
    Nothing,
    /// A regular file's bytes.
    File {
        /// How many.
        bytes: u64,
        /// Its pages; what is not there is zero.
        #[serde(deserialize_with = "frugal::list")]
        pages: Vec<Region>,
    },
    /// Where a symbolic link leads.
    Link(Bytes),
    /// A device's number.
    Device(u64),
    /// One more name of the node at this place, which says everything else.
    Again(u32),
    /// Something else is mounted there, and what lies below cannot be seen; nothing else of it is known.
    Covered,
}

impl Tmpfs {
    /// Pages of all files in it.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        let files = self.nodes.iter().filter_map(|node| match &node.content {
            NodeContent::File { pages, .. } => Some(pages),
            _ => None,
        });
        files.flatten()
    }

    pub(super) fn check(&self, pages: &Range<u64>) -> Checked {
        let plain = self.path.first() == Some(&b'/') && self.path.len() < PATH_BYTES && !self.path.contains(&0);
        let inside = !self.path.split(|byte| *byte == b'/').any(|part| part == b"..");
        sure(plain && inside, "where a memory file system is mounted")?;
        let root = self.nodes.first().filter(|root| root.parent == 0 && root.name.is_empty() && root.is_directory());
        sure(root.is_some(), "the root of a memory file system")?;
        let mut names = HashSet::with_capacity(self.nodes.len());
        let mut depths = Vec::with_capacity(self.nodes.len());
        for (place, node) in self.nodes.iter().enumerate() {
            if place > 0 {
                let parent = self.nodes.get(node.parent as usize).filter(|parent| parent.is_directory());
                sure((node.parent as usize) < place && parent.is_some(), "directory of a file")?;
                sure(is_name(&node.name) && names.insert((node.parent, &node.name[..])), "name of a file")?;
            }
            let depth = if place == 0 { 0 } else { depths[node.parent as usize] + 1 };
            sure(depth <= MOST_DEPTH, "depth of a memory file system")?;
            depths.push(depth);
            self.node(node, place, pages)?;
        }
        Ok(())
    }

    fn node(&self, node: &Node, place: usize, pages: &Range<u64>) -> Checked {
        sure(node.attributes.len() <= MOST_ATTRIBUTES, "attributes of a file")?;
        let named = |(name, _): &(Bytes, Bytes)| !name.is_empty() && name.len() <= NAME_BYTES && !name.contains(&0);
        sure(node.attributes.iter().all(named), "attributes of a file")?;
        let kind = node.mode & KIND_BITS;
        let fits = match &node.content {
            NodeContent::Nothing => matches!(kind, DIRECTORY | FIFO | SOCKET),
            NodeContent::File { bytes, pages: stored } => {
                sure(*bytes <= ADDRESS_END, "length of a file")?;
                regions(stored, 0..bytes.next_multiple_of(PAGE), pages)?;
                kind == REGULAR
            }
            NodeContent::Link(target) => {
                kind == LINK && !target.is_empty() && target.len() < PATH_BYTES && !target.contains(&0)
            }
            NodeContent::Device(_) => matches!(kind, CHARACTER_DEVICE | BLOCK_DEVICE),
            NodeContent::Again(first) => {
                let first = self.nodes.get(*first as usize).filter(|_| (*first as usize) < place);
                let whole = |first: &Node| !matches!(first.content, NodeContent::Again(_) | NodeContent::Covered);
                first.is_some_and(|first| !first.is_directory() && whole(first) && first.inode == node.inode)
            }
            NodeContent::Covered => place > 0,
        };
        sure(fits && node.mode & !(KIND_BITS | 0o7777) == 0, "kind of a file")
    }
}

impl Node {
    /// It is a directory, of which everything is known.
    pub fn is_directory(&self) -> bool {
        self.mode & KIND_BITS == DIRECTORY && matches!(self.content, NodeContent::Nothing)
    }
}

fn is_name(name: &[u8]) -> bool {
    let plain = !name.is_empty() && name.len() <= NAME_BYTES;
    plain && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Content;

    fn node(parent: u32, name: &[u8], mode: u32, content: NodeContent) -> Node {
        let (owner, times_ns) = ((0, 0), [0, 0]);
        Node { parent, name: name.to_vec(), inode: 7, mode, owner, times_ns, attributes: Vec::new(), content }
    }

    fn sample() -> Tmpfs {
        let region =
            Region { start: 4096, pages: 1, writable: true, content: Content::Stored { offset: 4096, checksum: 1 } };
        let nodes = vec![
            node(0, b"", 0o041_777, NodeContent::Nothing),
            node(0, b"d", 0o040_755, NodeContent::Nothing),
            node(1, b"f", 0o100_644, NodeContent::File { bytes: 4097, pages: vec![region] }),
            node(0, b"g", 0o100_644, NodeContent::Again(2)),
            node(1, b"l", 0o120_777, NodeContent::Link(b"/x".to_vec())),
            node(0, b"s", 0o140_755, NodeContent::Nothing),
            node(0, b"m", 0, NodeContent::Covered),
        ];
        Tmpfs { path: b"/dev/shm".to_vec(), device: 9, nodes }
    }

    #[test]
    fn only_whole_trees_are_taken() {
        let pages = 4096..8192;
        assert!(sample().check(&pages).is_ok());
        let wrong: [fn(&mut Tmpfs); 14] = [
            |fs| fs.path = b"dev".to_vec(),
            |fs| fs.path = b"/dev/../..".to_vec(),
            |fs| fs.nodes.clear(),
            |fs| fs.nodes[0].mode = 0o100_644,
            |fs| fs.nodes[1].parent = 1,
            |fs| fs.nodes[3].parent = 2,
            |fs| fs.nodes[2].name = b"..".to_vec(),
            |fs| fs.nodes[2].name = b"a/b".to_vec(),
            |fs| fs.nodes[3].name = b"d".to_vec(),
            |fs| fs.nodes[3].content = NodeContent::Again(1),
            |fs| fs.nodes[3].content = NodeContent::Again(5),
            |fs| fs.nodes[4].mode = 0o100_777,
            |fs| fs.nodes[2].content = NodeContent::File { bytes: 4096, pages: fs.nodes[2].pages().to_vec() },
            |fs| fs.nodes[6].content = NodeContent::Nothing,
        ];
        for (n, change) in wrong.iter().enumerate() {
            let mut fs = sample();
            change(&mut fs);
            assert!(fs.check(&pages).is_err(), "{n}");
        }
    }

    impl Node {
        fn pages(&self) -> &[Region] {
            match &self.content {
                NodeContent::File { pages, .. } => pages,
                _ => &[],
            }
        }
    }

    #[test]
    fn directories_are_not_endless() {
        let mut fs = sample();
        fs.nodes.truncate(1);
        for n in 0..MOST_DEPTH {
            fs.nodes.push(node(n, b"d", 0o040_755, NodeContent::Nothing));
        }
        assert!(fs.check(&(0..0)).is_ok());
        fs.nodes.push(node(MOST_DEPTH, b"d", 0o040_755, NodeContent::Nothing));
        assert!(fs.check(&(0..0)).is_err());
    }
}
