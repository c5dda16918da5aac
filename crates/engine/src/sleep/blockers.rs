//! What would keep an app from sleeping, found without touching it.

use std::io;

use torpor_proc as proc;
use torpor_proc::maps::{Contexts, Flags, Treatment, areas};

/// Descriptors that pin memory for the kernel: dropping it would part the kernel's view from the program's.
const PINNING: [(&str, &str); 3] = [
    ("anon_inode:[io_uring]", "io_uring may hold its memory; start it with io_uring off (the default filter does)"),
    ("/dev/infiniband/", "RDMA holds its memory"),
    ("anon_inode:kvm-vm", "it runs a virtual machine"),
];

/// A descriptor of a program that serves page faults itself. What it has registered cannot be told from what a pager has.
const OWN_CONTEXT: &str = "anon_inode:[userfaultfd]";

/// The descriptors of a process that pin its memory, in words; with missing pages also its own userfaultfd contexts.
pub(super) fn pins(pid: i32, contexts: Contexts) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for (fd, what) in proc::descriptors(pid)? {
        if contexts == Contexts::Pagers && what.starts_with(OWN_CONTEXT) {
            found.push(format!("process {pid} ({}) serves page faults itself (descriptor {fd})", proc::name(pid)));
        }
        if let Some((_, why)) = PINNING.iter().find(|(kind, _)| what.starts_with(kind)) {
            found.push(format!("{why} (descriptor {fd} of process {pid}, {})", proc::name(pid)));
        }
    }
    Ok(found)
}

/// The areas of a process that must not be dropped, in words.
fn areas_in_the_way(pid: i32, contexts: Contexts) -> io::Result<Vec<String>> {
    let flags = Flags::read(pid, contexts)?;
    let mut found = Vec::new();
    for area in areas(pid)? {
        if let Some(Treatment::Refuse(why)) = flags.treatment(&area) {
            let (name, start, end) = (proc::name(pid), area.start, area.end);
            found.push(format!("memory at {start:#x}-{end:#x} of process {pid} ({name}) cannot leave: {why}"));
        }
    }
    Ok(found)
}

/// Everything that would make a sleep of these processes be refused; those that have ended are passed over. `is_lazy`: pages are missing.
pub fn obstacles(pids: &[i32], is_lazy: bool) -> io::Result<Vec<String>> {
    let contexts = if is_lazy { Contexts::Pagers } else { Contexts::Programs };
    let mut found = Vec::new();
    for pid in pids {
        match pins(*pid, contexts).and_then(|pins| Ok((pins, areas_in_the_way(*pid, contexts)?))) {
            Ok((pins, areas)) => found.extend(pins.into_iter().chain(areas)),
            Err(error) if proc::gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_in_the_way_of_this_process_or_of_one_that_has_ended() {
        assert_eq!(obstacles(&[std::process::id() as i32, i32::MAX], false).unwrap(), Vec::<String>::new());
    }
}
