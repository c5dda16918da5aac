//! A daemon whose apps run programs in Python: those of `crates/testkit/programs`, in a tarball over the stored image `python`.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part; a test may panic")]

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::OnceLock;

use tempfile::TempDir;
use torpor_testkit::daemon::Daemon;
use torpor_testkit::programs;
use torpor_testkit::servers::{Program, Servers};
pub(crate) use torpor_testkit::wait::PATIENCE;
use torpor_testkit::wait::eventually_ok;

const PYTHON: &str = "/usr/bin/python3";

/// A real server.
pub(crate) fn program(name: &str) -> Program {
    static SERVERS: OnceLock<Servers> = OnceLock::new();
    SERVERS.get_or_init(|| Servers::open().unwrap_or_else(|error| panic!("the servers: {error}"))).program(name).clone()
}

/// A daemon with the image `python`, and room for files.
pub(crate) struct Place {
    pub(crate) daemon: Daemon,
    directory: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    /// With more tables in the daemon's configuration.
    pub(crate) fn with(tables: &str) -> Self {
        Self::of(Daemon::start_with(tables, &[]).unwrap())
    }

    /// The same, with a disk of its own for the data directory.
    pub(crate) fn on_disk(tables: &str) -> Self {
        Self::of(Daemon::start_on_disk(tables).unwrap())
    }

    fn of(daemon: Daemon) -> Self {
        let tarball = program("python").tarball;
        daemon.ok(&["images", "load", "python", tarball.to_str().unwrap()]).unwrap();
        // Apps' users reach what is mounted from here.
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        Self { daemon, directory }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, data: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, data).unwrap();
        path
    }

    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir(&path).unwrap();
        path
    }

    /// The command, in an app, of a Python program: the name of its file and its arguments, or options of Python itself.
    pub(crate) fn program_line(&self, program: &str) -> Vec<String> {
        let path = if program.starts_with('-') { String::new() } else { format!("{}/", programs::IN_APP) };
        let line = format!("{PYTHON} -u {path}{program}");
        line.split(' ').map(str::to_owned).collect()
    }

    /// `torpor run` of a program, with more options.
    pub(crate) fn run_line(&self, name: &str, program: &str, options: &[&str]) -> Vec<String> {
        let tarball = programs::tarball().unwrap();
        let before =
            [&["run", "--name", name, "--base", "python"], options, &[tarball.to_str().unwrap(), "--"]].concat();
        before.into_iter().map(str::to_owned).chain(self.program_line(program)).collect()
    }

    /// Runs a program as an app (`program` as in [`Place::program_line`]); what came of it.
    pub(crate) fn try_run(&self, name: &str, program: &str, options: &[&str]) -> Output {
        self.daemon.cli(&self.run_line(name, program, options)).unwrap()
    }

    /// As [`Place::try_run`], which must succeed.
    pub(crate) fn run(&self, name: &str, program: &str, options: &[&str]) {
        let output = self.try_run(name, program, options);
        assert!(output.status.success(), "{name}: {}", said(&output));
    }

    /// As [`Place::try_run`], for a program that fails: `torpor run` fails, too, if it ends soon enough.
    pub(crate) fn run_to_its_end(&self, name: &str, program: &str, options: &[&str]) {
        let output = self.try_run(name, program, options);
        let ended = String::from_utf8_lossy(&output.stderr).contains(&format!("{name} has ended: "));
        assert!(output.status.success() || ended, "{name}: {}", said(&output));
    }

    /// Waits until the app has written this.
    pub(crate) fn wait_log(&self, name: &str, text: &str) -> String {
        eventually_ok(&format!("{name} writes {text:?}"), PATIENCE, || {
            let log = text_of(&self.daemon.cli(&["logs", name]).unwrap());
            if log.contains(text) { Ok(log) } else { Err(log) }
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", self.daemon.ok(&["explain", name]).unwrap_or_default()))
    }

    /// Waits until the text of a command holds this.
    pub(crate) fn wait_text(&self, args: &[&str], text: &str) -> String {
        eventually_ok(&format!("{args:?} says {text:?}"), PATIENCE, || {
            let said = text_of(&self.daemon.cli(args).unwrap());
            if said.contains(text) { Ok(said) } else { Err(said) }
        })
        .unwrap()
    }

    /// Puts it to sleep, again where it was just at work.
    pub(crate) fn sleep(&self, name: &str) {
        eventually_ok(&format!("{name} sleeps"), PATIENCE, || self.daemon.ok(&["sleep", name])).unwrap();
        assert_eq!(self.daemon.state(name).unwrap(), "dozing");
    }

    /// Runs a command that must fail with this exit code; its standard error.
    pub(crate) fn refused(&self, args: &[&str], code: i32) -> String {
        let output = self.daemon.cli(args).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", said(&output));
        String::from_utf8(output.stderr).unwrap()
    }

    /// How often it has woken.
    pub(crate) fn wakes(&self, name: &str) -> u64 {
        self.daemon.json(&["stats", name]).unwrap()["wakes"].as_u64().unwrap()
    }
}

/// A file of mode 0755, owned by root.
pub(crate) fn append<W: std::io::Write>(tar: &mut tar::Builder<W>, path: &str, data: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o755);
    header.set_size(data.len() as u64);
    tar.append_data(&mut header, path, data).unwrap();
}

/// Names in a directory; none where there is no directory.
pub(crate) fn names(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Both streams, for the account of a failure.
pub(crate) fn said(output: &Output) -> String {
    format!("{}: {}", output.status, text_of(output))
}

/// Both streams.
pub(crate) fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
