//! The seed in namespaces of another process, with lists made by hand.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use torpor_linux::restorer::{
    BuildingTask, CODE_BYTES, EXACT, Entered, Inside, Launch, LaunchError, STOP, Step, enter, enter_for_children,
    interpreter, reserve, seed,
};
use torpor_testkit::namespaces::Namespaces;
use torpor_testkit::wait::{SOON, eventually, soon};

const BLOB: u64 = 0x20_0000_0000;
const DATA: u64 = BLOB + CODE_BYTES as u64;
const FIRST: i32 = 700;
const ROOT: i32 = 77;
const INHERITED: usize = 600;

/// A group in v2, and one in a v1 hierarchy if there is any.
struct Groups {
    v2: PathBuf,
    v1: Option<PathBuf>,
}

impl Groups {
    fn new(name: &str) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let point = |line: &str| PathBuf::from(line.split(' ').nth(4).unwrap());
        let find = |kind: &str| mounts.lines().find(|line| line.contains(kind)).map(point);
        let name = format!("torpor-linux-{}-{name}", std::process::id());
        let v2 = find(" - cgroup2 ").expect("a cgroup v2 mount").join(&name);
        let freezer = mounts.lines().find(|line| line.contains(" - cgroup ") && line.ends_with("freezer")).map(point);
        let v1 = freezer.map(|mount| mount.join(&name));
        fs::create_dir(&v2).unwrap();
        match &v1 {
            Some(path) => fs::create_dir(path).unwrap(),
            None => eprintln!("SKIPPED: there is no v1 hierarchy to enter"),
        }
        Self { v2, v1 }
    }

    fn processes(&self) -> String {
        fs::read_to_string(self.v2.join("cgroup.procs")).unwrap()
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let _ = fs::write(self.v2.join("cgroup.kill"), "1");
        for path in [Some(&self.v2), self.v1.as_ref()].into_iter().flatten() {
            if let Err(error) = eventually("the group is empty", SOON, || fs::remove_dir(path).is_ok()) {
                eprintln!("{} stays: {error}", path.display());
            }
        }
    }
}

fn step(number: i64, expected: i64) -> Step {
    Step { number: number as u32, flags: EXACT, expected, arguments: [0; 6] }
}

fn memory(name: &str, bytes: &[u8]) -> OwnedFd {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    File::from(fd.try_clone().unwrap()).write_all(bytes).unwrap();
    fd
}

/// Its id, its parent's, and a barrier.
fn files() -> (OwnedFd, OwnedFd) {
    let steps = [
        step(libc::SYS_getpid, i64::from(ROOT)),
        step(libc::SYS_getppid, 1),
        Step { number: STOP, flags: 0, expected: 5, arguments: [0; 6] },
    ];
    let mut data: Vec<u8> = steps.iter().flat_map(Step::encode).collect();
    data.resize(4096, 0);
    let mut code = interpreter().to_vec();
    code.resize(CODE_BYTES, 0);
    (memory("blob", &[code, data].concat()), memory("seed", &seed(BLOB, FIRST, 4096, DATA)))
}

fn entered(init: i32, v2: &Path, v1: Option<&Path>, pid: i32) -> Result<Entered, LaunchError> {
    let init = pidfd_open(Pid::from_raw(init).unwrap(), PidfdFlags::empty()).unwrap();
    let v2 = File::open(v2).unwrap();
    let tasks = v1.map(|path| File::options().write(true).open(path.join("tasks")).unwrap());
    let tasks: Vec<_> = tasks.iter().map(AsFd::as_fd).collect();
    enter_for_children(init.as_fd()).unwrap();
    let spare = 900 + (std::process::id() % 9000) as i32;
    enter(&Inside { init: init.as_fd(), cgroup: v2.as_fd(), tasks: &tasks, pid, spare })
}

/// As soon as the id is free: the kernel frees that of one that has ended after its group and its parent forgot it.
fn entered_once_free(init: i32, v2: &Path, v1: Option<&Path>) -> Entered {
    let mut found = None;
    soon("its id is free", || match entered(init, v2, v1, ROOT) {
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => false,
        result => {
            found = Some(result.unwrap());
            true
        }
    });
    found.unwrap()
}

/// With so many descriptors to inherit.
fn execute(entered: &mut Entered, inherited: usize) -> BuildingTask {
    let (blob, seed) = files();
    let inherit = vec![blob.as_fd(); inherited];
    let launch = Launch { pid: ROOT, seed: seed.as_fd(), inherit: &inherit, first: FIRST };
    entered.execute(&launch, true).unwrap()
}

#[test]
fn the_seed_is_a_child_of_the_namespaces_init() {
    let (namespaces, groups) = (Namespaces::new().unwrap(), Groups::new("inside"));
    let result = std::thread::scope(|scope| {
        let work = || {
            let begun = Instant::now();
            let mut entered = entered(namespaces.init(), &groups.v2, groups.v1.as_deref(), ROOT).unwrap();
            let host = entered.pid();
            assert_eq!(groups.processes().trim(), host.to_string());
            let taken = self::entered(namespaces.init(), &groups.v2, None, ROOT).unwrap_err();
            assert_eq!((taken.step, taken.error.kind()), ("clone3", io::ErrorKind::AlreadyExists));
            // More than go with one message.
            let newborn = execute(&mut entered, INHERITED);
            let stop = newborn.stopped().unwrap();
            entered.executed().unwrap();
            eprintln!("{:?}", begun.elapsed());
            assert!(!stop.failed, "{stop:?}");
            let status = fs::read_to_string(format!("/proc/{host}/status")).unwrap();
            let ids = format!("NSpid:\t{host}\t{ROOT}");
            assert!(status.contains(&ids), "{status}");
            let processors =
                |text: &str| text.lines().find(|line| line.starts_with("Cpus_allowed:")).unwrap().to_owned();
            for path in ["self", "thread-self"] {
                let ours = processors(&fs::read_to_string(format!("/proc/{path}/status")).unwrap());
                assert_eq!(processors(&status), ours, "it may run where {path} may");
            }
            let same = |name: &str| {
                let of = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/{name}")).unwrap();
                of(host) == of(namespaces.init()) && of(host) != of(std::process::id() as i32)
            };
            assert!(["pid", "net", "ipc", "uts", "mnt"].into_iter().all(same));
            let cgroups = fs::read_to_string(format!("/proc/{host}/cgroup")).unwrap();
            let own = groups.v2.file_name().unwrap().to_str().unwrap();
            let wanted = 1 + usize::from(groups.v1.is_some());
            assert_eq!(cgroups.lines().filter(|line| line.ends_with(own)).count(), wanted, "{cgroups}");
            let number =
                |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().to_str().unwrap().parse().unwrap();
            let mut open: Vec<usize> = fs::read_dir(format!("/proc/{host}/fd")).unwrap().map(number).collect();
            open.sort_unstable();
            assert_eq!(open, (FIRST as usize..).take(INHERITED).collect::<Vec<_>>());
            host
        };
        scope.spawn(work).join()
    });
    let host = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    // The tracing thread has ended.
    soon("the seed has ended with its tracer", || !Path::new(&format!("/proc/{host}")).exists());
    assert_eq!(groups.processes(), "");
}

#[test]
fn many_descriptors_of_ours_are_neither_inherited_nor_touched() {
    reserve().unwrap();
    let (namespaces, groups) = (Namespaces::new().unwrap(), Groups::new("many"));
    let ours: Vec<OwnedFd> = (0..500).map(|n| memory("ours", &[n as u8])).collect();
    let open = |pid: i32| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    let work = || {
        // Dropped at the gate, more often than there are numbers for gates.
        for _ in 0..40 {
            let waiting = entered_once_free(namespaces.init(), &groups.v2, groups.v1.as_deref());
            soon("it keeps its gate only", || open(waiting.pid()) == 1);
        }
        let mut last = entered_once_free(namespaces.init(), &groups.v2, groups.v1.as_deref());
        let stop = execute(&mut last, INHERITED).stopped().unwrap();
        assert!(!stop.failed, "{stop:?}");
        assert_eq!(open(last.pid()), INHERITED);
        last.executed().unwrap();
    };
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    for (n, fd) in ours.iter().enumerate() {
        let mut byte = [0];
        assert_eq!(rustix::io::pread(fd, &mut byte, 0).unwrap(), 1);
        assert_eq!(byte[0], n as u8, "descriptor {n}");
    }
}

#[test]
fn a_killed_group_of_ours_is_no_obstacle() {
    let (namespaces, ours, theirs) =
        (Namespaces::new().unwrap(), Groups::new("killed-ours"), Groups::new("killed-theirs"));
    for _ in 0..3 {
        fs::write(ours.v2.join("cgroup.kill"), "1").unwrap();
    }
    // Whoever enters is in that group: so a process of its own does.
    let mut helper = Command::new(std::env::current_exe().unwrap());
    helper.args(["--exact", "helper_in_a_killed_group", "--nocapture"]);
    let words = format!("{} {} {}", namespaces.init(), theirs.v2.display(), ours.v2.display());
    let output = helper.env("TORPOR_TEST_KILLED", words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Not a test of its own: enters from a group that was killed before, twice; it takes no migration the second time.
#[test]
fn helper_in_a_killed_group() {
    let Ok(words) = std::env::var("TORPOR_TEST_KILLED") else { return };
    let words: Vec<&str> = words.split(' ').collect();
    fs::write(Path::new(words[2]).join("cgroup.procs"), "0").unwrap();
    let theirs = Path::new(words[1]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2 {
                let begun = Instant::now();
                let entered = entered_once_free(words[0].parse().unwrap(), theirs, None);
                eprintln!("{:?}", begun.elapsed());
                assert_eq!(fs::read_to_string(theirs.join("cgroup.procs")).unwrap().trim(), entered.pid().to_string());
            }
        });
    });
    fs::write(Path::new(words[2]).parent().unwrap().join("cgroup.procs"), "0").unwrap();
}

/// A group with room for so many processes, as the file through which one enters it in v1; in v2 `group` itself.
struct Limited(Option<PathBuf>);

impl Limited {
    fn new(group: &Groups, room: u32) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let pids = mounts.lines().find(|line| line.contains(" - cgroup ") && line.ends_with(",pids"));
        let own = pids.map(|line| Path::new(line.split(' ').nth(4).unwrap()).join(group.v2.file_name().unwrap()));
        if let Some(own) = &own {
            fs::create_dir(own).unwrap();
        }
        let limited = Self(own);
        let limit = limited.0.as_ref().unwrap_or(&group.v2).join("pids.max");
        fs::write(limit, room.to_string()).is_ok().then_some(limited)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            soon("the group is removed", || fs::remove_dir(path).is_ok());
        }
    }
}

#[test]
fn a_limit_of_processes_is_an_error_and_nothing_stays() {
    reserve().unwrap();
    let (namespaces, groups) = (Namespaces::new().unwrap(), Groups::new("limited"));
    let Some(limited) = Limited::new(&groups, 1) else {
        eprintln!("SKIPPED: no hierarchy here limits processes");
        return;
    };
    let work = || {
        for _ in 0..40 {
            let refused = entered(namespaces.init(), &groups.v2, limited.0.as_deref(), ROOT).unwrap_err();
            assert_eq!((refused.step, refused.error.raw_os_error()), ("clone3", Some(libc::EAGAIN)), "{refused:?}");
        }
        fs::write(limited.0.as_ref().unwrap_or(&groups.v2).join("pids.max"), "max").unwrap();
        drop(entered_once_free(namespaces.init(), &groups.v2, limited.0.as_deref()));
    };
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    soon("the group is empty", || groups.processes().is_empty());
}

#[test]
fn dropping_it_before_it_is_executed_ends_it() {
    let (namespaces, groups) = (Namespaces::new().unwrap(), Groups::new("dropped"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..50 {
                drop(entered_once_free(namespaces.init(), &groups.v2, None));
                soon("the group is empty", || groups.processes().is_empty());
            }
        });
    });
}

/// Not a test of its own: enters and is killed at a point.
#[test]
fn helper_killed_at_a_point() {
    let Ok(words) = std::env::var("TORPOR_TEST_ENTER") else { return };
    let words: Vec<&str> = words.split(' ').collect();
    let mut entered = entered_once_free(words[0].parse().unwrap(), Path::new(words[1]), None);
    let end = || kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
    if words[2] == "entered" {
        end();
    }
    let newborn = execute(&mut entered, 1);
    if words[2] == "executed" {
        end();
    }
    newborn.stopped().unwrap();
    end();
}

#[test]
fn it_dies_with_us() {
    let (namespaces, groups) = (Namespaces::new().unwrap(), Groups::new("killed"));
    for point in ["entered", "executed", "stopped"] {
        let mut helper = Command::new(std::env::current_exe().unwrap());
        helper.args(["--exact", "helper_killed_at_a_point"]);
        helper.env("TORPOR_TEST_ENTER", format!("{} {} {point}", namespaces.init(), groups.v2.display()));
        let status = helper.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.signal(), Some(9), "{point}");
        soon(point, || groups.processes().is_empty());
        soon(point, || namespaces.is_empty());
    }
}
