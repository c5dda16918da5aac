//! What a program may have changed in its namespaces that an image does not have: told, so that nobody finds out by a reboot.
//!
//! A program of the default kind can do none of it: it takes capabilities that its owner has added.

use rustix::fs::{OFlags, fstatfs};
use torpor_image::tree::Tree;

use torpor_descriptors::names;
use torpor_process::view::View;

/// `MQUEUE_MAGIC`.
const MESSAGE_QUEUES: i64 = 0x1980_0202;

const NET_ADMIN: u64 = 1 << 12;
const SYS_ADMIN: u64 = 1 << 21;

/// Completes an app's tree: what a reboot would cost it, in words.
pub(super) fn tell(view: &View, tree: &mut Tree, mut found: Vec<String>) -> Vec<String> {
    if !view.in_sandbox() {
        return found;
    }
    let bounding = tree.threads().fold(0, |all, thread| all | thread.credentials.capabilities[3]);
    if bounding & SYS_ADMIN == 0 {
        // Nobody but its sandbox can have set them.
        tree.surroundings.host_name.clear();
        tree.surroundings.domain_name.clear();
    } else {
        found.push("what it has mounted itself, if anything (it has CAP_SYS_ADMIN)".to_owned());
    }
    if bounding & NET_ADMIN != 0 {
        let what =
            "interfaces, addresses, routes, nftables rules and sysctls of its own, if any (it has CAP_NET_ADMIN)";
        found.push(what.to_owned());
    }
    found.extend(queues(view));
    tree.surroundings.lost.clone_from(&found);
    found
}

/// POSIX message queues by their names: what is in them cannot be looked at without taking it out.
fn queues(view: &View) -> Vec<String> {
    let directory = view.open_as(b"/dev/mqueue", OFlags::RDONLY | OFlags::DIRECTORY);
    let directory = directory.ok().filter(|found| fstatfs(found).is_ok_and(|system| system.f_type == MESSAGE_QUEUES));
    let names = directory.and_then(|directory| names(&directory).ok()).unwrap_or_default();
    names.iter().map(|name| format!("POSIX message queue /{}", String::from_utf8_lossy(name))).collect()
}
