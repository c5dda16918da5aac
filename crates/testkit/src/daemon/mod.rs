//! A `torpor up` of a test's own: own directories, own instance, own addresses and ports.
//!
//! When the value is dropped, `torpor down` puts everything to rest, and [`leftovers`] looks for what it forgot: that fails
//! the test. A test that already fails gets the daemon's log printed instead.

mod directory;
mod leftovers;
mod slot;

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use directory::Directory;
pub use leftovers::{leftovers, power_off};
use slot::Slot;

use crate::client::Session;
use crate::disk::Disk;
use crate::error::{Error, run};
use crate::servers::{Program, target_dir};
use crate::wait::eventually_ok;

/// How long a daemon may take to listen, or to end.
const TURN_TIMEOUT: Duration = Duration::from_secs(60);
/// How much of the log a failing test prints, in characters.
const LOG_CHARS: usize = 20_000;

/// A running (or killed) daemon.
#[derive(Debug)]
pub struct Daemon {
    binary: PathBuf,
    /// Unmounted before the directory goes.
    disk: Option<Disk>,
    dir: Directory,
    /// Given back once the directory is gone.
    slot: Slot,
    environment: Vec<(String, String)>,
    child: Option<Child>,
    /// It has listened, and was not put to rest since: there is something to take down.
    live: bool,
}

/// The `torpor` executable: `TORPOR_BIN`, or the one in the target directory of this build.
///
/// # Errors
/// Where there is none.
pub fn binary() -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os("TORPOR_BIN") {
        return Ok(path.into());
    }
    // A test runs from `target/PROFILE/deps/`.
    let own = std::env::current_exe().map_err(Error::file("find", "/proc/self/exe"))?;
    let beside = own.ancestors().skip(1).take(2).map(|dir| dir.join("torpor"));
    let profiles = ["debug", "release"].map(|profile| target_dir().join(profile).join("torpor"));
    let found = beside.chain(profiles).find(|path| path.is_file());
    found.ok_or_else(|| Error::Missing {
        what: "torpor executable: run `cargo build -p torpor`, or set TORPOR_BIN".into(),
    })
}

impl Daemon {
    /// Starts a daemon with the default configuration and waits until it listens.
    ///
    /// # Errors
    /// Where it ends or does not listen; its log is part of the error.
    pub fn start() -> Result<Self, Error> {
        Self::start_with("", &[])
    }

    /// As [`Daemon::start`]; `tables` are TOML tables that are added to the configuration (`[idle]\nafter = "1s"`; not
    /// `[network]`), `environment` is added to the daemon's (fault points).
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_with(tables: &str, environment: &[(&str, &str)]) -> Result<Self, Error> {
        Self::start_binary(binary()?, tables, environment, false)
    }

    /// As [`Daemon::start_with`], with the data directory on a disk of its own: [`Daemon::power_off`] loses what was not
    /// synced.
    ///
    /// # Errors
    /// As [`Daemon::start`], and where there is no such disk.
    pub fn start_on_disk(tables: &str) -> Result<Self, Error> {
        Self::start_binary(binary()?, tables, &[], true)
    }

    pub(crate) fn start_binary(
        binary: PathBuf,
        tables: &str,
        environment: &[(&str, &str)],
        disk: bool,
    ) -> Result<Self, Error> {
        let slot = Slot::take(&binary)?;
        let dir = Directory::new(slot::DIRECTORY_PREFIX);
        let dir = dir.map_err(Error::file("make a directory in", std::env::temp_dir()))?;
        slot.remember(dir.path())?;
        let config = format!(
            "instance = '{}'\ndata_dir = '{root}/data'\nrun_dir = '{root}/run'\n\n[network]\nv4_pool = '{}'\nv6_pool = '{}'\n\n{tables}\n",
            slot.instance(),
            slot.v4_pool(),
            slot.v6_pool(),
            root = dir.path().display(),
        );
        let path = dir.path().join("torpor.toml");
        fs::write(&path, config).map_err(Error::file("write", path))?;
        let environment = environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let disk = disk.then(|| Disk::new(dir.path().join("disk"), dir.path().join("data"))).transpose()?;
        let mut daemon = Self { binary, disk, dir, slot, environment, child: None, live: false };
        daemon.up()?;
        Ok(daemon)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Directory of its sockets.
    pub fn run_dir(&self) -> PathBuf {
        self.path("run")
    }

    /// Directory of its state, images and layers.
    pub fn data_dir(&self) -> PathBuf {
        self.path("data")
    }

    /// The API's Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.path("run/api.sock")
    }

    /// Name of its network table and cgroup.
    pub fn instance(&self) -> String {
        self.slot.instance()
    }

    /// The daemon's process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// A port of the machine that no other test has.
    ///
    /// # Errors
    /// Where this daemon's are used up.
    pub fn port(&mut self) -> Result<u16, Error> {
        self.slot.port()
    }

    /// Sets (or with nothing, removes) a variable of the next [`Daemon::up`]'s environment.
    pub fn set_environment(&mut self, name: &str, value: Option<&str>) {
        self.environment.retain(|(known, _)| known != name);
        self.environment.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    }

    /// Starts the daemon again, with the same state, after [`Daemon::kill9`] or [`Daemon::term`].
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn up(&mut self) -> Result<(), Error> {
        self.up_at_once()?;
        eventually_ok("every app is adopted", TURN_TIMEOUT, || {
            let version = self.json(&["version"]).map_err(|error| error.to_string())?;
            match &version["daemon"]["adopting"] {
                serde_json::Value::Number(left) if left.as_u64() != Some(0) => Err(format!("{left} are to come")),
                _ => Ok(()),
            }
        })
    }

    /// As [`Daemon::up`], and does not wait until every app is adopted.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn up_at_once(&mut self) -> Result<(), Error> {
        let log_path = self.path("log");
        let log: File =
            OpenOptions::new().append(true).create(true).open(&log_path).map_err(Error::file("open", &log_path))?;
        let output = log.try_clone().map_err(Error::file("share", &log_path))?;
        let mut command = Command::new(&self.binary);
        command.arg("up").arg("--config").arg(self.path("torpor.toml"));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let spawned = command.stdin(Stdio::null()).stdout(output).stderr(log).spawn();
        let program = self.binary.display().to_string();
        let child = spawned.map_err(|source| Error::Spawn { program, hint: "run `cargo build -p torpor`", source })?;
        self.child = Some(child);
        self.wait_until_it_listens()?;
        self.live = true;
        Ok(())
    }

    fn wait_until_it_listens(&mut self) -> Result<(), Error> {
        let (socket, log) = (self.socket(), self.path("log"));
        let child = &mut self.child;
        let listening = eventually_ok("torpor up listens", TURN_TIMEOUT, || {
            let ended = child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            match (ended, UnixStream::connect(&socket)) {
                // No use in waiting for the dead: the outer result ends the wait, the inner one is the error.
                (Some(status), _) => Ok(Err(status)),
                (None, Ok(_)) => Ok(Ok(())),
                (None, Err(error)) => Err(format!("{error}; its log: {}", tail(&log))),
            }
        })?;
        listening.map_err(|status| {
            self.child = None;
            Error::Command { command: "torpor up".into(), status: status.to_string(), stderr: tail(&log) }
        })
    }

    /// A `torpor` command that talks to this daemon, for tests that want its streams.
    pub fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(args).env("TORPOR_SOCKET", self.socket());
        command
    }

    /// Runs `torpor` with `args`; its output, whatever its exit status.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn cli<S: AsRef<OsStr>>(&self, args: &[S]) -> Result<Output, Error> {
        let program = self.binary.display().to_string();
        let output = self.command(args).stdin(Stdio::null()).output();
        output.map_err(|source| Error::Spawn { program, hint: "run `cargo build -p torpor`", source })
    }

    /// Runs `torpor` with `args`, which must succeed; its standard output.
    ///
    /// # Errors
    /// Where it does not, with what it said.
    pub fn ok<S: AsRef<OsStr>>(&self, args: &[S]) -> Result<String, Error> {
        let output = run(self.command(args).stdin(Stdio::null()), "run `cargo build -p torpor`")?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs `torpor` with `args` and `--json`, which must succeed; what it printed.
    ///
    /// # Errors
    /// Where it does not, or prints no JSON.
    pub fn json(&self, args: &[&str]) -> Result<serde_json::Value, Error> {
        let mut args = args.to_vec();
        args.push("--json");
        let text = self.ok(&args)?;
        serde_json::from_str(&text).map_err(|_| Error::answer("torpor", format!("JSON from {args:?}"), text))
    }

    /// Runs a real server as the app `name`; `tables` are TOML tables added to its description. Gives back the
    /// machine's address of each of its ports.
    ///
    /// # Errors
    /// Where `torpor run` fails.
    pub fn run_program(&mut self, program: &Program, name: &str, tables: &str) -> Result<Vec<SocketAddr>, Error> {
        let ports = program.ports.iter().map(|_| self.port()).collect::<Result<Vec<u16>, _>>()?;
        let path = self.path(&format!("{name}.toml"));
        let text = format!("{}\n{tables}\n", program.app_toml(name, &ports));
        fs::write(&path, text).map_err(Error::file("write", &path))?;
        self.ok(&[OsStr::new("run"), OsStr::new("-f"), path.as_os_str()])?;
        Ok(ports.into_iter().map(|port| (Ipv4Addr::LOCALHOST, port).into()).collect())
    }

    /// As [`Daemon::run_program`], then a checked connection to its first port once it answers.
    ///
    /// # Errors
    /// Where it does not answer within a minute.
    pub fn run_session(&mut self, program: &Program, name: &str) -> Result<(SocketAddr, Box<dyn Session>), Error> {
        let addresses = self.run_program(program, name, "")?;
        let address = *addresses.first().ok_or_else(|| Error::Missing { what: format!("port of {name}") })?;
        let session = eventually_ok(&format!("{name} answers"), TURN_TIMEOUT, || program.connect(address))?;
        Ok((address, session))
    }

    /// The app's state, as `running` or `dozing`.
    ///
    /// # Errors
    /// Where there is no such app.
    pub fn state(&self, app: &str) -> Result<String, Error> {
        let detail = self.json(&["inspect", app])?;
        let state = detail["status"]["state"].as_str().map(str::to_owned);
        state.ok_or_else(|| Error::answer("torpor inspect", "status.state", detail.to_string()))
    }

    /// Waits until the app's state is `wanted`.
    ///
    /// # Errors
    /// Where it is not within `within`; the last state is part of the error.
    pub fn wait_state(&self, app: &str, wanted: &str, within: Duration) -> Result<(), Error> {
        eventually_ok(&format!("{app} is {wanted}"), within, || match self.state(app) {
            Ok(state) if state == wanted => Ok(()),
            Ok(state) => Err(format!("it is {state}")),
            Err(error) => Err(error.to_string()),
        })
    }

    /// Kills the daemon (-9) and waits for its end. Apps and keeper live on.
    ///
    /// # Errors
    /// Where it cannot be killed.
    pub fn kill9(&mut self) -> Result<(), Error> {
        self.signal(Signal::KILL).map(drop)
    }

    /// Asks the daemon to end (SIGTERM) and waits for its end. Apps and keeper live on.
    ///
    /// # Errors
    /// Where it does not end in time.
    pub fn term(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.signal(Signal::TERM)
    }

    /// Makes it as it is after a power cut: the daemon, its keeper and all apps are gone, with them every namespace, cgroup and
    /// rule, and what was in the run directory. Only the data directory is left.
    ///
    /// # Errors
    /// Where something cannot be taken away.
    pub fn power_off(&mut self) -> Result<(), Error> {
        self.disk.as_ref().map_or(Ok(()), Disk::cut)?;
        self.kill9()?;
        power_off(&self.instance())?;
        let run = self.run_dir();
        fs::remove_dir_all(&run).map_err(Error::file("remove", &run))?;
        self.disk.as_ref().map_or(Ok(()), Disk::restore)
    }

    fn signal(&mut self, signal: Signal) -> Result<Option<ExitStatus>, Error> {
        let Some(mut child) = self.child.take() else { return Ok(None) };
        let failed = |source| Error::Spawn { program: "torpor up".into(), hint: "it should be our child", source };
        if let Some(pid) = Pid::from_raw(child.id().cast_signed()) {
            kill_process(pid, signal).map_err(|errno| failed(errno.into()))?;
        }
        let ended = eventually_ok("torpor up ends", TURN_TIMEOUT, || match child.try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err("it still runs".to_owned()),
            Err(error) => Err(error.to_string()),
        });
        if ended.is_err() {
            child.kill().and_then(|()| child.wait()).map_err(failed)?;
        }
        ended.map(Some)
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        tail(&self.path("log"))
    }

    /// Puts everything to rest by `torpor down` and ends the daemon; what it left behind.
    ///
    /// A daemon that was killed is started once more for it, without the environment that the test gave it.
    ///
    /// # Errors
    /// Where `torpor down` fails.
    pub fn down(&mut self) -> Result<Vec<String>, Error> {
        self.live = false;
        if !self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None))) {
            self.environment.clear();
            let up = self.up();
            self.live = false;
            up?;
        }
        let config = self.path("torpor.toml");
        let down = self.ok(&[OsStr::new("down"), OsStr::new("--config"), config.as_os_str(), OsStr::new("--discard")]);
        let ended = if down.is_ok() { self.wait_for_end() } else { self.kill9() };
        down?;
        ended?;
        self.disk = None;
        Ok(leftovers(&self.instance(), &[self.dir.path()]))
    }

    /// `torpor down` ends the daemon itself; where it only rested it, SIGTERM does.
    fn wait_for_end(&mut self) -> Result<(), Error> {
        let running = self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        if running {
            self.term()?;
        }
        self.child = None;
        Ok(())
    }
}

fn tail(path: &Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.chars().skip(text.chars().count().saturating_sub(LOG_CHARS)).collect()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if !self.live {
            // Put to rest by the test; or it never listened, which the test has heard already.
            if let Err(error) = self.kill9() {
                eprintln!("{error}");
            }
            return;
        }
        let outcome = self.down();
        if std::thread::panicking() {
            eprintln!("log of the daemon:\n{}\nleft behind: {outcome:?}", self.log());
            return;
        }
        match outcome {
            Ok(left) => assert!(left.is_empty(), "torpor down left behind {left:#?}; log:\n{}", self.log()),
            Err(error) => panic!("torpor down failed: {error}; log:\n{}", self.log()),
        }
    }
}

#[cfg(test)]
mod tests;
