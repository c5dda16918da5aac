//! Huge pages for a test: added to the machine's pools, and taken away again however the test ends.
//!
//! A shell holds the machine-wide lock, adds the pages, and puts the pools back when the pipe that it reads from is closed: by
//! [`Pools::drop`], or by the end of this process, whatever ends it. Tests that need pools wait for each other.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::error::Error;

/// 2 MiB, bytes.
pub const LARGE: u64 = 2 << 20;
/// 1 GiB, bytes.
pub const GIGANTIC: u64 = 1 << 30;

/// How long others may have the pools: a whole conformance suite.
const PATIENCE_S: u32 = 1200;
const SCRIPT: &str = include_str!("../programs/add_huge_pages.sh");

/// Pages that were added to pools.
#[derive(Debug)]
pub struct Pools {
    shell: Child,
    open: Option<ChildStdin>,
}

impl Pools {
    /// Adds so many pages of these sizes (bytes), waiting for other tests that have pools. Where the machine has no such pool, or
    /// not enough memory in one piece, there are fewer: programs find that out, and skip.
    ///
    /// # Errors
    /// Where the lock cannot be had.
    pub fn add(pages: &[(u64, u64)]) -> Result<Self, Error> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "sh"]).args(pages.iter().map(|(size, count)| format!("{size}:{count}")));
        // Ctrl-C ends the test, and that this.
        command.process_group(0).env("PATIENCE", PATIENCE_S.to_string());
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut shell = spawned.map_err(Error::file("run", Path::new("/bin/sh")))?;
        let (open, output) = (shell.stdin.take(), shell.stdout.take());
        let mut line = String::new();
        let read = output.map(|output| BufReader::new(output).read_line(&mut line));
        let pools = Self { shell, open };
        match read {
            Some(Ok(_)) if line.trim() == "ready" => Ok(pools),
            _ => Err(Error::Missing { what: format!("huge pages for a test: {}", line.trim()) }),
        }
    }

    /// Pages of 2 MiB that nobody has asked for.
    pub fn free() -> u64 {
        let number = |file: &str| {
            let text = std::fs::read_to_string(format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{file}"));
            text.ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        number("free_hugepages").saturating_sub(number("resv_hugepages"))
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        drop(self.open.take());
        // It is over when the pools are as before.
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_put_back() {
        let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        let number = || std::fs::read_to_string(path).map(|text| text.trim().parse::<u64>().unwrap());
        if number().is_err() {
            return crate::skip::skipped(module_path!(), "no pool of huge pages of 2 MiB");
        }
        let pools = Pools::add(&[(LARGE, 1)]).unwrap();
        let with = number().unwrap();
        drop(pools);
        // Under the lock, as others may have theirs by now.
        let again = Pools::add(&[(LARGE, 0)]).unwrap();
        assert_eq!(number().unwrap() + 1, with);
        drop(again);
    }
}
