//! What the kernel tells about processes and threads under `/proc`, read with few calls and no surprises.
//!
//! Source: `proc(5)`. A process may end between any two reads; callers see `NotFound` or `ESRCH` then.

use std::fs::{self, File};
use std::io::{self, Read};

use rustix::io::Errno;

/// `path`'s contents; files under `/proc` have no length to ask for.
pub(crate) fn read(path: &str) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        match file.read(&mut part) {
            Ok(0) => break,
            Ok(read) => bytes.extend_from_slice(&part[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    // Names of programs and files may hold any bytes; what is parsed here is ASCII.
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// The process or thread that was asked about is not there any more.
pub(crate) fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// A line of `/proc` that is not as `proc(5)` says.
pub(crate) fn unexpected(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{path} is not as expected"))
}

/// From `/proc/…/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// `R`, `S`, `D`, `t`, `Z` …
    pub(crate) state: char,
    /// Process group and session.
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// Start time in clock ticks since boot: with the id it names a process for good.
    pub(crate) start_ticks: u64,
    /// CPU that it last ran on.
    pub(crate) cpu: u32,
}

/// Reads `/proc/PID/stat` or `/proc/PID/task/TID/stat`.
pub(crate) fn stat(path: &str) -> io::Result<Stat> {
    parse_stat(&read(path)?).ok_or_else(|| unexpected(path))
}

pub(crate) fn parse_stat(text: &str) -> Option<Stat> {
    let mut fields = after_name(text)?.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // Fields 5 and 6, where the state is field 3.
    let group = fields.nth(1)?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    // Field 22.
    let start_ticks = fields.nth(15)?.parse().ok()?;
    // Field 39.
    let cpu = fields.nth(16)?.parse().ok()?;
    Some(Stat { state, group, session, start_ticks, cpu })
}

/// The fields of `stat` from the third on. The name in parentheses may contain anything, also parentheses: the last one ends it.
pub(crate) fn after_name(text: &str) -> Option<&str> {
    text.get(text.rfind(')')? + 2..)
}

/// Ids of a process's threads, ascending; the first is not always the leader's.
pub(crate) fn threads(pid: i32) -> io::Result<Vec<i32>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        if let Some(tid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
            threads.push(tid);
        }
    }
    threads.sort_unstable();
    Ok(threads)
}

/// About how much memory of a process is its own; 0 where that cannot be told.
pub(crate) fn anonymous_bytes(pid: i32) -> u64 {
    const PAGE: u64 = 4096;
    let text = read(&format!("/proc/{pid}/statm")).unwrap_or_default();
    // Size, resident, and of that with a file behind it.
    let mut fields = text.split_ascii_whitespace().skip(1).map_while(|field| field.parse::<u64>().ok());
    let (resident, shared) = (fields.next().unwrap_or(0), fields.next().unwrap_or(0));
    resident.saturating_sub(shared).saturating_mul(PAGE)
}

/// The program's name, for messages. A program may choose any bytes: those that would end a line or steer a terminal are replaced.
pub(crate) fn name(pid: i32) -> String {
    let harmless = |name: &str| name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    read(&format!("/proc/{pid}/comm")).map_or_else(|_| "?".to_owned(), |name| harmless(name.trim_end_matches('\n')))
}

/// The value behind `key:` in a file of `key: value` lines.
pub(crate) fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

/// How many descriptors the table of a process has room for; none of a higher number is open. `i32::MAX` where that cannot be told.
pub(crate) fn descriptor_table(pid: i32) -> i32 {
    let size = || field(&read(&format!("/proc/{pid}/status")).ok()?, "FDSize")?.parse().ok();
    size().unwrap_or(i32::MAX)
}

/// Who traces a thread, if somebody does.
pub(crate) fn tracer(pid: i32, tid: i32) -> Option<i32> {
    let status = read(&format!("/proc/{pid}/task/{tid}/status")).ok()?;
    field(&status, "TracerPid")?.parse().ok().filter(|tracer| *tracer != 0)
}

/// What a descriptor leads to, as `/proc/PID/fd/N` shows it (`socket:[123]`, `anon_inode:[eventpoll]`, a path).
pub(crate) fn descriptors(pid: i32) -> io::Result<Vec<(i32, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        match fs::read_link(entry.path()) {
            Ok(target) => found.push((fd, target.to_string_lossy().into_owned())),
            // Closed since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_itself() {
        let pid = std::process::id() as i32;
        assert!(threads(pid).unwrap().contains(&pid));
        assert!(stat(&format!("/proc/{pid}/stat")).unwrap().start_ticks > 0);
        let status = read(&format!("/proc/{pid}/status")).unwrap();
        assert_eq!(field(&status, "Pid"), Some(pid.to_string().as_str()));
    }
}
