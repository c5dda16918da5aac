//! What cargo checks itself: formatting and lints.

use std::path::Path;
use std::process::{Command, Stdio};

use super::Finding;
use super::rust::is_test;

/// A cargo command whose output is read as findings.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    arguments: &'static [&'static str],
    findings: fn(&Path, &str) -> Vec<Finding>,
}

pub(crate) const FORMATTING: Tool =
    Tool { name: "formatting", arguments: &["fmt", "--all", "--check", "--", "-l"], findings: unformatted };

pub(crate) const CLIPPY: Tool = Tool {
    name: "clippy",
    arguments: &["clippy", "--quiet", "--workspace", "--all-targets", "--keep-going", "--message-format=short"],
    findings: lints,
};

impl Tool {
    /// Runs it at a lower priority by `nice`, from 0 to 19. An error is one of running it, or its whole output where no finding could be read
    /// from that.
    pub(crate) fn run(&self, root: &Path, nice: u8) -> Result<Vec<Finding>, String> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new("nice")
            .args(["-n", &nice.to_string()])
            .arg(cargo)
            .current_dir(root)
            .args(self.arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("running cargo {}: {error}", self.arguments[0]))?;
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let findings = (self.findings)(root, &text);
        if !output.status.success() && findings.is_empty() {
            return Err(format!("cargo {} failed:\n{text}", self.arguments[0]));
        }
        Ok(findings)
    }
}

/// `rustfmt -l` prints one absolute path a line.
fn unformatted(root: &Path, text: &str) -> Vec<Finding> {
    let paths = text.lines().filter_map(|line| Path::new(line).strip_prefix(root).ok());
    paths.map(|path| Finding::new(path, 0, "not formatted: cargo fmt")).collect()
}

/// `path:line:column: warning: words`. Every warning is a finding; they are not made errors, or crates above one with a
/// warning would not be looked at.
fn lints(_root: &Path, text: &str) -> Vec<Finding> {
    let mut findings: Vec<Finding> = text.lines().filter_map(lint).collect();
    // `allow-unwrap-in-tests` does not reach functions that tests share; our own check does.
    findings.retain(|finding| !(finding.what.starts_with("used `unwrap()`") && is_test(&finding.path)));
    // A library is compiled with and without its tests.
    findings.sort();
    findings.dedup();
    findings
}

fn lint(line: &str) -> Option<Finding> {
    let (place, words) = line.split_once(": ")?;
    let words = ["error", "warning"].iter().find_map(|level| words.strip_prefix(level))?;
    let (_code, words) = words.split_once(": ")?;
    let mut parts = place.rsplitn(3, ':');
    let (_column, number, path) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Finding::new(path, number.parse().ok()?, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unformatted_files_are_named_from_the_root() {
        let text = "/srv/torpor/crates/a/src/lib.rs\nsome words\n";
        let found = unformatted(Path::new("/srv/torpor"), text);
        assert_eq!(found, [Finding::new("crates/a/src/lib.rs", 0, "not formatted: cargo fmt")]);
    }

    #[test]
    fn lints_come_with_their_place_once() {
        let text = "crates/a/src/b.rs:77:12: error: manual `is_multiple_of`\n\
                    crates/a/src/b.rs:77:12: error: manual `is_multiple_of`\n\
                    crates/a/tests/t.rs:5:1: warning: used `unwrap()` on a `Result` value\n\
                    crates/a/src/c.rs:2:1: warning: used `unwrap()` on a `Result` value\n\
                    crates/a/src/c.rs:3:1: error[E0425]: cannot find value `x`: not in scope\n\
                    error: could not compile `a` (lib) due to 1 previous error\n";
        let found: Vec<String> = lints(Path::new(""), text).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "crates/a/src/b.rs:77: manual `is_multiple_of`",
                "crates/a/src/c.rs:2: used `unwrap()` on a `Result` value",
                "crates/a/src/c.rs:3: cannot find value `x`: not in scope",
            ]
        );
    }
}
