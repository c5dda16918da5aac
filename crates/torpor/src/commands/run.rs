//! `run`: the description of an app from a file and flags.
//!
//! The result is a sparse document (see [`torpor_api::document`]): what the user did not say is left to the daemon.

use std::io::Read;
use std::path::Path;

use ipnet::IpNet;
use serde::Serialize;
use serde_json::{Map, Value};
use torpor_api::client::Client;
use torpor_api::document::{self, DOCUMENT_BYTES};
use torpor_api::parse::{self, SourceHint};
use torpor_api::spec::{Restart, Source, WakeBlocked, WakeOn};

use super::settle::Before;
use crate::cli::{RestartArg, RunArgs, WakeBlockedArg, WakeOnArg};
use crate::failure::Failure;
use crate::progress::Bars;

pub(super) async fn run(client: &Client, args: RunArgs) -> Result<(), Failure> {
    let here = std::env::current_dir()
        .map_err(|source| Failure::Terminal { what: "find out the working directory", source })?;
    let (json, timeout) = (args.json, args.wait.timeout);
    let document = describe(args, &here, |name| std::env::var(name).ok())?;
    let before = Before::now(client).await?;
    let mut bars = Bars::new();
    let made = client.create_within(&document, timeout, |step| bars.step(&step)).await;
    bars.clear();
    before.show(client, made?, json).await
}

/// What the flags say about the kind of source.
pub(super) fn hint(oci_layout: bool, docker_archive: bool) -> SourceHint {
    match (oci_layout, docker_archive) {
        (true, _) => SourceHint::OciLayout,
        (_, true) => SourceHint::DockerArchive,
        _ => SourceHint::Detect,
    }
}

/// The document that file and flags describe, checked as far as it can be without the daemon.
fn describe(args: RunArgs, here: &Path, env: impl Fn(&str) -> Option<String>) -> Result<Value, Failure> {
    let mut document = match &args.file {
        Some(file) => from_file(file, here)?,
        None => Map::new(),
    };
    lay_over(&mut document, args, here, env)?;
    if !document.contains_key("source") {
        return Err(Failure::Usage(
            "say where the app's files are: torpor run SOURCE, or source in -f FILE".to_owned(),
        ));
    }
    if !document.contains_key("name") {
        let source: Result<Source, _> = serde_json::from_value(document["source"].clone());
        let name = source.ok().as_ref().and_then(parse::name_from);
        let name = name.ok_or_else(|| Failure::Usage("give the app a name: --name NAME".to_owned()))?;
        document.insert("name".to_owned(), Value::from(name));
    }
    let document = Value::Object(document);
    document::to_spec(document.clone())?.validate()?;
    Ok(document)
}

fn from_file(file: &Path, here: &Path) -> Result<Map<String, Value>, Failure> {
    let failed = |source| Failure::Read { path: file.to_owned(), source };
    let mut text = String::new();
    let most = DOCUMENT_BYTES as u64 + 1;
    let (read, from) = if file == Path::new("-") {
        (std::io::stdin().take(most).read_to_string(&mut text), here.to_owned())
    } else {
        let opened = std::fs::File::open(file).map_err(failed)?;
        let from = here.join(file.parent().unwrap_or(Path::new("")));
        (opened.take(most).read_to_string(&mut text), from)
    };
    read.map_err(failed)?;
    // Shown with the lines of the file that it is about.
    let mut document = document::from_toml(&text).map_err(|error| Failure::Usage(error.message))?;
    document::root_paths(&mut document, &from);
    Ok(document)
}

/// Writes the flags over a document; lists are added to.
fn lay_over(
    document: &mut Map<String, Value>,
    args: RunArgs,
    here: &Path,
    env: impl Fn(&str) -> Option<String>,
) -> Result<(), Failure> {
    let mut top = Layer(document);
    top.set("name", args.name)?;
    if let Some(text) = &args.source {
        let mut source = hint(args.oci_layout, args.docker_archive).detect(text)?;
        match (&mut source, args.base) {
            (Source::Tarball { base, .. }, given) => *base = given,
            (_, Some(_)) => return Err(Failure::Usage("--base goes with a tarball".to_owned())),
            (_, None) => {}
        }
        top.set("source", Some(source))?;
    } else if args.oci_layout || args.docker_archive || args.base.is_some() {
        let message = "--oci-layout, --docker-archive and --base go with a source on the command line";
        return Err(Failure::Usage(message.to_owned()));
    }
    top.set("command", (!args.command.is_empty()).then_some(args.command))?;
    top.set("user", args.user)?;
    top.set("workdir", args.workdir)?;
    top.set("hostname", args.hostname)?;
    top.add("ports", args.ports)?;
    top.add("volumes", args.volumes)?;
    top.add("tmpfs", args.tmpfs)?;
    top.set("restart", args.restart.map(Restart::from))?;
    document::root_paths(top.0, here);
    resolve_volumes(top.0);

    let mut settings = Vec::new();
    for file in &args.env_file {
        let text = std::fs::read_to_string(file).map_err(|source| Failure::Read { path: file.clone(), source })?;
        settings.extend(parse::env_file(&text)?);
    }
    for text in &args.env {
        settings.push(parse::env(text, &env)?);
    }
    if !settings.is_empty() {
        let mut layer = top.table("env")?;
        for (name, value) in settings {
            layer.set(&name, Some(value))?;
        }
    }
    let (memory, cpus, processes) = (args.memory, args.cpus, args.processes);
    let (open_files, disk) = (args.open_files, args.disk);
    if memory.is_some() || cpus.is_some() || processes.is_some() || open_files.is_some() || disk.is_some() {
        let mut limits = top.table("limits")?;
        limits.set("memory", memory)?;
        limits.set("cpus", cpus)?;
        limits.set("processes", processes)?;
        limits.set("open_files", open_files)?;
        limits.set("disk", disk)?;
    }
    let mut idle = top.table("idle")?;
    idle.set("after", args.idle_after)?;
    idle.set("warm_after", args.warm_after)?;
    idle.set("min_awake", args.min_awake)?;
    idle.set("cpu_percent", args.idle_cpu)?;
    idle.set("timers_over", args.timers_over)?;
    idle.set("sleep", args.no_sleep.then_some(false))?;
    idle.set("with_connections", args.connections_keep_awake.then_some(false))?;
    idle.set("wake_on", args.wake_on.map(WakeOn::from))?;
    idle.set("wake_blocked", args.wake_blocked.map(WakeBlocked::from))?;
    idle.set("working_set", args.working_set)?;
    idle.add("ignore", args.ignore.iter().map(|text| network(text)).collect::<Result<Vec<_>, _>>()?)?;
    let mut security = top.table("security")?;
    security.set("read_only", args.read_only.then_some(true))?;
    security.set("no_new_privs", args.no_new_privs.then_some(true))?;
    security.set("user_namespace", args.no_userns.then_some(false))?;
    security.set("seccomp", args.no_seccomp.then_some(false))?;
    security.add("cap_add", args.cap_add)?;
    security.add("cap_drop", args.cap_drop)?;
    let mut net = top.table("network")?;
    net.set("outgoing", args.no_outgoing.then_some(false))?;
    net.add("join", args.network)
}

/// A network, or one address.
fn network(text: &str) -> Result<IpNet, Failure> {
    let address = text.parse::<std::net::IpAddr>().map(IpNet::from);
    address.or_else(|_| text.parse()).map_err(|_| {
        Failure::Usage(format!("--ignore `{text}` is not an address or network: write 10.0.0.1 or 10.0.0.0/8"))
    })
}

/// One table of a document.
struct Layer<'a>(&'a mut Map<String, Value>);

impl Layer<'_> {
    fn set(&mut self, key: &str, value: Option<impl Serialize>) -> Result<(), Failure> {
        if let Some(value) = value {
            self.0.insert(key.to_owned(), serde_json::to_value(value)?);
        }
        Ok(())
    }

    fn add(&mut self, key: &str, values: Vec<impl Serialize>) -> Result<(), Failure> {
        if values.is_empty() {
            return Ok(());
        }
        let list = self.0.entry(key).or_insert_with(|| Value::Array(Vec::new()));
        let Value::Array(list) = list else {
            return Err(Failure::Usage(format!("{key} in the file is not a list")));
        };
        for value in values {
            list.push(serde_json::to_value(value)?);
        }
        Ok(())
    }

    fn table(&mut self, key: &str) -> Result<Layer<'_>, Failure> {
        match self.0.entry(key).or_insert_with(|| Value::Object(Map::new())) {
            Value::Object(table) => Ok(Layer(table)),
            _ => Err(Failure::Usage(format!("{key} in the file is not a table"))),
        }
    }
}

impl From<RestartArg> for Restart {
    fn from(arg: RestartArg) -> Self {
        match arg {
            RestartArg::No => Self::No,
            RestartArg::OnFailure => Self::OnFailure,
            RestartArg::Always => Self::Always,
        }
    }
}

impl From<WakeBlockedArg> for WakeBlocked {
    fn from(arg: WakeBlockedArg) -> Self {
        match arg {
            WakeBlockedArg::Wait => Self::Wait,
            WakeBlockedArg::Restart => Self::Restart,
        }
    }
}

impl From<WakeOnArg> for WakeOn {
    fn from(arg: WakeOnArg) -> Self {
        match arg {
            WakeOnArg::Connect => Self::Connect,
            WakeOnArg::Data => Self::Data,
        }
    }
}

/// Writes volumes as where their paths lead now: at every start they must lead there without links.
fn resolve_volumes(document: &mut Map<String, Value>) {
    let volumes = document.get_mut("volumes").and_then(Value::as_array_mut);
    for host in volumes.into_iter().flatten().filter_map(|volume| volume.get_mut("host")) {
        // What is not there is told by the daemon.
        let resolved = host.as_str().and_then(|path| std::fs::canonicalize(path).ok());
        if let Some(path) = resolved.as_deref().and_then(Path::to_str) {
            *host = path.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn described(line: &[&str], here: &Path) -> Result<Value, Failure> {
        let Command::Run(args) = Cli::try_parse_from([&["torpor", "run"], line].concat()).unwrap().command else {
            panic!("not run");
        };
        describe(*args, here, |name| (name == "HOME").then(|| "/root".to_owned()))
    }

    #[test]
    fn flags_become_a_sparse_document() {
        let here = tempfile::tempdir().unwrap();
        std::fs::write(here.path().join("vars"), "A=1\n# no\nB=x=y\n").unwrap();
        let vars = here.path().join("vars");
        let line = [
            "tar:app.tar",
            "--base",
            "debian",
            "-p",
            "127.0.0.1:5353:53/udp",
            "-e",
            "A=2",
            "-e",
            "HOME",
            "--env-file",
            vars.to_str().unwrap(),
            "-v",
            "data:/data:ro",
            "--memory",
            "64M",
            "--no-sleep",
            "--warm-after",
            "never",
            "--wake-on",
            "data",
            "--ignore",
            "10.0.0.7",
            "--cap-drop",
            "all",
            "--no-userns",
            "--network",
            "back",
            "--restart",
            "always",
            "--",
            "/bin/server",
            "-v",
        ];
        let document = described(&line, here.path()).unwrap();
        let root = here.path().to_str().unwrap();
        let expected = serde_json::json!({
            "name": "app",
            "source": {"tarball": {"path": format!("{root}/app.tar"), "base": "debian"}},
            "command": ["/bin/server", "-v"],
            "env": {"A": "2", "B": "x=y", "HOME": "/root"},
            "ports": [{"host_ip": "127.0.0.1", "host": 5353, "app": 53, "protocol": "udp"}],
            "volumes": [{"host": format!("{root}/data"), "app": "/data", "read_only": true}],
            "limits": {"memory": "64M"},
            "restart": "always",
            "idle": {"sleep": false, "warm_after": "never", "wake_on": "data", "ignore": ["10.0.0.7/32"]},
            "security": {"user_namespace": false, "cap_drop": ["all"]},
            "network": {"join": ["back"]},
        });
        assert_eq!(document, expected);
    }

    #[test]
    fn volumes_are_written_without_links() {
        let here = tempfile::tempdir().unwrap();
        let root = here.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("data")).unwrap();
        std::os::unix::fs::symlink("data", root.join("link")).unwrap();
        std::fs::write(root.join("app.tar"), "").unwrap();
        let document = described(&["tar:app.tar", "--name", "a", "-v", "link:/a", "-v", "none:/b"], &root).unwrap();
        let hosts: Vec<_> = document["volumes"].as_array().unwrap().iter().map(|volume| &volume["host"]).collect();
        assert_eq!(hosts, [root.join("data").to_str().unwrap(), root.join("none").to_str().unwrap()]);
    }

    #[test]
    fn flags_go_over_the_file() {
        let here = tempfile::tempdir().unwrap();
        let file = here.path().join("sub/app.toml");
        std::fs::create_dir(here.path().join("sub")).unwrap();
        let text = "
            name = 'web'
            command = ['/a']
            [source.tarball]
            path = 'app.tar'
            [[ports]]
            host = 8080
            app = 80
            [idle]
            after = '5m'
            cpu_percent = 10.0
        ";
        std::fs::write(&file, text).unwrap();
        let line = ["-f", "sub/app.toml", "--name", "web2", "-p", "1:2", "--idle-after", "1m"];
        // Relative to `here`, not to the process's own directory.
        let mut absolute = line;
        absolute[1] = file.to_str().unwrap();
        let document = described(&absolute, here.path()).unwrap();
        assert_eq!(document["name"], "web2");
        assert_eq!(document["ports"].as_array().unwrap().len(), 2);
        assert_eq!(document["idle"], serde_json::json!({"after": "1m", "cpu_percent": 10.0}));
        let path = here.path().join("sub/app.tar");
        assert_eq!(document["source"]["tarball"]["path"], path.to_str().unwrap());
    }

    #[test]
    fn refuses_with_the_reason() {
        let here = tempfile::tempdir().unwrap();
        for (line, about, code) in [
            (&["missing.tar"][..], "no file", 3),
            (&[][..], "where the app's files are", 2),
            (&["tar:x", "-e", "NOT_SET"][..], "environment", 2),
            (&["image:debian", "--base", "x"][..], "--base", 2),
            (&["tar:x", "--name", "No Name"][..], "not a name", 2),
            (&["tar:x", "--ignore", "everyone"][..], "--ignore", 2),
            (&["tar:x", "--cap-add", "CAP_FLY"][..], "CAP_FLY", 2),
            (&["tar:x", "-p", "80:80", "-p", "127.0.0.1:80:81"][..], "same port", 2),
            (&["-f", "/nonexistent.toml"][..], "/nonexistent.toml", 3),
        ] {
            let failure = described(line, here.path()).expect_err(&format!("{line:?}"));
            assert!(failure.text().contains(about), "{line:?}: {}", failure.text());
            assert_eq!(failure.code(), code, "{line:?}: {}", failure.text());
        }
    }
}
