//! Owners of what is made again: an image has those that the app sees, and we make with the machine's.

use std::io;

use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitiesSecureBits, capabilities_secure_bits, set_capabilities_secure_bits, set_thread_res_gid,
    set_thread_res_uid,
};
use torpor_image::tree::{FileId, FileKind, NamespaceState, SharedMemoryKind, Tree};

use torpor_descriptors::Given;
use torpor_descriptors::registry::{for_each_owner, needs};
use torpor_process::sandbox::SandboxHandle;

/// What ids without a counterpart are shown as.
const NOBODY: u32 = 65_534;

/// Makes files as root of the app's user namespace would: the machine's root is nobody on its volumes, and may make none there
/// (`EOVERFLOW`). The calling thread keeps its capabilities, and is as before when `work` is done.
pub(super) fn as_root_inside<T>(home: &SandboxHandle, work: impl FnOnce() -> T) -> io::Result<T> {
    let Some(root) = home.user_namespace.and_then(|ids| ids.outside(0)) else { return Ok(work()) };
    let bits = capabilities_secure_bits()?;
    set_capabilities_secure_bits(bits | CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
    set_thread_res_gid(None, Gid::from_raw(root), None)?;
    set_thread_res_uid(None, Uid::from_raw(root), None)?;
    let done = work();
    set_thread_res_uid(None, Uid::ROOT, None)?;
    set_thread_res_gid(None, Gid::ROOT, None)?;
    set_capabilities_secure_bits(bits)?;
    Ok(done)
}

/// Translates what [`torpor_descriptors::restore`] will look at. The plan has been made before, and keeps what the app sees.
pub(super) fn to_the_machines(tree: &mut Tree, home: &SandboxHandle, given: &Given) {
    let made = |(id, kind): (usize, &FileKind)| needs(kind).has_owners && !given.contains_key(&(id as FileId));
    let owned = tree.memories.iter().any(|memory| !matches!(memory.kind, SharedMemoryKind::Anonymous))
        || tree.files.iter().map(|file| &file.kind).enumerate().any(made)
        || tree.surroundings != NamespaceState::default();
    let Some(ids) = home.user_namespace.filter(|_| tree.namespaces.user && owned) else { return };
    // Nobody has an id that is not the app's own: unchanged it would be somebody's on the machine.
    let nobody = ids.outside(NOBODY).unwrap_or(NOBODY);
    let pair = |user: &mut u32, group: &mut u32| {
        *user = ids.outside(*user).unwrap_or(nobody);
        *group = ids.outside(*group).unwrap_or(nobody);
    };
    for memory in &mut tree.memories {
        match &mut memory.kind {
            SharedMemoryKind::Memfd { owner, .. } | SharedMemoryKind::Deleted { owner, .. } => {
                pair(&mut owner.0, &mut owner.1);
            }
            SharedMemoryKind::SystemV { owners: [user, group, maker, makers], .. } => {
                pair(user, group);
                pair(maker, makers);
            }
            SharedMemoryKind::Anonymous | SharedMemoryKind::Huge { .. } => {}
        }
    }
    let nodes = tree.surroundings.tmpfs.iter_mut().flat_map(|tmpfs| &mut tmpfs.nodes);
    nodes.for_each(|node| pair(&mut node.owner.0, &mut node.owner.1));
    for object in tree.surroundings.ipc_objects() {
        let [user, group, maker, makers] = &mut object.owners;
        pair(user, group);
        pair(maker, makers);
    }
    tree.files.iter_mut().for_each(|file| for_each_owner(&mut file.kind, &pair));
}
