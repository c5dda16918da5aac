//! A row that cannot be read: its app is left alone, and keeps no other from anything.
#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod fake;

use std::path::Path;

use fake::{FakeWorker, Running, app, refusal};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use torpor_api::ErrorKind;
use torpor_api::client::AppAction;
use torpor_api::view::State;

async fn change(dir: &Path, statement: &'static str) {
    let options = SqliteConnectOptions::new().filename(dir.join("data/torpor.db")).foreign_keys(false);
    let database = SqlitePool::connect_with(options).await.unwrap();
    assert_eq!(sqlx::raw_sql(statement).execute(&database).await.unwrap().rows_affected(), 1, "{statement}");
    database.close().await;
}

/// A damage, and whether the layers of the app can still be read.
const DAMAGES: [(&str, bool); 8] = [
    ("UPDATE apps SET spec = '{' WHERE name = 'y'", true),
    ("UPDATE apps SET spec = replace(spec, '{\"name\"', '{\"zzz\":1,\"name\"') WHERE name = 'y'", true),
    ("UPDATE apps SET spec = replace(spec, '\"y\"', '\"web\"') WHERE name = 'y'", true),
    ("UPDATE apps SET resolved = '{}' WHERE name = 'y'", false),
    ("UPDATE apps SET created = 'yesterday' WHERE name = 'y'", true),
    ("UPDATE apps SET id = '../../../etc' WHERE name = 'y'", true),
    ("UPDATE apps SET id = upper(substr(id, 1, 15)) || 'X' WHERE name = 'y'", true),
    ("UPDATE apps SET phase = 'removing', created = '' WHERE name = 'y'", true),
];

#[tokio::test(flavor = "multi_thread")]
async fn an_app_of_a_worker_that_is_not_registered_is_shown_and_refused() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    running.client.create(&app("web", 8001), |_| ()).await.unwrap();
    running.stop().await;
    change(dir.path(), "UPDATE apps SET worker = 'far'").await;

    let running = Running::start(dir.path(), FakeWorker::new()).await;
    assert!(running.worker.apps().is_empty());
    let shown = running.client.apps().await.unwrap().remove(0);
    assert!(shown.stop_reason.unwrap().contains("its worker `far` is not registered"));
    for refused in [
        running.client.act("web", AppAction::Start).await.unwrap_err(),
        running.client.explain("web").await.unwrap_err(),
        running.client.remove("web", true).await.unwrap_err(),
    ] {
        assert!(refusal(refused).message.contains("`far` is not registered"));
    }
    // Its row stays: what is wanted of it is not this worker's.
    assert_eq!(running.client.apps().await.unwrap().len(), 1);
    running.stop().await;
    change(dir.path(), "UPDATE apps SET worker = 'local'").await;
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    assert_eq!(running.worker.apps().len(), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn its_app_is_left_alone_and_the_others_go_on() {
    for (damage, layers) in DAMAGES {
        let dir = tempfile::tempdir().unwrap();
        let running = Running::start(dir.path(), FakeWorker::new()).await;
        for (name, port) in [("x", 8001), ("y", 8002), ("z", 8003)] {
            running.client.create(&app(name, port), |_| ()).await.unwrap();
        }
        running.stop().await;
        change(dir.path(), damage).await;

        let running = Running::start(dir.path(), FakeWorker::new()).await;
        let (client, worker) = (&running.client, &running.worker);
        let states: Vec<_> = client.apps().await.unwrap().into_iter().map(|app| (app.name, app.state)).collect();
        let expected = [("x", State::Running), ("y", State::Unreadable), ("z", State::Running)];
        assert_eq!(states, expected.map(|(name, state)| (name.to_owned(), state)), "{damage}");
        let left_alone = worker.inner.lock().unwrap().left_alone.clone();
        assert_eq!(left_alone.len(), 1, "{damage}");
        assert_eq!(left_alone[0].layers, layers.then(|| vec!["sha256:aa".to_owned()]), "{damage}");
        let known: Vec<_> = worker.apps().into_iter().map(|app| app.record.spec.name).collect();
        assert!(known.len() == 2 && !known.contains(&"y".to_owned()), "{damage}: {known:?}");

        for refused in [
            client.act("y", AppAction::Start).await.unwrap_err(),
            client.explain("y").await.unwrap_err(),
            client.remove("y", false).await.unwrap_err(),
        ] {
            let refused = refusal(refused);
            assert!(refused.message.contains("`y`") && refused.hint.is_some(), "{damage}: {refused:?}");
        }
        let checks = client.doctor().await.unwrap();
        assert!(checks.iter().any(|check| check.found.contains("`y`")), "{damage}: {checks:?}");
        // Its name, its slot and its port stay its own.
        let refused = refusal(client.create(&app("y", 9000), |_| ()).await.unwrap_err());
        assert_eq!(refused.kind, ErrorKind::Conflict, "{damage}");
        client.create(&app("new", 9000), |_| ()).await.unwrap();
        assert_eq!(client.inspect("new").await.unwrap().status.addresses, ["10.213.0.4"], "{damage}");
        client.act("x", AppAction::Wake).await.unwrap();
        client.remove("z", true).await.unwrap();
        // By force it goes, with its row and what it has.
        client.remove("y", true).await.unwrap();
        let states: Vec<_> = client.apps().await.unwrap().into_iter().map(|app| app.name).collect();
        assert_eq!(states, ["new", "x"], "{damage}");
        client.create(&app("y", 8002), |_| ()).await.unwrap();
        running.stop().await;
    }
}

/// Names, ids and errors that quote the row, each longer than a line of an answer may be.
const LONG: [&str; 3] = [
    "UPDATE apps SET name = replace(hex(zeroblob(5000000)), '0', 'n'), \
     spec = replace(spec, '\"y\"', '\"' || replace(hex(zeroblob(5000000)), '0', 'n') || '\"') WHERE name = 'y'",
    "UPDATE apps SET name = hex(zeroblob(5000000)), id = hex(zeroblob(5000000)) WHERE name = 'y'",
    "UPDATE apps SET spec = replace(spec, '{\"name\"', '{\"' || hex(zeroblob(5000000)) || '\":1,\"name\"') WHERE name = 'y'",
];

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_of_it_is_bounded() {
    for damage in LONG {
        let dir = tempfile::tempdir().unwrap();
        let running = Running::start(dir.path(), FakeWorker::new()).await;
        for (name, port) in [("x", 8001), ("y", 8002)] {
            running.client.create(&app(name, port), |_| ()).await.unwrap();
        }
        running.stop().await;
        change(dir.path(), damage).await;

        let running = Running::start(dir.path(), FakeWorker::new()).await;
        let client = &running.client;
        let apps = client.apps().await.unwrap();
        let unreadable = apps.iter().find(|app| app.name != "x").unwrap();
        assert_eq!((apps.len(), unreadable.state), (2, State::Unreadable));
        let why = unreadable.stop_reason.clone().unwrap();
        let longest = [&unreadable.name, &unreadable.id, &why].map(String::len).into_iter().max().unwrap();
        assert!(longest < 2000, "{longest}");
        // The answer comes as a stream of lines. A port is taken by the app of an id.
        if !damage.contains("id =") {
            let taken = refusal(client.create(&app("new", 8002), |_| ()).await.unwrap_err());
            assert!(taken.kind == ErrorKind::Conflict && taken.message.len() < 2000, "{}", taken.message.len());
        }
        client.create(&app("new", 9000), |_| ()).await.unwrap();
        client.remove(&unreadable.name, true).await.unwrap();
        client.create(&app("y", 8002), |_| ()).await.unwrap();
        running.stop().await;
    }
}

/// A database that is lost, for one app or for all.
#[tokio::test(flavor = "multi_thread")]
async fn an_app_without_a_row_is_left_alone_until_it_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let worker = FakeWorker::new();
    let orphan = "00000000000000ff";
    worker.inner.lock().unwrap().orphans.insert(orphan.to_owned());
    let running = Running::start(dir.path(), worker).await;
    let (client, worker) = (&running.client, &running.worker);
    let apps = client.apps().await.unwrap();
    assert_eq!((apps.len(), apps[0].name.as_str(), apps[0].state), (1, orphan, State::Unreadable));
    let left_alone = worker.inner.lock().unwrap().left_alone.clone();
    assert_eq!((left_alone.len(), left_alone[0].id.as_str(), &left_alone[0].layers), (1, orphan, &None));
    assert!(client.doctor().await.unwrap().iter().any(|check| check.found.contains(orphan)));
    for refused in [
        client.act(orphan, AppAction::Start).await.unwrap_err(),
        client.explain(orphan).await.unwrap_err(),
        client.inspect(orphan).await.unwrap_err(),
        client.remove(orphan, false).await.unwrap_err(),
    ] {
        let refused = refusal(refused);
        assert!(refused.message.contains(orphan) && refused.hint.is_some(), "{refused:?}");
    }
    client.create(&app("web", 8001), |_| ()).await.unwrap();
    client.remove(orphan, true).await.unwrap();
    assert!(worker.inner.lock().unwrap().calls.contains(&format!("remove_unknown {orphan}")));
    let names: Vec<_> = client.apps().await.unwrap().into_iter().map(|app| app.name).collect();
    assert_eq!(names, ["web"]);
    running.stop().await;
}
