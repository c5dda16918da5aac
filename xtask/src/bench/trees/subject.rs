//! The commands that capture and restore: those of Torpor, CRIU and runc.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::tree::unpack;
use crate::bench::peers::{CONNECTIONS, CONTAINER, CRIU, Container, criu_binary, errors_of};
use crate::bench::samples::Samples;
use crate::error::Error;

/// A program that captures trees and restores them.
#[derive(Debug)]
pub(in crate::bench) enum Subject {
    /// `torpor checkpoint`, `torpor restore`.
    Torpor(PathBuf),
    /// `criu dump`, `criu restore`.
    Criu(PathBuf),
    /// `runc checkpoint`, `runc restore`.
    Runc(Container),
}

/// With whom a tree has TCP connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum Traffic {
    /// With nobody outside.
    Inside,
    /// With others, who must not notice anything.
    Outside,
}

impl Traffic {
    const fn option(self) -> Option<&'static str> {
        match self {
            Self::Inside => None,
            Self::Outside => Some(CONNECTIONS),
        }
    }

    /// Those of CRIU, which by default locks each connection by running iptables.
    fn options_of_criu(self) -> impl Iterator<Item = &'static str> {
        let lock = (self == Self::Outside).then_some(["--network-lock", "nftables"]);
        self.option().into_iter().chain(lock.into_iter().flatten())
    }
}

/// A command that has succeeded.
#[derive(Debug)]
pub(in crate::bench) struct Ran {
    /// Its output, if that is JSON; otherwise null.
    pub(in crate::bench) account: Value,
}

/// A command that runs.
#[derive(Debug)]
pub(in crate::bench) struct Running {
    words: String,
    child: Child,
    output: PathBuf,
    log: Option<PathBuf>,
}

/// Torpor and the peers that this machine has. Others are recorded in `samples` as missing. Files of containers go into `dir`.
pub(super) fn subjects(torpor: PathBuf, peers: bool, dir: &Path, samples: &mut Samples) -> Vec<Subject> {
    if !peers {
        return vec![Subject::Torpor(torpor)];
    }
    let container = || -> Result<Container, Error> {
        let container = Container::make("tree", &dir.join("runc"))?;
        unpack(&container.root())?;
        Ok(container)
    };
    let mut subjects = plain_subjects(torpor, samples);
    subjects.extend(there(CONTAINER, container().map(Subject::Runc), samples));
    subjects
}

/// Those that need no container.
pub(in crate::bench) fn plain_subjects(torpor: PathBuf, samples: &mut Samples) -> Vec<Subject> {
    let criu = there(CRIU, criu_binary().map(Subject::Criu), samples);
    [Subject::Torpor(torpor)].into_iter().chain(criu).collect()
}

/// The subject, unless the machine lacks it, which is recorded.
fn there(name: &str, made: Result<Subject, Error>, samples: &mut Samples) -> Option<Subject> {
    made.map_err(|error| samples.missing(name.to_owned(), &error)).ok()
}

impl Subject {
    /// Its name in results.
    pub(in crate::bench) const fn name(&self) -> &'static str {
        match self {
            Self::Torpor(_) => "torpor",
            Self::Criu(_) => CRIU,
            Self::Runc(_) => CONTAINER,
        }
    }

    /// The container of its trees, if they run in one.
    pub(in crate::bench) const fn container(&self) -> Option<&Container> {
        match self {
            Self::Torpor(_) | Self::Criu(_) => None,
            Self::Runc(container) => Some(container),
        }
    }

    /// Repairs what a failed attempt may have left, apart from its tree.
    pub(in crate::bench) fn recover(&self) -> Result<(), Error> {
        self.container().map_or(Ok(()), Container::renew_network)
    }

    /// Captures the tree of process `pid`, or the tree in the container, into the directory `image`, and ends it.
    pub(in crate::bench) fn checkpoint(&self, pid: u32, image: &Path, traffic: Traffic) -> Result<Ran, Error> {
        let pid = pid.to_string();
        let running = match self {
            Self::Torpor(program) => {
                let mut command = command(program, &["checkpoint", "--json", "--pid", &pid, "--image"], image);
                command.args(traffic.option());
                start(command, image, None)
            }
            Self::Criu(program) => {
                let arguments = ["dump", "-v1", "--manage-cgroups=ignore", "-o", "dump.log", "-t", &pid, "-D"];
                let mut command = command(program, &arguments, image);
                command.args(traffic.options_of_criu());
                start(command, image, Some(image.join("dump.log")))
            }
            Self::Runc(container) => start(container.checkpoint(image), image, Some(container.dump_log())),
        };
        running?.wait()
    }

    /// Starts to restore the tree, detached.
    pub(in crate::bench) fn restore(&self, image: &Path, traffic: Traffic) -> Result<Running, Error> {
        match self {
            Self::Torpor(program) => {
                start(command(program, &["restore", "--json", "--detach", "--image"], image), image, None)
            }
            Self::Criu(program) => {
                let arguments = ["restore", "-v1", "--manage-cgroups=ignore", "-o", "restore.log", "-d", "-D"];
                let mut command = command(program, &arguments, image);
                command.args(traffic.options_of_criu());
                start(command, image, Some(image.join("restore.log")))
            }
            Self::Runc(container) => start(container.restore(image), image, Some(container.restore_log())),
        }
    }
}

fn command(program: &Path, arguments: &[&str], image: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).arg(image);
    command
}

/// Starts a command that captures into `image` or restores from it, and logs to `log`.
fn start(mut command: Command, image: &Path, log: Option<PathBuf>) -> Result<Running, Error> {
    // Not a pipe: the restored tree may inherit it and keep it open.
    let output = image.with_extension("output");
    let file = File::create(&output).map_err(Error::file("make", &output))?;
    let other = file.try_clone().map_err(Error::file("share", &output))?;
    command.stdin(Stdio::null()).stdout(file).stderr(other);
    let words = format!("{command:?}");
    let child = command.spawn().map_err(Error::spawn(command.get_program().to_string_lossy()))?;
    Ok(Running { words, child, output, log })
}

impl Running {
    /// Waits for its end.
    pub(in crate::bench) fn wait(mut self) -> Result<Ran, Error> {
        let status = self.child.wait().map_err(Error::file("wait for", &self.words))?;
        let text = fs::read_to_string(&self.output).map_err(Error::file("read", &self.output))?;
        if !status.success() {
            let log = self.log.map(|log| errors_of(&log)).unwrap_or_default();
            let (status, stderr) = (status.to_string(), format!("{text}{log}"));
            return Err(torpor_testkit::Error::Command { command: self.words, status, stderr }.into());
        }
        // Only Torpor prints JSON, perhaps with warnings after it.
        let account = serde_json::Deserializer::from_str(&text).into_iter().next().and_then(Result::ok);
        Ok(Ran { account: account.unwrap_or(Value::Null) })
    }
}
