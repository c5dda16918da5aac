//! Facts of the machine and the working tree, and use of memory and CPU.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::Advice;
use torpor_proc as proc;

use crate::error::{Error, run};

/// Time over which the use of the CPUs is measured.
const CPU_USE_OVER: Duration = Duration::from_secs(2);

fn read(path: &str) -> Result<String, Error> {
    fs::read_to_string(path).map_err(Error::file("read", path))
}

/// CPUs and memory in one line.
pub(crate) fn describe() -> Result<String, Error> {
    let cpus = read("/proc/cpuinfo")?;
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown CPU", |(_, model)| model);
    let count = cpus.lines().filter(|line| line.starts_with("processor")).count();
    let memory_gib = memory()?.get("MemTotal").copied().unwrap_or(0) / (1 << 20);
    let guest = cpus.lines().any(|line| line.starts_with("flags") && line.contains(" hypervisor"));
    let kind = if guest { "virtual machine, " } else { "" };
    Ok(format!("{kind}{count} x {model}, {memory_gib} GiB"))
}

/// The release of the kernel.
pub(crate) fn kernel() -> Result<String, Error> {
    Ok(format!("Linux {}", read("/proc/sys/kernel/osrelease")?.trim()))
}

/// Share of its CPU time that the machine uses now, in percent.
pub(crate) fn cpu_use() -> Result<f64, Error> {
    let times = || -> Result<(u64, u64), Error> {
        let text = read("/proc/stat")?;
        let fields = text.lines().next().unwrap_or_default().split_ascii_whitespace().skip(1);
        // The first eight are disjoint; the fourth and fifth are idle and waiting for disks (`proc_stat(5)`).
        let fields: Vec<u64> = fields.take(8).filter_map(|field| field.parse().ok()).collect();
        Ok((fields.iter().sum(), fields.iter().skip(3).take(2).sum()))
    };
    let (total, idle) = times()?;
    std::thread::sleep(CPU_USE_OVER);
    let (total_after, idle_after) = times()?;
    let idle = idle_after.saturating_sub(idle) as f64 / total_after.saturating_sub(total).max(1) as f64;
    Ok((1.0 - idle) * 100.0)
}

/// The commit of the working tree, with `-dirty` if sources differ from it. Documents may differ: benchmarks write some.
pub(crate) fn commit() -> Result<String, Error> {
    let git = |arguments: &[&str]| -> Result<String, Error> {
        Ok(String::from_utf8_lossy(&run(Command::new("git").args(arguments))?.stdout).trim().to_owned())
    };
    let changes = git(&["status", "--porcelain", "--untracked-files=no", "--", ":/crates", ":/xtask", ":/Cargo.*"])?;
    let dirty = if changes.is_empty() { "" } else { "-dirty" };
    Ok(git(&["rev-parse", "--short=12", "HEAD"])? + dirty)
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
    let path = format!("/proc/{pid}/stat");
    let stat = proc::stat::read(&path).map_err(Error::file("read", path))?;
    let ticks = (stat.user_ticks + stat.system_ticks) as f64;
    Ok(ticks * 1e6 / rustix::param::clock_ticks_per_second() as f64)
}

/// Anonymous memory of all processes in cgroups whose path contains `group`, and of `extra`, in kB.
pub(crate) fn anonymous_kb(group: &str, extra: u32) -> Result<f64, Error> {
    let mut total = 0.0;
    for pid in proc::processes::all().map_err(Error::file("list", "/proc"))? {
        // The process may have ended: its files are then empty.
        let text = |file: &str| proc::read(&format!("/proc/{pid}/{file}")).unwrap_or_default();
        if pid == extra.cast_signed() || text("cgroup").contains(group) {
            total += proc::number::<f64>(&text("smaps_rollup"), "Pss_Anon").unwrap_or(0.0);
        }
    }
    Ok(total)
}

/// Drops the pages of one file from the page cache.
pub(crate) fn drop_from_cache(path: &Path) -> Result<(), Error> {
    let wrong = Error::file("drop from the page cache", path);
    let drop = || -> std::io::Result<()> {
        let file = File::open(path)?;
        file.sync_data()?;
        Ok(rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?)
    };
    drop().map_err(wrong)
}
