//! What captures and restores: Torpor's commands, or CRIU's.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::Error;

/// How long an engine may take for one step. One that hangs is killed and has failed.
const STEP_WITHIN: Duration = Duration::from_secs(180);

/// How a step of an engine ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Done.
    Done,
    /// Refused before anything was touched, with the reason.
    Refused(String),
    /// Failed, with the reason.
    Failed(String),
}

/// Something that captures process trees and restores them.
pub trait Engine {
    /// Its name, for people.
    fn name(&self) -> &'static str;
    /// Captures the tree of process `pid` into the directory `image`, and ends it unless it is to be left running.
    ///
    /// # Errors
    /// Where the engine cannot be run at all.
    fn checkpoint(&self, pid: u32, image: &Path, leave_running: bool) -> Result<Step, Error>;
    /// Restores the tree from `image` and lets it go.
    ///
    /// # Errors
    /// Where the engine cannot be run at all.
    fn restore(&self, image: &Path) -> Result<Step, Error>;
}

/// `torpor checkpoint` and `torpor restore`.
#[derive(Clone, Debug)]
pub struct Torpor {
    /// The binary.
    pub program: PathBuf,
}

impl Torpor {
    /// Exit code of a refusal.
    const REFUSED: i32 = 3;

    fn step(&self, arguments: &[&str], image: &Path) -> Result<Step, Error> {
        let mut command = Command::new(&self.program);
        command.args(arguments).arg("--image").arg(image);
        let (code, said) = run(&mut command, &image.with_extension("log"))?;
        let reason = said.trim().to_owned();
        Ok(match code {
            Some(0) => Step::Done,
            Some(Self::REFUSED) => Step::Refused(reason),
            Some(code) => Step::Failed(format!("exit code {code}: {reason}")),
            None => Step::Failed(format!("did not end by itself: {reason}")),
        })
    }
}

impl Engine for Torpor {
    fn name(&self) -> &'static str {
        "Torpor"
    }

    fn checkpoint(&self, pid: u32, image: &Path, leave_running: bool) -> Result<Step, Error> {
        let pid = pid.to_string();
        let mut arguments = vec!["checkpoint", "--tcp-established", "--pid", &pid];
        if leave_running {
            arguments.push("--leave-running");
        }
        self.step(&arguments, image)
    }

    fn restore(&self, image: &Path) -> Result<Step, Error> {
        self.step(&["restore", "--detach"], image)
    }
}

/// CRIU, with every option that lets it do more.
#[derive(Clone, Debug)]
pub struct Criu {
    /// The binary.
    pub program: PathBuf,
}

impl Criu {
    /// What is switched on, in dump and restore.
    pub const OPTIONS: &'static [&'static str] = &[
        "--tcp-established",
        "--ext-unix-sk",
        "--file-locks",
        "--link-remap",
        "--force-irmap",
        "--ghost-limit=64M",
        "--manage-cgroups=ignore",
    ];

    fn step(&self, what: &str, arguments: &[&str], image: &Path) -> Result<Step, Error> {
        let log = image.join(format!("{what}.log"));
        let mut command = Command::new(&self.program);
        command.arg(what).args(["-v1", "-D"]).arg(image).arg("-o").arg(&log).args(arguments).args(Self::OPTIONS);
        let (code, said) = run(&mut command, &image.with_extension("log"))?;
        if code == Some(0) {
            return Ok(Step::Done);
        }
        // The first error is the cause; the rest follow from it. That it cannot raise its own limit is none.
        let log = fs::read_to_string(&log).unwrap_or_default();
        let is_cause = |line: &&str| line.contains("Error (") && !line.contains("RLIMIT_NOFILE for self");
        let cause = log.lines().chain(said.lines()).find(is_cause).unwrap_or(said.trim());
        let cause = cause.split_once("Error (").map_or(cause, |(_, cause)| cause);
        let cause = cause.split_once("): ").map_or(cause, |(_, cause)| cause).trim();
        let cause = if cause.is_empty() { "no reason given" } else { cause };
        Ok(Step::Failed(if code.is_none() { format!("hangs: {cause}") } else { cause.to_owned() }))
    }
}

impl Engine for Criu {
    fn name(&self) -> &'static str {
        "CRIU"
    }

    fn checkpoint(&self, pid: u32, image: &Path, leave_running: bool) -> Result<Step, Error> {
        fs::create_dir_all(image).map_err(Error::file("make", image))?;
        let pid = pid.to_string();
        let mut arguments = vec!["-t", &pid];
        if leave_running {
            arguments.push("--leave-running");
        }
        self.step("dump", &arguments, image)
    }

    fn restore(&self, image: &Path) -> Result<Step, Error> {
        self.step("restore", &["-d"], image)
    }
}

/// Runs an engine; its exit code (none if it was killed) and what it said. Its output goes to a file: what it restores may
/// inherit it, and a pipe would then never end.
fn run(command: &mut Command, output: &Path) -> Result<(Option<i32>, String), Error> {
    let file = File::create(output).map_err(Error::file("make", output))?;
    let other = file.try_clone().map_err(Error::file("open", output))?;
    let program = command.get_program().to_string_lossy().into_owned();
    let spawned = command.stdin(Stdio::null()).stdout(file).stderr(other).spawn();
    let hint = "build or install it first";
    let mut child = spawned.map_err(|source| Error::Spawn { program: program.clone(), hint, source })?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begun.elapsed() < STEP_WITHIN => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                let _ = child.kill();
                break child.wait().map_err(Error::file("wait for", &program))?;
            }
        }
    };
    let said = fs::read(output).map_err(Error::file("read", output))?;
    Ok((status.code(), String::from_utf8_lossy(&said).into_owned()))
}
