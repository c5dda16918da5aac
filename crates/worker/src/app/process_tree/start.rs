//! Starting an app: its files, its sandbox, its network, its program.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::sync::{Arc, PoisonError};

use torpor_api::ErrorKind;
use torpor_api::spec::{self, AppSpec};
use torpor_api::worker::AppRecord;
use torpor_engine::{Journal, Phase};
use torpor_lifecycle::{Event, Policy, RestartPolicy, Share, StartFailure, WakeBlocked};
use torpor_network::names::ResolvConf;
use torpor_network::{Addresses, AppNetwork, NetworkError, Protocol, Published};
use torpor_sandbox::{
    EtcFiles, Limits, Prepared, Program, Sandbox, SandboxError, SandboxRecord, SandboxSpec, Security, TmpfsMount, User,
    VolumeMount,
};

use crate::app::operation::{Kind, Operation};
use crate::app::process_tree::operate::chain;
use crate::app::task::Task;
use crate::app::{AppFiles, Outcome};
use crate::disk::DiskError;
use crate::faults::SandboxStep;
use crate::ids;
use crate::shared::Shared;

/// How long the end of an app's output may be waited for once its processes are gone.
const LAST_OUTPUT: std::time::Duration = std::time::Duration::from_secs(1);

/// A running sandbox with the reading ends of its output.
pub(crate) struct Started {
    pub(crate) sandbox: Sandbox,
    pub(crate) output: [OwnedFd; 2],
}

/// Why an app could not be started. Nothing is left of it then.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// Nothing to run.
    #[error("it has no command, and its image names none")]
    NoCommand,
    /// A volume does not exist.
    #[error("volume {}", .0.display())]
    Volume(std::path::PathBuf, #[source] io::Error),
    /// Its files.
    #[error("its files in {}", .0.display())]
    Files(std::path::PathBuf, #[source] io::Error),
    /// Its disk limit.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Its user.
    #[error(transparent)]
    User(torpor_rootfs::Error),
    /// Its layers.
    #[error(transparent)]
    Layers(torpor_rootfs::Error),
    /// Its output.
    #[error("pipes for its output")]
    Pipe(#[source] io::Error),
    /// Its sandbox.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// Its end could not be watched for.
    #[error("watching its processes")]
    Watch(#[source] io::Error),
    /// Its network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// What others reach of it could not be made again.
    #[error(transparent)]
    Stored(Box<torpor_engine::BootImageError>),
}

/// Whose fault it was that an app could not be started, for the answer to whoever asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: ErrorKind,
    /// Where its program cannot be run: the exit status that a shell gives for this.
    pub(crate) exit_status: Option<i32>,
}

impl Fault {
    /// Nothing has failed yet.
    pub(crate) const fn none() -> Self {
        Self { kind: ErrorKind::Internal, exit_status: None }
    }
}

impl StartError {
    fn fault(&self) -> Fault {
        let exit_status = match self {
            Self::Sandbox(error) => error.exit_status(),
            _ => None,
        };
        Fault { kind: self.kind(), exit_status }
    }

    fn kind(&self) -> ErrorKind {
        match self {
            Self::Sandbox(error) if error.exit_status().is_some() => ErrorKind::Invalid,
            Self::NoCommand | Self::Volume(..) | Self::User(_) => ErrorKind::Invalid,
            Self::Disk(DiskError::Over { .. } | DiskError::TooDeep(_)) => ErrorKind::Conflict,
            Self::Network(NetworkError::Published { .. } | NetworkError::Bound { .. }) => ErrorKind::Conflict,
            _ => ErrorKind::Internal,
        }
    }
}

/// The policy of an app, for the machine.
pub(crate) fn policy(spec: &AppSpec) -> Policy {
    Policy {
        sleep: spec.idle.sleep,
        idle_after: spec.idle.after.0,
        warm_after: spec.idle.warm_after.span().map(|span| span.0),
        min_awake: spec.idle.min_awake.0,
        cpu_limit: Share::from_percent(spec.idle.cpu_percent),
        with_connections: spec.idle.with_connections,
        restart: match spec.restart {
            spec::Restart::No => RestartPolicy::No,
            spec::Restart::OnFailure => RestartPolicy::OnFailure,
            spec::Restart::Always => RestartPolicy::Always,
        },
        wake_blocked: match spec.idle.wake_blocked {
            spec::WakeBlocked::Wait => WakeBlocked::Wait,
            spec::WakeBlocked::Restart => WakeBlocked::Restart,
        },
    }
}

/// The number of the signal that asks the app to end.
pub(crate) fn stop_signal(record: &AppRecord) -> i32 {
    match record.resolved.defaults.stop_signal.as_deref().map(|name| name.trim_start_matches("SIG")) {
        Some("INT" | "2") => 2,
        Some("QUIT" | "3") => 3,
        Some("HUP" | "1") => 1,
        Some("USR1" | "10") => 10,
        Some("USR2" | "12") => 12,
        Some("WINCH" | "28") => 28,
        Some("KILL" | "9") => 9,
        // As images of service managers have it; the first is 34 in the C library's count.
        Some(other) => match other.strip_prefix("RTMIN+").unwrap_or(other).parse() {
            Ok(number @ 0..=30) if other.starts_with("RTMIN+") => 34 + number,
            Ok(number @ 1..=64) => number,
            _ => 15,
        },
        None => 15,
    }
}

/// The network of an app.
pub(crate) fn network(spec: &AppSpec) -> AppNetwork {
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

impl Task {
    pub(crate) fn begin_start(&mut self) {
        let outcomes = self.outcomes();
        let (record, files, shared) = (self.record.clone(), self.files.clone(), self.shared.clone());
        let journal = self.journal.clone();
        if let Some(reason) = self.operation.held_up() {
            // The task itself receives it.
            let _ = outcomes.send(Outcome::Event(Event::StartFailed(reason.into())));
            return;
        }
        let operation = self.begin_operation(Kind::Start, 0);
        tokio::spawn(async move {
            // An image that was given up must not be found after a power cut: what the app writes from now on is newer.
            let own = files.clone();
            let synced = blocking(move || {
                let synced = own.sync_names().and_then(|()| journal.record(Phase::Awake));
                synced.map_err(|error| StartError::Files(own.run, error))
            });
            let result = match synced.await {
                Ok(()) => start(&record, &files, &shared).await,
                Err(error) => Err(error),
            };
            // The task waits for just this.
            let _ = outcomes.send(Outcome::Spawned(operation, Box::new(result)));
        });
    }

    pub(crate) async fn spawned(&mut self, operation: &Arc<Operation>, result: Result<Started, StartError>) {
        let result = match (self.operation.ended(operation), result) {
            (Some(None), result) => result,
            // Nobody waits for it any more.
            (given_up, result) => {
                if let Ok(started) = result {
                    self.take_down(Arc::new(started.sandbox)).await;
                }
                if let Some(Some(reason)) = given_up {
                    self.after_exit().await;
                    self.tell(Event::StartFailed(reason.into())).await;
                }
                return;
            }
        };
        match result {
            Ok(Started { sandbox, output }) => {
                // New processes: nothing of the old ones' waits is true of them.
                self.memories = torpor_engine::WaitHistory::default();
                self.pump_output(output);
                let sandbox = Arc::new(sandbox);
                match self.hold_sandbox(sandbox.clone()) {
                    Ok(()) => self.tell(Event::Started).await,
                    Err(error) => {
                        self.take_down(sandbox).await;
                        self.start_failed(&StartError::Watch(error)).await;
                    }
                }
            }
            Err(error) => self.start_failed(&error).await,
        }
    }

    /// Ends a sandbox that is not held.
    pub(crate) async fn take_down(&self, sandbox: Arc<Sandbox>) {
        let name = self.record.spec.name.clone();
        let destroyed = tokio::task::spawn_blocking(move || {
            if let Err(error) = sandbox.destroy() {
                tracing::error!(app = name, error = %chain(&error), "taking down its sandbox");
            }
        });
        if let Err(error) = destroyed.await {
            tracing::error!(app = self.record.spec.name, %error, "taking down its sandbox");
        }
    }

    /// Nothing of it runs.
    async fn start_failed(&mut self, error: &StartError) {
        self.after_exit().await;
        let fault = error.fault();
        *self.start_failure.lock().unwrap_or_else(PoisonError::into_inner) = fault;
        let failure = StartFailure { reason: chain(error), status: fault.exit_status };
        self.tell(Event::StartFailed(failure)).await;
    }

    /// Keeps a running sandbox and watches for its end.
    pub(crate) fn hold_sandbox(&mut self, sandbox: Arc<Sandbox>) -> io::Result<()> {
        let init = sandbox.pidfd().try_clone_to_owned()?;
        self.init = Some(torpor_linux::readable::register(init)?);
        self.sandbox = Some(sandbox);
        Ok(())
    }

    pub(crate) fn pump_output(&mut self, output: [OwnedFd; 2]) {
        match self.shared.output.read(output, &self.log) {
            Ok(reading) => self.output = Some(reading),
            Err(error) => tracing::warn!(app = self.record.spec.name, %error, "reading its output"),
        }
    }

    /// Waits until what its processes wrote last is in the log. They are gone, so the pipes end.
    async fn finish_output(&mut self) {
        let Some(mut output) = self.output.take() else { return };
        if tokio::time::timeout(LAST_OUTPUT, output.ended()).await.is_err() {
            tracing::warn!(app = self.record.spec.name, "somebody outside of the sandbox holds its output open");
        }
    }

    /// Removes what belongs to a run of the app: network, parked descriptors, records.
    pub(crate) async fn after_exit(&mut self) {
        // What is parked of a warm app holds its output open.
        tokio::task::block_in_place(|| self.forget_parked());
        self.finish_output().await;
        let name = &self.record.spec.name;
        if let Err(error) = self.shared.network.detach(self.record.index).await {
            tracing::warn!(app = name, error = %chain(&error), "taking down its network");
        }
        let drop_parked = || self.shared.keeper.drop_prefix(&crate::app::process_tree::parked::prefix(&self.record.id));
        if let Err(error) = tokio::task::block_in_place(drop_parked) {
            tracing::warn!(app = name, error = %chain(&error), "forgetting its parked descriptors");
        }
        match fs::remove_file(self.files.sandbox_record()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(app = name, %error, "removing its record");
            }
            _ => {}
        }
    }
}

async fn start(record: &Arc<AppRecord>, files: &AppFiles, shared: &Arc<Shared>) -> Result<Started, StartError> {
    let (spec, output_stdio, output) = {
        let (record, files, shared) = (record.clone(), files.clone(), shared.clone());
        blocking(move || {
            let spec = sandbox_spec(&record, &files, &shared)?;
            crate::disk::prepare(&shared.disks, &record.id, &files, disk_limit(&record, &shared))?;
            let (stdio, output) = stdio().map_err(StartError::Pipe)?;
            Ok((spec, stdio, output))
        })
        .await?
    };
    let launching = shared.clone();
    let (prepared, output) = blocking(move || {
        let held = [output[0].as_fd(), output[1].as_fd()];
        Ok((Sandbox::prepare(&launching.launcher, &spec, output_stdio, Some(held))?, output))
    })
    .await?;
    let prepared = attach(record, shared, prepared).await?;
    let (record, files, shared) = (record.clone(), files.clone(), shared.clone());
    blocking(move || {
        // Before its program runs: whatever kills us from here on, the next worker finds its processes and output.
        write_record(&files, prepared.record())?;
        if let Err(error) =
            crate::app::process_tree::parked::park_output(&shared, &record.id, [output[0].as_fd(), output[1].as_fd()])
        {
            tracing::warn!(app = record.spec.name, error = %chain(&error), "parking its output");
        }
        shared.faults.made(SandboxStep::Prepared).map_err(|error| StartError::Files(files.run.clone(), error))?;
        Ok(Started { sandbox: prepared.start()?, output })
    })
    .await
}

/// Connects a sandbox that is prepared to the network.
pub(crate) async fn attach(
    record: &Arc<AppRecord>,
    shared: &Arc<Shared>,
    prepared: Prepared,
) -> Result<Prepared, StartError> {
    if !record.spec.network.join.is_empty() {
        crate::network::renew_names(shared).await;
    }
    for limit in prepared.unenforced() {
        tracing::warn!(app = record.spec.name, error = %chain(limit), "a limit is not enforced");
    }
    match shared.network.attach(record.index, prepared.netns(), &network(&record.spec)).await {
        Ok(Addresses { .. }) => Ok(prepared),
        Err(error) => {
            // Dropping what was prepared takes it down again, which may block.
            blocking(move || {
                drop(prepared);
                Ok(())
            })
            .await?;
            Err(error.into())
        }
    }
}

pub(crate) fn write_record(files: &AppFiles, record: &SandboxRecord) -> Result<(), StartError> {
    let path = files.sandbox_record();
    let written = serde_json::to_vec(record).map_err(io::Error::from);
    written.and_then(|record| crate::files::replace(&path, &record)).map_err(|error| StartError::Files(path, error))
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<T, StartError> {
    crate::worker::blocking(work).await
}

/// `/dev/null` and two pipes for the app; their reading ends for us.
pub(crate) fn stdio() -> io::Result<([OwnedFd; 3], [OwnedFd; 2])> {
    let null = fs::File::open("/dev/null")?;
    let (out_read, out_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let (err_read, err_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    Ok(([null.into(), out_write, err_write], [out_read, err_read]))
}

pub(crate) fn sandbox_spec(record: &AppRecord, files: &AppFiles, shared: &Shared) -> Result<SandboxSpec, StartError> {
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

/// What its own files may take on disk.
pub(crate) fn disk_limit(record: &AppRecord, shared: &Shared) -> Option<u64> {
    record.spec.limits.disk.map(|limit| limit.0).or(shared.config.disk_limit_bytes)
}

impl Task {
    /// What its own files may take on disk.
    pub(crate) fn disk_limit(&self) -> Option<u64> {
        disk_limit(&self.record, &self.shared)
    }
}

/// The user of the app's program, looked up in its own files.
pub(crate) fn user(record: &AppRecord, shared: &Shared) -> Result<User, StartError> {
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
