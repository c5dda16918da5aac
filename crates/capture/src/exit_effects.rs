//! What the end of an app's processes would do to what stays: looked for, because an app must not be able to tell that its
//! processes have ended.
//!
//! Operations on System V semaphores that a process wants undone at its end (`SEM_UNDO`) cannot be seen, so there must be no
//! semaphores that have been operated on. Robust locks that a thread holds are marked by the kernel when it ends; in
//! memory that is of no account, as the image has it, but in files that are mapped it stays.

use std::io;

use torpor_image::tree::{AddressSpace, Backing, Tree};
use torpor_linux::vm::{self, Remote};

use torpor_proc as proc;
use torpor_process::blocker::{Blocker, Place};
use torpor_process::view::View;

/// Entries of a robust list that the kernel follows.
const ENTRIES: usize = 2048;

/// Semaphores that may have to be undone; `root` stands for the app.
pub(super) fn semaphores(view: &View, root: i32) -> io::Result<Vec<Blocker>> {
    if !view.in_sandbox() {
        return Ok(Vec::new());
    }
    let text = match view.within(|| proc::read("/proc/sysvipc/sem"))? {
        Ok(text) => text,
        // A kernel without them.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let obstacle = |id: &str| {
        let what = format!("System V semaphores {id}, which may have to be undone when it ends (SEM_UNDO)");
        Blocker::new(root, Place::Process, what, "")
    };
    Ok(operated(&text).into_iter().map(obstacle).collect())
}

/// Ids of the sets that have been operated on: `key semid perms nsems uid gid cuid cgid otime ctime`.
pub(super) fn operated(text: &str) -> Vec<&str> {
    fn set(line: &str) -> Option<&str> {
        let mut words = line.split_ascii_whitespace();
        let id = words.nth(1)?;
        (words.nth(6)? != "0").then_some(id)
    }
    text.lines().skip(1).filter_map(set).collect()
}

/// Robust locks in mapped files that threads of an app hold.
pub(super) fn robust_locks(view: &View, tree: &Tree) -> Vec<Blocker> {
    let mut found = Vec::new();
    if !view.in_sandbox() {
        return found;
    }
    for process in &tree.processes {
        let Some(life) = process.alive() else { continue };
        for thread in life.threads.iter().filter(|thread| holds(process.pid, thread.robust_list.0, &life.space)) {
            let what = "it holds a robust lock in a file that it has mapped";
            found.push(Blocker::new(
                process.pid,
                Place::Thread(thread.tid),
                what,
                "try again when it has let go of it",
            ));
        }
    }
    found
}

/// Follows a robust list as the kernel does; what cannot be read ends it there, too.
fn holds(pid: i32, head: u64, space: &AddressSpace) -> bool {
    let word = |address: u64| {
        let mut bytes = [0; 8];
        vm::read(pid, &[Remote { address, len: 8 }], &mut bytes).ok().map(|()| u64::from_ne_bytes(bytes))
    };
    if head == 0 {
        return false;
    }
    let (Some(offset), Some(pending)) = (word(head + 8), word(head + 16)) else { return false };
    let in_file = |entry: u64| {
        let futex = (entry & !1).wrapping_add(offset);
        let area = space.areas.iter().find(|area| (area.start..area.end).contains(&futex));
        area.is_some_and(|area| matches!(area.backing, Backing::File { shared: true, .. }))
    };
    let mut next = word(head);
    for _ in 0..ENTRIES {
        let Some(entry) = next.filter(|entry| entry & !1 != head && *entry != 0) else { break };
        if in_file(entry) {
            return true;
        }
        next = word(entry & !1);
    }
    pending != 0 && in_file(pending)
}

#[cfg(test)]
mod tests {
    #[test]
    fn sets_that_were_operated_on_are_found() {
        let text = "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n\
                    \u{20}        0          7   600          2     0     0     0     0 1790000000 1790000000\n\
                    \u{20}        0          8   600          2     0     0     0     0          0 1790000000\n";
        assert_eq!(super::operated(text), ["7"]);
    }
}
