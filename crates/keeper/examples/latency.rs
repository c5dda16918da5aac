//! What a `put` and a `get` cost: `cargo run --release -p torpor-keeper --example latency`.
//! Needs the keeper beside it: `cargo build --release -p torpor-keeper`.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs;
use std::os::fd::AsFd;
use std::time::Instant;

use torpor_keeper::{Client, StartOptions};

const ROUNDS: usize = 20_000;

fn main() -> Result<(), Box<dyn Error>> {
    let program = std::env::current_exe()?.with_file_name("../torpor-keeper");
    let path = std::env::temp_dir().join(format!("keeper-latency-{}", std::process::id()));
    let client = Client::connect_or_spawn(&path, &program, &[], &StartOptions::default())?;
    let file = fs::File::open("/dev/null")?;
    measure("ping", || client.ping().map(drop))?;
    for (name, blob, count) in [("1 descriptor", 64, 1), ("20 descriptors, 4 KiB", 4096, 20)] {
        let (blob, fds) = (vec![1; blob], vec![file.as_fd(); count]);
        measure(&format!("put {name}"), || client.put("key", &blob, &fds))?;
        measure(&format!("get {name}"), || client.get("key").map(drop))?;
    }
    let pid = client.ping()?.pid;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    for line in status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("RssAnon")) {
        println!("keeper {line}");
    }
    client.shutdown()?;
    for suffix in [".lock", ".start"] {
        let mut file = path.clone().into_os_string();
        file.push(suffix);
        fs::remove_file(file)?;
    }
    Ok(())
}

fn measure<E>(name: &str, mut step: impl FnMut() -> Result<(), E>) -> Result<(), E> {
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        step()?;
        times.push(start.elapsed().as_nanos() as f64 / 1000.0);
    }
    times.sort_by(f64::total_cmp);
    println!("{name}: median {:.1} µs, p99 {:.1} µs", times[ROUNDS / 2], times[ROUNDS * 99 / 100]);
    Ok(())
}
