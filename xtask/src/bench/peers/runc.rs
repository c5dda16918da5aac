//! runc with CRIU: a container of the same files, checkpointed and restored.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use super::{ENVIRONMENT, Netns, Peer, criu_binary};
use crate::bench::client::first_byte_since;
use crate::bench::program::Program;
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

/// See the module.
#[derive(Debug)]
pub(crate) struct Runc {
    program: Program,
    netns: Netns,
    criu: PathBuf,
    id: String,
    bundle: PathBuf,
    images: PathBuf,
}

impl Runc {
    pub(super) fn start(program: &Program, dir: &Path) -> Result<Self, Error> {
        let criu = criu_binary()?;
        run(Command::new("runc").arg("--version"))
            .map_err(|_| Error::Missing { what: "runc".to_owned(), hint: "install the package runc" })?;
        let netns = Netns::make(0)?;
        let bundle = dir.join("runc");
        let root = program.unpack_for_root(&bundle)?;
        let config = config(program, &root, &netns.path())?;
        let path = bundle.join("config.json");
        fs::write(&path, serde_json::to_vec_pretty(&config)?).map_err(Error::file("write", path))?;
        let id = format!("bench-{}-{}", std::process::id(), program.name);
        let images = dir.join("runc/images");
        let mut runc = Self { program: program.clone(), netns, criu, id, bundle, images };
        runc.detached("run", &[])?;
        runc.program.warm_up(runc.netns.socket(&runc.program))?;
        runc.rest()?;
        runc.first_byte()?;
        Ok(runc)
    }

    fn command(&self, what: &str) -> Command {
        let mut command = Command::new("runc");
        command.arg("--criu").arg(&self.criu).arg(what);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Runs or restores the container: `runc` ends when the program has been let go. What the program inherits is
    /// `/dev/null`, so there is no output to show if it fails.
    fn detached(&self, what: &str, arguments: &[&str]) -> Result<(), Error> {
        let mut command = self.command(what);
        command.arg("--detach").arg("--bundle").arg(&self.bundle).args(arguments).arg(&self.id);
        let status = command.status().map_err(Error::spawn("runc"))?;
        if status.success() {
            return Ok(());
        }
        let log = self.images.join("work/restore.log");
        let stderr = fs::read_to_string(log).unwrap_or_default();
        let (command, status) = (format!("{command:?}"), status.to_string());
        Err(torpor_testkit::Error::Command { command, status, stderr }.into())
    }
}

impl Peer for Runc {
    fn name(&self) -> &'static str {
        "runc+criu"
    }

    fn level(&self) -> &'static str {
        "image"
    }

    fn rest(&mut self) -> Result<(), Error> {
        if self.images.exists() {
            fs::remove_dir_all(&self.images).map_err(Error::file("remove", &self.images))?;
        }
        let mut command = self.command("checkpoint");
        command.arg("--image-path").arg(&self.images).arg("--work-path").arg(self.images.join("work")).arg(&self.id);
        run(&mut command).map(drop).map_err(|error| {
            error.with_stderr(|| {
                let log = fs::read_to_string(self.images.join("work/dump.log")).unwrap_or_default();
                let errors: Vec<&str> = log.lines().filter(|line| line.contains("Error")).collect();
                errors.join("; ")
            })
        })
    }

    fn first_byte(&mut self) -> Result<f64, Error> {
        let images = self.images.display().to_string();
        let work = format!("{images}/work");
        let begun = Instant::now();
        self.detached("restore", &["--image-path", &images, "--work-path", &work])?;
        first_byte_since(self.netns.socket(&self.program), self.program.protocol, begun)
    }
}

impl Drop for Runc {
    fn drop(&mut self) {
        if let Err(error) = run(self.command("delete").arg("--force").arg(&self.id)) {
            eprintln!("removing the benchmark's container: {}", chain(&error));
        }
    }
}

/// `runc spec`, made into a container as engines make them.
fn config(program: &Program, root: &Path, netns: &str) -> Result<Value, Error> {
    let dir = tempfile::tempdir().map_err(Error::file("make a directory in", std::env::temp_dir()))?;
    run(Command::new("runc").args(["spec", "--bundle"]).arg(dir.path()))?;
    let path = dir.path().join("config.json");
    let text = fs::read(&path).map_err(Error::file("read", path))?;
    let mut config: Value = serde_json::from_slice(&text)?;
    config["process"]["terminal"] = false.into();
    config["process"]["args"] = json!(program.zoo.command);
    config["process"]["env"] = json!(ENVIRONMENT.map(|(name, value)| format!("{name}={value}")));
    config["process"]["user"] = json!({ "uid": 0, "gid": 0 });
    for set in ["bounding", "effective", "permitted"] {
        config["process"]["capabilities"][set] = json!(CAPABILITIES);
    }
    config["process"]["noNewPrivileges"] = false.into();
    config["root"] = json!({ "path": root, "readonly": false });
    if let Some(namespaces) = config["linux"]["namespaces"].as_array_mut() {
        namespaces.retain(|namespace| namespace["type"] != "network" && namespace["type"] != "cgroup");
        namespaces.push(json!({ "type": "network", "path": netns }));
    }
    Ok(config)
}
