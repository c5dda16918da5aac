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

/// CPU time that a process has used, in microseconds.
pub(crate) fn cpu_us(pid: u32) -> Result<f64, Error> {
    // Nanoseconds on a CPU, of each thread.
    let dir = format!("/proc/{pid}/task");
    let mut total = 0.0;
    for entry in fs::read_dir(&dir).map_err(Error::file("list", &dir))? {
        let path = entry.map_err(Error::file("list", &dir))?.path().join("schedstat");
        match fs::read_to_string(&path) {
            Ok(text) => total += text.split(' ').next().and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0) / 1000.0,
            // The thread has ended.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::File { step: "read", path, source }),
        }
    }
    Ok(total)
}
