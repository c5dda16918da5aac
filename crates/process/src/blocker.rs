//! What keeps a process tree from being captured: found before anything is changed, all of it at once.

use std::collections::HashMap;
use std::fmt;

/// Limit of lines; each names one kind of obstacle.
const LINES: usize = 50;

/// Where something in the way is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The process as a whole.
    Process,
    /// One of its threads.
    Thread(i32),
    /// One of its descriptors.
    Descriptor(i32),
    /// Part of its memory: first byte and behind the last.
    Memory(u64, u64),
}

/// One thing in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Process.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// Where.
    pub place: Place,
    /// What it is, and why it is in the way.
    pub what: String,
    /// What could be done about it; empty where nothing is known.
    pub remedy: String,
}

impl Blocker {
    /// `what` in process `pid`, whose name is looked up.
    pub fn new(pid: i32, place: Place, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { pid, name: torpor_proc::name(pid), place, what: what.into(), remedy: remedy.into() }
    }
}

impl Blocker {
    /// The process, and the place in it.
    fn location(&self) -> String {
        let process = format!("process {} ({})", self.pid, self.name);
        match self.place {
            Place::Process => process,
            Place::Thread(tid) => format!("{process}, thread {tid}"),
            Place::Descriptor(fd) => format!("{process}, descriptor {fd}"),
            Place::Memory(start, end) => format!("{process}, memory {start:#x}-{end:#x}"),
        }
    }

    /// A line with `places` as the places in which it was found.
    fn line(&self, places: &str) -> String {
        let remedy = if self.remedy.is_empty() { String::new() } else { format!(" ({})", self.remedy) };
        format!("{places}: {}{remedy}", self.what)
    }

    /// A line for each obstacle, in the order in which they were found; one that was found in several places, as a file is
    /// that many processes map, gets a single line with its first place and the number of the others. After [`LINES`] lines one
    /// says how many obstacles more there are.
    pub fn lines(obstacles: &[Self]) -> Vec<String> {
        let mut places: HashMap<(&str, &str), usize> = HashMap::new();
        let mut firsts = Vec::new();
        for obstacle in obstacles {
            let found = places.entry((&obstacle.what, &obstacle.remedy)).or_default();
            *found += 1;
            if *found == 1 {
                firsts.push(obstacle);
            }
        }
        let line = |first: &&Self| match places.get(&(first.what.as_str(), first.remedy.as_str())) {
            None | Some(0 | 1) => first.to_string(),
            Some(2) => first.line(&format!("{}, and 1 other place", first.location())),
            Some(found) => first.line(&format!("{}, and {} other places", first.location(), found - 1)),
        };
        let mut lines: Vec<String> = firsts.iter().take(LINES).map(line).collect();
        if firsts.len() > LINES {
            lines.push(format!("and {} more obstacles", firsts.len() - LINES));
        }
        lines
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line(&self.location()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_obstacle_in_several_places_is_one_line() {
        let found = |pid, place, what: &str| Blocker {
            pid,
            name: "db".to_owned(),
            place,
            what: what.to_owned(),
            remedy: "restart it".to_owned(),
        };
        let obstacles = [
            found(7, Place::Memory(0x1000, 0x2000), "/srv/data is gone"),
            found(7, Place::Descriptor(3), "a pipe"),
            found(8, Place::Memory(0x1000, 0x2000), "/srv/data is gone"),
            found(9, Place::Process, "/srv/data is gone"),
        ];
        let lines = Blocker::lines(&obstacles);
        let expected = [
            "process 7 (db), memory 0x1000-0x2000, and 2 other places: /srv/data is gone (restart it)",
            "process 7 (db), descriptor 3: a pipe (restart it)",
        ];
        assert_eq!(lines, expected);
        assert_eq!(Blocker::lines(&obstacles[..1]), [obstacles[0].to_string()]);
        let many: Vec<_> = (0..10_000).map(|n| found(7, Place::Descriptor(n), &format!("socket {n}"))).collect();
        let lines = Blocker::lines(&many);
        assert_eq!((lines.len(), lines[50].as_str()), (51, "and 9950 more obstacles"));
    }
}
