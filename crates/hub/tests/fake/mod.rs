//! A worker in memory: apps have states and nothing else. Faults are set by the test: `fail("start")` makes the next
//! calls of that name fail.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "shared by several test programs, each of which uses a part"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio_stream::wrappers::BroadcastStream;
use torpor_api::archive::{Manifest, Reader, Writer};
use torpor_api::client::{Client, Endpoint};
use torpor_api::port::WorkerClient;
use torpor_api::spec::Source;
use torpor_api::view::{
    AppImage, AppStatus, Check, CheckOutcome, Event, Exit, Explanation, ImageStanding, Level, PutAway, State, Stats,
    StoredImage,
};
use torpor_api::worker::{
    AppRecord, BoxStream, Desired, ExecRequest, ExecSession, Import, LeftAlone, LogLine, LogRequest, Progress,
    Resolved, WorkerPort,
};
use torpor_api::{ApiError, ErrorKind};
use torpor_hub::{Hub, HubError, HubOptions, InstanceLock, Listen, Server};

/// What the fake holds of an app.
#[derive(Clone, Debug)]
pub struct FakeApp {
    pub record: AppRecord,
    pub state: State,
    pub pinned: bool,
    pub sleeps: u64,
    /// Its exit status, once it has ended.
    pub ended: Option<i32>,
}

/// State shared with the test.
#[derive(Debug, Default)]
pub struct Inner {
    pub apps: BTreeMap<String, FakeApp>,
    pub images: BTreeMap<String, StoredImage>,
    pub failing: BTreeSet<&'static str>,
    pub calls: Vec<String>,
    pub torn_down: bool,
    pub reserved: Vec<std::ops::RangeInclusive<u32>>,
    pub left_alone: Vec<LeftAlone>,
    /// Apps of which something is on the machine, although they have no row.
    pub orphans: BTreeSet<String>,
}

/// The fake.
pub struct FakeWorker {
    pub inner: Mutex<Inner>,
    events: broadcast::Sender<Event>,
    /// While this is held by the test, `resolve` waits.
    pub gate: tokio::sync::Mutex<()>,
    /// `adopt` waits until so many are at it.
    pub meeting: tokio::sync::Barrier,
}

impl FakeWorker {
    pub fn new() -> Arc<Self> {
        Self::meeting(1)
    }

    /// One that adopts apps only together.
    pub fn meeting(apps: usize) -> Arc<Self> {
        let (events, _) = broadcast::channel(4096);
        let (gate, meeting) = (tokio::sync::Mutex::new(()), tokio::sync::Barrier::new(apps));
        Arc::new(Self { inner: Mutex::default(), events, gate, meeting })
    }

    pub fn fail(&self, call: &'static str) {
        self.inner.lock().unwrap().failing.insert(call);
    }

    pub fn heal(&self) {
        self.inner.lock().unwrap().failing.clear();
    }

    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.inner.lock().unwrap().calls)
    }

    pub fn apps(&self) -> Vec<FakeApp> {
        self.inner.lock().unwrap().apps.values().cloned().collect()
    }

    pub fn emit(&self, app: &str, kind: &str) {
        let fields = BTreeMap::from([("n".to_owned(), serde_json::json!(1))]);
        let message = format!("{app} {kind}");
        let at = jiff::Timestamp::now();
        let event = Event { seq: 0, at, app: app.to_owned(), kind: kind.to_owned(), message, fields };
        let _ = self.events.send(event);
    }

    fn called(&self, call: &'static str, about: &str) -> Result<(), ApiError> {
        let mut inner = self.inner.lock().unwrap();
        inner.calls.push(format!("{call} {about}"));
        if inner.failing.contains(call) {
            return Err(ApiError::new(ErrorKind::Internal, format!("{call} was made to fail")));
        }
        Ok(())
    }

    fn change(&self, call: &'static str, id: &str, change: impl FnOnce(&mut FakeApp)) -> Result<(), ApiError> {
        self.called(call, id)?;
        let mut inner = self.inner.lock().unwrap();
        let app = inner.apps.get_mut(id).ok_or_else(unknown)?;
        change(app);
        Ok(())
    }

    fn name(&self, id: &str) -> Option<String> {
        self.inner.lock().unwrap().apps.get(id).map(|app| app.record.spec.name.clone())
    }
}

/// An archive without files; one that is not whole says that the app woke.
fn archive(record: &AppRecord, whole: bool) -> Vec<u8> {
    let (torpor, made) = ("1".to_owned(), jiff::Timestamp::now());
    let (spec, resolved) = (record.spec.clone(), record.resolved.clone());
    let manifest = Manifest { torpor, made, spec, resolved, addresses: Vec::new(), left_out: Vec::new() };
    let mut bytes = Vec::new();
    let writer = Writer::begin(&mut bytes, &manifest).unwrap();
    let woke = ApiError::new(ErrorKind::Conflict, "restless woke while it was exported");
    if whole { writer.end() } else { writer.fail(&woke) }.unwrap();
    bytes
}

fn unknown() -> ApiError {
    ApiError::new(ErrorKind::NotFound, "the worker knows no such app")
}

fn status(app: &FakeApp) -> AppStatus {
    AppStatus {
        id: app.record.id.clone(),
        name: app.record.spec.name.clone(),
        state: app.state,
        since: app.record.created,
        pid: Some(1),
        addresses: vec![format!("10.213.0.{}", app.record.index)],
        ports: app.record.spec.ports.iter().map(ToString::to_string).collect(),
        memory_bytes: Some(4096),
        sleeps: app.sleeps,
        stop_reason: app.ended.map(|code| format!("exited with status {code}")),
        last_exit: app.ended.map(|code| Exit {
            code: Some(code),
            signal: None,
            reason: format!("exited with status {code}"),
            at: app.record.created,
        }),
        restarts: 0,
        pinned: app.pinned,
        disk: None,
    }
}

#[async_trait::async_trait]
impl WorkerPort for FakeWorker {
    async fn reserved_indexes(&self) -> Result<Vec<std::ops::RangeInclusive<u32>>, ApiError> {
        self.called("reserved_indexes", "")?;
        Ok(self.inner.lock().unwrap().reserved.clone())
    }

    async fn resolve(&self, source: &Source, progress: mpsc::Sender<Progress>) -> Result<Resolved, ApiError> {
        self.called("resolve", &format!("{source:?}"))?;
        for done in [1, 2] {
            let step = Progress { what: "unpacking".to_owned(), done_bytes: done, total_bytes: Some(2) };
            let _ = progress.send(step).await;
        }
        let _open = self.gate.lock().await;
        Ok(Resolved { layers: vec!["sha256:aa".to_owned()], ..Resolved::default() })
    }

    async fn found(&self) -> Result<BTreeSet<String>, ApiError> {
        let inner = self.inner.lock().unwrap();
        Ok(inner.apps.keys().chain(&inner.orphans).cloned().collect())
    }

    async fn remove_unknown(&self, id: &str) -> Result<(), ApiError> {
        self.called("remove_unknown", id)?;
        self.inner.lock().unwrap().left_alone.retain(|app| app.id != id);
        Ok(())
    }

    async fn expect(&self, _: Vec<AppRecord>, left_alone: Vec<LeftAlone>) {
        self.inner.lock().unwrap().left_alone = left_alone;
    }

    async fn adopt(&self, app: AppRecord) -> Result<(), ApiError> {
        self.called("adopt", &app.id)?;
        self.meeting.wait().await;
        let state = if app.desired == Desired::Up { State::Running } else { State::Stopped };
        let mut inner = self.inner.lock().unwrap();
        let pinned = app.pinned;
        let fresh = FakeApp { record: app.clone(), state, pinned, sleeps: 0, ended: None };
        inner.apps.entry(app.id).or_insert(fresh);
        Ok(())
    }

    async fn start(&self, id: &str) -> Result<(), ApiError> {
        let mut ended = None;
        self.change("start", id, |app| {
            // `exit CODE` is a program that ends as soon as it has started.
            ended = match app.record.spec.command.as_slice() {
                [program, code] if program == "exit" => code.parse().ok(),
                _ => None,
            };
            app.ended = ended;
            app.state = if ended.is_some() { State::Stopped } else { State::Running };
        })?;
        self.emit(&self.name(id).unwrap(), "started");
        if ended.is_some() {
            self.emit(&self.name(id).unwrap(), "exited");
        }
        Ok(())
    }

    async fn stop(&self, id: &str, _grace: Duration) -> Result<(), ApiError> {
        self.change("stop", id, |app| app.state = State::Stopped)?;
        self.emit(&self.name(id).unwrap(), "exited");
        Ok(())
    }

    async fn sleep(&self, id: &str, level: Level) -> Result<(), ApiError> {
        self.change("sleep", id, |app| {
            app.state = if level == Level::Warm { State::Warm } else { State::Dozing };
            app.sleeps += 1;
        })
    }

    async fn wake(&self, id: &str) -> Result<(), ApiError> {
        self.change("wake", id, |app| app.state = State::Running)
    }

    async fn pin(&self, id: &str, pinned: bool) -> Result<(), ApiError> {
        self.change("pin", id, |app| app.pinned = pinned)
    }

    async fn remove(&self, id: &str) -> Result<(), ApiError> {
        self.change("remove", id, |_| ())?;
        self.inner.lock().unwrap().apps.remove(id);
        Ok(())
    }

    async fn status(&self, id: &str) -> Result<AppStatus, ApiError> {
        self.called("status", id)?;
        self.inner.lock().unwrap().apps.get(id).map(status).ok_or_else(unknown)
    }

    async fn explain(&self, id: &str) -> Result<Explanation, ApiError> {
        Ok(Explanation {
            status: self.status(id).await?,
            why: "because".to_owned(),
            keeps_awake: Vec::new(),
            sleeps_at: None,
            keeps_dozing: Vec::new(),
            warm_at: None,
            wakes_at: None,
            refusals: Vec::new(),
            at_limits: Vec::new(),
            lost_by_reboot: Vec::new(),
            missing_in: None,
            wake_sources: Vec::new(),
            working_set: None,
            sleeps: Vec::new(),
            wakes: Vec::new(),
        })
    }

    async fn stats(&self, id: &str) -> Result<Stats, ApiError> {
        let AppStatus { name, state, sleeps, .. } = self.status(id).await?;
        Ok(Stats {
            name,
            state,
            processes: 1,
            threads: 1,
            private_bytes: 4096,
            shared_bytes: 0,
            page_table_bytes: 0,
            kernel_bytes: None,
            image_bytes: None,
            disk: None,
            cpu_us: 1,
            packets: 0,
            refused_packets: 0,
            sleeps,
            warm_sleeps: 0,
            dropped_lines: 0,
            working_set: None,
            aborted_sleeps: 0,
            wakes: 0,
        })
    }

    async fn app_images(&self, id: &str) -> Result<Vec<AppImage>, ApiError> {
        self.called("app_images", id)?;
        let inner = self.inner.lock().unwrap();
        let app = inner.apps.get(id).ok_or_else(unknown)?;
        let image = AppImage {
            app: app.record.spec.name.clone(),
            level: Some(Level::Warm),
            generation: app.sleeps,
            bytes: 4096,
            written: app.record.created,
            standing: ImageStanding::InUse,
            path: format!("/data/apps/{id}/{}.image", app.sleeps),
        };
        Ok(if app.state == State::Warm { vec![image] } else { Vec::new() })
    }

    async fn remove_app_images(&self, id: &str) -> Result<Vec<AppImage>, ApiError> {
        self.called("remove_app_images", id)?;
        Err(ApiError::new(ErrorKind::Conflict, "nothing to remove"))
    }

    async fn export(&self, id: &str, _sleep: bool) -> Result<BoxStream<std::io::Result<bytes::Bytes>>, ApiError> {
        self.called("export", id)?;
        if self.name(id).as_deref() == Some("endless") {
            let piece = || async { Some((Ok(bytes::Bytes::from_static(&[0; 512 << 10])), ())) };
            return Ok(Box::pin(futures_util::stream::unfold((), move |()| piece())));
        }
        // Wakes in the middle of its first two exports.
        if self.name(id).as_deref() == Some("restless") {
            let record = self.inner.lock().unwrap().apps[id].record.clone();
            let exports = self.inner.lock().unwrap().calls.iter().filter(|call| call.starts_with("export")).count();
            return Ok(Box::pin(futures_util::stream::iter([Ok(archive(&record, exports > 2).into())])));
        }
        Ok(Box::pin(futures_util::stream::iter([Ok(bytes::Bytes::from_static(b"an archive"))])))
    }

    async fn import_layers(&self, archive: Reader, manifest: &Manifest) -> Result<(Reader, Resolved), ApiError> {
        self.called("import_layers", &manifest.spec.name)?;
        Ok((archive, manifest.resolved.clone()))
    }

    async fn import_app(&self, id: &str, mut archive: Reader, _: Import) -> Result<Vec<String>, ApiError> {
        self.called("import_app", id)?;
        let passed = tokio::task::spawn_blocking(move || {
            while archive.next_section().map_err(|error| error.to_api())?.is_some() {}
            Ok::<_, ApiError>(())
        });
        passed.await.unwrap()?;
        self.start(id).await?;
        Ok(Vec::new())
    }

    /// `cat` echoes its input; `exit N` ends with that status; `size` prints each new size; anything else prints its arguments.
    async fn exec(&self, id: &str, request: ExecRequest) -> Result<ExecSession, ApiError> {
        self.called("exec", id)?;
        let (input, mut stdin) = tokio::io::duplex(4096);
        let (mut stdout, output) = tokio::io::duplex(4096);
        let (mut stderr, errors) = tokio::io::duplex(4096);
        let (ended, status) = oneshot::channel();
        let (resize, mut sizes) = mpsc::channel(4);
        tokio::spawn(async move {
            use tokio::io::AsyncWriteExt;
            let code = match request.command[0].as_str() {
                "cat" => tokio::io::copy(&mut stdin, &mut stdout).await.map_or(1, |_| 0),
                "exit" => request.command[1].parse().unwrap(),
                "size" => {
                    let (columns, rows) = sizes.recv().await.unwrap_or_default();
                    stdout.write_all(format!("{columns}x{rows}").as_bytes()).await.map_or(1, |()| 0)
                }
                "sleep" => std::future::pending().await,
                _ => {
                    stdout.write_all(request.command.join(" ").as_bytes()).await.unwrap();
                    stderr.write_all(b"warned").await.map_or(1, |()| 0)
                }
            };
            drop((stdout, stderr));
            let _ = ended.send(Ok(code));
        });
        Ok(ExecSession { input: Box::pin(input), output: Box::pin(output), errors: Box::pin(errors), status, resize })
    }

    async fn logs(&self, id: &str, request: LogRequest) -> Result<BoxStream<LogLine>, ApiError> {
        self.called("logs", id)?;
        let line = |number: usize| LogLine {
            at: "2026-01-01T00:00:00Z".parse().unwrap(),
            stream: if number.is_multiple_of(2) { "out" } else { "err" }.to_owned(),
            line: format!("line {number}"),
        };
        let lines = futures_util::stream::iter((10 - request.tail.unwrap_or(10).min(10)..10).map(line));
        if request.follow {
            return Ok(Box::pin(lines.chain(futures_util::stream::pending())));
        }
        Ok(Box::pin(lines))
    }

    fn events(&self) -> BoxStream<Event> {
        Box::pin(BroadcastStream::new(self.events.subscribe()).filter_map(|event| async { event.ok() }))
    }

    async fn store_image(
        &self,
        name: &str,
        source: &Source,
        progress: mpsc::Sender<Progress>,
    ) -> Result<Resolved, ApiError> {
        let resolved = self.resolve(source, progress).await?;
        let image = StoredImage {
            name: Some(name.to_owned()),
            digest: "sha256:0123456789abcdef".to_owned(),
            bytes: 1 << 20,
            layers: 1,
            created: jiff::Timestamp::now(),
            used_by: Vec::new(),
        };
        self.inner.lock().unwrap().images.insert(name.to_owned(), image);
        Ok(resolved)
    }

    async fn images(&self) -> Result<Vec<StoredImage>, ApiError> {
        Ok(self.inner.lock().unwrap().images.values().cloned().collect())
    }

    async fn remove_image(&self, name: &str) -> Result<(), ApiError> {
        let removed = self.inner.lock().unwrap().images.remove(name);
        removed.map(drop).ok_or_else(|| ApiError::new(ErrorKind::NotFound, format!("there is no image `{name}`")))
    }

    async fn doctor(&self) -> Result<Vec<Check>, ApiError> {
        let check = |name: &str, outcome| Check {
            name: name.to_owned(),
            outcome,
            found: "6.18".to_owned(),
            meaning: String::new(),
        };
        Ok(vec![check("kernel", CheckOutcome::Ok), check("freezer", CheckOutcome::Degraded)])
    }

    async fn teardown(&self, discard: bool, _: mpsc::Sender<Progress>) -> Result<Vec<PutAway>, ApiError> {
        self.called("teardown", "")?;
        let mut inner = self.inner.lock().unwrap();
        inner.torn_down = true;
        inner.apps.values_mut().for_each(|app| app.state = State::Stopped);
        let put_away =
            |app: &FakeApp| PutAway { app: app.record.spec.name.clone(), kept: !discard, reasons: Vec::new() };
        Ok(inner.apps.values().map(put_away).collect())
    }
}

/// The fake as a hub reaches it: whatever passes is encoded and decoded, as on the way to another machine. With
/// `TORPOR_TEST_PORT=in-process` it passes as it is, as in the daemon.
pub fn client_of(worker: Arc<FakeWorker>) -> WorkerClient {
    match std::env::var("TORPOR_TEST_PORT").as_deref() {
        Ok("in-process") => WorkerClient::in_process(worker),
        Ok(other) => panic!("TORPOR_TEST_PORT is `in-process` or not set, and not `{other}`"),
        Err(_) => WorkerClient::encoded(worker),
    }
}

/// A hub that serves a real socket on a real database, over a fake worker.
pub struct Running {
    pub worker: Arc<FakeWorker>,
    pub client: Client,
    pub socket: PathBuf,
    pub tcp: Option<std::net::SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    served: tokio::task::JoinHandle<Result<(), HubError>>,
}

impl Running {
    pub async fn start(dir: &Path, worker: Arc<FakeWorker>) -> Self {
        Self::serve(dir, worker, None, true, torpor_hub::STALLED_AFTER).await
    }

    /// One that ends transfers of archives that have stalled for so long.
    pub async fn impatient(dir: &Path, worker: Arc<FakeWorker>, stalled_after: Duration) -> Self {
        Self::serve(dir, worker, None, true, stalled_after).await
    }

    /// One that does not wait until apps are adopted.
    pub async fn start_at_once(dir: &Path, worker: Arc<FakeWorker>) -> Self {
        Self::serve(dir, worker, None, false, torpor_hub::STALLED_AFTER).await
    }

    pub async fn with_token(dir: &Path, worker: Arc<FakeWorker>, token: Option<torpor_api::token::Token>) -> Self {
        Self::serve(dir, worker, token, true, torpor_hub::STALLED_AFTER).await
    }

    async fn serve(
        dir: &Path,
        worker: Arc<FakeWorker>,
        token: Option<torpor_api::token::Token>,
        adopted: bool,
        stalled_after: Duration,
    ) -> Self {
        let idle = torpor_api::spec::Idle { after: torpor_api::units::Span::from_secs(77), ..Default::default() };
        let options = HubOptions { instance: "test".to_owned(), data_dir: dir.join("data"), idle, stalled_after };
        let lock = lock(&options.data_dir).await;
        let hub = Hub::open(options, lock, client_of(worker.clone())).await.unwrap();
        if adopted {
            hub.adopted(|_| ()).await;
        }
        let socket = dir.join("run/api.sock");
        let tcp = token.map(|token| ("127.0.0.1:0".parse().unwrap(), token));
        let listen = Listen::open(socket.clone(), tcp).await.unwrap();
        let server = Server::bind(hub, listen).unwrap();
        let tcp = server.tcp_address();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(server.run(async move {
            let _ = stopped.await;
        }));
        let client = Client::new(Endpoint::Unix(socket.clone()));
        Self { worker, client, socket, tcp, stop: Some(stop), served }
    }

    pub async fn stop(mut self) {
        let _ = self.stop.take().unwrap().send(());
        self.served.await.unwrap().unwrap();
    }

    /// Waits for the server to end by itself.
    pub async fn ended(mut self) {
        let stop = self.stop.take();
        self.served.await.unwrap().unwrap();
        drop(stop);
    }
}

/// The lock of a data directory. A hub that was closed in this process keeps it until its last task has ended.
pub async fn lock(data_dir: &Path) -> Arc<InstanceLock> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match InstanceLock::take(data_dir) {
            Err(HubError::AlreadyRunning { .. }) if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            taken => return Arc::new(taken.unwrap()),
        }
    }
}

/// A document of an app.
pub fn app(name: &str, port: u16) -> serde_json::Value {
    serde_json::json!({
        "name": name,
        "source": {"tarball": {"path": "/srv/app.tar"}},
        "ports": [{"host": port, "app": 80}],
    })
}

/// The refusal in a client's error.
pub fn refusal(error: torpor_api::client::ClientError) -> ApiError {
    match error {
        torpor_api::client::ClientError::Refused(error) => error,
        other => panic!("not a refusal: {other:?}"),
    }
}
