//! Skipping a test so that everybody sees it.
//!
//! Every skip is a line on standard error (past the test harness's capture) and a line in the file that `TORPOR_SKIPS`
//! names, where the test runner counts them. With `TORPOR_NO_SKIPS=1` a skip is a failure.

use std::fs::OpenOptions;
use std::io::Write;

/// Skips the rest of a test function: `skip!("needs cgroup v2")`, with the arguments of `format!`.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        $crate::skip::skipped(module_path!(), &format!($($reason)*));
        return;
    }};
}

/// Reports the skip; [`skip!`] calls it.
///
/// # Panics
/// With `TORPOR_NO_SKIPS=1`, or where the count cannot be kept.
pub fn skipped(test: &str, reason: &str) {
    let name = std::thread::current().name().unwrap_or("main").to_owned();
    assert!(std::env::var_os("TORPOR_NO_SKIPS").is_none(), "{test} {name} would be skipped: {reason}");
    let line = format!("SKIPPED {test} {name}: {reason}\n");
    // Not `eprint!`: the harness would hide it, as the test then passes.
    rustix::io::write(rustix::stdio::stderr(), line.as_bytes()).expect("standard error takes a line");
    if let Some(path) = std::env::var_os("TORPOR_SKIPS") {
        let file = OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the file of TORPOR_SKIPS can be appended to");
    }
}
