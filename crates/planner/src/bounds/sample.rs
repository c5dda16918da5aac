//! A state that the bounds allow, for tests of this crate and of its users.

use torpor_image::tree::{FileKind, InetState, Tree};

use super::{Bounds, MachineLimits, capability};

/// The bounds of an app with a user namespace and most capabilities in it.
pub fn bounds() -> Bounds {
    let mut hard_limits = [u64::MAX; 16];
    // memlock, nice, rtprio.
    (hard_limits[8], hard_limits[13], hard_limits[14]) = (64 << 20, 0, 0);
    Bounds {
        user_namespace: true,
        first_id: 1 << 20,
        capabilities: !((1 << capability::NET_RAW) | (1 << capability::NET_ADMIN) | (1 << 11)),
        filter: None,
        no_new_privileges: false,
        hard_limits,
        machine: MachineLimits::default(),
    }
}

/// Removes from the tree of a golden image what no app can have.
pub fn tame(tree: &mut Tree) {
    tree.machine.clock_offsets_ns = [0, 0];
    let first = tree.processes[0].pid;
    for file in &mut tree.files {
        match &mut file.kind {
            FileKind::OfProcess { path } => {
                *path = format!("/proc/{first}/status").into_bytes();
                file.flags = 0;
            }
            FileKind::Inet(socket) => {
                socket.queue.clear();
                if socket.state == InetState::Closed {
                    socket.state = InetState::Idle;
                }
            }
            FileKind::Master(terminal) => terminal.settings[16] = 0,
            FileKind::Handle { .. } | FileKind::Packet(_) | FileKind::Fanotify { .. } => {
                file.kind = FileKind::Outside { name: "anon_inode:[fanotify]".to_owned() };
            }
            _ => {}
        }
    }
}
