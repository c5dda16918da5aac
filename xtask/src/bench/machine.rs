//! What was measured on, and which commit; the machine's memory.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::error::{Error, run};

fn read(path: &str) -> Result<String, Error> {
    fs::read_to_string(path).map_err(Error::file("read", path))
}

/// CPU, count of CPUs, memory and kernel in one line.
pub(crate) fn describe() -> Result<String, Error> {
    let cpus = read("/proc/cpuinfo")?;
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown CPU", |(_, model)| model);
    let count = cpus.lines().filter(|line| line.starts_with("processor")).count();
    let memory_gib = memory()?.get("MemTotal").copied().unwrap_or(0) / (1 << 20);
    let kernel = read("/proc/sys/kernel/osrelease")?;
    Ok(format!("{count} x {model}, {memory_gib} GiB, Linux {}", kernel.trim()))
}

/// The commit of the working tree, with `-dirty` where files differ from it.
pub(crate) fn commit() -> Result<String, Error> {
    let described = run(Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]))?;
    Ok(String::from_utf8_lossy(&described.stdout).trim().to_owned())
}

/// `/proc/meminfo`, in kB.
pub(crate) fn memory() -> Result<BTreeMap<String, u64>, Error> {
    let text = read("/proc/meminfo")?;
    let line = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        Some((name.to_owned(), rest.split_ascii_whitespace().next()?.parse().ok()?))
    };
    Ok(text.lines().filter_map(line).collect())
}

/// CPU time that a process has used, in microseconds, to the clock tick.
pub(crate) fn cpu_us(pid: u32) -> Result<f64, Error> {
    let text = read(&format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold anything. User and system time are fields 14 and 15, where the state is field 3.
    let fields = text.rfind(')').map_or("", |end| &text[end + 1..]).split_ascii_whitespace();
    let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    Ok(ticks * 1e6 / rustix::param::clock_ticks_per_second() as f64)
}

/// Anonymous memory of all processes in cgroups whose path contains `group`, and of `extra`, in kB.
pub(crate) fn anonymous_kb(group: &str, extra: u32) -> Result<f64, Error> {
    let mut total = 0.0;
    for entry in fs::read_dir("/proc").map_err(Error::file("list", "/proc"))? {
        let entry = entry.map_err(Error::file("list", "/proc"))?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // A process that ends while it is looked at counts for nothing.
        let text = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        if pid == extra || text("cgroup").contains(group) {
            let rollup = text("smaps_rollup");
            let line = rollup.lines().find_map(|line| line.strip_prefix("Pss_Anon:"));
            total += line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0);
        }
    }
    Ok(total)
}
