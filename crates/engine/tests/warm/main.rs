//! Apps become warm: their processes end, an image and the open files stay. Needs root and a cgroup v2 mount.
//!
//! A sandbox is set up by a fresh copy of this program, which therefore looks at its arguments before anything else. Names of
//! tests as arguments choose those that are run.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test")]

mod app;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod hibernate;
mod measure;
mod resume;
mod torture;

use std::panic::catch_unwind;

type Test = (&'static str, fn());

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some(torpor_sandbox::SETUP_COMMAND) => torpor_sandbox::setup_main(),
        Some(torpor_sandbox::EXEC_COMMAND) => torpor_sandbox::exec_main(),
        Some(conformance::JUDGE_COMMAND) => return conformance::judge_main(),
        _ => {}
    }
    assert!(rustix::process::geteuid().is_root(), "these tests need root");
    let tests: Vec<Test> = [hibernate::TESTS, resume::TESTS, conformance::TESTS, measure::TESTS].concat();
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let mut failed = Vec::new();
    for (name, test) in tests {
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        eprintln!("test {name}");
        let result = catch_unwind(test);
        println!("test {name} ... {}", if result.is_ok() { "ok" } else { "FAILED" });
        if result.is_err() {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
}
