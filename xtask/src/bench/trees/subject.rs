//! Who captures and restores: Torpor's commands, CRIU's.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::bench::criu_binary;
use crate::error::{Error, chain};

/// A program that captures trees and restores them.
#[derive(Debug)]
pub(super) enum Subject {
    /// `torpor checkpoint`, `torpor restore`.
    Torpor(PathBuf),
    /// `criu dump`, `criu restore`.
    Criu(PathBuf),
}

/// A command that has succeeded.
#[derive(Debug)]
pub(super) struct Ran {
    /// What it printed as JSON; null where it does not.
    pub(super) account: Value,
}

/// A command that runs.
#[derive(Debug)]
pub(super) struct Running {
    words: String,
    child: Child,
    output: PathBuf,
    log: Option<PathBuf>,
}

/// Torpor, and what else this machine has; what is missing is said loudly.
pub(super) fn subjects(torpor: PathBuf, peers: bool) -> Vec<Subject> {
    let mut subjects = vec![Subject::Torpor(torpor)];
    match criu_binary() {
        _ if !peers => {}
        Ok(criu) => subjects.push(Subject::Criu(criu)),
        Err(error) => eprintln!("NOT MEASURED: criu: {}", chain(&error)),
    }
    subjects
}

impl Subject {
    /// Its name in results.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Torpor(_) => "torpor",
            Self::Criu(_) => "criu",
        }
    }

    /// Captures the tree of process `pid` into the directory `image`, and ends it.
    pub(super) fn checkpoint(&self, pid: u32, image: &Path) -> Result<Ran, Error> {
        let pid = pid.to_string();
        let arguments: &[&str] = match self {
            Self::Torpor(_) => &["checkpoint", "--json", "--pid", &pid, "--image"],
            Self::Criu(_) => &["dump", "-v1", "--manage-cgroups=ignore", "-o", "dump.log", "-t", &pid, "-D"],
        };
        self.start(arguments, image, "dump.log")?.wait()
    }

    /// Begins to restore the tree, which is left to itself.
    pub(super) fn restore(&self, image: &Path) -> Result<Running, Error> {
        let arguments: &[&str] = match self {
            Self::Torpor(_) => &["restore", "--json", "--detach", "--image"],
            Self::Criu(_) => &["restore", "-v1", "--manage-cgroups=ignore", "-o", "restore.log", "-d", "-D"],
        };
        self.start(arguments, image, "restore.log")
    }

    fn start(&self, arguments: &[&str], image: &Path, log: &str) -> Result<Running, Error> {
        let (program, log) = match self {
            Self::Torpor(program) => (program, None),
            Self::Criu(program) => (program, Some(image.join(log))),
        };
        // A file: what is restored may inherit it, and a pipe would then never end.
        let output = image.with_extension("output");
        let file = File::create(&output).map_err(Error::file("make", &output))?;
        let other = file.try_clone().map_err(Error::file("share", &output))?;
        let mut command = Command::new(program);
        command.args(arguments).arg(image).stdin(Stdio::null()).stdout(file).stderr(other);
        let words = format!("{command:?}");
        let child = command.spawn().map_err(Error::spawn(program.display().to_string()))?;
        Ok(Running { words, child, output, log })
    }
}

impl Running {
    /// Waits until it has ended.
    pub(super) fn wait(mut self) -> Result<Ran, Error> {
        let status = self.child.wait().map_err(Error::file("wait for", &self.words))?;
        let text = fs::read_to_string(&self.output).map_err(Error::file("read", &self.output))?;
        if !status.success() {
            let log = self.log.and_then(|log| fs::read_to_string(log).ok()).unwrap_or_default();
            let (status, stderr) = (status.to_string(), format!("{text}{log}"));
            return Err(torpor_testkit::Error::Command { command: self.words, status, stderr }.into());
        }
        // Only Torpor's is JSON, with warnings behind it perhaps.
        let account = serde_json::Deserializer::from_str(&text).into_iter().next().and_then(Result::ok);
        Ok(Ran { account: account.unwrap_or(Value::Null) })
    }
}
