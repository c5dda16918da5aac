//! A runc container, configured as container engines do, which CRIU checkpoints and restores. It can be started repeatedly.
//!
//! Its network namespace is created once, as an engine does, and not by starts and restores.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};
use torpor_proc::{self as proc, mounts::Mount};

use super::{CONNECTIONS, ENVIRONMENT, Netns, criu_binary};
use crate::error::{Error, chain, run};

/// Capabilities of a container by default (OCI).
const CAPABILITIES: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// Where runc keeps a directory for each container.
const STATE: &str = "/run/runc";

/// See the module. Dropping it ends the processes in it.
#[derive(Debug)]
pub(crate) struct Container {
    criu: PathBuf,
    id: String,
    bundle: PathBuf,
    netns: Netns,
    /// A further option of checkpoints and restores.
    option: Option<&'static str>,
}

impl Container {
    /// Prepares a container named `name` in the directory `bundle`, which is created. Its files belong in
    /// [`Container::root`].
    pub(crate) fn make(name: &str, bundle: &Path) -> Result<Self, Error> {
        let criu = criu_binary()?;
        run(Command::new("runc").arg("--version"))
            .map_err(|_| Error::Missing { what: "runc".to_owned(), hint: "install the package runc" })?;
        let netns = Netns::make(0)?;
        let id = format!("bench-{}-{name}", std::process::id());
        let container = Self { criu, id, bundle: bundle.to_owned(), netns, option: None };
        let root = container.root();
        fs::create_dir_all(&root).map_err(Error::file("make the directory", root))?;
        Ok(container)
    }

    /// The same container, whose TCP connections are saved and restored.
    pub(super) const fn with_connections(mut self) -> Self {
        self.option = Some(CONNECTIONS);
        self
    }

    /// The directory that becomes its root.
    pub(crate) fn root(&self) -> PathBuf {
        self.bundle.join("rootfs")
    }

    pub(super) const fn netns(&self) -> &Netns {
        &self.netns
    }

    /// A UDP socket in its network, bound to the loopback address there.
    pub(crate) fn udp_socket(&self) -> io::Result<UdpSocket> {
        let namespace = fs::File::open(self.netns.path())?;
        let bind = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
        };
        // The thread enters the namespace and ends; the socket stays.
        let bound = std::thread::scope(|scope| scope.spawn(bind).join());
        bound.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Ends what runs in it and starts `program`. Returns the process id on the machine.
    pub(crate) fn start(&self, program: &[String]) -> Result<Pid, Error> {
        self.end()?;
        let config = serde_json::to_vec_pretty(&self.config(program)?)?;
        let path = self.bundle.join("config.json");
        fs::write(&path, config).map_err(Error::file("write", path))?;
        let pid = self.bundle.join("pid");
        self.detached(self.command("run", |command| {
            command.arg("--detach").arg("--bundle").arg(&self.bundle).arg("--pid-file").arg(&pid);
        }))?;
        let text = fs::read_to_string(&pid).map_err(Error::file("read", &pid))?;
        let number = text.trim().parse().ok().and_then(Pid::from_raw);
        number.ok_or_else(|| torpor_testkit::Error::answer("runc", "a process id", text).into())
    }

    /// The command that checkpoints it into the directory `images` and ends it.
    pub(crate) fn checkpoint(&self, images: &Path) -> Command {
        self.command("checkpoint", |command| {
            command.arg("--image-path").arg(images).arg("--work-path").arg(self.work());
            command.args(self.option);
        })
    }

    /// The command that restores it and detaches.
    pub(crate) fn restore(&self, images: &Path) -> Command {
        self.command("restore", |command| {
            command.arg("--detach").arg("--bundle").arg(&self.bundle);
            command.arg("--image-path").arg(images).arg("--work-path").arg(self.work());
            command.args(self.option);
        })
    }

    /// CRIU's log of the last checkpoint.
    pub(crate) fn dump_log(&self) -> PathBuf {
        self.work().join("dump.log")
    }

    /// CRIU's log of the last restore.
    pub(crate) fn restore_log(&self) -> PathBuf {
        self.work().join("restore.log")
    }

    /// Runs a command that detaches from a program. The program inherits `/dev/null`: CRIU cannot dump other files from outside
    /// the container, and a pipe would stay open.
    pub(super) fn detached(&self, mut command: Command) -> Result<(), Error> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let status = command.status().map_err(Error::spawn("runc"))?;
        if status.success() {
            return Ok(());
        }
        let (command, status) = (format!("{command:?}"), status.to_string());
        let stderr = fs::read_to_string(self.log()).unwrap_or_default();
        Err(torpor_testkit::Error::Command { command, status, stderr }.into())
    }

    /// Ends everything that runs in it, and removes what an interrupted CRIU has left.
    pub(crate) fn end(&self) -> Result<(), Error> {
        // During a restore, runc does not know the processes yet.
        for pid in processes_of(&self.id).map_err(Error::file("list", "/proc"))? {
            // It may have ended together with process 1 of the container.
            let _ = kill_process(pid, Signal::KILL);
        }
        // Removing the directories, by us or by runc, must not remove files of what is mounted there.
        let (work, state) = (self.work(), Path::new(STATE).join(&self.id));
        for dir in [&work, &state] {
            unmount_below(dir).map_err(Error::file("unmount what a restore has mounted in", dir))?;
        }
        let mut delete = self.command("delete", |command| {
            command.arg("--force");
        });
        run(&mut delete)?;
        // Otherwise old logs would be reported for a later failure.
        for path in [work.join("dump.log"), work.join("restore.log"), self.log()] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::file("remove", path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Creates its network namespace again after a failed checkpoint or restore. Nothing may run in it.
    pub(crate) fn renew_network(&self) -> Result<(), Error> {
        self.netns.renew()
    }

    fn command(&self, what: &str, arguments: impl FnOnce(&mut Command)) -> Command {
        let mut command = Command::new("runc");
        command.arg("--criu").arg(&self.criu).arg("--log").arg(self.log()).arg(what);
        arguments(&mut command);
        // runc accepts no flags after the id.
        command.arg(&self.id);
        command
    }

    /// Work directory of CRIU: its logs, and the cgroups that it mounts.
    fn work(&self) -> PathBuf {
        self.bundle.join("work")
    }

    /// runc's log.
    fn log(&self) -> PathBuf {
        self.bundle.join("log")
    }

    /// The output of `runc spec`, changed to what container engines use.
    fn config(&self, program: &[String]) -> Result<Value, Error> {
        let dir = tempfile::tempdir().map_err(Error::file("make a directory in", std::env::temp_dir()))?;
        run(Command::new("runc").args(["spec", "--bundle"]).arg(dir.path()))?;
        let path = dir.path().join("config.json");
        let text = fs::read(&path).map_err(Error::file("read", path))?;
        let mut config: Value = serde_json::from_slice(&text)?;
        config["process"]["terminal"] = false.into();
        config["process"]["args"] = json!(program);
        config["process"]["env"] = json!(ENVIRONMENT.map(|(name, value)| format!("{name}={value}")));
        config["process"]["user"] = json!({ "uid": 0, "gid": 0 });
        for set in ["bounding", "effective", "permitted"] {
            config["process"]["capabilities"][set] = json!(CAPABILITIES);
        }
        config["process"]["noNewPrivileges"] = false.into();
        config["root"] = json!({ "path": self.root(), "readonly": false });
        if let Some(namespaces) = config["linux"]["namespaces"].as_array_mut() {
            namespaces.retain(|namespace| namespace["type"] != "network" && namespace["type"] != "cgroup");
            namespaces.push(json!({ "type": "network", "path": self.netns.path() }));
        }
        Ok(config)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("removing the benchmark's container: {}", chain(&error));
        }
    }
}

/// The processes whose cgroups have the name `group`.
fn processes_of(group: &str) -> io::Result<Vec<Pid>> {
    let mut found = Vec::new();
    for pid in proc::processes::all()? {
        // It may have ended.
        let groups = proc::read(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
        if groups.lines().any(|line| line.rsplit('/').next() == Some(group)) {
            found.extend(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

/// Unmounts everything below `dir`, so that removing it never touches another file system.
fn unmount_below(dir: &Path) -> io::Result<()> {
    let places: Vec<PathBuf> = proc::mounts::read("/proc/self")?.iter().map(Mount::place).collect();
    // The last mount first.
    for place in places.iter().rev().filter(|place| place.starts_with(dir)) {
        unmount(place, UnmountFlags::empty())?;
    }
    Ok(())
}

/// The errors in a log of CRIU.
pub(crate) fn errors_of(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let errors: Vec<&str> = text.lines().filter(|line| line.contains("Error")).collect();
    errors.join("; ")
}
