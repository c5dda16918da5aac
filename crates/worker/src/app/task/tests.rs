//! The task around a workload without processes: the test decides what becomes of each operation.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use torpor_api::ApiError;
use torpor_api::view::{AppImage, AppStatus, Explanation, State, Stats};
use torpor_api::worker::{AppRecord, Desired, Epoch};
use torpor_engine::{Step, Timings};
use torpor_lifecycle::{
    Event, Exit, Level, Millis, Observation, Policy, Refusal, Request, RestartPolicy, SleepCause, Text, WakeCause,
    WakeFailure,
};

use super::{AppHandle, Beginning, Order, spawn};
use crate::app::deadlines::Operations;
use crate::app::history::Entry;
use crate::app::operation::{Ended, Kind, Operation};
use crate::app::workload::{Adoption, Exportable, Happening, Report, Wake, Workload};
use crate::app_files::AppFiles;
use crate::config::{Deadlines, LogConfig};
use crate::services::{Services, Settings};
use crate::space::ImageSpace;

/// How long what is awaited may take before a test has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Something that the task asked of the workload, with the operation that began.
type Call = (&'static str, Option<Arc<Operation>>);

/// Does nothing, and tells the test what it is asked to do.
struct Fake {
    calls: mpsc::UnboundedSender<Call>,
    happenings: mpsc::UnboundedReceiver<Happening<Event>>,
}

impl Fake {
    fn called(&self, what: &'static str, operation: Option<Arc<Operation>>) {
        // The test may have seen enough.
        let _ = self.calls.send((what, operation));
    }
}

impl Workload for Fake {
    type Place = ();
    type Outcome = Event;

    async fn adopt(&mut self) -> Result<Adoption, Text> {
        Ok(Adoption::default())
    }

    fn release(&mut self) {}

    async fn end_unadopted(&mut self, _reason: &Text) -> Result<(), Text> {
        Ok(())
    }

    async fn adopt_import(&mut self) -> Result<Option<Millis>, String> {
        Err("it has no image".to_owned())
    }

    fn start(&mut self, operations: &mut Operations) {
        self.called("start", Some(operations.begin(Kind::Start, 0)));
    }

    fn terminate(&mut self) {
        self.called("terminate", None);
    }

    fn kill(&mut self) -> Option<Exit> {
        self.called("kill", None);
        None
    }

    async fn exited(&mut self, sleeps_on: bool) -> Option<Exit> {
        assert!(!sleeps_on);
        Some(Exit::Signal(15))
    }

    async fn put_away(&mut self) -> Result<(), String> {
        Ok(())
    }

    async fn next(&mut self) -> Happening<Event> {
        match self.happenings.recv().await {
            Some(happening) => happening,
            None => std::future::pending().await,
        }
    }

    fn awaited(&mut self) -> Option<Event> {
        Some(Event::Packet("packet for tcp 80".into()))
    }

    async fn ended(&mut self, event: Event, ended: Ended) -> Option<Report> {
        self.called("ended", None);
        let entry = Entry::new(&Timings::<Step>::begin(), None);
        (ended != Ended::Abandoned).then(|| Report::with_entry(event, entry))
    }

    fn give_up(&mut self, _kind: Kind) {
        self.called("give up", None);
    }

    fn abandon(&mut self, _kind: Kind) {
        self.called("abandon", None);
    }

    fn sleep(&mut self, _cause: SleepCause, operations: &mut Operations) {
        self.called("sleep", Some(operations.begin(Kind::Sleep, 0)));
    }

    fn hibernate(&mut self, operations: &mut Operations) {
        self.called("hibernate", Some(operations.begin(Kind::Hibernate, 0)));
    }

    fn abort(&mut self) {
        self.called("abort", None);
    }

    async fn prepare_wake(&mut self) -> Result<(), WakeFailure> {
        Ok(())
    }

    fn wake(&mut self, _cause: &WakeCause, operations: &mut Operations) -> Wake {
        self.called("wake", Some(operations.begin(Kind::Wake, 0)));
        Wake::UnderWay
    }

    fn confirm_asleep(&mut self) -> bool {
        true
    }

    fn park_again(&mut self) {}

    fn retry_at(&self) -> Option<Instant> {
        None
    }

    async fn retry(&mut self) -> Option<Exit> {
        None
    }

    fn refuse_clients(&mut self, _refuse: bool) {}

    fn discard(&mut self) {
        self.called("discard", None);
    }

    fn quarantine(&mut self) {
        self.called("quarantine", None);
    }

    fn observe(&self) -> Option<Observation> {
        None
    }

    fn blocks_when_observed(&self) -> bool {
        false
    }

    fn wake_blocker(&self) -> Option<String> {
        None
    }

    fn end_blocker(&self) -> Option<Text> {
        None
    }

    fn describe(&self, _status: &mut AppStatus) {}

    fn explain(&self, _runs: bool, _explanation: &mut Explanation) {}

    fn measure(&self, _stats: &mut Stats) {}

    fn images(&self) -> Result<Vec<AppImage>, ApiError> {
        Ok(Vec::new())
    }

    fn remove_images(&mut self) -> Result<Vec<AppImage>, ApiError> {
        Ok(Vec::new())
    }

    fn exportable(&self) -> io::Result<Option<Exportable>> {
        Ok(None)
    }

    fn place(&self) -> Option<()> {
        None
    }
}

/// The task of an app and both ends of its workload.
struct Driven {
    app: AppHandle<()>,
    calls: mpsc::UnboundedReceiver<Call>,
    happenings: mpsc::UnboundedSender<Happening<Event>>,
    _folder: tempfile::TempDir,
}

/// Where the answer to a request comes.
type Answered = oneshot::Receiver<Result<(), Refusal>>;

impl Driven {
    /// One that runs, whose wakes may take so long.
    async fn running(wake: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let spec = serde_json::json!({"name": "fake", "source": {"stored": {"name": "nothing"}}});
        let record = AppRecord {
            id: "00000000000000ff".to_owned(),
            index: 1,
            spec: serde_json::from_value(spec).unwrap(),
            resolved: Default::default(),
            created: jiff::Timestamp::UNIX_EPOCH,
            desired: Desired::Up,
            pinned: false,
            epoch: Epoch::FIRST,
        };
        let files = AppFiles::new(folder.path(), &folder.path().join("run"), &record.id);
        let logs = LogConfig { file_bytes: 1 << 20, files: 1, bytes_per_second: 0 };
        let deadlines = Deadlines { wake, start: PATIENCE, sleep: PATIENCE };
        let settings = Settings { deadlines, min_dozing: Duration::ZERO, for_teardown: false, disk_limit_bytes: None };
        let services = Arc::new(Services::new(settings, ImageSpace::new(u64::MAX), 1));
        let policy = Policy { sleep: false, warm_after: None, restart: RestartPolicy::No, ..Policy::default() };
        let ((called, calls), (happenings, happened)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let workload = Fake { calls: called, happenings: happened };
        let app = spawn(Beginning::new(record, files, logs).unwrap(), services, policy, workload);
        let mut driven = Self { app, calls, happenings, _folder: folder };
        let started = driven.request(Request::Start);
        driven.end("start", Event::Started).await;
        assert_eq!(within(started).await.unwrap(), Ok(()));
        driven
    }

    fn order(&self, order: Order<()>) {
        assert!(self.app.orders.try_send(order).is_ok());
    }

    fn request(&self, request: Request) -> Answered {
        let (answer, answered) = oneshot::channel();
        self.order(Order::Request(request, answer));
        answered
    }

    /// Waits until the task has asked for just this.
    async fn call(&mut self, what: &str) -> Option<Arc<Operation>> {
        let (called, operation) = within(self.calls.recv()).await.unwrap();
        assert_eq!(called, what);
        operation
    }

    /// Waits until the operation has begun.
    async fn begun(&mut self, what: &str) -> Arc<Operation> {
        self.call(what).await.unwrap()
    }

    fn happens(&self, happening: Happening<Event>) {
        assert!(self.happenings.send(happening).is_ok());
    }

    /// Waits until the operation has begun, and ends it so.
    async fn end(&mut self, what: &str, event: Event) {
        let operation = self.begun(what).await;
        self.happens(Happening::Ended(operation, event));
        self.call("ended").await;
    }

    /// Puts it to sleep on command.
    async fn doze(&mut self) {
        let asleep = self.request(Request::Sleep { level: Level::Dozing });
        let operation = self.begun("sleep").await;
        self.happens(Happening::Event(Event::CaptureCommitted));
        self.happens(Happening::Ended(operation, Event::Dozed { next_timer: None }));
        self.call("ended").await;
        assert_eq!(within(asleep).await.unwrap(), Ok(()));
    }

    async fn explain(&self) -> Explanation {
        let (answer, answered) = oneshot::channel();
        self.order(Order::Explain(answer));
        within(answered).await.unwrap()
    }

    async fn state(&self) -> State {
        self.explain().await.status.state
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("the task does it")
}

#[tokio::test]
async fn it_starts_sleeps_wakes_by_a_packet_and_stops() {
    let mut app = Driven::running(PATIENCE).await;
    assert_eq!(app.state().await, State::Running);
    app.doze().await;
    assert_eq!(app.state().await, State::Dozing);
    app.happens(Happening::Awaited);
    app.end("wake", Event::Woken).await;
    app.call("discard").await;
    let explained = app.explain().await;
    assert_eq!((explained.status.state, explained.status.sleeps), (State::Running, 1));
    assert_eq!((&*explained.sleeps[0].cause, &*explained.wakes[0].cause), ("command", "packet for tcp 80"));
    let stopped = app.request(Request::Stop { grace: PATIENCE });
    app.call("terminate").await;
    app.happens(Happening::Exited);
    assert_eq!(within(stopped).await.unwrap(), Ok(()));
    let explained = app.explain().await;
    assert_eq!(explained.status.state, State::Stopped);
    assert_eq!(explained.status.last_exit.and_then(|exit| exit.signal), Some(15));
}

#[tokio::test]
async fn a_wake_while_it_falls_asleep_aborts_that_or_follows_its_commit() {
    let mut app = Driven::running(PATIENCE).await;
    let asleep = app.request(Request::Sleep { level: Level::Dozing });
    let operation = app.begun("sleep").await;
    let awake = app.request(Request::Wake);
    app.call("abort").await;
    app.happens(Happening::Ended(operation, Event::CaptureAborted(WakeCause::Command)));
    app.call("ended").await;
    assert!(within(asleep).await.unwrap().is_err());
    assert_eq!(within(awake).await.unwrap(), Ok(()));
    assert_eq!(app.state().await, State::Running);

    let _asleep = app.request(Request::Sleep { level: Level::Dozing });
    let operation = app.begun("sleep").await;
    app.happens(Happening::Event(Event::CaptureCommitted));
    assert_eq!(app.state().await, State::FallingAsleep);
    let awake = app.request(Request::Wake);
    assert_eq!(app.state().await, State::FallingAsleep, "there is no way back but a wake");
    app.happens(Happening::Ended(operation, Event::Dozed { next_timer: None }));
    app.call("ended").await;
    app.end("wake", Event::Woken).await;
    app.call("discard").await;
    assert_eq!(within(awake).await.unwrap(), Ok(()));
}

#[tokio::test]
async fn a_wake_that_fails_is_tried_again_unless_the_image_is_damaged() {
    let mut app = Driven::running(PATIENCE).await;
    app.doze().await;
    app.happens(Happening::Awaited);
    app.end("wake", Event::WakeFailed(WakeFailure::Passing("no memory".into()))).await;
    let damaged = WakeFailure::Damaged("a checksum is wrong".into());
    app.end("wake", Event::WakeFailed(damaged)).await;
    app.call("quarantine").await;
    app.call("kill").await;
    assert_eq!(app.state().await, State::Stopping);
    app.happens(Happening::Exited);
    let explained = app.explain().await;
    assert_eq!((explained.status.state, explained.wakes.len()), (State::Stopped, 2));
}

#[tokio::test]
async fn a_wake_that_does_not_end_is_given_up_and_its_late_outcome_counts_for_nothing() {
    let mut app = Driven::running(Duration::ZERO).await;
    app.doze().await;
    app.happens(Happening::Awaited);
    let operation = app.begun("wake").await;
    app.call("give up").await;
    app.call("abandon").await;
    let explained = app.explain().await;
    assert_eq!(explained.status.state, State::Dozing);
    assert!(explained.refusals.iter().any(|why| why.contains("held up")), "{:?}", explained.refusals);
    app.happens(Happening::Ended(operation, Event::Woken));
    app.call("ended").await;
    // Only now another attempt begins.
    app.begun("wake").await;
    assert!(app.explain().await.wakes.is_empty());
}
