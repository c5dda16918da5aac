//! The whole life of an app over HTTP: real socket, real database, a worker in memory.
#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod fake;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use fake::{FakeWorker, Running, app, refusal};
use torpor_api::ErrorKind;
use torpor_api::client::AppAction;
use torpor_api::units::Span;
use torpor_api::view::{Level, State};
use torpor_api::wire::{EventQuery, ImageRequest, LogQuery, StopQuery};
use torpor_api::worker::Desired;

async fn kinds(running: &Running, query: EventQuery) -> Vec<(u64, String)> {
    let mut lines = running.client.events(&query).await.unwrap();
    let mut kinds = Vec::new();
    while let Some(event) = lines.next().await.unwrap() {
        kinds.push((event.seq, event.kind));
    }
    kinds
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_lives() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    let client = &running.client;
    assert_eq!(client.version().await.unwrap().instance, "test");
    let mut steps = Vec::new();
    let made = client.create(&app("web", 8080), |step| steps.push(step.done_bytes)).await.unwrap();
    assert_eq!((made.name.as_str(), made.state, steps.as_slice()), ("web", State::Running, &[1, 2][..]));
    assert_eq!(made.ports, ["*:8080->80/tcp"]);

    let detail = client.inspect("web").await.unwrap();
    assert_eq!(detail.spec.idle.after, Span::from_secs(77), "the daemon's default is filled in");
    assert_eq!(client.inspect(&made.id).await.unwrap(), detail, "an id finds it too");
    assert_eq!(client.apps().await.unwrap(), std::slice::from_ref(&made));
    assert_eq!(client.sleep("web", Level::Dozing).await.unwrap().state, State::Dozing);
    assert_eq!(client.sleep("web", Level::Warm).await.unwrap().state, State::Warm);
    assert_eq!(client.act("web", AppAction::Wake).await.unwrap().state, State::Running);
    assert!(client.act("web", AppAction::Pin).await.unwrap().pinned);
    assert!(!client.act("web", AppAction::Unpin).await.unwrap().pinned);
    assert_eq!(client.stats("web").await.unwrap().sleeps, 2);
    assert_eq!(client.all_stats().await.unwrap().len(), 1);
    assert_eq!(client.explain("web").await.unwrap().why, "because");
    assert_eq!(
        client.restart("web", &StopQuery { grace: Some(Span::from_secs(1)), timeout: None }).await.unwrap().state,
        State::Running
    );

    let error = refusal(client.remove("web", false).await.unwrap_err());
    assert_eq!(error.kind, ErrorKind::Conflict);
    assert!(error.hint.unwrap().contains("rm -f web"));
    assert_eq!(client.stop("web", &StopQuery::default()).await.unwrap().state, State::Stopped);
    assert_eq!(client.act("web", AppAction::Start).await.unwrap().state, State::Running);
    client.remove("web", true).await.unwrap();
    assert!(running.worker.apps().is_empty());
    assert_eq!(client.apps().await.unwrap(), []);
    assert_eq!(refusal(client.inspect("web").await.unwrap_err()).kind, ErrorKind::NotFound);

    let of_web = EventQuery { app: Some("web".to_owned()), ..EventQuery::default() };
    let kinds = kinds(&running, of_web).await;
    let names: Vec<&str> = kinds.iter().map(|(_, kind)| kind.as_str()).collect();
    assert_eq!(names[..2], ["created", "started"]);
    assert_eq!(names.last(), Some(&"removed"), "{names:?}");
    for kind in ["pinned", "unpinned"] {
        assert!(names.contains(&kind), "{kind} is missing: {names:?}");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_belong_to_root_alone() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    let mode = |path: &str| std::fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o777;
    for (path, expected) in [
        ("data", 0o700),
        ("data/torpor.db", 0o600),
        ("data/torpor.db-wal", 0o600),
        ("data/torpor.lock", 0o600),
        ("run", 0o700),
        ("run/api.sock", 0o600),
    ] {
        assert_eq!(mode(path), expected, "{path}");
    }
    assert_eq!(std::fs::read_dir(dir.path().join("run")).unwrap().count(), 1, "only the socket");
    let socket = running.socket.clone();
    running.stop().await;
    assert!(!socket.exists());
}

#[test]
fn a_directory_that_others_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let refusal = || torpor_hub::InstanceLock::take(&data).expect_err("it was taken").to_string();
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(refusal().contains("data (its mode is 777)"), "{}", refusal());
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&data, Some(1000), None).unwrap();
    assert!(refusal().contains("data belongs to user 1000"), "{}", refusal());
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_daemon_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    let error = torpor_hub::InstanceLock::take(&dir.path().join("data")).unwrap_err();
    let pid = std::process::id().to_string();
    assert!(error.to_string().contains(&pid), "{error}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_is_not_its_own_stays_at_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    let (socket, other) = (running.socket.clone(), dir.path().join("other"));
    let listener = std::os::unix::net::UnixListener::bind(&other).unwrap();
    std::fs::rename(&other, &socket).unwrap();
    running.stop().await;
    std::os::unix::net::UnixStream::connect(&socket).unwrap();
    drop(listener);
}

#[tokio::test]
async fn a_directory_in_the_place_of_the_socket_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("api.sock");
    std::fs::create_dir(&socket).unwrap();
    let refused = torpor_hub::Listen::open(socket.clone(), None).await.unwrap_err().to_string();
    assert!(refused.contains("api.sock: a directory of user ") && refused.contains("remove it"), "{refused}");
    std::fs::remove_dir(&socket).unwrap();
    torpor_hub::Listen::open(socket, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_hub_takes_over() {
    let dir = tempfile::tempdir().unwrap();
    let first = Running::start(dir.path(), FakeWorker::new()).await;
    let up = first.client.create(&app("up", 1), |_| ()).await.unwrap();
    let down = first.client.create(&app("down", 2), |_| ()).await.unwrap();
    first.client.stop("down", &StopQuery::default()).await.unwrap();
    first.client.act("up", AppAction::Pin).await.unwrap();
    let before = kinds(&first, EventQuery::default()).await;
    first.stop().await;

    let second = Running::start(dir.path(), FakeWorker::new()).await;
    let mut adopted: Vec<_> =
        second.worker.apps().into_iter().map(|app| (app.record.id, app.record.desired, app.record.pinned)).collect();
    adopted.sort_by(|a, b| a.0.cmp(&b.0));
    let mut expected = vec![(up.id, Desired::Up, true), (down.id, Desired::Down, false)];
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(adopted, expected);
    second.client.create(&app("more", 3), |_| ()).await.unwrap();
    let after = kinds(&second, EventQuery::default()).await;
    assert_eq!(after[..before.len()], before, "events survive");
    assert!(after.windows(2).all(|pair| pair[0].0 < pair[1].0), "and numbers go on: {after:?}");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_app_does_not_keep_the_others_waiting_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let first = Running::start(dir.path(), FakeWorker::new()).await;
    for (name, port) in [("one", 1), ("two", 2), ("three", 3)] {
        first.client.create(&app(name, port), |_| ()).await.unwrap();
    }
    first.stop().await;

    let starting = Running::start(dir.path(), FakeWorker::meeting(3));
    let second = tokio::time::timeout(Duration::from_secs(60), starting).await.expect("they are taken over together");
    assert_eq!(second.worker.apps().len(), 3);
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_app_that_cannot_be_adopted_does_not_stop_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let first = Running::start(dir.path(), FakeWorker::new()).await;
    first.client.create(&app("web", 1), |_| ()).await.unwrap();
    first.stop().await;

    let worker = FakeWorker::new();
    worker.fail("adopt");
    let second = Running::start(dir.path(), worker).await;
    let apps = second.client.apps().await.unwrap();
    assert_eq!(apps[0].state, State::Stopped);
    assert!(apps[0].last_exit.as_ref().unwrap().reason.contains("adopt was made to fail"));
    second.worker.heal();
    assert_eq!(second.client.act("web", AppAction::Start).await.unwrap().state, State::Running);
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_answers_before_apps_are_adopted_and_a_command_waits_for_its_app() {
    let dir = tempfile::tempdir().unwrap();
    let first = Running::start(dir.path(), FakeWorker::new()).await;
    for (name, port) in [("one", 1), ("two", 2)] {
        first.client.create(&app(name, port), |_| ()).await.unwrap();
    }
    first.stop().await;

    // Nobody is adopted before a third one comes, and there is none.
    let worker = FakeWorker::meeting(3);
    let second = Running::start_at_once(dir.path(), worker.clone()).await;
    let apps = second.client.apps().await.unwrap();
    assert!(apps.iter().all(|app| app.state == State::Adopting && app.last_exit.is_none()), "{apps:?}");
    assert_eq!(second.client.version().await.unwrap().adopting, 2);
    let checks = second.client.doctor().await.unwrap();
    assert!(checks.iter().any(|check| check.name == "apps to adopt" && check.found == "2"), "{checks:?}");
    let client = second.client.clone();
    let waking = tokio::spawn(async move { client.act("one", AppAction::Wake).await });
    worker.meeting.wait().await;
    assert_eq!(waking.await.unwrap().unwrap().state, State::Running);
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_that_ended_by_itself_is_not_started_by_the_next_hub() {
    let dir = tempfile::tempdir().unwrap();
    let first = Running::start(dir.path(), FakeWorker::new()).await;
    let made = first.client.create(&app("job", 1), |_| ()).await.unwrap();
    first.worker.inner.lock().unwrap().apps.get_mut(&made.id).unwrap().state = State::Stopped;
    first.worker.calls();
    first.worker.emit("job", "exited");
    // The hub asks the worker where it is, once the event is stored.
    while !first.worker.calls().iter().any(|call| call.starts_with("status")) {
        tokio::task::yield_now().await;
    }
    // Whoever changes the app next waits for the note.
    first.client.act("job", AppAction::Unpin).await.unwrap();
    first.stop().await;
    let second = Running::start(dir.path(), FakeWorker::new()).await;
    assert_eq!(second.worker.apps()[0].record.desired, Desired::Down);
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn teardown_rests_all_and_ends_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    running.client.create(&app("web", 1), |_| ()).await.unwrap();
    let worker = running.worker.clone();
    let put_away = running.client.teardown(false, |_| ()).await.unwrap();
    assert!(!put_away.is_empty() && put_away.iter().all(|app| app.kept), "{put_away:?}");
    tokio::time::timeout(Duration::from_secs(10), running.ended()).await.expect("the daemon ends");
    assert!(worker.inner.lock().unwrap().torn_down);
    let next = Running::start(dir.path(), FakeWorker::new()).await;
    assert_eq!(next.worker.apps()[0].record.desired, Desired::Up, "what is wanted stays");
    next.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_teardown_without_a_daemon_starts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    running.client.create(&app("web", 1), |_| ()).await.unwrap();
    running.stop().await;
    let options = torpor_hub::HubOptions {
        instance: "test".to_owned(),
        data_dir: dir.path().join("data"),
        idle: torpor_api::spec::Idle::default(),
        stalled_after: torpor_hub::STALLED_AFTER,
    };
    let worker = FakeWorker::new();
    let lock = fake::lock(&options.data_dir).await;
    let hub = torpor_hub::Hub::open_for_teardown(options, lock, fake::client_of(worker.clone())).await.unwrap();
    hub.teardown(false, tokio::sync::mpsc::channel(1).0).await.unwrap();
    // The worker, which was opened for this alone, is told what is wanted of the app and starts it for nobody.
    let calls = worker.inner.lock().unwrap().calls.clone();
    assert!(!calls.is_empty() && !calls.iter().any(|call| call.starts_with("start")), "{calls:?}");
    hub.close().await;
    drop(hub);
    let next = Running::start(dir.path(), FakeWorker::new()).await;
    assert_eq!(next.worker.apps()[0].record.desired, Desired::Up, "what is wanted stays");
    next.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn images_of_processes_are_listed_and_those_in_use_stay() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    let client = &running.client;
    for (name, port) in [("awake", 1), ("asleep", 2)] {
        client.create(&app(name, port), |_| ()).await.unwrap();
    }
    client.sleep("asleep", Level::Warm).await.unwrap();
    let images = client.app_images().await.unwrap();
    assert_eq!(images.iter().map(|image| image.app.as_str()).collect::<Vec<_>>(), ["asleep"]);
    assert_eq!(refusal(client.remove_app_images("asleep").await.unwrap_err()).kind, ErrorKind::Conflict);
    assert_eq!(refusal(client.remove_app_images("nobody").await.unwrap_err()).kind, ErrorKind::NotFound);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_kept_while_apps_name_them() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    let client = &running.client;
    let name = "registry.example/team/web:1";
    let source = torpor_api::spec::Source::Registry { reference: name.to_owned() };
    let request = ImageRequest { name: name.to_owned(), source };
    assert_eq!(client.store_image(&request, |_| ()).await.unwrap(), name);
    let mut document = app("web", 1);
    document["source"] = serde_json::json!({"stored": {"name": name}});
    client.create(&document, |_| ()).await.unwrap();
    assert_eq!(client.images().await.unwrap()[0].used_by, ["web"]);
    let error = refusal(client.remove_image(name).await.unwrap_err());
    assert_eq!(error.kind, ErrorKind::Conflict);
    assert!(error.message.contains("web"));
    client.remove("web", true).await.unwrap();
    client.remove_image(name).await.unwrap();
    assert_eq!(refusal(client.remove_image(name).await.unwrap_err()).kind, ErrorKind::NotFound);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_and_events_stream_and_end_with_the_hub() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    running.client.create(&app("web", 1), |_| ()).await.unwrap();
    let query = LogQuery { tail: Some(3), follow: false };
    let mut lines = running.client.logs("web", &query).await.unwrap();
    let mut seen = Vec::new();
    while let Some(line) = lines.next().await.unwrap() {
        seen.push(line.line);
    }
    assert_eq!(seen, ["line 7", "line 8", "line 9"]);

    let mut followed_logs = running.client.logs("web", &LogQuery { tail: Some(1), follow: true }).await.unwrap();
    assert_eq!(followed_logs.next().await.unwrap().unwrap().line, "line 9");
    let query = EventQuery { follow: true, tail: Some(0), app: Some("web".to_owned()), since: None };
    let mut followed = running.client.events(&query).await.unwrap();
    running.worker.emit("other", "woken");
    running.worker.emit("web", "dozing");
    let event = followed.next().await.unwrap().unwrap();
    assert_eq!((event.app.as_str(), event.kind.as_str()), ("web", "dozing"));
    running.stop().await;
    assert_eq!(followed.next().await.unwrap(), None, "the stream ends in order");
    assert_eq!(followed_logs.next().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_events_finds_all_that_happened_before_it_asked() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    // More at once than are stored in one transaction.
    for (round, count) in [1, 1, 1000, 1, 300].into_iter().enumerate() {
        let app = format!("app-{round}");
        for _ in 0..count {
            running.worker.emit(&app, "woken");
        }
        let query = EventQuery { app: Some(app), ..EventQuery::default() };
        assert_eq!(kinds(&running, query).await.len(), count, "in round {round}");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_that_fall_behind_miss_nothing_and_old_events_go() {
    /// Fewer than are kept, so that one who is behind by all of them still misses none; and more than are kept.
    const KEPT: usize = 9_000;
    const MANY: usize = 11_000;
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    let query = EventQuery { follow: true, ..EventQuery::default() };
    let mut followed = running.client.events(&query).await.unwrap();
    let mut last = 0;
    for number in 0..MANY {
        running.worker.emit(&format!("app-{number}"), "woken");
        if number % 1000 == 999 {
            // The worker's own stream is bounded as well; let the recorder take these.
            let app = Some(format!("app-{number}"));
            let query = EventQuery { app, follow: true, ..EventQuery::default() };
            assert!(running.client.events(&query).await.unwrap().next().await.unwrap().is_some());
        }
        if number == KEPT - 1 || number == MANY - 1 {
            while last <= number as u64 {
                let event = followed.next().await.unwrap().unwrap();
                assert_eq!(event.seq, last + 1);
                last = event.seq;
            }
        }
    }
    let kept = kinds(&running, EventQuery::default()).await;
    assert!((10_000..10_300).contains(&kept.len()), "{} are kept", kept.len());
    assert_eq!(kept.last().unwrap().0, last);
    assert_eq!(kinds(&running, EventQuery { tail: Some(5), ..EventQuery::default() }).await.len(), 5);
    assert_eq!(kinds(&running, EventQuery { since: Some(last - 2), ..EventQuery::default() }).await.len(), 2);
    running.stop().await;
}
