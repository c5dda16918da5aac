//! The API on TCP is not held shut by connections that never show the token.
#![allow(clippy::unwrap_used, reason = "tests")]

mod fake;

use std::time::Duration;

use fake::{FakeWorker, Running, app};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use torpor_api::client::{Client, Endpoint};
use torpor_api::token::Token;

/// Long enough for whatever comes.
const PATIENCE: Duration = Duration::from_secs(60);

async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    // A reset ends it as well.
    let read = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut text)).await.expect("it stays open");
    drop(read);
    text
}

async fn status(stream: &mut TcpStream) -> String {
    let mut answer = vec![0; 12];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer)).await.expect("no answer").unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_and_slow_connections_make_room() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "0123456789abcdef0123").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let token = Token::read(&file).unwrap();
    let running = Running::with_token(dir.path(), FakeWorker::new(), Some(token.clone())).await;
    let address = running.tcp.unwrap();
    // One that has shown the token, and stays.
    let request = "GET /v1/version HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer 0123456789abcdef0123\r\n\r\n";
    let mut known = TcpStream::connect(address).await.unwrap();
    known.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(status(&mut known).await, "HTTP/1.1 200");

    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET /v1/apps HTTP/1.1\r\nX-Wait:").await.unwrap();
    let mut half = TcpStream::connect(address).await.unwrap();
    half.write_all(b"GET /v1/apps HTTP/1.1\r\nAuthorization: Bearer 0123").await.unwrap();
    let mut held = Vec::new();
    for n in 0..300 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        if n % 2 == 0 {
            stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        }
        held.push(stream);
    }
    for stream in [&mut silent, &mut slow, &mut half] {
        assert_eq!(read_to_end(stream).await, "", "closed without an answer");
    }
    let client = Client::new(Endpoint::Tcp { address: address.to_string(), token });
    client.create(&app("web", 1), |_| ()).await.unwrap();
    assert_eq!(client.apps().await.unwrap().len(), 1);
    known.write_all(request.replace("Host", "Connection: close\r\nHost").as_bytes()).await.unwrap();
    let rest = read_to_end(&mut known).await;
    assert!(rest.contains("HTTP/1.1 200"), "the second answer on an old connection: {rest}");

    // A wrong token is answered, and ends the connection.
    let mut wrong = TcpStream::connect(address).await.unwrap();
    wrong.write_all(b"GET /v1/apps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer no\r\n\r\n").await.unwrap();
    let answer = read_to_end(&mut wrong).await;
    assert!(answer.starts_with("HTTP/1.1 401") && answer.to_lowercase().contains("connection: close"), "{answer}");
    drop(held);
    running.stop().await;
}
