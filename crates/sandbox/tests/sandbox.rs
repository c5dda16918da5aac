//! Sandboxes for real: isolation, confinement, life and death. Needs root, busybox and perl.
#![allow(clippy::unwrap_used, reason = "the test fails")]

mod common;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Machine, PATIENCE, null, pipe, program};
use torpor_linux::probe::Outcome;
use torpor_sandbox::cgroup::Hierarchies;
use torpor_sandbox::{
    EXEC_COMMAND, ExecIo, ExitStatus, Labels, Launcher, Program, Sandbox, SandboxError, SandboxRecord, SandboxSpec,
    SetupError, User, exec, probe,
};

#[test]
fn a_program_runs_and_its_world_looks_right() {
    let machine = Machine::new();
    let text = machine
        .app("echo $GREETING $HOME $HOSTNAME $PATH; hostname; id -u; pwd; cat /etc/hosts; cat /proc/self/cgroup; ls /dev | xargs")
        .output();
    assert!(text.starts_with("hello /root web /usr/local/sbin:"), "{text}");
    assert!(text.contains("\nweb\n0\n/\n127.0.0.1 localhost\n"), "{text}");
    assert!(text.contains("0::/\n"), "the cgroup namespace hides the path: {text}");
    assert!(text.contains("fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero"), "{text}");
}

#[test]
fn the_initial_process_is_not_pid_1_and_init_costs_next_to_nothing() {
    let machine = Machine::new();
    let app = machine.app("echo pid $$; cat /proc/1/comm; echo end; exec sleep 1000");
    let mut running = app.start().unwrap();
    running.expect_line("pid 2");
    running.expect_line("init");
    running.expect_line("end");
    let pid = running.sandbox.init_pid();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {status}"));
        line[name.len()..].trim().trim_end_matches(" kB").to_owned()
    };
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    println!(
        "init: VmRSS {} kB, VmPTE {} kB, VmSize {} kB\n{smaps}",
        field("VmRSS:"),
        field("VmPTE:"),
        field("VmSize:")
    );
    assert!(field("VmRSS:").parse::<u32>().unwrap() <= 16, "{status}");
    assert!(field("VmPTE:").parse::<u32>().unwrap() <= 32, "{status}");
    for name in ["CapEff:", "CapPrm:", "CapBnd:", "CapInh:", "CapAmb:"] {
        assert_eq!(field(name), "0000000000000000", "{name}");
    }
    let blocked = u64::from_str_radix(&field("SigBlk:"), 16).unwrap();
    assert_eq!(blocked | 0x4_0100, u64::MAX, "everything but KILL and STOP: {blocked:x}");
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    assert_eq!(descriptors, 3, "the status file, and the ends of the deposit");
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert!(groups.contains(&format!("0::/{}/support", machine.parent)), "{groups}");
    running.sandbox.destroy().unwrap();
}

#[test]
fn capabilities_and_filter_are_exact() {
    let machine = Machine::new();
    let text = machine.app("grep -E '^(Cap|Seccomp:|NoNewPrivs)' /proc/self/status").output();
    for line in [
        "CapInh:\t0000000000000000",
        "CapPrm:\t00000000800405fb",
        "CapEff:\t00000000800405fb",
        "CapBnd:\t00000000800405fb",
        "CapAmb:\t0000000000000000",
        "Seccomp:\t2",
        "NoNewPrivs:\t0",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    let mut app = machine.app("grep -E '^(Cap|Seccomp:|NoNewPrivs|Uid|Gid|Groups)' /proc/self/status");
    app.spec.program.user = User { uid: 1000, gid: 1001, groups: vec![7, 1002], home: "/".into() };
    app.spec.security.seccomp = false;
    app.spec.security.no_new_privs = true;
    app.spec.security.cap_add = vec!["NET_RAW".into()];
    app.spec.security.cap_drop = vec!["ALL".into()];
    let text = app.output();
    for line in [
        "Uid:\t1000\t1000\t1000\t1000",
        "Gid:\t1001\t1001\t1001\t1001",
        "Groups:\t7 1002",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000002000",
        "Seccomp:\t0",
        "NoNewPrivs:\t1",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}

/// io_uring_setup, clone3, unshare, mount, a number from the future, clone(CLONE_NEWUSER).
const CALLS: &str = "perl -e 'for ([425,1,0],[435,0,0],[272,0x20000,0],[165,0,0],[1000,0,0],[56,0x10000000,0]) \
    { $! = 0; syscall($_->[0], $_->[1], $_->[2]); print 0+$!, \" \" }'";

#[test]
fn the_filter_answers_as_it_should() {
    let machine = Machine::new();
    assert_eq!(machine.app(CALLS).output(), "38 38 1 1 38 1 ");
    let mut app = machine.app("unshare -m true && echo allowed");
    assert_ne!(app.run().1, ExitStatus::Exited(0));
    app.spec.security.cap_add = vec!["SYS_ADMIN".into()];
    assert_eq!(app.output(), "allowed\n");
}

/// Root without a user namespace, with the capabilities that it needs for that, looks for a way to devices.
#[test]
fn root_without_a_user_namespace_uses_harmless_devices_only() {
    let machine = Machine::new();
    let mut app = machine.app(
        "exec 2>&1
         grep -o ' /dev tmpfs [^ ]*' /proc/mounts
         for name in null zero full random urandom tty; do grep -c \" /dev/$name tmpfs\" /proc/mounts; done | sort -u
         echo x > /dev/null && head -c 1 /dev/zero | wc -c
         mknod /dev/again c 1 3 && echo x > /dev/again
         mount -t tmpfs none /tmp && mknod /tmp/kernel c 1 11 && mknod /tmp/null c 1 3 || echo cannot
         echo x > /tmp/null && echo usable
         head -c 1 /tmp/kernel",
    );
    app.spec.ids = None;
    app.spec.security.cap_add = ["MKNOD", "SYS_ADMIN", "SYSLOG"].map(str::to_owned).to_vec();
    let text = app.run().0;
    let mut lines = text.lines();
    let options = lines.next().unwrap();
    assert!(options.contains("nodev"), "{text}");
    assert_eq!(lines.next(), Some("1"), "each device is a mount of its own: {text}");
    assert_eq!(lines.next(), Some("1"), "{text}");
    assert!(lines.next().unwrap().contains("can't create /dev/again: Permission denied"), "{text}");
    assert_eq!(lines.next(), Some("usable"), "{text}");
    assert!(lines.next().unwrap().contains("/tmp/kernel: Operation not permitted"), "{text}");
}

#[test]
fn the_null_device_is_the_apps_own() {
    let machine = Machine::new();
    for ids in [true, false] {
        let mut app = machine.app("stat -L -c '%d %i' /proc/self/fd/0 /dev/null; head -c 1 | wc -c");
        if !ids {
            app.spec.ids = None;
        }
        let text = app.output();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], lines[1], "user namespace {ids}");
        assert_eq!(lines[2], "0");
    }
}

#[test]
fn kernel_files_are_masked_and_read_only() {
    let machine = Machine::new();
    for ids in [true, false] {
        let mut app = machine.app(
            "for f in /proc/kcore /proc/keys /proc/timer_list; do [ -e $f ] && head -c 1 $f | wc -c; done
             ls /sys/firmware | wc -l
             echo 1 > /proc/sys/kernel/hostname; echo 1 > /proc/sys/vm/swappiness; echo 1 > /sys/kernel/uevent_seqnum
             mkdir /sys/fs/cgroup/x; echo 0 > /proc/1/oom_score_adj; mount -t tmpfs x /tmp; ls /proc/1/fd; cat /proc/1/maps
             mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk
             echo done",
        );
        if !ids {
            app.spec.ids = None;
        }
        let text = app.output();
        assert!(text.contains("done\n"), "{text}");
        let read_only = text.matches("Read-only file system").count();
        assert_eq!(read_only, 4, "two of sysctl, sysfs, cgroup: {text}");
        assert!(!text.lines().any(|line| line == "1"), "masked files are empty: {text}");
        assert!(text.contains("/proc/1/maps': Permission denied"), "user namespace {ids}: {text}");
        if ids {
            // Without a user namespace these belong to the app's root, and tell it nothing.
            assert!(text.contains("oom_score_adj: Permission denied"), "{text}");
            assert!(text.contains("/proc/1/fd': Permission denied"), "{text}");
        }
        assert!(text.contains("mount"), "{text}");
    }
}

/// The user namespace that owns a namespace: `ioctl(NS_GET_USERNS)`.
const OWNER: &str = "open F, $ARGV[0]; $n = ioctl(F, 0xb701, 0); print $n ? readlink \"/proc/self/fd/$n\" : $!";

#[test]
fn every_namespace_belongs_to_the_user_namespace() {
    let machine = Machine::new();
    let app = machine.app("echo up; exec sleep 1000");
    let mut running = app.start().unwrap();
    running.expect_line("up");
    let (init, initial) = (running.sandbox.init_pid(), running.sandbox.initial_pid().unwrap());
    let user = fs::read_link(format!("/proc/{init}/ns/user")).unwrap();
    assert_ne!(user, fs::read_link("/proc/self/ns/user").unwrap());
    for name in ["pid", "mnt", "net", "ipc", "uts", "cgroup"] {
        let path = format!("/proc/{init}/ns/{name}");
        assert_eq!(fs::read_link(&path).unwrap(), fs::read_link(format!("/proc/{initial}/ns/{name}")).unwrap());
        let owner = Command::new("perl").args(["-e", OWNER, &path]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&owner.stdout), user.to_string_lossy(), "{name}");
    }
    // So whoever comes from inside may choose ids.
    let choose = "echo 50 > /proc/sys/kernel/ns_last_pid";
    let chosen = Command::new("nsenter").args(["-U", "-p", "-t", &init.to_string(), "sh", "-c", choose]).status();
    assert!(chosen.unwrap().success());
    running.sandbox.destroy().unwrap();
}

#[test]
fn not_even_an_administrator_inside_takes_a_mask_away() {
    let machine = Machine::new();
    let mut app = machine.app(
        "for f in /proc/kcore /proc/sys /proc /sys/firmware; do umount -l $f && echo lost $f; done
         mkdir /tmp/p; mount -t proc proc /tmp/p && echo new proc; mount -o remount,rw /proc/sys && echo lost read-only
         mount --bind /proc /tmp/p && ls /tmp/p/sys | xargs echo below:
         echo 5 > /proc/sys/kernel/ns_last_pid && echo lost ids; mount -t tmpfs x /tmp/p && echo done",
    );
    app.spec.security.cap_add = vec!["ALL".into()];
    app.spec.security.seccomp = false;
    let text = app.run().0;
    assert!(text.ends_with("done\n"), "it may mount: {text}");
    assert!(!text.contains("lost") && !text.contains("new proc") && !text.contains("below"), "{text}");
}

#[test]
fn two_sandboxes_do_not_see_each_other() {
    let machine = Machine::new();
    let one = machine.app("echo one > /tmp/one; echo up; exec sleep 1234");
    let mut running = one.start().unwrap();
    running.expect_line("up");
    let text = machine.app("ls /tmp; ps; cat /proc/net/dev").output();
    assert!(!text.contains("one") && !text.contains("1234"), "{text}");
    assert!(!text.contains("eth0"), "{text}");
    assert!(!machine.layer.join("tmp/one").exists(), "the layer is shared and must not change");
    running.sandbox.destroy().unwrap();
}

#[test]
fn exit_statuses_and_signals() {
    let machine = Machine::new();
    assert_eq!(machine.app("exit 7").run().1, ExitStatus::Exited(7));
    assert_eq!(machine.app("kill -SEGV $$").run().1, ExitStatus::Signaled(11));
    let app = machine.app("trap 'echo got it; exit 3' TERM; echo up; while :; do sleep 0.05; done");
    let mut running = app.start().unwrap();
    running.expect_line("up");
    assert_eq!(running.sandbox.exit_status().unwrap(), None);
    running.sandbox.signal(15).unwrap();
    let (text, status) = running.finish();
    assert_eq!((text.as_str(), status), ("got it\n", ExitStatus::Exited(3)));
    app.assert_nothing_left();
    let app = machine.app("exec sleep 1000");
    let running = app.start().unwrap();
    running.sandbox.kill().unwrap();
    assert_eq!(running.sandbox.exit_status().unwrap(), Some(ExitStatus::Signaled(9)));
    running.sandbox.destroy().unwrap();
    running.sandbox.destroy().unwrap();
    running.sandbox.signal(15).unwrap();
}

#[test]
fn the_memory_limit_kills_and_is_counted() {
    let machine = Machine::new();
    let mut app = machine.app("exec perl -e '$x = \"x\" x 100_000_000; print 1'");
    app.spec.limits.memory_bytes = Some(32 << 20);
    let (output, theirs) = pipe();
    let prepared = app.prepare(theirs).unwrap();
    if !prepared.unenforced().is_empty() {
        println!("SKIPPED the_memory_limit_kills: {:?}", prepared.unenforced());
        return;
    }
    let sandbox = prepared.start().unwrap();
    assert_eq!(sandbox.wait(Some(PATIENCE)).unwrap(), Some(ExitStatus::Signaled(9)));
    assert!(sandbox.cgroup().oom_kills().unwrap() >= 1);
    sandbox.destroy().unwrap();
    drop(output);
}

#[test]
fn orphans_are_reaped_and_die_with_the_initial_process() {
    let machine = Machine::new();
    let script = "for i in 1 2 3 4 5 6 7 8; do (sleep 0.01 &) ; done; sleep 1; ps -o stat,comm | grep -c '^Z'; (sleep 1000 &); exit 0";
    let app = machine.app(script);
    let (text, status) = app.run();
    assert_eq!((text.trim(), status), ("0", ExitStatus::Exited(0)));
    app.assert_nothing_left();
}

#[test]
fn errors_are_exact_and_leave_nothing() {
    let machine = Machine::new();
    let run = |change: &dyn Fn(&mut Program)| {
        let mut app = machine.app("true");
        change(&mut app.spec.program);
        let error = app.start().err().expect("it must not start");
        app.assert_nothing_left();
        error
    };
    let command = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        move |program: &mut Program| program.command.clone_from(&words)
    };
    let error = run(&command(&["nonesuch"]));
    assert!(matches!(error, SandboxError::Setup(SetupError::ProgramNotFound { .. })), "{error:?}");
    assert!(error.to_string().contains("`nonesuch` not found in PATH (/usr/local/sbin"), "{error}");
    let error = run(&command(&["/etc/passwd"]));
    assert_eq!(error.to_string(), "program `/etc/passwd` cannot be executed: permission denied");
    let script = machine.layer.join("bin/script");
    fs::write(&script, "#!/no/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let error = run(&command(&["script"]));
    assert!(matches!(error, SandboxError::Setup(SetupError::NoInterpreter { .. })), "{error:?}");
    let error = run(&|program| program.user.uid = 70_000);
    assert!(matches!(error, SandboxError::User { id: 70_000, .. }), "{error:?}");
    let error = run(&|program| program.cwd = "/etc/passwd".into());
    assert!(error.to_string().contains("/etc/passwd"), "{error}");
    let mut app = machine.app("true");
    app.spec.layers.push("/no/such/layer".into());
    let error = app.start().err().unwrap();
    assert_eq!(error.to_string(), "opening /no/such/layer: no such file or directory");
    app.assert_nothing_left();
    // Never started: dropped.
    let app = machine.app("true");
    let prepared = app.prepare(null()).unwrap();
    assert!(Path::new(&format!("/proc/{}", prepared.record().init.pid)).exists());
    drop(prepared);
    app.assert_nothing_left();
}

#[test]
fn the_process_limit_holds() {
    let machine = Machine::new();
    let mut app = machine.app("for i in 1 2 3 4 5 6 7 8 9; do sleep 5 & done; echo $(jobs | wc -l)");
    app.spec.limits.processes = Some(4);
    let (text, status) = app.run();
    assert!(text.contains("can't fork"), "{text}");
    assert_ne!(status, ExitStatus::Exited(0));
    app.spec.limits.processes = Some(1);
    app.spec.program.command[2] = "echo alone".into();
    assert_eq!(app.output(), "alone\n");
}

#[test]
fn fifty_forking_processes_freeze_and_thaw() {
    let machine = Machine::new();
    let script = "for i in $(seq 50); do (while :; do /bin/true; echo x >> /tmp/log; done) & done; echo up; wait";
    let app = machine.app(script);
    let mut running = app.start().unwrap();
    running.expect_line("up");
    let cgroup = running.sandbox.cgroup();
    for _ in 0..20 {
        cgroup.freeze(Duration::from_secs(10)).unwrap();
        assert!(cgroup.is_frozen().unwrap());
        let processes = cgroup.processes().unwrap();
        assert!(processes.len() >= 51, "{}", processes.len());
        assert!(!processes.contains(&running.sandbox.init_pid()));
        let length = || fs::metadata(app.spec.upper.join("tmp/log")).map_or(0, |log| log.len());
        let before = length();
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(length(), before, "a frozen process has written");
        cgroup.thaw().unwrap();
    }
    cgroup.freeze(Duration::from_secs(10)).unwrap();
    // Frozen processes can be killed, and init, which is not frozen, tells how it ended.
    running.sandbox.kill().unwrap();
    assert_eq!(running.sandbox.exit_status().unwrap(), Some(ExitStatus::Signaled(9)));
    running.sandbox.destroy().unwrap();
}

#[test]
fn accounts_are_kept() {
    let machine = Machine::new();
    let mut app = machine.app("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo up; exec sleep 1000");
    // Memory is counted where it is limited.
    app.spec.limits.memory_bytes = Some(64 << 20);
    let mut running = app.start().unwrap();
    running.expect_line("up");
    let cgroup = running.sandbox.cgroup();
    assert!(cgroup.cpu_us().unwrap() > 1000);
    match cgroup.memory_bytes().unwrap() {
        Some(bytes) => assert!((10_000..100_000_000).contains(&bytes), "{bytes}"),
        None => println!("SKIPPED memory_bytes: nothing counts memory here"),
    }
    println!("memory {:?}, kernel {:?}", cgroup.memory_bytes().unwrap(), cgroup.kernel_bytes().unwrap());
    running.sandbox.destroy().unwrap();
}

#[test]
fn stdout_can_be_opened_again_by_another_user() {
    let machine = Machine::new();
    let mut app = machine
        .app("echo out > /dev/stdout; echo err > /dev/stderr; perl -e 'socket(S, 2, 2, 1) and print \"icmp\\n\"'");
    app.spec.program.user = User { uid: 1000, gid: 1000, groups: Vec::new(), home: "/".into() };
    let (text, _) = app.run();
    assert_eq!(text, "out\nerr\nicmp\n");
}

#[test]
fn without_a_user_namespace() {
    let machine = Machine::new();
    let mut app = machine.app("cat /proc/self/uid_map; grep CapEff /proc/self/status; touch /made; cat /proc/1/maps");
    app.spec.ids = None;
    let (text, _) = app.run();
    assert!(text.contains("4294967295") && text.contains("00000000800405fb"), "{text}");
    assert!(text.contains("Permission denied"), "init's memory: {text}");
    assert_eq!(fs::metadata(app.spec.upper.join("made")).unwrap().uid(), 0);
}

/// The creating process of `a_new_process_takes_over`: makes a sandbox, writes its record, waits to be killed.
#[test]
#[ignore = "run by a_new_process_takes_over in a process of its own"]
fn creator() {
    let Ok(spec) = std::env::var("TORPOR_TEST_SPEC") else { return };
    let spec: SandboxSpec = serde_json::from_str(&spec).unwrap();
    // No machine of its own: nobody would remove it.
    let hierarchies = Hierarchies::detect(&spec.run_dir.join("../../cgroup2")).unwrap();
    let launcher = Launcher::new(Path::new(env!("CARGO_BIN_EXE_torpor-sandbox-helper")), hierarchies).unwrap();
    let sandbox = Sandbox::prepare(&launcher, &spec, [null(), null(), null()], None).unwrap();
    fs::write(std::env::var("TORPOR_TEST_RECORD").unwrap(), serde_json::to_vec(sandbox.record()).unwrap()).unwrap();
    let sandbox = if std::env::var("TORPOR_TEST_START").is_ok() { Ok(sandbox.start().unwrap()) } else { Err(sandbox) };
    println!("\nready");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    drop(sandbox);
}

#[test]
fn a_new_process_takes_over() {
    let machine = Machine::new();
    for started in [true, false] {
        let app = machine.app("sleep 1000; exit 9");
        let path = machine.directory().join("record");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--ignored", "--exact", "creator", "--nocapture"])
            .env("TORPOR_TEST_SPEC", serde_json::to_string(&app.spec).unwrap())
            .env("TORPOR_TEST_RECORD", &path)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped());
        if started {
            command.env("TORPOR_TEST_START", "1");
        }
        let mut creator = command.spawn().unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(creator.stdout.take().unwrap()));
        assert!(lines.any(|line| line.unwrap() == "ready"), "the creator makes a sandbox");
        creator.kill().unwrap();
        creator.wait().unwrap();
        let record: SandboxRecord = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let hierarchies = machine.launcher.hierarchies();
        if !started {
            // The set-up process sees that its worker has gone and undoes everything but directories.
            let gone = (0..500).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                !Path::new(&format!("/proc/{}", record.initial.as_ref().unwrap().pid)).exists()
            });
            assert!(gone, "processes that were never started end by themselves");
            torpor_sandbox::destroy_leftovers(hierarchies, &app.spec.cgroup_parent, &app.spec.id, &app.spec.run_dir)
                .unwrap();
            app.assert_nothing_left();
            continue;
        }
        let mut recycled = record.clone();
        recycled.init.start_ticks += 1;
        assert!(matches!(Sandbox::adopt(hierarchies, recycled), Err(SandboxError::Gone { .. })));
        let sandbox = Sandbox::adopt(hierarchies, record.clone()).unwrap();
        assert_eq!(sandbox.exit_status().unwrap(), None);
        let io = ExecIo::Files([null(), null(), null()]);
        let child = exec(&machine.launcher, &sandbox, &program("killall sleep"), io).unwrap();
        // The end of the initial process, which it brings about, may overtake its own.
        let status = child.wait().unwrap();
        assert!(matches!(status, ExitStatus::Exited(0) | ExitStatus::Signaled(9)), "{status:?}");
        assert_eq!(sandbox.wait(Some(PATIENCE)).unwrap(), Some(ExitStatus::Exited(9)));
        assert!(matches!(Sandbox::adopt(hierarchies, record.clone()), Err(SandboxError::Gone { .. })));
        assert_eq!(record.exit_status().unwrap(), ExitStatus::Exited(9));
        sandbox.destroy().unwrap();
        app.assert_nothing_left();
    }
}

#[test]
fn an_id_in_use_is_refused_and_the_other_lives_on() {
    let machine = Machine::new();
    let app = machine.app("echo up; exec sleep 1000");
    let mut running = app.start().unwrap();
    running.expect_line("up");
    assert!(matches!(app.start().err(), Some(SandboxError::InUse { .. })));
    assert_eq!(running.sandbox.exit_status().unwrap(), None);
    running.sandbox.destroy().unwrap();
    // Its upper directory serves again.
    app.start().unwrap().sandbox.destroy().unwrap();
}

#[test]
fn doctor_finds_what_this_machine_has() {
    let machine = Machine::new();
    let probes = probe(Some(&machine.launcher), machine.directory(), &Labels::default());
    for probe in &probes {
        println!("{:24} {:?} {} {}", probe.name, probe.outcome, probe.found, probe.meaning);
    }
    let missing: Vec<_> = probes.iter().filter(|probe| probe.outcome == Outcome::Missing).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let mapped = probes.iter().find(|probe| probe.name == "id-mapped mounts").unwrap();
    assert_eq!(mapped.outcome, Outcome::Ok, "{mapped:?}");
    let proc = probe(Some(&machine.launcher), Path::new("/proc"), &Labels::default());
    assert!(proc.iter().any(|probe| probe.name == "id-mapped mounts" && probe.outcome == Outcome::Degraded));
    assert_eq!(EXEC_COMMAND, "sandbox-exec");
}

#[test]
fn set_user_id_programs_and_file_capabilities_work_unless_forbidden() {
    let machine = Machine::new();
    let bin = machine.layer.join("bin");
    for name in ["suid", "capable"] {
        fs::copy(machine.layer.join("usr/bin/perl"), bin.join(name)).unwrap();
    }
    fs::set_permissions(bin.join("suid"), fs::Permissions::from_mode(0o4755)).unwrap();
    // VFS_CAP_REVISION_2, effective; permitted: CAP_NET_BIND_SERVICE.
    let mut capability = [0_u8; 20];
    capability[..8].copy_from_slice(&[1, 0, 0, 2, 0, 4, 0, 0]);
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(bin.join("capable"), "security.capability", &capability, flags).unwrap();
    let mut app = machine
        .app("suid -e 'print \"$<:$>\\n\"'; capable -e 'open F, \"/proc/self/status\"; print grep /CapEff/, <F>'");
    app.spec.program.user = User { uid: 1000, gid: 1000, groups: Vec::new(), home: "/".into() };
    assert_eq!(app.output(), "1000:0\nCapEff:\t0000000000000400\n");
    app.spec.security.no_new_privs = true;
    assert_eq!(app.output(), "1000:1000\nCapEff:\t0000000000000000\n");
}

/// Leaves its groups and says where it is.
#[test]
#[ignore = "run by a_keeper_leaves_every_group in a process of its own"]
fn mover() {
    let Ok(parent) = std::env::var("TORPOR_TEST_PARENT") else { return };
    let hierarchies = Hierarchies::detect(Path::new(&std::env::var("TORPOR_TEST_PRIVATE").unwrap())).unwrap();
    hierarchies.move_self_out(&parent).unwrap();
    println!("\n{}", fs::read_to_string("/proc/self/cgroup").unwrap());
}

#[test]
fn a_keeper_leaves_every_group() {
    let machine = Machine::new();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "mover", "--nocapture"])
        .env("TORPOR_TEST_PARENT", &machine.parent)
        .env("TORPOR_TEST_PRIVATE", machine.directory().join("cgroup2"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("0::/{}/support\n", machine.parent)), "{text}");
    for line in text.lines().filter(|line| line.contains(":name=systemd:") || line.contains(":memory:")) {
        assert!(line.ends_with(&format!(":/{}", machine.parent)), "{text}");
    }
}
