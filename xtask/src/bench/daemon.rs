//! The daemon that a benchmark starts for itself.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::{Error, chain, run};

/// Configuration with which images stay in the page cache, except where a benchmark itself drops them from it.
pub(crate) const IMAGES_CACHED: &str = "[memory]\ncached_images = \"100G\"\n";
/// Limit for the kernel to remove the interfaces of a thousand apps.
const GONE_WITHIN: Duration = Duration::from_secs(60);
/// Limit for an app to fall asleep.
const ASLEEP_WITHIN: Duration = Duration::from_secs(60);
/// Limit for a start that adopts a thousand apps.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// A daemon with its own directories, network table and cgroups. Dropping it removes all of them.
#[derive(Debug)]
pub(crate) struct Daemon {
    program: PathBuf,
    child: Child,
    dir: tempfile::TempDir,
    instance: String,
    apps: Vec<String>,
}

impl Daemon {
    /// Starts `program up`; `tables` are added to its configuration.
    pub(crate) fn start(program: &Path, tables: &str) -> Result<Self, Error> {
        // Not /tmp: it may be a tmpfs, and images would then be in memory.
        let base = if Path::new("/var/tmp").is_dir() { PathBuf::from("/var/tmp") } else { std::env::temp_dir() };
        let made = tempfile::Builder::new().prefix("torpor-bench-").tempdir_in(&base);
        let dir = made.map_err(Error::file("make a directory in", &base))?;
        let pid = std::process::id();
        let home = dir.path().display();
        let instance = format!("bench{pid}");
        let config = format!(
            "instance = \"{instance}\"\ndata_dir = \"{home}/data\"\nrun_dir = \"{home}/run\"\n\
             [network]\nv4_pool = \"10.{}.0.0/16\"\nv6_pool = \"fd62:656e:6368:{:x}::/64\"\n[log]\nlevel = \"warn\"\n{tables}",
            216 + pid % 32,
            pid % 0xffff,
        );
        let path = dir.path().join("torpor.toml");
        fs::write(&path, config).map_err(Error::file("write", &path))?;
        let child = up(program, dir.path())?;
        let mut daemon = Self { program: program.to_owned(), child, dir, instance, apps: Vec::new() };
        daemon.listens()?;
        Ok(daemon)
    }

    /// Waits until it answers.
    fn listens(&mut self) -> Result<(), Error> {
        let begun = Instant::now();
        while let Err(error) = self.call(&["ps", "--json"]) {
            let ended = self.child.try_wait().is_ok_and(|status| status.is_some());
            if ended || begun.elapsed() > START_TIMEOUT {
                eprintln!("log of torpor up: {}", self.log());
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Simulates a reboot: removes the processes, namespaces, cgroups, rules and run directory of the daemon, and starts it
    /// again. Returns the time from the start until the daemon serves all of its sleeping apps.
    pub(crate) fn reboot(&mut self) -> Result<Duration, Error> {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        ended.map_err(Error::file("end", &self.program))?;
        torpor_testkit::daemon::power_off(&self.instance)?;
        // The kernel removes namespaces in the background, one after the other, and each only when no connection in it has
        // anything left to send.
        let begun = Instant::now();
        while begun.elapsed() < GONE_WITHIN && !torpor_testkit::daemon::leftovers(&self.instance, &[]).is_empty() {
            std::thread::sleep(Duration::from_millis(100));
        }
        let run_dir = self.dir.path().join("run");
        fs::remove_dir_all(&run_dir).map_err(Error::file("remove", &run_dir))?;
        let begun = Instant::now();
        self.child = up(&self.program, self.dir.path())?;
        self.listens()?;
        // It answers before it has adopted its apps.
        while !self.has_adopted()? {
            if begun.elapsed() > START_TIMEOUT {
                return Err(Error::Benchmarks("not all apps are back".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(begun.elapsed())
    }

    /// Whether all its apps are back after a start.
    fn has_adopted(&self) -> Result<bool, Error> {
        let apps = self.json(&["ps"])?;
        let states = apps.as_array().into_iter().flatten().map(|app| app["state"].as_str());
        Ok(!states.into_iter().any(|state| matches!(state, Some("adopting" | "starting"))))
    }

    /// Its log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_else(|error| error.to_string())
    }

    /// Its name, which is part of its cgroups' paths.
    pub(crate) fn instance(&self) -> &str {
        &self.instance
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs `torpor ARGUMENTS`.
    pub(crate) fn call(&self, arguments: &[&str]) -> Result<Vec<u8>, Error> {
        let socket = self.dir.path().join("run/api.sock");
        run(Command::new(&self.program).arg("--socket").arg(socket).args(arguments)).map(|output| output.stdout)
    }

    /// Runs `torpor ARGUMENTS --json`.
    pub(crate) fn json(&self, arguments: &[&str]) -> Result<Value, Error> {
        let mut all = arguments.to_vec();
        all.push("--json");
        Ok(serde_json::from_slice(&self.call(&all)?)?)
    }

    /// Stores a tarball as an image.
    pub(crate) fn load(&self, name: &str, tarball: &Path) -> Result<(), Error> {
        self.call(&["images", "load", name, &tarball.display().to_string()]).map(drop)
    }

    /// Runs an app from a stored image; `settings` are flags of `torpor run`.
    pub(crate) fn run_app(
        &mut self,
        name: &str,
        image: &str,
        settings: &[String],
        command: &[String],
    ) -> Result<(), Error> {
        let image = format!("image:{image}");
        let mut arguments = vec!["run", "--name", name];
        arguments.extend(settings.iter().map(String::as_str));
        arguments.extend([image.as_str(), "--"]);
        arguments.extend(command.iter().map(String::as_str));
        self.call(&arguments)?;
        self.apps.push(name.to_owned());
        Ok(())
    }

    /// Puts an app to sleep. Late packets of our own last request may abort an attempt; it is repeated.
    pub(crate) fn sleep(&self, app: &str, level: &str) -> Result<(), Error> {
        let begun = Instant::now();
        loop {
            match self.call(&["sleep", app, "--level", level]) {
                Ok(_) => return Ok(()),
                Err(error) if begun.elapsed() > ASLEEP_WITHIN => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// The images of the app `app_id`.
    pub(crate) fn images(&self, app_id: &str) -> Result<Vec<PathBuf>, Error> {
        let dir = self.dir.path().join("data/apps").join(app_id);
        let mut found = Vec::new();
        for entry in fs::read_dir(&dir).map_err(Error::file("list", &dir))? {
            let path = entry.map_err(Error::file("list", &dir))?.path();
            if path.extension().is_some_and(|extension| extension == "image") {
                found.push(path);
            }
        }
        Ok(found)
    }

    fn take_down(&mut self) -> Result<(), Error> {
        for apps in std::mem::take(&mut self.apps).chunks(100) {
            let mut arguments = vec!["rm", "-f"];
            arguments.extend(apps.iter().map(String::as_str));
            self.call(&arguments)?;
        }
        let config = self.dir.path().join("torpor.toml").display().to_string();
        self.call(&["down", "--config", &config]).map(drop)
    }
}

/// Starts `program up` with the configuration in `dir`.
fn up(program: &Path, dir: &Path) -> Result<Child, Error> {
    let log_path = dir.join("log");
    let log = File::options().create(true).append(true).open(&log_path).map_err(Error::file("open", &log_path))?;
    let mut command = Command::new(program);
    command.arg("up").arg("--config").arg(dir.join("torpor.toml"));
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
    spawned.map_err(Error::spawn(program.display().to_string()))
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Err(error) = self.take_down() {
            eprintln!("taking down the benchmark's daemon: {}; its log: {}", chain(&error), self.log());
        }
        // If `down` did not end it.
        let ended = self.child.kill().and_then(|()| self.child.wait());
        if let Err(error) = ended {
            eprintln!("ending the benchmark's daemon: {error}");
        }
    }
}

/// First port to try, below the range that the kernel uses for clients.
const FIRST_PORT: u16 = 20_000;
/// Ports of one benchmark, and the number of such blocks. Others that run at the same time begin at another block, unless
/// their process ids are a multiple of that number apart.
const PORT_BLOCK: u16 = 1_500;
const PORT_BLOCKS: u32 = 8;
static NEXT_PORT: AtomicU16 = AtomicU16::new(0);

/// A port on which nobody listens, TCP or UDP, and that was not returned before: published ports are not bound.
pub(crate) fn free_port() -> Result<u16, Error> {
    let first = FIRST_PORT + (std::process::id() % PORT_BLOCKS) as u16 * PORT_BLOCK;
    loop {
        let Some(port) = first.checked_add(NEXT_PORT.fetch_add(1, Ordering::Relaxed)) else {
            return Err(Error::Missing { what: "free port".to_owned(), hint: "all from 20000 on are taken" });
        };
        let address = (Ipv4Addr::UNSPECIFIED, port);
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return Ok(port);
        }
    }
}
