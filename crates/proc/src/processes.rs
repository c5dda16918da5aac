//! Which processes and threads there are.

use std::fs;
use std::io;

use crate as proc;

/// Ids of all processes that the mounted `/proc` shows.
pub fn all() -> io::Result<Vec<i32>> {
    numbers_in("/proc")
}

/// Ids of a process's threads, ascending; the first is not always the leader's.
pub fn threads(pid: i32) -> io::Result<Vec<i32>> {
    let mut threads = numbers_in(&format!("/proc/{pid}/task"))?;
    threads.sort_unstable();
    Ok(threads)
}

/// The children that a thread has made and that are not reaped.
pub fn children(pid: i32, tid: i32) -> io::Result<Vec<i32>> {
    children_in(&format!("/proc/{pid}/task/{tid}/children"))
}

/// The children that the calling thread has made and that are not reaped.
pub fn own_children() -> io::Result<Vec<i32>> {
    children_in("/proc/thread-self/children")
}

fn children_in(path: &str) -> io::Result<Vec<i32>> {
    proc::numbers(&proc::read(path)?).ok_or_else(|| proc::unexpected(path))
}

/// The names in a directory that are numbers.
fn numbers_in(directory: &str) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        if let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.push(number);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_itself_and_its_children() {
        let pid = std::process::id().cast_signed();
        assert!(all().unwrap().contains(&pid));
        assert!(threads(pid).unwrap().contains(&pid));
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let made = own_children();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(made.unwrap(), [child.id().cast_signed()]);
    }
}
