//! What the kernel tells about processes and threads under `/proc`, each file parsed in one place.
//!
//! Files are read with few system calls. Source: `proc(5)`. A process may end between any two reads; callers see `NotFound` or
//! `ESRCH` then ([`gone`]). Contents are those of the kernel, but names of programs and files in them are chosen by programs:
//! nothing here trusts them.
#![forbid(unsafe_code)]

pub mod login;
pub mod maps;
pub mod mounts;
pub mod processes;
pub mod smaps;
pub mod stat;

use std::fs::{self, File};
use std::io::{self, Read};
use std::str::FromStr;

use rustix::io::Errno;

/// `path`'s contents; files under `/proc` have no length to ask for.
pub fn read(path: &str) -> io::Result<String> {
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
pub fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// A line of `/proc` that is not as `proc(5)` says.
pub fn unexpected(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{path} is not as expected"))
}

/// About how much memory of a process is its own; 0 where that cannot be told.
pub fn anonymous_bytes(pid: i32) -> u64 {
    const PAGE: u64 = 4096;
    let text = read(&format!("/proc/{pid}/statm")).unwrap_or_default();
    // Size, resident, and of that with a file behind it.
    let mut fields = text.split_ascii_whitespace().skip(1).map_while(|field| field.parse::<u64>().ok());
    let (resident, shared) = (fields.next().unwrap_or(0), fields.next().unwrap_or(0));
    resident.saturating_sub(shared).saturating_mul(PAGE)
}

/// The program's name, for messages. A program may choose any bytes: those that would end a line or steer a terminal are replaced.
pub fn name(pid: i32) -> String {
    let harmless = |name: &str| name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    read(&format!("/proc/{pid}/comm")).map_or_else(|_| "?".to_owned(), |name| harmless(name.trim_end_matches('\n')))
}

/// The value behind `key:` in a file of `key: value` lines.
pub fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

/// The number behind `key:` in a file of `key: value` lines, without its unit.
pub fn number<T: FromStr>(text: &str, key: &str) -> Option<T> {
    field(text, key)?.split_ascii_whitespace().next()?.parse().ok()
}

/// A list of numbers with blanks between; `None` if something else is in it.
pub fn numbers(text: &str) -> Option<Vec<i32>> {
    text.split_ascii_whitespace().map(|number| number.parse().ok()).collect()
}

/// How many descriptors the table of a process has room for; none of a higher number is open. `i32::MAX` where that cannot be told.
pub fn descriptor_table(pid: i32) -> i32 {
    let size = || number(&read(&format!("/proc/{pid}/status")).ok()?, "FDSize");
    size().unwrap_or(i32::MAX)
}

/// Who traces a thread, if somebody does.
pub fn tracer(pid: i32, tid: i32) -> Option<i32> {
    let status = read(&format!("/proc/{pid}/task/{tid}/status")).ok()?;
    number(&status, "TracerPid").filter(|tracer| *tracer != 0)
}

/// What a descriptor leads to, as `/proc/PID/fd/N` shows it (`socket:[123]`, `anon_inode:[eventpoll]`, a path).
pub fn descriptors(pid: i32) -> io::Result<Vec<(i32, String)>> {
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

/// This boot, as the header of an image has it.
pub fn boot() -> io::Result<[u64; 2]> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let text = read(PATH)?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let half = |range| digits.get(range).and_then(|digits: &str| u64::from_str_radix(digits, 16).ok());
    match (half(0..16), half(16..32)) {
        (Some(first), Some(last)) => Ok([first, last]),
        _ => Err(unexpected(PATH)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_itself() {
        let pid = std::process::id() as i32;
        let status = read(&format!("/proc/{pid}/status")).unwrap();
        assert_eq!(field(&status, "Pid"), Some(pid.to_string().as_str()));
        assert_eq!(number(&status, "NSpid"), Some(pid));
        assert!(number::<u64>(&status, "VmPTE").unwrap() > 0);
        assert_eq!((numbers(" 1 2\n"), numbers("1 x"), numbers("")), (Some(vec![1, 2]), None, Some(vec![])));
    }
}
