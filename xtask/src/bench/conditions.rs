//! The conditions of a measurement: machine, kernel, commit, build, peers, date, command.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::machine;
use super::peers::criu_binary;
use crate::error::{Error, run};

/// What a result depends on besides the code that is measured. Fields that an older result lacks are empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Conditions {
    /// CPUs and memory.
    pub(crate) machine: String,
    /// Release of the kernel.
    pub(crate) kernel: String,
    /// Commit of the working tree, with `-dirty` if sources differ from it.
    pub(crate) commit: String,
    /// How the measured `torpor` was built.
    pub(crate) build: String,
    /// Names and versions of the installed peers.
    pub(crate) peers: Vec<String>,
    /// Day of the start, in UTC.
    pub(crate) date: String,
    /// CPU time that the machine used before the start, in percent.
    pub(crate) busy_percent: Option<f64>,
    /// The command that repeats the measurement.
    pub(crate) command: String,
}

impl Conditions {
    /// The conditions now; `torpor` is the program that is measured.
    pub(crate) fn now(torpor: &Path, command: String) -> Result<Self, Error> {
        let date = run(Command::new("date").args(["-u", "+%F"]))?;
        let criu = criu_binary().ok().and_then(|path| version(path.as_os_str(), "--version", "CRIU", None));
        let runc = version("runc".as_ref(), "--version", "runc", None);
        Ok(Self {
            machine: machine::describe()?,
            kernel: machine::kernel()?,
            commit: machine::commit()?,
            build: build(torpor).to_owned(),
            peers: [criu, runc].into_iter().flatten().collect(),
            date: String::from_utf8_lossy(&date.stdout).trim().to_owned(),
            busy_percent: Some(settled_cpu_use()?),
            command,
        })
    }

    /// Headings and values, without those that are unknown.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (&'static str, String)> {
        let lines = [
            ("Machine", self.machine.clone()),
            ("Kernel", self.kernel.clone()),
            ("Torpor", [self.commit.as_str(), self.build.as_str()].join(", ").trim_matches([',', ' ']).to_owned()),
            ("Peers", self.peers.join(", ")),
            ("Date", self.date.clone()),
            (
                "CPU use before the start",
                self.busy_percent.map_or_else(String::new, |percent| format!("{percent:.0} %")),
            ),
            ("Command", if self.command.is_empty() { String::new() } else { format!("`{}`", self.command) }),
        ];
        lines.into_iter().filter(|(_, value)| !value.is_empty())
    }

    /// Why the numbers do not show what a release can do, if that is so.
    pub(crate) fn warning(&self) -> Option<String> {
        let busy = self.busy_percent.is_some_and(|percent| percent > BUSY_PERCENT);
        let reasons = [(!self.is_release()).then_some(self.build.as_str()), busy.then_some("busy machine")];
        let reasons: Vec<&str> = reasons.into_iter().flatten().filter(|reason| !reason.is_empty()).collect();
        (!reasons.is_empty()).then(|| format!("Not representative: {}.", reasons.join(", ")))
    }

    /// It is known that the optimised program was measured.
    fn is_release(&self) -> bool {
        self.build == RELEASE
    }
}

const RELEASE: &str = "release build";
/// Above this use of its CPUs, the machine does other work.
const BUSY_PERCENT: f64 = 10.0;

/// Attempts to find the machine idle. An earlier benchmark may have left work for the kernel, such as namespaces to remove.
const ATTEMPTS: u32 = 10;

/// CPU use of the machine once it is idle, or after the last attempt.
fn settled_cpu_use() -> Result<f64, Error> {
    let mut percent = machine::cpu_use()?;
    for _ in 1..ATTEMPTS {
        if percent <= BUSY_PERCENT {
            break;
        }
        percent = machine::cpu_use()?;
    }
    Ok(percent)
}

/// The profile of a program, which cargo's directory names.
fn build(torpor: &Path) -> &'static str {
    match torpor.parent().and_then(Path::file_name).and_then(|name| name.to_str()) {
        Some("release") => RELEASE,
        Some("debug") => "debug build",
        _ => "build of unknown profile",
    }
}

/// Name and version of an installed program, which it tells with `option` in the first line: in that word, or in the last one.
pub(super) fn version(program: &std::ffi::OsStr, option: &str, name: &str, word: Option<usize>) -> Option<String> {
    let output = run(Command::new(program).arg(option)).ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = text.lines().next()?.split_whitespace().collect();
    let found = words.get(word.unwrap_or(words.len().saturating_sub(1)))?;
    Some(format!("{name} {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_is_the_name_of_the_directory() {
        let builds = ["x/release/torpor", "x/debug/torpor", "/usr/bin/torpor", "torpor"].map(Path::new).map(build);
        assert_eq!(builds, [RELEASE, "debug build", "build of unknown profile", "build of unknown profile"]);
    }

    #[test]
    fn unknown_conditions_are_left_out() {
        let known = Conditions { commit: "abc".to_owned(), build: RELEASE.to_owned(), ..Conditions::default() };
        assert_eq!(known.lines().collect::<Vec<_>>(), [("Torpor", "abc, release build".to_owned())]);
        assert!(known.is_release());
        assert_eq!(known.warning(), None);
    }

    #[test]
    fn debug_builds_and_busy_machines_are_marked() {
        let conditions =
            Conditions { build: "debug build".to_owned(), busy_percent: Some(50.0), ..Conditions::default() };
        assert_eq!(conditions.warning().as_deref(), Some("Not representative: debug build, busy machine."));
    }
}
