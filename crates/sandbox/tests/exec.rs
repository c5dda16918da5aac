//! Further programs in a sandbox, for real. Needs root and busybox.
#![allow(clippy::unwrap_used, reason = "the test fails")]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use common::{Machine, PATIENCE, null, pipe, program};
use torpor_sandbox::{ExecIo, ExitStatus, Patience, Program, SandboxError, SetupError, User, exec, exec_within};

#[test]
fn exec_joins_the_sandbox_with_the_same_confinement() {
    let machine = Machine::new();
    for ids in [true, false] {
        let mut app = machine.app("echo up; exec sleep 1000");
        if !ids {
            app.spec.ids = None;
        }
        let mut running = app.start().unwrap();
        running.expect_line("up");
        let run = |program: &Program| {
            let (mut output, theirs) = pipe();
            let errors = theirs.try_clone().unwrap();
            let io = ExecIo::Files([null(), theirs, errors]);
            let child = exec(&machine.launcher, &running.sandbox, program, io)?;
            let group = fs::read_to_string(format!("/proc/{}/cgroup", child.pid())).unwrap();
            let mut text = String::new();
            output.read_to_string(&mut text).unwrap();
            Ok::<_, SandboxError>((text, child.wait().unwrap(), group))
        };
        let script = "pwd; echo $GREETING $HOSTNAME; grep -E 'CapEff|Seccomp:' /proc/self/status; ps; readlink /proc/self/ns/cgroup; readlink /proc/2/ns/cgroup; sleep 0.2; exit 5";
        let (text, status, group) = run(&program(script)).unwrap();
        assert_eq!(status, ExitStatus::Exited(5), "{text}");
        assert!(text.starts_with("/tmp\nagain web\nCapEff:\t00000000800405fb\nSeccomp:\t2\n"), "{text}");
        assert!(text.contains("sleep 1000"), "{text}");
        assert!(group.contains(&format!("/{}/{}", machine.parent, running.sandbox.record().id)), "{group}");
        let namespaces: Vec<&str> = text.lines().filter(|line| line.starts_with("cgroup:[")).collect();
        assert_eq!(namespaces.len(), 2, "{text}");
        assert_eq!(namespaces[0], namespaces[1]);
        let missing = Program { command: vec!["nonesuch".into()], ..program("") };
        let error = run(&missing).unwrap_err();
        assert!(matches!(error, SandboxError::Setup(SetupError::ProgramNotFound { .. })), "{error:?}");
        assert_eq!(running.sandbox.cgroup().processes().unwrap().len(), 1, "the failed one is gone");
        running.sandbox.destroy().unwrap();
    }
}

#[test]
fn exec_with_a_terminal() {
    let machine = Machine::new();
    let app = machine.app("echo up; exec sleep 1000");
    let mut running = app.start().unwrap();
    running.expect_line("up");
    let mut shell = program("tty; stty size; read line; echo got $line; echo $TERM; exit 4");
    shell.user = User { uid: 1000, gid: 1000, groups: Vec::new(), home: "/".into() };
    let mut child = exec(&machine.launcher, &running.sandbox, &shell, ExecIo::Terminal(100, 30)).unwrap();
    let mut terminal: fs::File = child.take_terminal().unwrap().into();
    terminal.write_all(b"word\n").unwrap();
    let (mut text, mut buffer) = (Vec::new(), [0; 256]);
    // A terminal whose other side has closed answers EIO.
    while let Ok(length @ 1..) = terminal.read(&mut buffer) {
        text.extend_from_slice(&buffer[..length]);
    }
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("/dev/pts/0") && text.contains("30 100") && text.contains("got word"), "{text}");
    assert!(text.contains("xterm"), "{text}");
    assert_eq!(child.wait().unwrap(), ExitStatus::Exited(4));
    running.sandbox.destroy().unwrap();
}

/// The number of the session keyring: `keyctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0)`.
const KEYRING: &str = "perl -e 'print syscall(250, 0, -3, 0), qq(\\n)'";

#[test]
fn no_process_shares_the_session_keyring_of_the_worker() {
    let machine = Machine::new();
    // This test's thread is the worker.
    torpor_linux::keyring::join_new_session().unwrap();
    let Some(own) = torpor_linux::keyring::session() else { torpor_testkit::skip!("this kernel has no keyrings") };
    for ids in [true, false] {
        let mut seen = vec![own];
        for _ in 0..2 {
            let mut app = machine.app(&format!("{KEYRING}; exec sleep 1000"));
            app.spec.security.seccomp = false;
            if !ids {
                app.spec.ids = None;
            }
            let mut running = app.start().unwrap();
            let first = running.line();
            let (mut output, theirs) = pipe();
            let io = ExecIo::Files([null(), theirs.try_clone().unwrap(), theirs]);
            let child = exec(&machine.launcher, &running.sandbox, &program(KEYRING), io).unwrap();
            let mut text = String::new();
            output.read_to_string(&mut text).unwrap();
            child.wait().unwrap();
            for serial in [first, text] {
                let serial: i32 = serial.trim().parse().unwrap();
                assert!(serial > 0 && !seen.contains(&serial), "user namespace {ids}: {serial} is one of {seen:?}");
                seen.push(serial);
            }
            running.sandbox.destroy().unwrap();
        }
    }
}

#[test]
fn open_files_are_limited() {
    let machine = Machine::new();
    const LIMITS: &str = "echo $(ulimit -Sn) $(ulimit -Hn)";
    let below = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(1 << 20) / 2;
    let raised = 1_000_000;
    let held = rustix::thread::capabilities(None).unwrap().effective;
    let may_raise = held.contains(rustix::thread::CapabilitySet::SYS_RESOURCE) || below * 2 >= raised.into();
    for (open_files, expected) in [
        (None, None),
        (Some(100), Some("100 100".to_owned())),
        (Some(below as u32), Some(format!("{below} {below}"))),
        (Some(raised), Some(format!("{raised} {raised}"))),
    ] {
        let mut app = machine.app(&format!("{LIMITS}; exec sleep 1000"));
        app.spec.limits.open_files = open_files;
        if open_files == Some(raised) && !may_raise {
            let error = app.start().map(drop).unwrap_err().to_string();
            assert!(error.contains("CAP_SYS_RESOURCE"), "{error}");
            torpor_testkit::skip!("a limit that is higher than this process's needs CAP_SYS_RESOURCE");
        }
        let mut running = app.start().unwrap();
        let started = running.line();
        let (mut output, theirs) = pipe();
        let io = ExecIo::Files([null(), theirs.try_clone().unwrap(), theirs]);
        let child = exec(&machine.launcher, &running.sandbox, &program(LIMITS), io).unwrap();
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        child.wait().unwrap();
        assert_eq!(started, text);
        match expected {
            Some(expected) => assert_eq!(started.trim(), expected),
            None => assert!(started.starts_with("1024 "), "{started}"),
        }
        running.sandbox.destroy().unwrap();
    }
}

/// Stops every process beside it, for ever.
const STOPALL: &str = "echo up; while :; do kill -STOP -1 2>/dev/null; done";

#[test]
fn a_command_that_is_stopped_before_it_begins_is_given_up_and_leaves_nothing() {
    let machine = Machine::new();
    let app = machine.app(STOPALL);
    let mut running = app.start().unwrap();
    running.expect_line("up");
    let files = || ExecIo::Files([null(), null(), null()]);
    let sleep = program("exec sleep 1000");
    let start = |patience: Patience<'_>| exec_within(&machine.launcher, &running.sandbox, &sleep, files(), patience);
    let alone = || assert_eq!(running.sandbox.cgroup().processes().unwrap().len(), 1);

    // On a busy machine one may begin before it is stopped.
    let late = loop {
        match start(Patience { within: Duration::from_secs(1), given_up: None }) {
            Ok(child) => drop(child),
            Err(error) => break error,
        }
    };
    assert!(matches!(late, SandboxError::ExecSilent { .. }), "{late}");
    assert!(late.to_string().contains("is stopped by a signal"), "{late}");

    let given_up = loop {
        let (given_up, wanted) = pipe();
        let started = std::thread::scope(|scope| {
            scope.spawn(|| {
                // It is there, and does not go on.
                let there = || running.sandbox.cgroup().processes().unwrap().len() == 2;
                torpor_testkit::wait::eventually("its process is there", PATIENCE, there).unwrap();
                drop(wanted);
            });
            start(Patience { within: 2 * PATIENCE, given_up: Some(given_up.as_fd()) })
        });
        match started {
            Ok(child) => drop(child),
            Err(error) => break error,
        }
    };
    assert!(matches!(given_up, SandboxError::ExecGivenUp { .. }), "{given_up:?}");
    torpor_testkit::wait::eventually("nothing is left", PATIENCE, || {
        running.sandbox.cgroup().processes().unwrap().len() == 1
    })
    .unwrap();

    // Nobody wants it from the start: whatever has been made by then.
    for _ in 0..20 {
        let (given_up, wanted) = pipe();
        drop(wanted);
        let given_up = start(Patience { within: PATIENCE, given_up: Some(given_up.as_fd()) }).map(drop);
        assert!(matches!(given_up, Err(SandboxError::ExecGivenUp { .. })), "{given_up:?}");
    }
    alone();
    // Its init ends only once everything was reaped.
    running.sandbox.destroy().unwrap();
}

#[test]
fn a_command_whose_owner_has_gone_is_killed_and_reaped() {
    let machine = Machine::new();
    let app = machine.app("echo up; exec sleep 1000");
    let mut running = app.start().unwrap();
    running.expect_line("up");
    let io = ExecIo::Files([null(), null(), null()]);
    let child = exec(&machine.launcher, &running.sandbox, &program("exec sleep 1000"), io).unwrap();
    let place = format!("/proc/{}", child.pid());
    assert!(Path::new(&place).exists());
    drop(child);
    torpor_testkit::wait::eventually("it is reaped", PATIENCE, || !Path::new(&place).exists()).unwrap();
    running.sandbox.destroy().unwrap();
}
