//! What an app has in its namespaces beside its processes.

use torpor_image::tree::{IpcObject, MessageQueue, NamespaceState, Node, NodeContent, SemaphoreSet, Tmpfs};

use super::Vetting;
use super::file::is_outside;

/// Extended attributes that a capture takes.
const ATTRIBUTES: [&[u8]; 2] = [b"user.", b"security.capability"];
/// Files in all memory file systems, as for a capture.
const MOST_NODES: usize = 200_000;

impl Vetting<'_> {
    pub(super) fn surroundings(&mut self, found: &mut NamespaceState) {
        // Names of the machine were checked; the last is for people, who see it escaped.
        let NamespaceState { tmpfs, semaphores, queues, host_name: _, domain_name: _, lost: _ } = found;
        let nodes: usize = tmpfs.iter().map(|tmpfs| tmpfs.nodes.len()).sum();
        self.sure(nodes <= MOST_NODES, || format!("{nodes} files in memory"));
        for Tmpfs { path, device: _, nodes } in tmpfs {
            self.sure(!is_outside(path), || format!("a memory file system at {}", String::from_utf8_lossy(path)));
            nodes.iter().for_each(|node| self.node(node));
        }
        for SemaphoreSet { object, values: _ } in semaphores {
            self.object(object);
        }
        for queue in queues {
            self.queue(queue);
        }
    }

    fn node(&mut self, node: &Node) {
        let Node { parent: _, name, inode: _, mode: _, owner, times_ns: _, attributes, content } = node;
        let name = || String::from_utf8_lossy(name).into_owned();
        self.users(&[owner.0, owner.1], "a file in memory");
        let known = |attribute: &[u8]| ATTRIBUTES.iter().any(|known| attribute.starts_with(known));
        self.sure(attributes.iter().all(|(attribute, _)| known(attribute)), || format!("an attribute of {}", name()));
        match content {
            NodeContent::Nothing
            | NodeContent::File { bytes: _, pages: _ }
            | NodeContent::Link(_)
            | NodeContent::Again(_)
            | NodeContent::Covered => {}
            // Never made: the home has its own, which get owner and mode of this; overlayfs's marks are no devices.
            NodeContent::Device(_) => {}
        }
    }

    fn object(&mut self, object: &IpcObject) {
        let IpcObject { key: _, id: _, mode: _, owners } = object;
        self.users(owners, "a System V object");
    }

    fn queue(&mut self, queue: &mut MessageQueue) {
        let MessageQueue { object, most_bytes, messages } = queue;
        self.object(object);
        let most = self.bounds.machine.message_queue_bytes;
        if *most_bytes > most {
            *most_bytes = most;
            self.lowered(format!("System V message queue {}: it holds {most} bytes", object.id));
        }
        let waiting: u64 = messages.iter().map(|(_, text)| text.len() as u64).sum();
        self.sure(waiting <= most, || format!("{waiting} bytes in System V message queue {}", object.id));
    }
}
