//! What stands beside the tree.

use torpor_image::tree::{Control, Details, Login, NetlinkPeer, Times};

use super::{USERS, Vetting, capability};

impl Vetting<'_> {
    pub(super) fn details(&mut self, details: &mut Details) {
        let Details { logins, times, controls, netlink_peers } = details;
        for Login { tid, user } in &*logins {
            // Any program may say who has logged in, once.
            let is_known = self.ids.contains(tid) && (!self.bounds.user_namespace || *user < USERS);
            self.sure(is_known, || format!("a login id {user} of thread {tid}"));
        }
        for Times { memory: _, accessed_ns: _, modified_ns: _ } in &*times {}
        let may_flush = self.bounds.has_on_machine(capability::SYS_RESOURCE);
        let before = controls.len();
        controls.retain(|Control { tid: _, option, arguments: _ }| *option != Control::IO_FLUSHER || may_flush);
        if controls.len() < before {
            self.lowered("no thread is an I/O flusher");
        }
        for NetlinkPeer { file: _, port, groups } in &*netlink_peers {
            let what = || format!("a netlink socket connected to port {port}, groups {groups:#x}");
            self.sure(self.bounds.has(capability::NET_ADMIN), what);
        }
    }
}
