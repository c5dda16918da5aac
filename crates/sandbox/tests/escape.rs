//! Paths of the app that lead to descriptors of whoever starts its programs (CVE-2024-21626). Needs root, busybox and perl.
//!
//! The app's files hold symbolic links to `/proc/self/fd/N`, for every N that a set-up process may use. Where one of those is
//! a directory of the machine, `..` leads from it to the machine's root, and there lies a directory that only this test knows.
#![allow(clippy::unwrap_used, reason = "the test fails")]

mod common;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use common::{App, Machine, null, pipe, program};
use torpor_sandbox::{ExecIo, Program, SandboxError, SetupError, User, exec};

/// Descriptor numbers that are tried.
const NUMBERS: std::ops::RangeInclusive<u32> = 3..=64;
/// From any directory to the root above it.
const UP: &str = "../../../../../../../../../../../../../../../..";
/// What is only in the machine's directory.
const MARK: &str = "outside-of-every-sandbox";

/// A directory of the machine's that everybody may read, with programs.
struct Outside(tempfile::TempDir);

impl Outside {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("torpor-outside-").tempdir_in("/tmp").unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(directory.path().join(MARK), MARK).unwrap();
        fs::copy("/bin/busybox", directory.path().join("busybox")).unwrap();
        let script = format!("#!/bin/sh\necho {MARK}\n");
        executable(&directory.path().join("marked"), script.as_bytes());
        fs::copy(fs::canonicalize(LOADER).unwrap(), directory.path().join("loader")).unwrap();
        Self(directory)
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    /// It, by way of descriptor `number`.
    fn by(&self, number: u32) -> String {
        format!("/proc/self/fd/{number}/{UP}{}", self.path())
    }
}

const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

fn executable(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A layer with links through every descriptor.
fn hostile_layer(machine: &Machine, outside: &Outside) -> PathBuf {
    let layer = machine.directory().join("hostile");
    fs::create_dir(&layer).unwrap();
    symlink("/proc/self/fd/0", layer.join("directory-0")).unwrap();
    symlink("circle", layer.join("circle")).unwrap();
    symlink("/tmp", layer.join("temporary")).unwrap();
    let perl = fs::read("/usr/bin/perl").unwrap();
    let at = perl.windows(LOADER.len()).position(|bytes| bytes == LOADER.as_bytes()).expect("perl names its loader");
    for number in NUMBERS {
        symlink(format!("/proc/self/fd/{number}"), layer.join(format!("directory-{number}"))).unwrap();
        symlink(outside.by(number), layer.join(format!("outside-{number}"))).unwrap();
        let commands = layer.join(format!("commands-{number}"));
        fs::create_dir(&commands).unwrap();
        symlink(format!("{}/marked", outside.by(number)), commands.join("linked")).unwrap();
        let script = format!("#!{}/busybox cat\n{MARK}\n", outside.by(number));
        executable(&commands.join("script"), script.as_bytes());
        // A dynamic program whose loader is a link.
        symlink(format!("{}/loader", outside.by(number)), layer.join(format!("l{number}"))).unwrap();
        let mut program = perl.clone();
        let loader = format!("{:\0<width$}", format!("/l{number}"), width = LOADER.len());
        program[at..at + LOADER.len()].copy_from_slice(loader.as_bytes());
        executable(&commands.join("dynamic"), &program);
    }
    layer
}

/// Every way to a program, each through all descriptors: the command and where it is searched for.
fn programs(outside: &Outside) -> Vec<(Vec<String>, String)> {
    let all = |one: &dyn Fn(u32) -> String| NUMBERS.map(one).collect::<Vec<_>>().join(":");
    let own = all(&|number| format!("/commands-{number}"));
    let print = format!("print '{MARK}'");
    vec![
        (vec!["linked".into()], own.clone()),
        (vec!["script".into()], own.clone()),
        (vec!["dynamic".into(), "-e".into(), print], own),
        (vec!["marked".into()], all(&|number| outside.by(number))),
        (vec!["marked".into()], all(&|number| format!("/outside-{number}"))),
    ]
}

fn with_path((command, path): (Vec<String>, String)) -> Program {
    Program { command, env: vec![format!("PATH={path}")], user: User::default(), cwd: "/".into() }
}

/// Reads the mark by the working directory.
fn look(directory: &str) -> Program {
    Program { cwd: directory.into(), ..program(&format!("cat {UP}/tmp/torpor-outside-*/{MARK}")) }
}

fn hostile<'m>(machine: &'m Machine, layer: &Path, ids: bool) -> App<'m> {
    let mut app = machine.app("echo up; exec sleep 1000");
    app.spec.layers.push(layer.to_owned());
    if !ids {
        app.spec.ids = None;
    }
    app
}

/// What the program of an app writes, or why it does not start.
fn started(app: &App<'_>) -> Result<String, SandboxError> {
    let running = app.start()?;
    Ok(running.finish().0)
}

#[test]
fn a_start_reaches_nothing_by_descriptors() {
    let (machine, outside) = (Machine::new(), Outside::new());
    let layer = hostile_layer(&machine, &outside);
    for ids in [true, false] {
        for program in programs(&outside).into_iter().map(with_path) {
            let mut app = hostile(&machine, &layer, ids);
            app.spec.program = program;
            match started(&app) {
                Ok(text) => panic!("{:?} got out: {text}", app.spec.program.command),
                Err(SandboxError::Setup(
                    SetupError::ProgramNotFound { .. }
                    | SetupError::NoInterpreter { .. }
                    | SetupError::NotExecutable { .. },
                )) => {}
                Err(error) => panic!("{:?}: {error:?}", app.spec.program.command),
            }
        }
        for number in NUMBERS {
            let mut app = hostile(&machine, &layer, ids);
            app.spec.program = look(&format!("/directory-{number}"));
            let started = started(&app);
            assert!(started.is_err(), "directory {number} got in: {started:?}");
        }
    }
}

#[test]
fn an_exec_reaches_nothing_by_descriptors() {
    let (machine, outside) = (Machine::new(), Outside::new());
    let layer = hostile_layer(&machine, &outside);
    for ids in [true, false] {
        let app = hostile(&machine, &layer, ids);
        let mut running = app.start().unwrap();
        running.expect_line("up");
        let run = |program: &Program, terminal: bool| {
            let (mut output, theirs) = pipe();
            let errors = theirs.try_clone().unwrap();
            let io = if terminal { ExecIo::Terminal(80, 24) } else { ExecIo::Files([null(), theirs, errors]) };
            let mut child = exec(&machine.launcher, &running.sandbox, program, io)?;
            let mut text = Vec::new();
            match child.take_terminal() {
                // It answers EIO when its other side has closed.
                Some(terminal) => drop(File::from(terminal).read_to_end(&mut text)),
                None => drop(output.read_to_end(&mut text).unwrap()),
            }
            child.wait().unwrap();
            Ok::<_, SandboxError>(String::from_utf8(text).unwrap())
        };
        for terminal in [false, true] {
            for program in programs(&outside).into_iter().map(with_path) {
                let text = run(&program, terminal);
                assert!(text.is_err(), "{:?} got out: {text:?}", program.command);
            }
            for number in NUMBERS {
                for below in ["", "/subdirectory"] {
                    let text = run(&look(&format!("/directory-{number}{below}")), terminal);
                    // Nothing is open there, or it is refused whatever it is.
                    let refused = matches!(
                        text,
                        Err(SandboxError::Setup(
                            SetupError::WorkingDirectory { .. } | SetupError::WorkingDirectoryLeads { .. }
                        ))
                    );
                    assert!(refused, "directory {number} got in: {text:?}");
                }
            }
            for link in ["/proc/self/root", "/proc/self/cwd", "/directory-0", "/circle"] {
                let text = run(&look(link), terminal);
                let refused = matches!(text, Err(SandboxError::Setup(SetupError::WorkingDirectoryLeads { .. })));
                assert!(refused, "{link}: {text:?}");
            }
            // Links of the app's own are followed.
            assert_eq!(
                run(&Program { cwd: "/temporary".into(), ..program("pwd -P") }, terminal).unwrap().trim(),
                "/tmp"
            );
        }
        running.sandbox.destroy().unwrap();
    }
}
