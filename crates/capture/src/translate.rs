//! From the machine's ids to those that an app sees, in the whole of a tree. Descriptors have theirs already.

use std::io;

use torpor_image::tree::{End, FileKind, SharedMemoryKind, Tree};

use torpor_process::view::View;

/// Translates a tree whose processes have the machine's ids.
pub(super) fn translate(tree: &mut Tree, view: &View) -> io::Result<()> {
    if !view.in_sandbox() {
        return Ok(());
    }
    let known = |id: i32| view.id(id).ok_or_else(|| io::Error::other(format!("process {id} is not one of the app's")));
    for process in &mut tree.processes {
        process.pid = known(process.pid)?;
        process.parent = if process.parent == 0 { 0 } else { known(process.parent)? };
        // 0: made outside of the pid namespace.
        process.group = view.id(process.group).unwrap_or(0);
        process.session = view.id(process.session).unwrap_or(0);
        let End::Alive(life) = &mut process.end else { continue };
        if let Some((_, foreground)) = &mut life.terminal {
            *foreground = known(*foreground)?;
        }
        for thread in &mut life.threads {
            thread.tid = known(thread.tid)?;
            let credentials = &mut thread.credentials;
            credentials.users = credentials.users.map(|id| view.user(id));
            credentials.groups = credentials.groups.map(|id| view.group(id));
            credentials.supplementary.iter_mut().for_each(|id| *id = view.group(*id));
        }
        for timer in life.posix_timers.iter_mut().filter(|timer| timer.thread != 0) {
            timer.thread = known(timer.thread)?;
        }
    }
    let owner = |(user, group): (u32, u32)| (view.user(user), view.group(group));
    let owners = |[user, group, maker, makers]: [u32; 4]| {
        [view.user(user), view.group(group), view.user(maker), view.group(makers)]
    };
    for memory in &mut tree.memories {
        match &mut memory.kind {
            SharedMemoryKind::Memfd { owner: of, .. } | SharedMemoryKind::Deleted { owner: of, .. } => *of = owner(*of),
            SharedMemoryKind::SystemV { owners: of, .. } => *of = owners(*of),
            SharedMemoryKind::Anonymous | SharedMemoryKind::Huge { .. } => {}
        }
    }
    for file in &mut tree.files {
        if let FileKind::Master(terminal) = &mut file.kind {
            terminal.owner = owner(terminal.owner);
        }
    }
    let nodes = tree.surroundings.tmpfs.iter_mut().flat_map(|tmpfs| &mut tmpfs.nodes);
    nodes.for_each(|node| node.owner = owner(node.owner));
    for object in tree.surroundings.ipc_objects() {
        object.owners = owners(object.owners);
    }
    Ok(())
}
