//! Sandboxes without processes, for real: what ends them, what brings them back. Needs root, busybox and nsenter.
#![allow(clippy::unwrap_used, reason = "the test fails")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Machine, PATIENCE, Running, null, pipe};
use torpor_sandbox::{Clocks, ExecIo, ExitStatus, Sandbox, SandboxError, SandboxRecord, destroy_leftovers, exec};

/// Puts a process into the sandbox as a wake does: a child of init, in the app's groups, with the initial process's id.
fn bring_back(sandbox: &Sandbox) -> i32 {
    let enter: Vec<String> =
        sandbox.cgroup().procs_files().iter().map(|path| format!("echo $$ > {};", path.display())).collect();
    // The shell's end makes the sleeper init's child.
    let script = format!(
        "{} echo {} > /proc/sys/kernel/ns_last_pid; sleep 1000 &",
        enter.concat(),
        sandbox.initial_inside() - 1
    );
    // The numbers in `cgroup.procs` are the writer's namespace's, as `$$` is.
    let pid = sandbox.init_pid().to_string();
    let status = Command::new("nsenter")
        .args(["-t", &pid, "-p", "sh", "-c", &script])
        .stdout(null())
        .status()
        .expect("these tests need nsenter (util-linux)");
    assert!(status.success());
    let pids = sandbox.cgroup().processes().unwrap();
    assert_eq!(pids.len(), 1, "{pids:?}");
    pids[0]
}

fn started<'a>(app: &'a common::App<'_>) -> Running<'a> {
    let mut running = app.start().unwrap();
    running.expect_line("up");
    running
}

const TREE: &str = "sleep 1000 & (sleep 1000 &); echo up; while :; do sleep 1000; done";

/// User and system time of a process, in clock ticks.
fn cpu_ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn processes_end_and_come_back() {
    let machine = Machine::new();
    for ids in [true, false] {
        let mut app = machine.app(TREE);
        if !ids {
            app.spec.ids = None;
        }
        let running = started(&app);
        let sandbox = &running.sandbox;
        assert_eq!((sandbox.initial_inside(), sandbox.ids().is_some()), (2, ids));
        let init = format!("/proc/{}", sandbox.init_pid());
        let namespace = |name: &str| fs::read_link(format!("{init}/ns/{name}")).unwrap();
        let before = (namespace("net"), namespace("mnt"));
        for frozen in [true, false, true] {
            let first = sandbox.initial_pid().unwrap();
            if frozen {
                sandbox.cgroup().freeze(PATIENCE).unwrap();
            }
            sandbox.end_processes().unwrap();
            assert!(!sandbox.cgroup().is_populated().unwrap());
            assert!(!fs::read_to_string(sandbox.cgroup().core().join("cgroup.freeze")).unwrap().contains('1'));
            assert_eq!(sandbox.initial_pid(), None);
            sandbox.signal(9).unwrap();
            // Twice is as good as once.
            sandbox.end_processes().unwrap();
            assert_eq!(sandbox.wait(Some(Duration::from_millis(20))).unwrap(), None, "init lives");
            // All have been reaped, and init sleeps.
            let asked = Instant::now();
            while Path::new(&format!("/proc/{first}")).exists() {
                assert!(asked.elapsed() < PATIENCE, "init does not reap");
                std::thread::sleep(Duration::from_millis(1));
            }
            while !fs::read_to_string(format!("{init}/stat")).unwrap().contains(") S ") {
                assert!(asked.elapsed() < PATIENCE, "init does not wait");
                std::thread::sleep(Duration::from_millis(1));
            }
            let ticks = cpu_ticks(sandbox.init_pid());
            std::thread::sleep(Duration::from_millis(100));
            assert!(cpu_ticks(sandbox.init_pid()) <= ticks + 1, "init does not wait");

            let back = bring_back(sandbox);
            sandbox.processes_are_back().unwrap();
            assert_eq!(sandbox.initial_pid(), Some(back));
            assert_eq!(sandbox.exit_status().unwrap(), None);
        }
        assert_eq!(before, (namespace("net"), namespace("mnt")));
        sandbox.signal(15).unwrap();
        assert_eq!(sandbox.wait(Some(PATIENCE)).unwrap(), Some(ExitStatus::Signaled(15)));
        sandbox.destroy().unwrap();
        app.assert_nothing_left();
    }
}

#[test]
fn without_processes_everything_else_works() {
    let machine = Machine::new();
    let app = machine.app(TREE);
    let running = started(&app);
    let sandbox = &running.sandbox;
    sandbox.end_processes().unwrap();
    assert_eq!(run(&machine, sandbox, "hostname"), "web\n");
    assert_eq!(sandbox.exit_status().unwrap(), None);
    sandbox.netns().unwrap();
    let started = Instant::now();
    sandbox.kill().unwrap();
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    assert_eq!(sandbox.exit_status().unwrap(), Some(ExitStatus::Signaled(9)));
    sandbox.destroy().unwrap();
    sandbox.destroy().unwrap();
    app.assert_nothing_left();
    // Straight to its removal.
    let running = common::App::start(&app).unwrap();
    running.sandbox.end_processes().unwrap();
    running.sandbox.destroy().unwrap();
    app.assert_nothing_left();
}

#[test]
fn a_new_worker_adopts_sandboxes_with_and_without_processes() {
    let machine = Machine::new();
    let app = machine.app(TREE);
    let running = started(&app);
    let hierarchies = machine.launcher.hierarchies();
    // As a file has it.
    let record: SandboxRecord = serde_json::from_slice(&serde_json::to_vec(running.sandbox.record()).unwrap()).unwrap();
    running.sandbox.end_processes().unwrap();
    let adopted = Sandbox::adopt(hierarchies, record.clone()).unwrap();
    assert_eq!((adopted.initial_pid(), adopted.exit_status().unwrap()), (None, None));
    let back = bring_back(&adopted);
    let adopted = Sandbox::adopt(hierarchies, record.clone()).unwrap();
    assert_eq!(adopted.initial_pid(), Some(back), "found while the mark is still there");
    // A worker that died before it said so: it is not there for good.
    adopted.end_processes().unwrap();
    assert_eq!(adopted.exit_status().unwrap(), None);
    let back = bring_back(&adopted);
    adopted.processes_are_back().unwrap();
    let adopted = Sandbox::adopt(hierarchies, record.clone()).unwrap();
    assert_eq!(adopted.initial_pid(), Some(back));
    // What an older version wrote down.
    let mut old = serde_json::to_value(&record).unwrap();
    old.as_object_mut().unwrap().remove("initial_inside");
    let old = Sandbox::adopt(hierarchies, serde_json::from_value(old).unwrap()).unwrap();
    assert!(matches!(old.end_processes(), Err(SandboxError::Outdated { .. })));
    assert_eq!((old.initial_pid(), old.exit_status().unwrap()), (None, None));
    adopted.signal(9).unwrap();
    assert_eq!(adopted.wait(Some(PATIENCE)).unwrap(), Some(ExitStatus::Signaled(9)));
    assert!(matches!(adopted.end_processes(), Err(SandboxError::Gone { .. })));
    assert!(matches!(Sandbox::adopt(hierarchies, record), Err(SandboxError::Gone { .. })));
    adopted.destroy().unwrap();
    app.assert_nothing_left();
}

/// Runs a script in a sandbox to its end: what it wrote.
fn run(machine: &Machine, sandbox: &Sandbox, script: &str) -> String {
    let (mut output, theirs) = pipe();
    let io = ExecIo::Files([null(), theirs.try_clone().unwrap(), theirs]);
    let child = exec(&machine.launcher, sandbox, &common::program(script), io).unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut output, &mut text).unwrap();
    child.wait().unwrap();
    text
}

/// Seconds of CLOCK_MONOTONIC and CLOCK_BOOTTIME.
const CLOCKS: &str =
    r#"perl -e 'for (1, 7) { $b = "\0" x 16; syscall(228, $_, $b); print((unpack "qq", $b)[0], " ") }'"#;

#[test]
fn an_empty_sandbox_is_made_and_filled_later() {
    let machine = Machine::new();
    for (ids, clocks) in [(true, true), (false, true), (true, false)] {
        let mut app = machine.app("false");
        if !ids {
            app.spec.ids = None;
        }
        let clocks = clocks.then_some(Clocks { monotonic_ns: 1_000_000_500_000_000, boottime_ns: -1_500_000_000 });
        let prepared = Sandbox::prepare_empty(&machine.launcher, &app.spec, 41, clocks, None).unwrap();
        // As the network does it.
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        assert_ne!(own, fs::read_link(format!("/proc/{}/ns/net", prepared.record().init.pid)).unwrap());
        rustix::fs::fstat(prepared.netns()).unwrap();
        let record: SandboxRecord = serde_json::from_slice(&serde_json::to_vec(prepared.record()).unwrap()).unwrap();
        let sandbox = prepared.start().unwrap();
        assert_eq!((sandbox.initial_pid(), sandbox.initial_inside()), (None, 41));
        assert_eq!((sandbox.has_time_namespace(), sandbox.exit_status().unwrap()), (clocks.is_some(), None));
        assert!(!sandbox.cgroup().is_populated().unwrap());
        let now = |clock| rustix::time::clock_gettime(clock).tv_sec;
        let before = (now(rustix::time::ClockId::Monotonic), now(rustix::time::ClockId::Boottime));
        let text = run(&machine, &sandbox, CLOCKS);
        let read: Vec<i64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let offsets = if clocks.is_some() { (1_000_000, -2) } else { (0, 0) };
        let passed = (read[0] - before.0 - offsets.0, read[1] - before.1 - offsets.1);
        assert!((0..30).contains(&passed.0) && (0..30).contains(&passed.1), "{passed:?}: {text}");
        assert!(run(&machine, &sandbox, "hostname; id -u; ls /proc/1/ns; cat /proc/1/comm").starts_with("web\n0\n"));

        let back = bring_back(&sandbox);
        sandbox.processes_are_back().unwrap();
        assert_eq!(sandbox.initial_pid(), Some(back));
        let sandbox = Sandbox::adopt(machine.launcher.hierarchies(), record).unwrap();
        assert_eq!(sandbox.initial_pid(), Some(back));
        sandbox.signal(15).unwrap();
        assert_eq!(sandbox.wait(Some(PATIENCE)).unwrap(), Some(ExitStatus::Signaled(15)));
        sandbox.destroy().unwrap();
        app.assert_nothing_left();
        // Never started.
        drop(Sandbox::prepare_empty(&machine.launcher, &app.spec, 2, clocks, None).unwrap());
        app.assert_nothing_left();
        assert!(matches!(
            Sandbox::prepare_empty(&machine.launcher, &app.spec, 1, clocks, None),
            Err(SandboxError::Initial { id: 1 })
        ));
        // Nobody has a record of it.
        let sandbox = Sandbox::prepare_empty(&machine.launcher, &app.spec, 2, clocks, None).unwrap().start().unwrap();
        let spec = &app.spec;
        destroy_leftovers(machine.launcher.hierarchies(), &spec.cgroup_parent, &spec.id, &spec.run_dir).unwrap();
        assert_eq!(sandbox.wait(Some(PATIENCE)).unwrap(), Some(ExitStatus::Unknown));
        app.assert_nothing_left();
    }
}

#[test]
fn clocks_that_cannot_be_are_an_error() {
    let machine = Machine::new();
    let app = machine.app("false");
    let clocks = Some(Clocks { monotonic_ns: i64::MIN, boottime_ns: 0 });
    let error = Sandbox::prepare_empty(&machine.launcher, &app.spec, 2, clocks, None).unwrap_err();
    assert!(error.to_string().contains("timens_offsets"), "{error}");
    app.assert_nothing_left();
}

#[test]
fn an_initial_process_that_dies_before_it_is_back_ends_the_app() {
    let machine = Machine::new();
    for whole_tree in [true, false] {
        let app = machine.app(TREE);
        let running = started(&app);
        let sandbox = &running.sandbox;
        sandbox.end_processes().unwrap();
        let back = bring_back(sandbox);
        if whole_tree {
            sandbox.cgroup().kill().unwrap();
        } else {
            let pid = rustix::process::Pid::from_raw(back).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        sandbox.processes_are_back().unwrap();
        assert_eq!(sandbox.wait(Some(PATIENCE)).unwrap(), Some(ExitStatus::Signaled(9)));
        sandbox.destroy().unwrap();
        app.assert_nothing_left();
    }
}

/// In a group that was killed once: as a service that its manager killed, and started again.
#[test]
#[ignore = "run by a_worker_in_a_killed_group in a process of its own"]
fn in_a_killed_group() {
    let Ok(group) = std::env::var("TORPOR_TEST_GROUP") else { return };
    fs::write(format!("{group}/cgroup.procs"), "0").unwrap();
    let machine = Machine::new();
    let app = machine.app(TREE);
    let running = started(&app);
    assert_eq!(run(&machine, &running.sandbox, "hostname"), "web\n");
    running.sandbox.end_processes().unwrap();
    assert_eq!(run(&machine, &running.sandbox, "hostname"), "web\n");
    running.sandbox.destroy().unwrap();
    // Newer kernels may have learnt it.
    println!("makes processes in groups: {}", machine.launcher.makes_in_groups().unwrap());
}

#[test]
fn a_worker_in_a_killed_group() {
    let machine = Machine::new();
    assert!(machine.launcher.makes_in_groups().unwrap());
    let group = machine.launcher.hierarchies().core().join(format!("torpor-test-killed-{}", std::process::id()));
    fs::create_dir(&group).unwrap();
    fs::write(group.join("cgroup.kill"), "1").unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "in_a_killed_group", "--nocapture"])
        .env("TORPOR_TEST_GROUP", &group)
        .output()
        .unwrap();
    fs::remove_dir(&group).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{text}");
}
