//! What goes wrong: nothing half-made is left, and the error says what and why.
#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod fake;

use std::sync::Arc;

use fake::{FakeWorker, Running, app, refusal};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use torpor_api::ErrorKind;
use torpor_api::client::{Client, ClientError, Endpoint};
use torpor_api::token::Token;
use torpor_api::wire::EventQuery;

#[tokio::test(flavor = "multi_thread")]
async fn failure_at_each_step_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    for step in ["resolve", "adopt", "start", "status"] {
        running.worker.fail(step);
        let error = refusal(running.client.create(&app("web", 8080), |_| ()).await.unwrap_err());
        assert!(error.message.contains("`web`") && error.message.contains(step), "{}", error.message);
        running.worker.heal();
        assert_eq!(running.client.apps().await.unwrap(), [], "{step}");
        assert!(running.worker.apps().is_empty(), "{step}");
        // The name, the port and the slot are free again.
        let made = running.client.create(&app("web", 8080), |_| ()).await.unwrap();
        assert_eq!(made.addresses, ["10.213.0.1"], "{step}");
        running.client.remove("web", true).await.unwrap();
    }
    // What began to be there ended; of the four successes and the two that came as far as the start.
    let follow = EventQuery { app: Some("web".to_owned()), follow: true, ..EventQuery::default() };
    let mut events = running.client.events(&follow).await.unwrap();
    let mut there = false;
    for _ in 0..12 {
        let kind = loop {
            let kind = events.next().await.unwrap().unwrap().kind;
            if ["created", "removed"].contains(&kind.as_str()) {
                break kind;
            }
        };
        assert_eq!(kind, if there { "removed" } else { "created" });
        there = !there;
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_undone_is_said_and_removed_later() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    running.worker.fail("start");
    running.worker.fail("remove");
    let error = refusal(running.client.create(&app("web", 1), |_| ()).await.unwrap_err());
    assert!(error.message.contains("could not be removed") && error.hint.unwrap().contains("rm -f web"));
    assert_eq!(running.client.apps().await.unwrap().len(), 1, "the rest is seen");
    let error = refusal(running.client.remove("web", true).await.unwrap_err());
    assert_eq!(error.kind, ErrorKind::Internal);
    running.worker.heal();
    let error = refusal(running.client.act("web", torpor_api::client::AppAction::Start).await.unwrap_err());
    assert_eq!(error.kind, ErrorKind::Conflict);
    let worker = Arc::clone(&running.worker);
    running.stop().await;
    // The next hub takes it away.
    let next = Running::start(dir.path(), worker).await;
    assert_eq!(next.client.apps().await.unwrap(), []);
    assert!(next.worker.apps().is_empty());
    next.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_that_want_the_same_one_gets_it() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    for (same, document) in [
        ("name", Box::new(|number: u16| app("web", 1000 + number)) as Box<dyn Fn(u16) -> serde_json::Value>),
        ("port", Box::new(|number| app(&format!("app-{number}"), 8080))),
    ] {
        let tries = (0..16).map(|number| {
            let (client, document) = (running.client.clone(), document(number));
            tokio::spawn(async move { client.create(&document, |_| ()).await })
        });
        let tries: Vec<_> = tries.collect();
        let mut made = Vec::new();
        for attempt in tries {
            match attempt.await.unwrap() {
                Ok(status) => made.push(status.name),
                Err(error) => assert_eq!(refusal(error).kind, ErrorKind::Conflict, "{same}"),
            }
        }
        assert_eq!(made.len(), 1, "{same}: {made:?}");
        assert_eq!(running.worker.apps().len(), 1);
        running.client.remove(&made[0], true).await.unwrap();
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_whose_ids_are_others_are_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    running.worker.inner.lock().unwrap().reserved = vec![2..=3, 1..=2, 5..=5];
    for (name, index) in [("a", 4), ("b", 6), ("c", 7)] {
        let made = running.client.create(&app(name, 1000 + index), |_| ()).await.unwrap();
        assert_eq!(made.addresses, [format!("10.213.0.{index}")]);
    }
    running.worker.inner.lock().unwrap().reserved = vec![1..=u32::MAX];
    let refused = running.client.create(&app("d", 2000), |_| ()).await.unwrap_err();
    assert!(refused.to_string().contains("/etc/subuid"), "{refused:?}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_apps_at_once_get_numbers_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    let tries: Vec<_> = (0..50_u16)
        .map(|number| {
            let client = running.client.clone();
            tokio::spawn(
                async move { client.create(&app(&format!("a{number}"), 1000 + number), |_| ()).await.unwrap() },
            )
        })
        .collect();
    for attempt in tries {
        attempt.await.unwrap();
    }
    let mut slots: Vec<u32> = running.worker.apps().iter().map(|app| app.record.index).collect();
    slots.sort_unstable();
    assert_eq!(slots, (1..=50).collect::<Vec<_>>());
    running.client.remove("a7", true).await.unwrap();
    let slot = {
        let apps = running.worker.apps();
        (1..=50).find(|slot| !apps.iter().any(|app| app.record.index == *slot)).unwrap()
    };
    let made = running.client.create(&app("again", 7), |_| ()).await.unwrap();
    assert_eq!(made.addresses, [format!("10.213.0.{slot}")], "a free number is used again");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_gives_the_name_back() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    let worker = Arc::clone(&running.worker);
    let gate = worker.gate.lock().await;
    let client = running.client.clone();
    let (seen, wait) = tokio::sync::oneshot::channel();
    let mut seen = Some(seen);
    let attempt = tokio::spawn(async move {
        let step = |_| seen.take().map_or((), |seen| seen.send(()).unwrap());
        client.create(&app("web", 1), step).await
    });
    wait.await.unwrap();
    let error = refusal(running.client.create(&app("web", 2), |_| ()).await.unwrap_err());
    assert_eq!(error.kind, ErrorKind::Conflict, "it is being made");
    attempt.abort();
    // The hub notices that the reader is gone; until then the name is taken.
    drop(gate);
    loop {
        match running.client.create(&app("web", 1), |_| ()).await {
            Ok(_) => break,
            Err(error) => assert_eq!(refusal(error).kind, ErrorKind::Conflict),
        }
        // It may also have been made just before the client left; then it is a whole app.
        if running.client.apps().await.unwrap().len() == 1 {
            break;
        }
    }
    assert_eq!(running.worker.apps().len(), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_descriptions_are_refused_with_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    for (key, value, about) in [
        ("naame", json!("x"), "naame"),
        ("limits", json!({"memroy": "1M"}), "limits"),
        ("ports", json!([{"host": 99999, "app": 1}]), "ports[0].host"),
        ("ports", json!([{"host": 0, "app": 1}]), "1 to 65535"),
        ("name", json!("../x"), "not a name"),
        ("source", json!({"tarball": {"path": "relative"}}), "absolute"),
        ("idle", json!({"after": "soon"}), "idle.after"),
        ("idle", json!(7), "idle"),
        ("env", json!({"A=B": "x"}), "env"),
        ("security", json!({"cap_add": ["CAP_FLY"]}), "CAP_FLY"),
        ("volumes", json!([{"host": "/a", "app": "/proc/x"}]), "sandbox itself"),
    ] {
        let mut document = app("web", 1);
        document[key] = value;
        let error = refusal(running.client.create(&document, |_| ()).await.unwrap_err());
        assert_eq!(error.kind, ErrorKind::Invalid, "{key}: {error}");
        assert!(error.message.contains(about), "{key}: {error}");
    }
    for body in [json!([]), json!("x"), json!(null)] {
        assert_eq!(refusal(running.client.create(&body, |_| ()).await.unwrap_err()).kind, ErrorKind::Invalid);
    }
    assert!(running.worker.apps().is_empty());
    assert!(running.worker.calls().is_empty(), "the worker was not asked");
    running.stop().await;
}

/// Sends raw bytes to the socket; gives the status line and the body.
async fn raw(running: &Running, request: &str) -> (String, String) {
    let mut stream = tokio::net::UnixStream::connect(&running.socket).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn http_errors_have_our_shape() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    let long = "x".repeat(torpor_api::document::DOCUMENT_BYTES + 1);
    for (line, body, status) in [
        ("GET /nowhere", "", "404"),
        ("PUT /v1/apps", "", "400"),
        ("POST /v1/apps", "{", "400"),
        ("POST /v1/apps", long.as_str(), "400"),
        ("GET /v1/apps/none/explain", "", "404"),
        ("GET /v1/events?folow=true", "", "400"),
        ("GET /v1/apps/%FF", "", "400"),
        ("POST /v1/apps/none/stop?grace=2d", "", "400"),
        ("POST /v1/apps/none/sleep?level=cold", "", "400"),
        ("POST /v1/apps/none/sleep?level=warm", "", "404"),
        ("POST /v1/apps/none/exec", "{}", "400"),
        ("GET /v1/apps/none/archive", "", "404"),
        ("GET /v1/apps/none/archive?sleeep=true", "", "400"),
        ("POST /v1/archives", "no archive", "400"),
        ("POST /v1/archives?nme=x", "", "400"),
    ] {
        let length = body.len();
        let request =
            format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
        let (head, body) = raw(&running, &request).await;
        assert!(head.contains(status), "{line}: {head}");
        let error: torpor_api::ApiError =
            serde_json::from_str(&body).unwrap_or_else(|problem| panic!("{line}: {problem}: {body}"));
        assert!(!error.message.is_empty());
    }
    // Without progress: one body and a status of its own.
    let document = app("web", 1).to_string();
    let request = format!(
        "POST /v1/apps HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{document}",
        document.len()
    );
    assert!(raw(&running, &request).await.0.contains("201"));
    assert!(raw(&running, &request).await.0.contains("409"));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_description_names_every_path() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    let (head, _) = raw(&running, "GET /openapi.json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(head.contains("200"));
    let description = serde_json::to_value(torpor_hub::openapi()).unwrap();
    let paths = description["paths"].as_object().unwrap();
    assert_eq!(paths.len(), 24, "{:?}", paths.keys());
    assert!(paths["/v1/apps"]["post"]["requestBody"].is_object());
    let sleep = paths["/v1/apps/{name}/sleep"]["post"]["parameters"].as_array().unwrap();
    let level = sleep.iter().find(|parameter| parameter["name"] == "level").unwrap();
    let named = |name: &str| level["schema"].to_string().contains(&format!("\"{name}\""));
    assert!(level["required"] == false && named("dozing") && named("warm"), "{level}");
    let mut ids = std::collections::BTreeSet::new();
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "{method} {path}: {id} is there twice");
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let in_path = path.contains(&format!("{{{}}}", parameter["name"].as_str().unwrap()));
                let optional = parameter["in"] == "query" && parameter["required"] == false;
                let rightly = if in_path { parameter["in"] == "path" } else { optional || parameter["in"] == "header" };
                assert!(rightly, "{path}: {parameter}");
            }
        }
    }
    // Every reference leads somewhere.
    let text = description.to_string();
    for reference in text.split("\"$ref\":\"#").skip(1) {
        let pointer = reference.split('"').next().unwrap();
        assert!(description.pointer(pointer).is_some(), "{pointer}");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tcp_wants_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str, mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        Token::read(&path)
    };
    assert!(file("open", "0123456789abcdef0123", 0o644).unwrap_err().to_string().contains("chmod 600"));
    assert!(file("short", "0123", 0o600).is_err());
    assert!(file("spaced", "0123456789 abcdef0123", 0o600).is_err());
    let right = file("right", "0123456789abcdef0123\n", 0o600).unwrap();
    assert!(!format!("{right:?}").contains("0123"));
    let running = Running::with_token(dir.path(), FakeWorker::new(), Some(right.clone())).await;
    let address = running.tcp.unwrap().to_string();
    let client = |token| Client::new(Endpoint::Tcp { address: address.clone(), token });
    client(right).create(&app("web", 1), |_| ()).await.unwrap();
    for (name, text) in [("a", "0123456789abcdef0124"), ("b", "0123456789abcdef"), ("c", "0123456789abcdef01233")] {
        let error = refusal(client(file(name, text, 0o600).unwrap()).apps().await.unwrap_err());
        assert!(error.message.contains("token"), "{error}");
    }
    for header in ["", "Authorization: Basic 0123456789abcdef0123\r\n", "Authorization: Bearer\r\n"] {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let request = format!("GET /openapi.json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
        assert!(!answer.contains("0123456789abcdef0123"));
    }
    running.stop().await;
}

#[tokio::test]
async fn without_a_daemon_the_client_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("api.sock");
    let left = dir.path().join("left.sock");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    for path in [missing, left] {
        let error = Client::new(Endpoint::Unix(path)).apps().await.unwrap_err();
        assert!(matches!(error, ClientError::NotRunning { .. }), "{error:?}");
    }
}
