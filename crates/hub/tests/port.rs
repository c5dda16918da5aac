//! The port between hub and worker: what passes in process, and what passes encoded, is the same.
#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod fake;

use std::io::{Cursor, Read};
use std::sync::Arc;

use fake::FakeWorker;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::{mpsc, oneshot};
use torpor_api::ErrorKind;
use torpor_api::archive::{Manifest, Reader, Writer};
use torpor_api::port::WorkerClient;
use torpor_api::spec::Source;
use torpor_api::worker::{AppRecord, Desired, Epoch, Import, LogRequest, Resolved};

const ID: &str = "00000000000000aa";

fn clients(worker: &Arc<FakeWorker>) -> [WorkerClient; 2] {
    [WorkerClient::in_process(worker.clone()), WorkerClient::encoded(worker.clone())]
}

fn record() -> AppRecord {
    AppRecord {
        id: ID.to_owned(),
        index: 1,
        spec: torpor_api::document::to_spec(fake::app("web", 8080)).unwrap(),
        resolved: Resolved::default(),
        created: jiff::Timestamp::UNIX_EPOCH,
        desired: Desired::Up,
        pinned: false,
        epoch: Epoch::FIRST,
    }
}

/// The bytes of an archive without sections, and a notice of when nobody can read them any more.
struct Noticed(Cursor<Vec<u8>>, Option<oneshot::Sender<()>>);

impl Read for Noticed {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into)
    }
}

impl Drop for Noticed {
    fn drop(&mut self) {
        let _ = self.1.take().unwrap().send(());
    }
}

fn archive() -> (Reader, Manifest, oneshot::Receiver<()>) {
    let AppRecord { spec, resolved, created, .. } = record();
    let manifest =
        Manifest { torpor: "1".to_owned(), made: created, spec, resolved, addresses: Vec::new(), left_out: Vec::new() };
    let mut bytes = Vec::new();
    Writer::begin(&mut bytes, &manifest).unwrap().end().unwrap();
    let (dropped_in, dropped) = oneshot::channel();
    let (reader, manifest) = Reader::open(Box::new(Noticed(Cursor::new(bytes), Some(dropped_in)))).unwrap();
    (reader, manifest, dropped)
}

#[tokio::test]
async fn events_are_ready_when_the_answer_after_them_arrives() {
    for client in clients(&FakeWorker::new()) {
        let mut events = client.events().await.unwrap();
        client.adopt(record()).await.unwrap();
        client.start(ID).await.unwrap();
        client.stop(ID, std::time::Duration::ZERO).await.unwrap();
        for kind in ["started", "exited"] {
            let event = tokio::task::unconstrained(events.next()).now_or_never();
            assert_eq!(event.expect("it is ready").unwrap().kind, kind);
        }
    }
}

#[tokio::test]
async fn errors_and_values_arrive_as_they_are() {
    let worker = FakeWorker::new();
    let [passed, encoded] = clients(&worker);
    worker.fail("start");
    let errors = [passed.start(ID).await.unwrap_err(), encoded.start(ID).await.unwrap_err()];
    assert_eq!(errors[0], errors[1]);
    assert_eq!(errors[0].kind, ErrorKind::Internal);
    passed.adopt(record()).await.unwrap();
    assert_eq!(passed.status(ID).await.unwrap(), encoded.status(ID).await.unwrap());
    assert_eq!(passed.explain(ID).await.unwrap(), encoded.explain(ID).await.unwrap());
    let all = || LogRequest { tail: None, follow: false };
    let (one, other) = (passed.logs(ID, all()).await.unwrap(), encoded.logs(ID, all()).await.unwrap());
    assert_eq!(one.collect::<Vec<_>>().await, other.collect::<Vec<_>>().await);
}

#[tokio::test]
async fn a_call_that_is_dropped_is_given_up_and_progress_comes_before_the_answer() {
    let source = Source::Stored { name: "x".to_owned() };
    for client in clients(&FakeWorker::new()) {
        let (reports, mut reported) = mpsc::channel(8);
        client.resolve(&source, reports).await.unwrap();
        let done: Vec<u64> = std::iter::from_fn(|| reported.try_recv().ok()).map(|report| report.done_bytes).collect();
        assert_eq!(done, [1, 2]);
    }
    let worker = FakeWorker::new();
    let closed = worker.gate.lock().await;
    for client in clients(&worker) {
        let (reports, mut reported) = mpsc::channel(8);
        assert!(client.resolve(&source, reports).now_or_never().is_none());
        while reported.recv().await.is_some() {}
    }
    drop(closed);
    // Whoever was given up does not wait in line for the gate.
    assert!(worker.gate.try_lock().is_ok());
}

#[tokio::test]
async fn the_rest_of_an_archive_stays_until_it_is_imported_or_abandoned() {
    for client in clients(&FakeWorker::new()) {
        client.adopt(record()).await.unwrap();
        let (reader, manifest, mut dropped) = archive();
        let (staged, resolved) = client.import_layers(reader, &manifest).await.unwrap();
        assert_eq!(resolved, manifest.resolved);
        assert!(dropped.try_recv().is_err(), "the worker has the rest");
        drop(staged);
        assert!(dropped.try_recv().is_ok());

        let (reader, manifest, mut dropped) = archive();
        let (staged, _) = client.import_layers(reader, &manifest).await.unwrap();
        client.import_app(ID, staged, Import::default()).await.unwrap();
        assert!(dropped.try_recv().is_ok());
    }
}
