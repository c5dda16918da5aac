//! What cargo checks itself.

use std::path::Path;
use std::process::{Command, Stdio};

/// A cargo command whose own output is shown.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    arguments: &'static [&'static str],
}

pub(crate) const TOOLS: [Tool; 2] = [
    Tool { name: "formatting", arguments: &["fmt", "--all", "--check", "--", "-l"] },
    Tool {
        name: "clippy",
        arguments: &["clippy", "--quiet", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"],
    },
];

impl Tool {
    /// Runs it and says how it went, in a word or two.
    pub(crate) fn run(&self, root: &Path) -> String {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo).current_dir(root).args(self.arguments).stdin(Stdio::null()).status();
        match status {
            Ok(status) if status.success() => "ok".to_owned(),
            Ok(_) => format!("failed: cargo {}", self.arguments.join(" ")),
            Err(error) => format!("could not be run: {error}"),
        }
    }
}
