//! An app in a sandbox of its own, without a worker: what the engine needs of one is done here.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use torpor_engine::{
    Abort, Asleep, Faults, HibernateOutcome, HibernateRequest, Ids, LazyWay, NoFaults, Pagers, Parking, Phase, Request,
    ResumeRequest, SandboxHandle, SleepError, Target, WaitHistory, Warm, fall_asleep, hibernate, resume,
};
use torpor_image::Epoch;
use torpor_linux::closer::{self, AppFile};
use torpor_sandbox::cgroup::Hierarchies;
use torpor_sandbox::{EtcFiles, ID_COUNT, IdRange, Launcher, Limits, Program, Sandbox, SandboxSpec, Security, User};
use torpor_store::{Image, Store};
use torpor_testkit::error::chain;

use crate::common::boot;
use crate::common::freezer::CgroupFreezer;
use crate::common::journal::MemoryJournal;

static COUNT: AtomicU32 = AtomicU32::new(0);
/// How long an app may have work to do.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same of one that may have work to do for ever.
const SHORT_PATIENCE: Duration = Duration::from_secs(10);

/// A keeper in memory, with room for so many files.
#[derive(Default)]
pub struct Kept(pub Mutex<BTreeMap<u32, OwnedFd>>, pub Option<usize>);

impl Parking for Kept {
    fn park(&self, files: &[(u32, BorrowedFd<'_>)]) -> io::Result<()> {
        let files = files.iter().map(|(id, fd)| Ok((*id, fd.try_clone_to_owned()?)));
        *self.0.lock().unwrap() = files.collect::<io::Result<_>>()?;
        Ok(())
    }

    fn has_room(&self, files: usize) -> io::Result<()> {
        if self.1.is_none_or(|most| files <= most) { Ok(()) } else { Err(io::Error::other("no room in the keeper")) }
    }
}

/// What is to run, and where.
pub struct Recipe {
    pub command: Vec<String>,
    /// Of the image's `/etc/passwd`: user and group.
    pub user: (u32, u32),
    pub cwd: PathBuf,
    pub security: Security,
}

impl Recipe {
    /// A real server.
    pub fn servers(program: &torpor_testkit::servers::Program, root: &Path) -> Self {
        let passwd = fs::read_to_string(root.join("etc/passwd")).unwrap_or_default();
        let found = program.user.and_then(|user| {
            let line = passwd.lines().find(|line| line.starts_with(&format!("{user}:")))?;
            let mut ids = line.split(':').skip(2).map(|id| id.parse().unwrap());
            Some((ids.next()?, ids.next()?))
        });
        assert!(program.user.is_none() || found.is_some(), "no user {:?}", program.user);
        Self {
            command: program.command.clone(),
            user: found.unwrap_or_default(),
            cwd: "/".into(),
            security: Security::default(),
        }
    }
}

/// An app.
pub struct App {
    pub sandbox: Sandbox,
    pub journal: MemoryJournal,
    pub kept: Kept,
    pub home: SandboxHandle,
    pub memories: WaitHistory,
    pub generation: u64,
    hierarchies: Hierarchies,
    parent: String,
    folder: tempfile::TempDir,
}

/// Unpacks a tarball.
pub fn unpack(tarball: &Path, root: &Path) {
    fs::create_dir_all(root).unwrap();
    let status = Command::new("tar").args(["--numeric-owner", "-xpf"]).arg(tarball).arg("-C").arg(root).status();
    assert!(status.unwrap().success());
}

impl App {
    /// Starts a real server.
    pub fn of_server(name: &str) -> Self {
        let servers = torpor_testkit::servers::Servers::open().unwrap();
        let program = servers.program(name);
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("layer");
        unpack(&program.tarball, &root);
        Self::start(folder, &Recipe::servers(program, &root))
    }

    /// Starts `recipe`, whose files are in `folder/layer`.
    pub fn start(folder: tempfile::TempDir, recipe: &Recipe) -> Self {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        for name in ["upper", "work", "run", "images"] {
            DirBuilder::new().mode(0o700).create(folder.path().join(name)).unwrap();
        }
        let hierarchies = Hierarchies::detect(&folder.path().join("cgroup2")).unwrap();
        let launcher = Launcher::new(&std::env::current_exe().unwrap(), hierarchies.clone()).unwrap();
        let parent = format!("torpor-engine-warm-{}-{n}", std::process::id());
        let spec = SandboxSpec {
            id: "app".to_owned(),
            cgroup_parent: parent.clone(),
            layers: vec![folder.path().join("layer")],
            upper: folder.path().join("upper"),
            work: folder.path().join("work"),
            run_dir: folder.path().join("run"),
            hostname: "warm".to_owned(),
            ids: Some(IdRange { base: 65_536 * (2000 + (std::process::id() % 1200) * 50 + n) }),
            volumes: Vec::new(),
            tmpfs: Vec::new(),
            limits: Limits::default(),
            security: recipe.security.clone(),
            read_only: false,
            program: Program {
                command: recipe.command.clone(),
                env: Vec::new(),
                user: User { uid: recipe.user.0, gid: recipe.user.1, ..User::default() },
                cwd: recipe.cwd.clone(),
            },
            etc: EtcFiles { hosts: Some("127.0.0.1 localhost\n".to_owned()), ..EtcFiles::default() },
        };
        let file = || -> OwnedFd {
            fs::File::options().append(true).create(true).open(folder.path().join("log")).unwrap().into()
        };
        let null: OwnedFd = fs::File::options().read(true).write(true).open("/dev/null").unwrap().into();
        let prepared = Sandbox::prepare(&launcher, &spec, [null, file(), file()], None).unwrap();
        within(prepared.netns(), || {
            assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
        });
        let sandbox = prepared.start().unwrap();
        let home = SandboxHandle {
            init: sandbox.pidfd().try_clone_to_owned().unwrap(),
            init_pid: sandbox.init_pid(),
            init_start_ticks: sandbox.init_start_ticks(),
            initial: sandbox.initial_inside(),
            cgroup: sandbox.cgroup().core().to_owned(),
            tasks: sandbox.cgroup().tasks_files(),
            user_namespace: sandbox.ids().map(|ids| Ids { first: ids.base, count: ID_COUNT }),
            time_namespace: false,
        };
        Self {
            sandbox,
            journal: MemoryJournal::awake(),
            kept: Kept::default(),
            home,
            memories: WaitHistory::default(),
            generation: 0,
            hierarchies,
            parent,
            folder,
        }
    }

    /// Does something in its network.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let network = self.sandbox.netns().unwrap_or_else(|error| panic!("{error}; {}", self.log()));
        within(network.as_fd(), work)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// A file of what it is made of.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn image(&self, generation: u64) -> Image {
        Store::of_app(&self.folder.path().join("images")).image(generation)
    }

    /// Names of all its images, in whatever state.
    pub fn images(&self) -> Vec<String> {
        let entries = Store::of_app(&self.folder.path().join("images")).list().unwrap();
        entries.iter().map(|entry| entry.path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }

    pub fn phase(&self) -> Phase {
        self.journal.phase()
    }

    /// Does something with its target.
    pub fn with_target<T>(&self, faults: &dyn Faults, work: impl FnOnce(&Target<'_>) -> T) -> T {
        let freezer = CgroupFreezer::of(&self.sandbox);
        work(&Target { app: 7, epoch: Epoch::FIRST, boot: boot(), freezer: &freezer, journal: &self.journal, faults })
    }

    /// Puts it to sleep; tries again for some time where it has work to do.
    pub fn doze(&mut self) -> Asleep {
        self.doze_within(PATIENCE).unwrap_or_else(|error| panic!("{error:?}; {}", self.log()))
    }

    pub fn try_doze(&mut self) -> Result<Asleep, SleepError> {
        self.doze_within(SHORT_PATIENCE)
    }

    fn doze_within(&mut self, patience: Duration) -> Result<Asleep, SleepError> {
        let begun = std::time::Instant::now();
        loop {
            self.generation += 1;
            let abort = Abort::new().unwrap();
            let request = Request {
                image: self.image(self.generation),
                timers_over: Duration::from_secs(30),
                single_sockets: false,
                abort: &abort,
                memories: &self.memories,
                expected: &[],
                lazy: None,
            };
            let attempt = self.with_target(&NoFaults, |target| fall_asleep(target, &request));
            if let Some(memories) = attempt.memories {
                self.memories = memories;
            }
            match attempt.result {
                Err(SleepError::Aborted(_)) if begun.elapsed() < patience => {}
                other => return other,
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Builds its processes again and lets them run.
    pub fn resume(&mut self, warm: &Warm) -> Result<(), String> {
        self.resume_by(warm, None)
    }

    /// The same; where there is a way, before all of their memory is back.
    pub fn resume_by(&mut self, warm: &Warm, lazy: Option<LazyWay<'_>>) -> Result<(), String> {
        let given = self.given();
        let (given, give_up) = (Box::new(move || Ok(given)), Box::new(|| {}));
        let request = ResumeRequest { home: &self.home, image: &warm.image, given, give_up, lazy };
        let (resumed, timings) = self.with_target(&NoFaults, |target| resume(target, request));
        eprintln!("resume {:?} {:?}", timings.steps(), resumed.as_ref().err());
        let mut resumed = resumed.map_err(|error| chain(&error))?;
        resumed.settle().map_err(|error| error.to_string())?;
        self.memories = resumed.memories;
        // The program has them; were they kept any longer, what it closes would not be closed.
        self.kept.0.lock().unwrap().clear();
        let begun = std::time::Instant::now();
        while closer::pending() > 0 && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Deepens its sleep.
    pub fn hibernate(&mut self, asleep: &Asleep, faults: &dyn Faults) -> HibernateOutcome {
        self.hibernate_with(asleep, faults, &Abort::new().unwrap())
    }

    pub fn hibernate_with(&mut self, asleep: &Asleep, faults: &dyn Faults, abort: &Abort) -> HibernateOutcome {
        self.hibernate_by(asleep, (faults, abort), None)
    }

    /// Deepens its sleep; where there are pagers, without all of its memory.
    pub fn hibernate_by(
        &mut self,
        asleep: &Asleep,
        (faults, abort): (&dyn Faults, &Abort),
        pagers: Option<&dyn Pagers>,
    ) -> HibernateOutcome {
        self.generation += 1;
        let request = HibernateRequest {
            home: &self.home,
            image: self.image(self.generation),
            abort,
            parking: &self.kept,
            expected: &[],
            pagers,
        };
        let hibernated = self.with_target(faults, |target| hibernate(target, asleep, &request));
        eprintln!("hibernate {:?} {:?}", hibernated.timings.steps(), hibernated.result.as_ref().err());
        if let Some(memories) = &hibernated.memories {
            self.memories = memories.clone();
        }
        hibernated
    }

    /// Duplicates of what is kept.
    pub fn given(&self) -> BTreeMap<u32, AppFile> {
        let kept = self.kept.0.lock().unwrap();
        kept.iter().map(|(id, fd)| (*id, fd.try_clone().unwrap().into())).collect()
    }

    pub fn init_lives(&self) -> bool {
        self.sandbox.exit_status().unwrap().is_none()
    }

    pub fn processes(&self) -> Vec<i32> {
        self.sandbox.cgroup().processes().unwrap()
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let destroyed = self.sandbox.destroy().and_then(|()| Ok(self.hierarchies.remove_parent(&self.parent)?));
        if let Err(error) = destroyed {
            eprintln!("the sandbox is not removed: {error:?}");
        }
    }
}

/// Does something in a network namespace.
pub fn within<T: Send>(network: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(network, Some(LinkNameSpaceType::Network)).unwrap();
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
