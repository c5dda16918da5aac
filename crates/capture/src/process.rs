//! What belongs to a process as a whole and can be read from outside.

use std::io;

use torpor_image::tree::Limit;

use torpor_proc as proc;

/// The labels of `/proc/PID/limits` in the order of `RLIMIT_*`.
const LIMITS: [&str; 16] = [
    "Max cpu time",
    "Max file size",
    "Max data size",
    "Max stack size",
    "Max core file size",
    "Max resident set",
    "Max processes",
    "Max open files",
    "Max locked memory",
    "Max address space",
    "Max file locks",
    "Max pending signals",
    "Max msgqueue size",
    "Max nice priority",
    "Max realtime priority",
    "Max realtime timeout",
];

/// Limits by resource number. Not by `prlimit`, which needs CAP_SYS_RESOURCE for other users' processes.
pub(super) fn limits(pid: i32) -> io::Result<Vec<Limit>> {
    let path = format!("/proc/{pid}/limits");
    parse_limits(&proc::read(&path)?).ok_or_else(|| proc::unexpected(&path))
}

pub(super) fn parse_limits(text: &str) -> Option<Vec<Limit>> {
    let value = |word: &str| if word == "unlimited" { Some(u64::MAX) } else { word.parse().ok() };
    let limit = |label: &&str| {
        let line = text.lines().find_map(|line| line.strip_prefix(label))?;
        let mut words = line.split_ascii_whitespace();
        Some(Limit { soft: value(words.next()?)?, hard: value(words.next()?)? })
    };
    LIMITS.iter().map(limit).collect()
}

/// A number in a file of its own under `/proc/PID`.
pub(super) fn number(pid: i32, file: &str) -> io::Result<i32> {
    let path = format!("/proc/{pid}/{file}");
    proc::read(&path)?.trim().parse().map_err(|_| proc::unexpected(&path))
}

/// A hexadecimal number in a file of its own under `/proc/PID`.
pub(super) fn hexadecimal(pid: i32, file: &str) -> io::Result<u32> {
    let path = format!("/proc/{pid}/{file}");
    u32::from_str_radix(proc::read(&path)?.trim(), 16).map_err(|_| proc::unexpected(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_itself() {
        let pid = std::process::id() as i32;
        let found = limits(pid).unwrap();
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        assert_eq!((found[7].soft, found[7].hard), (files.current.unwrap(), files.maximum.unwrap()));
        number(pid, "oom_score_adj").unwrap();
        assert_eq!(hexadecimal(pid, "personality").unwrap(), 0);
        assert!(parse_limits("Max cpu time unlimited").is_none());
    }
}
