//! What an app's sandbox and network are made of.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;

use torpor_api::spec::{self, AppSpec};
use torpor_api::worker::AppRecord;
use torpor_network::names::ResolvConf;
use torpor_network::{AppNetwork, Protocol, Published};
use torpor_sandbox::{EtcFiles, Limits, Program, SandboxSpec, Security, TmpfsMount, User, VolumeMount};

use super::start_error::StartError;
use crate::app_files::AppFiles;
use crate::ids;
use crate::shared::Shared;

/// The network of an app.
pub(super) fn network(spec: &AppSpec) -> AppNetwork {
    let published = |port: &spec::Port| Published {
        host_ip: port.host_ip,
        host: port.host,
        app: port.app,
        protocol: match port.protocol {
            spec::Protocol::Tcp => Protocol::Tcp,
            spec::Protocol::Udp => Protocol::Udp,
        },
    };
    AppNetwork {
        ports: spec.ports.iter().map(published).collect(),
        outgoing: spec.network.outgoing,
        join: spec.network.join.clone(),
        ignore: spec.idle.ignore.clone(),
    }
}

/// The sandbox of an app; makes the directories of its own files.
pub(super) fn sandbox_spec(record: &AppRecord, files: &AppFiles, shared: &Shared) -> Result<SandboxSpec, StartError> {
    let (spec, defaults) = (&record.spec, &record.resolved.defaults);
    let command = if spec.command.is_empty() { defaults.command.clone() } else { spec.command.clone() };
    if command.is_empty() {
        return Err(StartError::NoCommand);
    }
    for volume in &spec.volumes {
        fs::metadata(&volume.host).map_err(|error| StartError::Volume(volume.host.clone(), error))?;
    }
    for (folder, mode) in [(files.upper(), 0o755), (files.work(), 0o700)] {
        DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(&folder)
            .map_err(|error| StartError::Files(folder.clone(), error))?;
    }
    let layers = shared.layer_paths(&record.resolved.layers).map_err(StartError::Layers)?;
    let user = user(record, shared)?;
    let workdir = spec.workdir.clone().or_else(|| defaults.workdir.as_ref().map(Into::into));
    let cwd = workdir.filter(|path| !path.as_os_str().is_empty()).unwrap_or_else(|| "/".into());
    let mut env = defaults.env.clone();
    env.extend(spec.env.iter().map(|(name, value)| format!("{name}={value}")));
    let hostname = spec.hostname.clone().unwrap_or_else(|| spec.name.clone());
    Ok(SandboxSpec {
        id: record.id.clone(),
        cgroup_parent: shared.config.instance.clone(),
        layers,
        upper: files.upper(),
        work: files.work(),
        run_dir: files.run.clone(),
        etc: etc_files(shared, record, &hostname),
        hostname,
        ids: spec.security.user_namespace.then(|| ids::range(record.index)),
        volumes: spec
            .volumes
            .iter()
            .map(|v| VolumeMount { host: v.host.clone(), inside: v.app.clone(), read_only: v.read_only })
            .collect(),
        tmpfs: spec.tmpfs.iter().map(|t| TmpfsMount { inside: t.path.clone(), size_bytes: t.size.0 }).collect(),
        limits: Limits {
            memory_bytes: spec.limits.memory.map(|limit| limit.0),
            cpu_us_per_second: spec.limits.cpus.map(|cpus| (cpus * 1e6) as u64),
            processes: spec.limits.processes,
            open_files: spec.limits.open_files,
        },
        security: Security {
            cap_add: spec.security.cap_add.clone(),
            cap_drop: spec.security.cap_drop.clone(),
            seccomp: spec.security.seccomp,
            no_new_privs: spec.security.no_new_privs,
            labels: shared.config.labels.clone(),
        },
        read_only: spec.security.read_only,
        program: Program { command, env, user, cwd },
    })
}

/// The user of the app's program, looked up in its own files.
fn user(record: &AppRecord, shared: &Shared) -> Result<User, StartError> {
    let name = record.spec.user.as_deref().or(record.resolved.defaults.user.as_deref()).unwrap_or_default();
    shared.find_user(&record.resolved.layers, name).map_err(StartError::User)
}

fn etc_files(shared: &Shared, record: &AppRecord, hostname: &str) -> EtcFiles {
    let mut hosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n".to_owned();
    if let Ok(addresses) = shared.config.network.addresses(record.index) {
        for address in addresses.ips() {
            hosts.push_str(&format!("{address}\t{hostname}\n"));
        }
    }
    let names = !record.spec.network.join.is_empty();
    let resolv_conf = ResolvConf::machine().ok().map(|conf| conf.for_app(names));
    EtcFiles { hosts: Some(hosts), resolv_conf, hostname: Some(format!("{hostname}\n")) }
}
