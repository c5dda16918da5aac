//! `exec` over HTTP, and its frames under hostile bytes.
#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod fake;

use bytes::{BufMut, Bytes, BytesMut};
use fake::{FakeWorker, Running, app, refusal};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use torpor_api::ErrorKind;
use torpor_api::frame::{Frame, FrameReader, PAYLOAD_BYTES};
use torpor_api::worker::{ExecRequest, ExecSession};
use torpor_hub::{SessionEnd, run_session};

fn command(words: &[&str]) -> ExecRequest {
    ExecRequest { command: words.iter().map(|word| (*word).to_owned()).collect(), ..ExecRequest::default() }
}

async fn all(reader: &mut torpor_api::client::ExecReader) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Some(frame) = reader.next().await.unwrap() {
        frames.push(frame);
    }
    frames
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_run() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    running.client.create(&app("web", 1), |_| ()).await.unwrap();

    let mut said = running.client.exec("web", &command(&["say", "hello"])).await.unwrap();
    let frames = all(&mut said.reader).await;
    assert_eq!(frames.last(), Some(&Frame::Status(0)));
    assert!(frames.contains(&Frame::Stdout("say hello".into())) && frames.contains(&Frame::Stderr("warned".into())));

    let mut status = running.client.exec("web", &command(&["exit", "137"])).await.unwrap();
    assert_eq!(all(&mut status.reader).await, [Frame::Status(137)]);

    let mut sized = running.client.exec("web", &command(&["size"])).await.unwrap();
    sized.writer.send(&Frame::Resize { columns: 132, rows: 43 }).await.unwrap();
    assert_eq!(all(&mut sized.reader).await, [Frame::Stdout("132x43".into()), Frame::Status(0)]);

    let data = Bytes::from((0..1_000_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
    let echoed = running.client.exec("web", &command(&["cat"])).await.unwrap();
    let (mut reader, mut writer, sent) = (echoed.reader, echoed.writer, data.clone());
    let sending = tokio::spawn(async move {
        writer.send(&Frame::Stdin(sent)).await.unwrap();
        writer.send(&Frame::Stdin(Bytes::new())).await.unwrap();
        writer
    });
    let mut back = BytesMut::new();
    let end = loop {
        match reader.next().await.unwrap().unwrap() {
            Frame::Stdout(bytes) => back.put(bytes),
            other => break other,
        }
    };
    assert_eq!((back.freeze(), end), (data, Frame::Status(0)));
    drop(sending.await.unwrap());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_come_before_the_stream_and_the_hub_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), FakeWorker::new()).await;
    let missing = running.client.exec("web", &command(&["ls"])).await.unwrap_err();
    assert_eq!(refusal(missing).kind, ErrorKind::NotFound);
    running.client.create(&app("web", 1), |_| ()).await.unwrap();
    let empty = running.client.exec("web", &command(&[])).await.unwrap_err();
    assert_eq!(refusal(empty).kind, ErrorKind::Invalid);
    let mut long = running.client.exec("web", &command(&["sleep"])).await.unwrap();
    running.stop().await;
    assert!(matches!(all(&mut long.reader).await.as_slice(), [Frame::Error(_)]));
}

/// A session whose command reads nothing and never ends.
fn stuck() -> (ExecSession, impl Sized) {
    let (input, stdin) = tokio::io::duplex(64);
    let (stdout, output) = tokio::io::duplex(64);
    let (stderr, errors) = tokio::io::duplex(64);
    let (ended, status) = tokio::sync::oneshot::channel();
    let (resize, sizes) = tokio::sync::mpsc::channel(1);
    let session =
        ExecSession { input: Box::pin(input), output: Box::pin(output), errors: Box::pin(errors), status, resize };
    (session, (stdin, stdout, stderr, ended, sizes))
}

/// What a session makes of bytes from a client that then leaves.
fn end_of(bytes: Vec<u8>) -> SessionEnd {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let session = async move {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let (session, kept) = stuck();
        let served = tokio::spawn(run_session(server, session, std::future::pending()));
        // An error means that the session has ended already.
        let _ = client.write_all(&bytes).await;
        let _ = client.shutdown().await;
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        drop(kept);
        served.await.unwrap()
    };
    let timed = async { tokio::time::timeout(std::time::Duration::from_secs(20), session).await };
    runtime.block_on(timed).expect("a session whose client left ends")
}

#[test]
fn wrong_frames_end_the_session() {
    let frame = |frame: Frame| {
        let mut bytes = BytesMut::new();
        frame.encode(&mut bytes);
        bytes.to_vec()
    };
    assert_eq!(end_of(Vec::new()), SessionEnd::ClientLeft);
    assert_eq!(end_of(frame(Frame::Stdin("x".into()))), SessionEnd::ClientLeft);
    let sizes = frame(Frame::Resize { columns: 1, rows: 2 }).repeat(1000);
    assert_eq!(end_of(sizes), SessionEnd::ClientLeft, "sizes that nobody takes");
    for bytes in [
        vec![9, 0, 0, 0, 0],
        vec![0, 255, 255, 255, 255],
        vec![1, 0, 0, 0, 3, 1, 2, 3],
        vec![0, 0, 0, 0, 9, 1],
        frame(Frame::Status(0)),
        frame(Frame::Stdout("x".into())),
        [frame(Frame::Stdin(Bytes::new())), frame(Frame::Stdin("x".into()))].concat(),
    ] {
        let end = end_of(bytes.clone());
        assert!(matches!(end, SessionEnd::Protocol(_)), "{bytes:?}: {end:?}");
    }
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let bytes = |least: usize| prop::collection::vec(any::<u8>(), least..300).prop_map(Bytes::from);
    prop_oneof![
        bytes(0).prop_map(Frame::Stdin),
        (any::<u16>(), any::<u16>()).prop_map(|(columns, rows)| Frame::Resize { columns, rows }),
        bytes(1).prop_map(Frame::Stdout),
        bytes(1).prop_map(Frame::Stderr),
        any::<i32>().prop_map(Frame::Status),
        bytes(0).prop_map(Frame::Error),
    ]
}

/// Decodes a stream that comes in pieces of `size` bytes.
fn decoded(bytes: &[u8], size: usize) -> Result<Vec<Frame>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (mut to, from) = tokio::io::duplex(size);
        let sent = bytes.to_vec();
        let sending = tokio::spawn(async move {
            let _ = to.write_all(&sent).await;
        });
        let mut reader = FrameReader::new(from);
        let mut frames = Vec::new();
        let end = loop {
            match reader.next().await {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break Ok(frames),
                Err(error) => break Err(error.to_string()),
            }
        };
        drop(reader);
        sending.await.unwrap();
        end
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn frames_survive_any_cut(frames in prop::collection::vec(any_frame(), 0..8), size in 1_usize..64) {
        let mut bytes = BytesMut::new();
        frames.iter().for_each(|frame| frame.encode(&mut bytes));
        prop_assert_eq!(decoded(&bytes, size).unwrap(), frames);
    }

    #[test]
    fn hostile_bytes_are_refused_or_decoded(bytes in prop::collection::vec(any::<u8>(), 0..600), size in 1_usize..64) {
        let _ = decoded(&bytes, size);
        let mut buffer = BytesMut::from(bytes.as_slice());
        // Never more is held than one frame asks for, and each step takes at least a head.
        while let Ok(Some(frame)) = Frame::decode(&mut buffer) {
            if let Frame::Stdin(payload) | Frame::Stdout(payload) | Frame::Stderr(payload) | Frame::Error(payload) = frame {
                prop_assert!(payload.len() <= PAYLOAD_BYTES);
            }
        }
    }

    #[test]
    fn hostile_clients_end_their_session(
        frames in prop::collection::vec(any_frame(), 0..6),
        rest in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut bytes = BytesMut::new();
        frames.iter().for_each(|frame| frame.encode(&mut bytes));
        bytes.put_slice(&rest);
        let end = end_of(bytes.to_vec());
        prop_assert!(matches!(end, SessionEnd::ClientLeft | SessionEnd::Protocol(_)), "{:?}", end);
    }
}
