//! A machine for the tests of sandboxes: an image of busybox and perl, and sandboxes that are removed whatever happens.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "test support, not every file uses every part")]

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use torpor_sandbox::cgroup::Hierarchies;
use torpor_sandbox::{
    EtcFiles, ExitStatus, IdRange, Launcher, Limits, Prepared, Program, Sandbox, SandboxError, SandboxSpec, Security,
    User, destroy_leftovers,
};

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// What tests share: a launcher, an image, a cgroup of this process's own.
pub struct Machine {
    pub launcher: Launcher,
    pub parent: String,
    pub layer: PathBuf,
    directory: tempfile::TempDir,
}

/// A sandbox's files; the rest of it is removed on drop.
pub struct App<'m> {
    pub machine: &'m Machine,
    pub spec: SandboxSpec,
}

/// A pipe's end for a program and ours.
pub fn pipe() -> (File, OwnedFd) {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    (reader.into(), writer)
}

pub fn null() -> OwnedFd {
    File::options().read(true).write(true).open("/dev/null").unwrap().into()
}

/// A running program and what it writes.
pub struct Running<'a> {
    /// Removes it on drop.
    pub app: &'a App<'a>,
    pub sandbox: Sandbox,
    pub output: File,
}

impl Running<'_> {
    /// Everything it has written when it ends, and how it ended.
    pub fn finish(mut self) -> (String, ExitStatus) {
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        let status = self.sandbox.wait(Some(PATIENCE)).unwrap().expect("the program ends in time");
        self.sandbox.destroy().unwrap();
        (text, status)
    }

    /// Reads until it has written this line.
    pub fn expect_line(&mut self, line: &str) {
        self.read_until(&format!("{line}\n"));
    }

    /// Reads until it has written a line.
    pub fn line(&mut self) -> String {
        self.read_until("\n")
    }

    fn read_until(&mut self, end: &str) -> String {
        let (mut text, mut byte) = (String::new(), [0]);
        while !text.ends_with(end) {
            let timeout = rustix::event::Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
            let wait = &mut [rustix::event::PollFd::new(&self.output, rustix::event::PollFlags::IN)];
            assert_eq!(rustix::event::poll(wait, Some(&timeout)).unwrap(), 1, "no {end:?} in time: {text}");
            assert_eq!(self.output.read(&mut byte).unwrap(), 1, "ended before {end:?}: {text}");
            text.push(byte[0].into());
        }
        text
    }
}

impl Machine {
    pub fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests need root: run them with sudo");
        let directory = tempfile::Builder::new().prefix("torpor-sandbox-").tempdir().unwrap();
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let hierarchies = Hierarchies::detect(&directory.path().join("cgroup2")).unwrap();
        let helper = Path::new(env!("CARGO_BIN_EXE_torpor-sandbox-helper"));
        let launcher = Launcher::new(helper, hierarchies).unwrap();
        let layer = directory.path().join("layer");
        make_image(&layer);
        Self { launcher, parent: format!("torpor-test-{}-{number}", std::process::id()), layer, directory }
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// An app that runs `script` in busybox's shell.
    pub fn app(&self, script: &str) -> App<'_> {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let id = format!("app-{number}");
        let home = self.directory.path().join(&id);
        for name in ["", "upper", "work", "run"] {
            fs::DirBuilder::new().mode(0o700).create(home.join(name)).unwrap();
        }
        let base = 65_536 * (1000 + (std::process::id() % 500) * 100 + number % 100);
        let program = Program {
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            env: vec!["GREETING=hello".to_owned()],
            user: User::default(),
            cwd: "/".into(),
        };
        let spec = SandboxSpec {
            id,
            cgroup_parent: self.parent.clone(),
            layers: vec![self.layer.clone()],
            upper: home.join("upper"),
            work: home.join("work"),
            run_dir: home.join("run"),
            hostname: "web".to_owned(),
            ids: Some(IdRange { base }),
            volumes: Vec::new(),
            tmpfs: Vec::new(),
            limits: Limits::default(),
            security: Security::default(),
            read_only: false,
            program,
            etc: EtcFiles { hosts: Some("127.0.0.1 localhost\n".to_owned()), ..EtcFiles::default() },
        };
        App { machine: self, spec }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let hierarchies = self.launcher.hierarchies();
        if let Err(error) = hierarchies.remove_parent(&self.parent) {
            // A second panic would hide the first.
            assert!(std::thread::panicking(), "the cgroups are not empty: {error:?}");
        }
        let private = self.directory.path().join("cgroup2");
        if hierarchies.core() == private {
            rustix::mount::unmount(&private, rustix::mount::UnmountFlags::empty()).unwrap();
        }
    }
}

impl<'m> App<'m> {
    pub fn prepare(&self, output: OwnedFd) -> Result<Prepared, SandboxError> {
        let errors = output.try_clone().unwrap();
        Sandbox::prepare(&self.machine.launcher, &self.spec, [null(), output, errors], None)
    }

    pub fn start(&self) -> Result<Running<'_>, SandboxError> {
        let (output, theirs) = pipe();
        let sandbox = self.prepare(theirs)?.start()?;
        Ok(Running { app: self, sandbox, output })
    }

    /// Runs it to its end: output and status.
    pub fn run(&self) -> (String, ExitStatus) {
        self.start().unwrap().finish()
    }

    /// Runs it; it must succeed.
    pub fn output(&self) -> String {
        let (text, status) = self.run();
        assert_eq!(status, ExitStatus::Exited(0), "{text}");
        text
    }

    pub fn base(&self) -> u32 {
        self.spec.ids.map_or(0, |ids| ids.base)
    }

    /// Whether nothing of it is left: no process, no cgroup, no mount, no file in the run directory.
    pub fn assert_nothing_left(&self) {
        let hierarchies = self.machine.launcher.hierarchies();
        let group = hierarchies.core().join(&self.spec.cgroup_parent).join(&self.spec.id);
        assert!(!group.exists(), "{} is left", group.display());
        let name = format!("{}/{}", self.spec.cgroup_parent, self.spec.id);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        for mount in mounts.lines().filter(|line| line.contains(" - cgroup ")) {
            let path = Path::new(mount.split(' ').nth(4).unwrap()).join(&name);
            assert!(!path.exists(), "{} is left", path.display());
        }
        let run = self.spec.run_dir.to_str().unwrap();
        assert!(!mounts.contains(run), "a mount is left: {mounts}");
        assert_eq!(fs::read_dir(run).unwrap().count(), 0, "{run} is not empty");
        // Whoever ends lets go of its files first: what is left of it may still be seen for a moment.
        let asked = Instant::now();
        while let Some(status) = self.any_process() {
            assert!(asked.elapsed() < PATIENCE, "a process is left: {status}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The status of a process with the app's ids that has not ended.
    fn any_process(&self) -> Option<String> {
        let owner = self.base().to_string();
        if owner == "0" {
            return None;
        }
        fs::read_dir("/proc").unwrap().find_map(|process| {
            let status = fs::read_to_string(process.unwrap().path().join("status")).ok()?;
            let alive = !status.contains("\nState:\tZ") && !status.contains("\nState:\tX");
            let ours =
                status.lines().any(|line| line.strip_prefix("Uid:\t").is_some_and(|ids| ids.starts_with(&owner)));
            (ours && alive).then_some(status)
        })
    }
}

impl Drop for App<'_> {
    fn drop(&mut self) {
        let spec = &self.spec;
        let hierarchies = self.machine.launcher.hierarchies();
        let removed = destroy_leftovers(hierarchies, &spec.cgroup_parent, &spec.id, &spec.run_dir);
        if let Err(error) = removed {
            assert!(std::thread::panicking(), "{} is not removed: {error:?}", spec.id);
        }
    }
}

/// Static busybox with its commands, and perl with its libraries (a dynamic program, and one that can make any call).
fn make_image(root: &Path) {
    for name in ["", "bin", "etc", "tmp", "root", "lib64", "secret"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    let busybox = Path::new("/bin/busybox");
    assert!(busybox.exists(), "these tests need a static busybox: apt-get install busybox-static");
    fs::copy(busybox, root.join("bin/busybox")).unwrap();
    let list = Command::new(busybox).arg("--list").output().unwrap();
    for name in String::from_utf8(list.stdout).unwrap().lines().filter(|name| *name != "busybox") {
        symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    let libraries = Command::new("ldd").arg("/usr/bin/perl").output().expect("these tests need ldd (libc-bin)");
    let libraries = String::from_utf8(libraries.stdout).unwrap();
    assert!(!libraries.is_empty(), "these tests need perl: apt-get install perl-base");
    let words = libraries.split_whitespace().filter(|word| word.starts_with('/'));
    for path in words.chain(["/usr/bin/perl"]) {
        let target = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(path, target).unwrap();
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n").unwrap();
}

/// A further program, for `exec`.
pub fn program(script: &str) -> Program {
    Program {
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        env: vec!["GREETING=again".into()],
        user: User::default(),
        cwd: "/tmp".into(),
    }
}
