//! Archives in transit: their number is bounded, one that makes no progress ends, and `rm` ends an import.
#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod fake;

use std::path::Path;
use std::time::Duration;

use fake::{FakeWorker, Running, app, refusal};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use torpor_api::ErrorKind;
use torpor_api::archive::{Manifest, Section, Writer};
use torpor_api::client::AppAction;
use torpor_api::view::State;
use torpor_api::worker::Resolved;

/// Exports, and imports, at the same time.
const PLACES: usize = 8;
/// How long a transfer may make no progress, where the test waits for its end.
const MOMENT: Duration = Duration::from_secs(1);

/// A whole archive of the app `web`.
fn archive() -> Vec<u8> {
    let spec = torpor_api::document::spec_from_toml("name = 'web'\nsource.stored.name = 'x'").unwrap();
    let made = jiff::Timestamp::UNIX_EPOCH;
    let (addresses, left_out) = (Vec::new(), Vec::new());
    let manifest = Manifest { torpor: "1".to_owned(), made, spec, resolved: Resolved::default(), addresses, left_out };
    let mut bytes = Vec::new();
    let mut writer = Writer::begin(&mut bytes, &manifest).unwrap();
    let mut section = writer.section(&Section::Files).unwrap();
    std::io::Write::write_all(&mut section, &[7; 1000]).unwrap();
    section.finish().unwrap();
    writer.end().unwrap();
    bytes
}

async fn send(socket: &Path, head: &str, body: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(format!("{head} HTTP/1.1\r\nHost: x\r\n").as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    stream
}

/// An export whose answer has begun, and of which no more is read.
async fn unread_export(socket: &Path) -> UnixStream {
    let mut stream = send(socket, "GET /v1/apps/endless/archive", b"\r\n").await;
    let mut begin = [0; 12];
    stream.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
    stream
}

/// An upload of the whole archive, of which so much is sent.
async fn upload(socket: &Path, part: &[u8]) -> UnixStream {
    let length = archive().len();
    let body = [format!("Content-Length: {length}\r\n\r\n").as_bytes(), part].concat();
    send(socket, "POST /v1/archives", &body).await
}

async fn answer(stream: &mut UnixStream) -> String {
    let mut answer = vec![0; 2000];
    let count = stream.read(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer[..count]).into_owned()
}

async fn eventually<F: Future<Output = bool>>(what: &str, mut is: impl FnMut() -> F) {
    let looks = async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), looks).await.expect(what);
}

#[tokio::test(flavor = "multi_thread")]
async fn exports_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    running.client.create(&app("endless", 8080), |_| ()).await.unwrap();
    let mut unread = Vec::new();
    for _ in 0..PLACES {
        unread.push(unread_export(&running.socket).await);
    }
    let refused = refusal(running.client.export("endless", false).await.err().unwrap());
    assert!(refused.kind == ErrorKind::Conflict && refused.hint.is_some(), "{refused:?}");
    running.client.act("endless", AppAction::Wake).await.unwrap();
    unread.pop();
    eventually("a place is free again", async || running.client.export("endless", false).await.is_ok()).await;
    drop(unread);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_that_nobody_reads_ends() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::impatient(dir.path(), FakeWorker::new(), MOMENT).await;
    running.client.create(&app("endless", 8080), |_| ()).await.unwrap();
    let mut unread = Vec::new();
    for _ in 0..PLACES {
        unread.push(unread_export(&running.socket).await);
    }
    // Their connections are closed, though nothing of what lies in them is read: that would be progress.
    for stream in &unread {
        let closed = async || stream.ready(Interest::READABLE).await.unwrap().is_read_closed();
        eventually("the connection is closed", closed).await;
    }
    eventually("a place is free again", async || running.client.export("endless", false).await.is_ok()).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_stalls_or_drips_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::impatient(dir.path(), FakeWorker::new(), MOMENT).await;
    let whole = archive();
    // Before its manifest is complete, and in its files.
    for sent in [0, 30, whole.len() - 100] {
        let mut stalled = upload(&running.socket, &whole[..sent]).await;
        let answer = answer(&mut stalled).await;
        assert!(answer.starts_with("HTTP/1.1 504") && answer.contains("stalled"), "{sent}: {answer}");
        assert_eq!(running.client.apps().await.unwrap(), [], "{sent}");
    }
    let (mut read, mut write) = upload(&running.socket, &whole[..100]).await.into_split();
    let dripping = tokio::spawn(async move {
        // Slower than it may be, and never silent for long. It fails when the daemon has closed the connection.
        while write.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let mut begin = [0; 12];
    read.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 504");
    dripping.abort();
    assert_eq!(running.client.apps().await.unwrap(), []);
    assert!(answer(&mut upload(&running.socket, &whole).await).await.starts_with("HTTP/1.1 201"));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rm_ends_an_import() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    let client = &running.client;
    let whole = archive();
    let mut half = upload(&running.socket, &whole[..whole.len() - 100]).await;
    let importing = async || client.apps().await.unwrap().iter().any(|app| app.state == State::Importing);
    eventually("it is shown", importing).await;
    let explained = client.explain("web").await.unwrap();
    assert!(explained.status.state == State::Importing && explained.why.contains("torpor rm web"), "{explained:?}");
    for refused in [client.act("web", AppAction::Start).await, client.act("web", AppAction::Wake).await] {
        assert!(refusal(refused.unwrap_err()).message.contains("being imported"));
    }
    client.remove("web", false).await.unwrap();
    let answer = answer(&mut half).await;
    assert!(answer.starts_with("HTTP/1.1 409") && answer.contains("torpor rm"), "{answer}");
    assert_eq!(client.apps().await.unwrap(), []);
    assert!(running.worker.apps().is_empty());
    client.create(&app("web", 8080), |_| ()).await.unwrap();
    running.stop().await;
}
