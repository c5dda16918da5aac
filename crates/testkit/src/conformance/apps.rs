//! The programs as apps of a daemon, through the level warm: with what is parked, and with everything but the image lost.
//!
//! All of them are there at once, so that one power cut is enough. A program's directory is a volume. Some programs need what
//! a sandbox does not give; they say so natively too, and are not judged.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use super::judge::{ANSWER_WITHIN, failed, verdict};
use super::{Program, Verdict};
use crate::daemon::Daemon;
use crate::error::Error;
use crate::servers::static_tarball;
use crate::wait::eventually_ok;

/// How long setting up may take.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// Tries to put one to sleep: it looks for `go` now and then.
const SLEEP_WITHIN: Duration = Duration::from_secs(30);

/// Programs of one daemon.
const BATCH: usize = 24;
/// The group of those that compute until they are asked.
const BUSY: &str = "Registers";

/// What happens between the sleep and the wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// Nothing: its open files are parked.
    Nothing,
    /// The power is cut: only its image and its files are left.
    PowerCut,
}

/// Beyond what an app has by default: the suite is about what the engine can do, not about what a sandbox allows.
const CAPABILITIES: [&str; 10] = [
    "DAC_READ_SEARCH",
    "IPC_LOCK",
    "LEASE",
    "MKNOD",
    "NET_ADMIN",
    "NET_RAW",
    "SYS_ADMIN",
    "SYS_NICE",
    "SYS_PTRACE",
    "WAKE_ALARM",
];

/// Programs that run as apps.
#[derive(Debug)]
pub struct Apps {
    daemon: Daemon,
    /// Their directories.
    homes: tempfile::TempDir,
    /// Those that are judged already.
    verdicts: BTreeMap<&'static str, Verdict>,
    /// The others, which are set up.
    ready: Vec<Program>,
}

impl Apps {
    /// Programs in batches for one daemon each. Those of the first kind are to be judged alone: their programs compute all the
    /// time, and beside them others hardly ever wait for anything, as who is to go to sleep must.
    pub fn batches(programs: &[Program]) -> [Vec<Vec<Program>>; 2] {
        let (busy, calm): (Vec<_>, Vec<_>) = programs.iter().cloned().partition(|program| program.group == BUSY);
        [busy, calm].map(|some| some.chunks(BATCH).map(<[Program]>::to_vec).collect())
    }

    /// Starts each of `programs` as an app of a daemon (`binary` is `torpor`) and waits until it is set up.
    ///
    /// # Errors
    /// Where the daemon does not start or a program cannot be compiled.
    pub fn start(binary: &Path, programs: &[Program]) -> Result<Self, Error> {
        let daemon = Daemon::start_binary(binary.to_owned(), "[idle]\nsleep = false\n", &[], false)?;
        let parent = if Path::new("/var/tmp").is_dir() { PathBuf::from("/var/tmp") } else { std::env::temp_dir() };
        let homes = tempfile::Builder::new().prefix("torpor-conformance-").tempdir_in(&parent);
        let homes = homes.map_err(Error::file("make a directory in", &parent))?;
        open_up(homes.path(), 0o755)?;
        let mut apps = Self { daemon, homes, verdicts: BTreeMap::new(), ready: Vec::new() };
        for program in programs {
            apps.load(program)?;
            apps.begin(program)?;
        }
        for program in programs {
            match apps.begun(program) {
                None => apps.ready.push(program.clone()),
                Some(verdict) => drop(apps.verdicts.insert(program.name, verdict)),
            }
        }
        Ok(apps)
    }

    /// Puts all of them to the level warm, wakes them, and lets them check themselves.
    ///
    /// # Errors
    /// Where the daemon fails as a whole.
    pub fn judge(mut self, between: Between) -> Result<BTreeMap<&'static str, Verdict>, Error> {
        let mut asleep = Vec::new();
        for program in std::mem::take(&mut self.ready) {
            match self.sleep(&program) {
                Ok(()) => asleep.push(program),
                Err(refusal) => {
                    // Whatever the reason: the program must have gone on as it was. Some of them keep a processor busy.
                    let found = self.wake(&program)?.unwrap_or_else(|| self.answer(&program));
                    self.verdicts.insert(program.name, if found == Verdict::Ok { refusal } else { found });
                }
            }
        }
        if between == Between::PowerCut {
            self.daemon.power_off()?;
            self.daemon.up()?;
        }
        // All before the first answer: many of them take their time.
        let woken = asleep.iter().map(|program| self.wake(program)).collect::<Result<Vec<_>, _>>()?;
        for (program, woken) in asleep.iter().zip(woken) {
            let found = woken.unwrap_or_else(|| self.answer(program));
            self.verdicts.insert(program.name, found);
        }
        Ok(std::mem::take(&mut self.verdicts))
    }

    fn home(&self, program: &Program) -> PathBuf {
        self.homes.path().join(program.name)
    }

    fn load(&self, program: &Program) -> Result<(), Error> {
        let image = image(program)?;
        let known = self.daemon.json(&["images", "ls"])?;
        let known = known.as_array().is_some_and(|images| images.iter().any(|known| known["name"] == image.as_str()));
        if known {
            return Ok(());
        }
        let tarball = static_tarball(&image, &program.executable()?)?;
        self.daemon.ok(&["images", "load", &image, &tarball.display().to_string()]).map(drop)
    }

    /// Starts one.
    fn begin(&self, program: &Program) -> Result<(), Error> {
        let (home, image) = (self.home(program), image(program)?);
        fs::create_dir(&home).map_err(Error::file("make", &home))?;
        open_up(&home, 0o777)?;
        let (app, volume, source) = (app(program), format!("{}:/home", home.display()), format!("image:{image}"));
        let executable = format!("/bin/{image}");
        let mut arguments = vec!["run", "--name", &app, "-v", &volume, "-w", "/home", "--no-sleep", "--restart", "no"];
        arguments.extend(["--timers-over", "1h", "--no-seccomp"]);
        arguments.extend(CAPABILITIES.iter().flat_map(|capability| ["--cap-add", capability]));
        arguments.extend([&source, "--", &executable, program.name]);
        self.daemon.ok(&arguments).map(drop)
    }

    /// Waits until one is set up; a verdict if it ends before.
    fn begun(&self, program: &Program) -> Option<Verdict> {
        let home = self.home(program);
        let state = || self.daemon.state(&app(program)).unwrap_or_default();
        let begun = eventually_ok("the program is set up", READY_WITHIN, || {
            let ended = state() == "stopped";
            if let Ok(answer) = fs::read_to_string(home.join("result")) {
                return Ok(Some(answer));
            }
            if home.join("ready").exists() {
                return Ok(None);
            }
            if ended { Ok(Some("skip: it ends".to_owned())) } else { Err("neither `ready` nor `result`") }
        });
        match begun {
            Ok(None) => None,
            Ok(Some(answer)) => match verdict(&answer, "at set-up") {
                Verdict::Skipped(why) | Verdict::Failed { why, .. } => Some(not_there(why)),
                other => Some(not_there(other)),
            },
            Err(error) => Some(not_there(error)),
        }
    }

    fn sleep(&self, program: &Program) -> Result<(), Verdict> {
        let mut last = None;
        let slept = eventually_ok("it goes warm", SLEEP_WITHIN, || {
            match self.daemon.cli(&["sleep", &app(program), "--level", "warm"]) {
                Ok(output) if output.status.success() => Ok(true),
                Ok(output) => {
                    let said = said(&output);
                    let again = ["aborted", "at work", "did not freeze"].iter().any(|words| said.contains(words));
                    last = Some(said.clone());
                    if again { Err(said) } else { Ok(false) }
                }
                Err(error) => Err(error.to_string()),
            }
        });
        match slept {
            Ok(true) => Ok(()),
            Ok(false) => Err(Verdict::Refused(last.unwrap_or_default())),
            // At work all the time, or event after event: so it stays awake.
            Err(_) => Err(Verdict::Refused(last.unwrap_or_default())),
        }
    }

    /// Lets it run and check itself; a verdict if it cannot run.
    fn wake(&self, program: &Program) -> Result<Option<Verdict>, Error> {
        let output = self.daemon.cli(&["wake", &app(program)])?;
        if !output.status.success() {
            return Ok(Some(failed("at the wake", said(&output))));
        }
        let path = self.home(program).join("go");
        fs::write(&path, "").map_err(Error::file("write", path))?;
        Ok(None)
    }

    fn answer(&self, program: &Program) -> Verdict {
        let home = self.home(program);
        let result = home.join("result");
        let answer = eventually_ok("the program answers", ANSWER_WITHIN, || {
            fs::read_to_string(&result).map_err(|_| self.daemon.state(&app(program)).unwrap_or_default())
        });
        let found = match answer {
            Ok(answer) => verdict(&answer, "woken"),
            Err(error) => failed("woken", error),
        };
        if found == Verdict::Ok && home.join("left-running").exists() {
            return failed("woken", "there was state that must not outlive its processes");
        }
        found
    }
}

/// What every verdict on a program begins with that cannot even be set up in a sandbox.
const NOT_THERE: &str = "not in a sandbox";

fn not_there(why: impl std::fmt::Display) -> Verdict {
    Verdict::Skipped(format!("{NOT_THERE}: {why}"))
}

fn app(program: &Program) -> String {
    program.name.replace('_', "-")
}

/// Name of the image, and of the executable in it.
fn image(program: &Program) -> Result<String, Error> {
    let executable = program.executable()?;
    let name = executable.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    Ok(name.split('.').next().unwrap_or_default().chars().take(40).collect())
}

fn open_up(path: &Path, mode: u32) -> Result<(), Error> {
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(Error::file("open up", path))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}
