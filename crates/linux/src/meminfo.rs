//! The machine's memory: `/proc/meminfo` (`proc_meminfo(5)`).

use std::io;

/// The machine's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All that the kernel can use.
    pub total: u64,
    /// What can be had without taking it from programs: at most `total`.
    pub available: u64,
}

impl Memory {
    /// As it is now.
    ///
    /// # Errors
    /// Where the kernel does not tell.
    pub fn now() -> io::Result<Self> {
        let text = std::fs::read_to_string("/proc/meminfo")?;
        Self::parse(&text).ok_or_else(|| io::Error::other("/proc/meminfo lacks a line"))
    }

    /// From the text of `/proc/meminfo`; `None` if it lacks a line.
    pub fn parse(text: &str) -> Option<Self> {
        let kilobytes = |key: &str| {
            let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
            rest.split_ascii_whitespace().next()?.parse::<u64>().ok()
        };
        let (total, available) = (kilobytes("MemTotal:")? << 10, kilobytes("MemAvailable:")? << 10);
        Some(Self { total, available: available.min(total) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let text = "MemTotal:       24683772 kB\nMemFree:  1 kB\nMemAvailable:   23453488 kB\n";
        let memory = Memory { total: 24_683_772 << 10, available: 23_453_488 << 10 };
        assert_eq!(Memory::parse(text), Some(memory));
        assert_eq!(Memory::parse("MemTotal: 5 kB\n"), None);
        let now = Memory::now().unwrap();
        assert!(now.available > 0 && now.available < now.total);
    }
}
